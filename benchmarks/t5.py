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

python benchmarks/t5.py                     three seeds: about half an hour of one core
python benchmarks/t5.py --quick --out FILE  seconds, for tests: its numbers mean nothing

The file is written after every seed from the second on. What was stopped goes on: runs that are
done stand in FILE.partial.json until all are.

The results file is one JSON object:

- made: date, python, torch, minitransformer, threads, cpu_minutes, and quick, which is true where
  the numbers mean nothing.
- model: what all have in common, as `T5Config` names it, and parameters.
- training: steps, batch_size, rate, pairs of each task.
- few: pairs, steps and pre_training_steps.
- tasks, seeds: their names; the numbers.
- runs: by kind ("shared", "own, same steps", "own, same pairs", "few, scratch", "few, gaps",
  "few, longer"), by task: loss (nats a token on held-out pairs) and right (the share of held-out
  pairs written without a mistake), a list with a number for each seed.
- comparisons: a list; each row is `first` minus `second`, two kinds, at one task or at "all", their
  mean; below zero the first has the lower loss:
    differences: of the losses, one for each seed; difference: their mean.
    low, high: its 95 % interval (Student's, over seeds).
    excludes_zero: whether the interval does. Of twenty without any difference one would.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from minitransformer import (
    Example,
    TextPair,
    WordPieceTokenizer,
    collate,
    cosine_schedule,
    encode_pairs,
    epoch_batches,
    generate,
    next_token_loss,
)
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
QUICK_TRAINING = {"steps": 12, "batch_size": 2, "pairs": 60}
QUICK_FEW = {"pairs": 12, "steps": 2, "pre_training_steps": 2}
VOCAB_SIZE, NUM_SENTINELS, NUM_HELD_OUT = 1000, 16, 150
FEW_TASKS = ("translate", "question")
KINDS = ("shared", "own, same steps", "own, same pairs", "few, scratch", "few, gaps", "few, longer")
COMPARISONS = [
    ("shared", "own, same steps"),
    ("shared", "own, same pairs"),
    ("few, gaps", "few, scratch"),
    ("few, gaps", "few, longer"),
]
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % of Student's distribution lies below, with 1 to 9 degrees of freedom."""

Scores = dict[str, dict[str, float]]


class Seed:
    """The data of one seed, and the models that are trained on them.

    Args:
        seed: of data, starting values and the order of batches.
        training: see `TRAINING`.
        few: see `FEW`.
        quick: whether only the file's shape matters.
    """

    def __init__(self, seed: int, training: dict[str, Any], few: dict[str, Any], quick: bool):
        self.seed, self.training, self.few = seed, training, few
        num_held_out = 3 if quick else NUM_HELD_OUT
        self.tasks = text_to_text(seed, num_train=training["pairs"], num_held_out=num_held_out)
        # Few numbers, so that their parts become tokens and not they themselves.
        texts = (
            text
            for name, splits in self.tasks.items()
            for pair in splits["train"][: 300 if name.startswith("to ") else 3000]
            for text in pair
        )
        self.tokenizer = WordPieceTokenizer.train(texts, VOCAB_SIZE)
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

    def pairs(self, task: str, split: str = "train") -> list[TextPair]:
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
                examples.append(Example([*source, end], [self.config.start_id, *target, end]))
            self.gaps = self.fresh()
            self.train(self.gaps, examples, self.few["pre_training_steps"])
        return deepcopy(self.gaps)

    def plain_texts(self) -> list[str]:
        """Sentences in both languages, each by itself: nobody says which belong together."""
        rest = slice(self.few["pairs"], None)
        texts = [text for pair in self.tasks["translate"]["train"][rest] for text in pair]
        texts += [pair.src for pair in self.tasks["summary"]["train"][rest]]
        bare = [text.removeprefix("translate: ").removeprefix("summarise: ") for text in texts]
        return [text for text in bare if len(self.tokenizer.encode(text)) > 1]

    def run(self, kind: str, task: str) -> Scores:
        """Train one model, and measure it on each task that it was trained for."""
        steps, pairs, model = self.training["steps"], self.pairs(task), self.fresh()
        if kind == "own, same pairs":
            steps //= len(self.tasks)
        elif kind.startswith("few"):
            pairs, steps = pairs[: self.few["pairs"]], self.few["steps"]
            if kind == "few, gaps":
                model = self.with_gaps()
            elif kind == "few, longer":
                steps += self.few["pre_training_steps"]
        self.train(model, encode_pairs(pairs, self.tokenizer, self.tokenizer, self.config), steps)
        measured = list(self.tasks) if task == "all" else [task]
        return {name: self.scores(model, self.pairs(name, "held_out")) for name in measured}

    def train(self, model: T5, examples: Sequence[Example], steps: int) -> None:
        """Train in place, with a warm-up and a cosine fall."""
        # Steps are relative to each weight's size, as the authors had them: embeddings start at 1.
        optimizer = torch.optim.Adafactor(model.parameters())
        step = epoch = 0
        model.train()
        while step < steps:
            size = self.training["batch_size"]
            for batch in epoch_batches(examples, size, seed=self.seed, epoch=epoch):
                step += 1
                optimizer.zero_grad()
                next_token_loss(model, *collate(batch)).backward()
                optimizer.param_groups[0]["lr"] = cosine_schedule(
                    step,
                    peak=self.training["rate"],
                    warmup_steps=max(1, steps // 10),
                    total_steps=steps,
                )
                optimizer.step()
                if step == steps:
                    break
            epoch += 1

    @torch.no_grad()
    def scores(self, model: T5, pairs: Sequence[TextPair]) -> dict[str, float]:
        """The loss, in nats a token, and the share of targets written without a mistake."""
        src, tgt, wanted = collate(encode_pairs(pairs, self.tokenizer, self.tokenizer, self.config))
        loss = next_token_loss(model.eval(), src, tgt, wanted).item()
        stop_ids = [self.tokenizer.eos_id]
        written = generate(model, src, max_new_tokens=40, stop_ids=stop_ids)
        # No tokenizer knows the sentinels; an answer that holds one is wrong.
        written[written >= self.tokenizer.vocab_size] = self.tokenizer.unk_id
        answers = map(self.tokenizer.decode, written.tolist())
        right = sum(answer == pair.tgt for answer, pair in zip(answers, pairs, strict=True))
        return {"loss": loss, "right": right / len(pairs)}


class Measurement:
    """Runs that are not lost: each is done once, and written down.

    Args:
        out: where the results will be.
        quick: whether only the file's shape matters.
    """

    def __init__(self, out: Path, quick: bool) -> None:
        self.quick = quick
        self.training = TRAINING | (QUICK_TRAINING if quick else {})
        self.few = FEW | (QUICK_FEW if quick else {})
        self.partial = out.with_suffix(".partial.json")
        self.plan = [SHAPE, self.training, self.few, torch.__version__]
        self.runs: dict[str, Any] = {}
        if self.partial.exists():
            found = json.loads(self.partial.read_text(encoding="utf-8"))
            self.runs = found["runs"] if found["plan"] == self.plan else {}

    def results(self, seeds: Sequence[int]) -> dict[str, Any]:
        """All that the results file holds; what is not measured yet is measured now."""
        runs: dict[str, dict[str, dict[str, list[float]]]] = {kind: {} for kind in KINDS}
        for seed in seeds:
            data: Seed | None = None
            for kind in KINDS:
                few = kind.startswith("few")
                for task in ["all"] if kind == "shared" else FEW_TASKS if few else self.tasks():
                    key = f"{kind}, {task}, {seed}"
                    if key not in self.runs:
                        data = data or Seed(seed, self.training, self.few, self.quick)
                        start = time.process_time()
                        scores = data.run(kind, task)
                        seconds = time.process_time() - start
                        self.runs[key] = {"scores": scores, "seconds": seconds}
                        write(self.partial, {"plan": self.plan, "runs": self.runs})
                        print(f"{key:<32} {seconds:5.0f} s  {scores}", flush=True)
                    for name, found in self.runs[key]["scores"].items():
                        row = runs[kind].setdefault(name, {"loss": [], "right": []})
                        for measure, number in found.items():
                            row[measure].append(number)
        seconds = sum(run["seconds"] for run in self.runs.values())
        model = T5(T5Config(vocab_size=VOCAB_SIZE + NUM_SENTINELS, **SHAPE))
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return {
            "made": {
                "date": date.today().isoformat(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "minitransformer": version("minitransformer"),
                "threads": torch.get_num_threads(),
                "cpu_minutes": round(seconds / 60, 1),
                "quick": self.quick,
            },
            "model": SHAPE | {"parameters": parameters},
            "training": self.training,
            "few": self.few,
            "tasks": self.tasks(),
            "seeds": list(seeds),
            "runs": runs,
            "comparisons": [row for kinds in COMPARISONS for row in compared(runs, *kinds)],
        }

    def tasks(self) -> list[str]:
        """The names of the tasks."""
        return list(text_to_text(num_train=1, num_held_out=1))


def compared(runs: dict[str, Any], first: str, second: str) -> list[dict[str, Any]]:
    """Two kinds of run at each task that both have, and at all of them, paired by seeds."""
    by_task = {
        task: [a - b for a, b in zip(row["loss"], runs[second][task]["loss"], strict=True)]
        for task, row in runs[first].items()
    }
    by_task["all"] = [statistics.mean(column) for column in zip(*by_task.values(), strict=True)]
    rows = []
    for task, differences in by_task.items():
        mean = statistics.mean(differences)
        half = STUDENT[len(differences) - 2] * statistics.stdev(differences)
        half /= math.sqrt(len(differences))
        rows.append(
            {
                "first": first,
                "second": second,
                "task": task,
                "differences": differences,
                "difference": mean,
                "low": mean - half,
                "high": mean + half,
                "excludes_zero": abs(mean) > half,
            }
        )
    return rows


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, so that the file is whole whenever it is read."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, path)


def main() -> None:
    """Train what is missing, write the results, and print the comparisons."""
    parser = argparse.ArgumentParser(description="one model for six tasks, or one for each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="2 to 10")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    if not 2 <= len(args.seeds) <= len(STUDENT) + 1:
        parser.error(f"--seeds must be 2 to {len(STUDENT) + 1}, got {len(args.seeds)}")
    measurement = Measurement(args.out, args.quick)
    for count in range(2, len(args.seeds) + 1):
        results = measurement.results(args.seeds[:count])
        write(args.out, results)
    measurement.partial.unlink()
    print("loss, nats a token: the first minus the second, and its 95 % interval")
    for row in results["comparisons"]:
        numbers = "  ".join(f"{row[key]:+.3f}" for key in ("difference", "low", "high"))
        star = "*" if row["excludes_zero"] else ""
        print(f"{row['first']:<10}  {row['second']:<16}  {row['task']:<10}  {numbers} {star}")


if __name__ == "__main__":
    main()
