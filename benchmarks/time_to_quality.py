"""How long training takes until a model is good: ours beside `torch.nn.Transformer`.

pip install -r benchmarks/requirements.txt
python benchmarks/time_to_quality.py number_words            seeds 0, 1 and 2
python benchmarks/time_to_quality.py grammar 0
python benchmarks/time_to_quality.py multi30k                reads the data as multi30k.py does

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

import grammar
import multi30k
import torch
from torch import nn
from torch_transformer import TorchTransformer, torch_loss

from minitransformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    Translator,
    grammar_sentences,
    number_words,
)
from minitransformer.tasks.recipes import JOBS

EVERY = 50  # steps between two judgements
OURS, TORCHS = "ours", "torch.nn"


def as_ours(model: nn.Module, like: Transformer) -> Transformer:
    """The model itself, or torch's weights in a model of ours."""
    if isinstance(model, Transformer):
        return model
    copy = Transformer(like.config)
    with torch.no_grad():
        for theirs, own in model.pairs(copy):
            own.copy_(theirs)
    return copy


def number_words_task(seed: int) -> tuple[Trainer, Callable[[Transformer], float], float]:
    """The trainer of chapter 9, its judge, and the goal."""
    trainer = JOBS["number-words"].new_trainer(TrainingConfig(seed=seed))
    pairs, tokenizers = number_words(seed)["held_out"], trainer.tokenizers.values()
    return trainer, lambda model: Translator(model, *tokenizers).exact_match(pairs), 0.995


def grammar_task(seed: int) -> tuple[Trainer, Callable[[Transformer], float], float]:
    """The trainer of grammar.py, with the positions that torch.nn's layers can have."""
    config = TrainingConfig(steps=grammar.STEPS, batch_size=96, label_smoothing=0.0, seed=seed)
    trainer = grammar.new_trainer(config, positional_encoding="sinusoidal")
    splits, tokenizers = grammar_sentences(seed, num_train=1), trainer.tokenizers.values()
    return (
        trainer,
        lambda model: Translator(model, *tokenizers).exact_match(splits["held_out"]),
        0.98,
    )


def multi30k_task(seed: int) -> tuple[Trainer, Callable[[Transformer], float], float]:
    """The first recipe of multi30k.py; its judge is BLEU, and no goal but the last step."""
    recipe, splits = multi30k.RECIPES["Adam"], multi30k.multi30k("de", "en")
    options = recipe.model | {"positional_encoding": "sinusoidal"}
    trainer = multi30k.new_trainer(replace(recipe, model=options), seed, splits["train"])
    pairs, tokenizers = splits[multi30k.TEST], list(trainer.tokenizers.values())
    return trainer, lambda model: multi30k.bleu_score(model, tokenizers, pairs), math.inf


TASKS = {"number_words": number_words_task, "grammar": grammar_task, "multi30k": multi30k_task}


def race(task: str, seed: int) -> dict[str, tuple[int, float, float]]:
    """Train both in turn; for each the step, the seconds and the score at the goal."""
    ours, judge, goal = TASKS[task](seed)
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
                score = judge(as_ours(trainer.model, ours.model))
                if last or score >= goal:
                    finished[name] = trainer.step, seconds[name], score
                    del running[name]
        if not running:
            return finished
    raise AssertionError("batches end only with the training")


def main() -> None:
    """Print a row for each seed, and the mean ratio."""
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
