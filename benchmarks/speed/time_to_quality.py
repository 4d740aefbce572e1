"""How long training takes until a model is good: ours beside `torch.nn.Transformer`.

pip install -r benchmarks/requirements.txt
python -m benchmarks.speed.time_to_quality number-words   seeds 0, 1 and 2
python -m benchmarks.speed.time_to_quality grammar 0
python -m benchmarks.speed.time_to_quality multi30k       reads the data as multi30k.py does

Both models begin with the same weights and see the same batches in turn, one step each, with the
same optimiser, schedule and loss. torch.nn.Transformer is taken as it comes: what it is given as
dropout it applies inside attention and feed-forward networks too. Only their own steps are timed.
Both are judged with the same decoder every 50 steps, until they have reached the goal; on
Multi30k, at the end.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from benchmarks.speed.torch_transformer import TorchTransformer, as_ours, torch_loss
from minitransformer import Trainer, TrainingConfig, Transformer, Translator
from minitransformer.tasks.recipes import JOBS

EVERY = 50  # steps between two judgements
OURS, TORCHS = "ours", "torch.nn"


Judge = Callable[[Transformer], float]


def exact_match(trainer: Trainer, seed: int, task: str) -> Judge:
    """A judge by the share of held-out pairs that are translated without a mistake."""
    pairs = JOBS[task].splits(seed)["held_out"]
    tokenizers = trainer.tokenizers.values()
    return lambda model: Translator(model, *tokenizers).exact_match(pairs)


def bleu(trainer: Trainer, seed: int, task: str) -> Judge:
    """A judge by BLEU on Multi30k's test split."""
    from benchmarks.experiments.multi30k import TEST, bleu_score  # it needs sacrebleu

    pairs = JOBS[task].splits(seed)[TEST]
    tokenizers = list(trainer.tokenizers.values())
    return lambda model: bleu_score(model, tokenizers, pairs)


TASKS = {
    "number-words": (exact_match, 0.995),
    "grammar": (exact_match, 0.98),
    "multi30k": (bleu, math.inf),
}
"""How a task is judged, and its goal; none is infinite: only the last step is judged then."""


def new_trainer(task: str, seed: int) -> Trainer:
    """The recipe of a task, with the positions that torch.nn's layers can have."""
    job = JOBS[task]
    job = replace(job, model=job.model | {"positional_encoding": "sinusoidal"})
    return job.new_trainer(TrainingConfig(seed=seed, **job.settings))


def race(task: str, seed: int) -> dict[str, tuple[int, float, float]]:
    """Train both in turn; for each the step, the seconds and the score at the goal."""
    judged_by, goal = TASKS[task]
    ours = new_trainer(task, seed)
    judge = judged_by(ours, seed, task)
    twin = TorchTransformer(ours.model, dropout_inside=True)
    theirs = Trainer(twin, ours.texts, *ours.tokenizers.values(), ours.config)
    vars(theirs)["loss"] = partial(torch_loss, theirs)
    running, seconds = {OURS: ours, TORCHS: theirs}, {OURS: 0.0, TORCHS: 0.0}
    finished: dict[str, tuple[int, float, float]] = {}
    for batch in ours.batches():
        for name, trainer in list(running.items()):
            start = time.perf_counter()
            trainer.train_step(batch)
            seconds[name] += time.perf_counter() - start
            last = trainer.step == trainer.config.steps
            if last or (goal < math.inf and trainer.step % EVERY == 0):
                score = judge(as_ours(trainer.model))
                if last or score >= goal:
                    finished[name] = trainer.step, seconds[name], score
                    del running[name]
        if not running:
            return finished
    raise AssertionError("batches end only with the training")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to quality beside torch.nn.Transformer.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    print(f"{args.task}: torch {torch.__version__}, {torch.get_num_threads()} threads")
    ratios = []
    for seed in args.seeds:
        finished = race(args.task, seed)
        ratios.append(finished[OURS][1] / finished[TORCHS][1])
        rows = ", ".join(
            f"{name} {step} steps, {seconds / 60:.2f} minutes, score {score:.4g}"
            for name, (step, seconds, score) in finished.items()
        )
        print(f"seed {seed}: {rows}, ours / torch.nn {ratios[-1]:.2f}", flush=True)
    print(f"mean ratio {statistics.mean(ratios):.2f}")


if __name__ == "__main__":
    main()
