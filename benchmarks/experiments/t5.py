"""One model for six tasks, or a model for each? And do texts with gaps help where pairs are few?

Every model is the same small `T5`, trained with Adafactor on the tasks of `text_to_text`, without
dropout and without label smoothing.

- shared: one model, on all tasks in turn.
- own, same steps: a model for each task, each with as many steps as the shared one. Together they
  take six times its work, and see each pair six times as often.
- own, same pairs: a model for each task with a sixth of the steps. Together they take its work,
  and see each pair as often.
- few pairs: a model for each of two tasks on few pairs; from scratch, after span corruption of
  sentences in both languages, or from scratch with the steps of both.

All have one peak rate, found in short runs of a shared model; nobody looked for a better one for
the others.

python -m benchmarks.experiments.t5   three seeds: about half an hour of one core
"""

import random
import statistics
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch

import minitransformer as mt
from benchmarks.runs import EncodedPairs, Row, Runs, options, paired, size
from minitransformer.models import T5, T5Config
from minitransformer.tasks.span_corruption import corrupt_spans, draw_spans
from minitransformer.tasks.text_to_text import text_to_text

SHAPE: dict[str, Any] = {
    "d_model": 128,
    "d_k": 32,
    "num_heads": 4,
    "d_ff": 512,
    "num_encoder_layers": 2,
}
TRAINING = {"steps": 600, "batch_size": 32, "rate": 3e-2, "pairs": 6000}
FEW = {"pairs": 300, "steps": 100, "pre_training_steps": 300}
VOCAB_SIZE, NUM_SENTINELS, NUM_HELD_OUT = 1000, 16, 150
FEW_TASKS = ("translate", "question")
KINDS = ("shared", "own, same steps", "own, same pairs", "few, scratch", "few, gaps", "few, longer")
COMPARISONS = [
    ("shared", "own, same steps"),
    ("shared", "own, same pairs"),
    ("few, gaps", "few, scratch"),
    ("few, gaps", "few, longer"),
]
Scores = dict[str, dict[str, float]]


class Seed:
    """The data of one seed, and the models that are trained on them.

    Args:
        seed: of data, starting values and the order of batches.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.tasks = text_to_text(seed, num_train=TRAINING["pairs"], num_held_out=NUM_HELD_OUT)
        # Few numbers, so that their parts become tokens and not they themselves.
        texts = (
            text
            for name, splits in self.tasks.items()
            for pair in splits["train"][: 300 if name.startswith("to ") else 3000]
            for text in pair
        )
        self.tokenizer = mt.WordPieceTokenizer.train(texts, VOCAB_SIZE)
        self.config = T5Config(
            vocab_size=self.tokenizer.vocab_size + NUM_SENTINELS,
            **SHAPE,
            dropout=0.0,
            start_id=self.tokenizer.bos_id,
        )
        self.gaps: T5 | None = None

    def fresh(self) -> T5:
        """A model that has learned nothing."""
        return T5(self.config, torch.Generator().manual_seed(self.seed))

    def pairs(self, task: str, split: str = "train") -> list[mt.TextPair]:
        """The pairs of a task, or of all."""
        names = list(self.tasks) if task == "all" else [task]
        return [pair for name in names for pair in self.tasks[name][split]]

    def with_gaps(self) -> T5:
        """A model that has learned to fill gaps; it is trained once."""
        if self.gaps is None:
            generator = random.Random(self.seed)
            last = self.config.vocab_size - 1
            sentinels = range(last, last - NUM_SENTINELS, -1)
            examples = []
            for text in self.plain_texts():
                ids = self.tokenizer.encode(text)
                source, target = corrupt_spans(ids, draw_spans(len(ids), generator), sentinels)
                end = self.tokenizer.eos_id
                examples.append(mt.Example([*source, end], [self.config.start_id, *target, end]))
            self.gaps = self.fresh()
            self.train(self.gaps, examples, FEW["pre_training_steps"])
        return deepcopy(self.gaps)

    def plain_texts(self) -> list[str]:
        """Sentences in both languages, each by itself: nobody says which belong together."""
        rest = slice(FEW["pairs"], None)
        texts = [text for pair in self.tasks["translate"]["train"][rest] for text in pair]
        texts += [pair.src for pair in self.tasks["summary"]["train"][rest]]
        bare = [text.removeprefix("translate: ").removeprefix("summarise: ") for text in texts]
        return [text for text in bare if len(self.tokenizer.encode(text)) > 1]

    def run(self, kind: str, task: str) -> Scores:
        """Train one model, and measure it on each task that it was trained for."""
        steps = TRAINING["steps"]
        pairs = self.pairs(task)
        model = self.fresh()
        if kind == "own, same pairs":
            steps //= len(self.tasks)
        elif kind.startswith("few"):
            pairs = pairs[: FEW["pairs"]]
            steps = FEW["steps"]
            if kind == "few, gaps":
                model = self.with_gaps()
            elif kind == "few, longer":
                steps += FEW["pre_training_steps"]
        self.train(
            model, mt.encode_pairs(pairs, self.tokenizer, self.tokenizer, self.config), steps
        )
        measured = list(self.tasks) if task == "all" else [task]
        return {name: self.scores(model, self.pairs(name, "held_out")) for name in measured}

    def train(self, model: T5, examples: Sequence[mt.Example], steps: int) -> None:
        """Train in place, with a warm-up and a cosine fall, without clipping."""
        config = mt.TrainingConfig(
            steps=steps,
            batch_size=TRAINING["batch_size"],
            warmup_steps=max(1, steps // 10),
            peak_learning_rate=TRAINING["rate"],
            label_smoothing=0.0,
            max_gradient_norm=1e9,
            seed=self.seed,
        )
        tokenizers = {"src": self.tokenizer, "tgt": self.tokenizer}
        trainer = EncodedPairs(model, examples, tokenizers, config)
        # Steps are relative to each weight's size, as the authors had them: embeddings start at 1.
        trainer.optimizer = torch.optim.Adafactor(model.parameters())
        trainer.fit(progress=False)

    @torch.no_grad()
    def scores(self, model: T5, pairs: Sequence[mt.TextPair]) -> dict[str, float]:
        """The loss, in nats a token, and the share of targets written without a mistake."""
        src, tgt, wanted = mt.collate(
            mt.encode_pairs(pairs, self.tokenizer, self.tokenizer, self.config)
        )
        loss = mt.next_token_loss(model.eval(), src, tgt, wanted).item()
        stop_ids = [self.tokenizer.eos_id]
        written = mt.generate(model, src, max_new_tokens=40, stop_ids=stop_ids)
        # No tokenizer knows the sentinels; an answer that holds one is wrong.
        written[written >= self.tokenizer.vocab_size] = self.tokenizer.unk_id
        answers = map(self.tokenizer.decode, written.tolist())
        right = sum(answer == pair.tgt for answer, pair in zip(answers, pairs, strict=True))
        return {"loss": loss, "right": right / len(pairs)}


def measured(runs: Runs, seeds: Sequence[int]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The scores of all runs by kind and task, a list with a number for each seed."""
    data = {seed: Seed(seed) for seed in seeds}
    found: dict[str, dict[str, dict[str, list[float]]]] = {kind: {} for kind in KINDS}

    def scores(kind: str, task: str, seed: int) -> Scores:
        return data[seed].run(kind, task)

    for kind in KINDS:
        few = kind.startswith("few")
        for task in ["all"] if kind == "shared" else FEW_TASKS if few else data[seeds[0]].tasks:
            found[kind] |= runs.of_seeds(f"{kind}, {task}", partial(scores, kind, task), seeds)
    return found


def compared(runs: Row, first: str, second: str) -> list[Row]:
    """Two kinds of run at each task that both have, and at all of them, paired by seeds."""
    losses = {task: (row["loss"], runs[second][task]["loss"]) for task, row in runs[first].items()}
    means = [
        [statistics.mean(column) for column in zip(*side, strict=True)]
        for side in zip(*losses.values(), strict=True)
    ]
    rows = []
    for task, (ours, others) in {**losses, "all": means}.items():
        row = {"first": first, "second": second, "task": task, **paired(ours, others)}
        rows.append(row | {"excludes_zero": row["low"] > 0 or row["high"] < 0})
    return rows


def main() -> None:
    args = options(__doc__, "t5.json", range(3)).parse_args()
    runs = Runs(args.out, SHAPE, TRAINING, FEW, torch.__version__)
    found = measured(runs, args.seeds)
    model = T5(T5Config(vocab_size=VOCAB_SIZE + NUM_SENTINELS, **SHAPE))
    results = {
        "model": SHAPE | {"parameters": size(model)},
        "training": TRAINING,
        "few": FEW,
        "tasks": list(text_to_text(num_train=1, num_held_out=1)),
        "seeds": args.seeds,
        "runs": found,
        "comparisons": [row for kinds in COMPARISONS for row in compared(found, *kinds)],
    }
    runs.finish(results)
    print("loss, nats a token: the first minus the second, and its 95 % interval")
    for row in results["comparisons"]:
        numbers = "  ".join(f"{row[key]:+.3f}" for key in ("difference", "low", "high"))
        star = "*" if row["excludes_zero"] else ""
        print(f"{row['first']:<10}  {row['second']:<16}  {row['task']:<10}  {numbers} {star}")


if __name__ == "__main__":
    main()
