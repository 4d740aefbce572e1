"""The speedrun: the least time from random weights to a good model, as a list of records.

python benchmarks/speedrun.py number-words                 all runs that are not done yet
python benchmarks/speedrun.py number-words --record 3      one record
python benchmarks/speedrun.py number-words --effects 2     each change alone, and left out; 2 seeds
MINITRANSFORMER_DATA=FOLDER python benchmarks/speedrun.py shakespeare   reads FOLDER, no download
python benchmarks/speedrun.py --table                      what came of it; trains nothing

The recipes stand in `speedrun_records.py`. A record counts when the mean of five seeds reaches the
target. To break one, add yours there and train it.

- The target must be reached at the end of the recipe's own schedule, after a number of steps that
  is decided before. No lucky moment counts. The seeds on which a recipe was looked for are others.
- The clock is CPU time of one thread, of training steps alone. A second says little on a machine
  with other work, so steps of the baseline are timed in between, in the same run: a record's cost
  is in steps of the baseline, and its ratio is that cost over the baseline's number of steps.
- The baseline is `torch.nn.Transformer` as it comes with the paper's recipe, in the fewest steps
  (in hundreds) in which it reaches the target.

Stop it when you like: what is done stands in `speedrun.jsonl`, and the same command goes on. Each
line is one run, an object:

- task, seed; kind: "record"; "alone", the change of a record added to the first one (the package
  with the baseline's recipe); "without", the last record without that change. The last two have
  the last record's number of steps.
- record: its name; number: its place in the list; recipe: all of it; plan: its fingerprint. Lines
  of another plan do not count.
- steps; cpu_seconds: of all training steps; baseline_step: CPU seconds of one of the baseline's,
  the mean of `PACES` timed in between, on batches of all lengths; cost: the first by the second.
- score: the share of all held-out pairs that are written without a mistake; nats: the held-out
  loss of a pair, summed over its tokens, of the first `HELD_OUT` pairs. Of Shakespeare both are
  nats a character, of all that is held out and of the first `HELD_OUT` rows.
- looks: step, CPU seconds and nats, `LOOKS` times.
- made: date, python, torch, minitransformer, threads, processor and its instructions.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ablations import append, fingerprint, made, mend
from speedrun_records import TASKS, Recipe, Task
from speedrun_training import held_out_nats, new_trainer, score_of, splits_of

from minitransformer.files import locked

SEEDS = (0, 1, 2, 3, 4)
LOOKS = 12
PACES = 24
HELD_OUT = 256
FILE = Path(__file__).with_suffix(".jsonl")
RECORD, ALONE, WITHOUT = "record", "alone", "without"


@dataclass(frozen=True)
class Run:
    """One training."""

    task: str
    kind: str
    record: int
    seed: int

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        task = TASKS[self.task]
        ways = {RECORD: task.recipe, ALONE: task.alone, WITHOUT: task.without}
        return ways[self.kind](self.record)

    @property
    def name(self) -> str:
        """Of the record whose changes it is about."""
        return TASKS[self.task].records[self.record].name

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What a line of the file is found by."""
        return self.task, self.kind, self.name, self.seed, plan_of(self.recipe)


Rows = dict[tuple[str, str, str, int, str], dict[str, Any]]


def plan_of(recipe: Recipe) -> str:
    """A fingerprint of all that is decided before a run: where a recipe differs from `Recipe()`."""
    usual = asdict(Recipe())
    chosen = {name: value for name, value in asdict(recipe).items() if value != usual[name]}
    return fingerprint([json.dumps(chosen, sort_keys=True)])


def read(path: Path) -> Rows:
    """The rows, the first where there are two; a torn last line does not count.

    Raises:
        ValueError: if another line is damaged.
    """
    rows: Rows = {}
    content = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            key = tuple(row[name] for name in ("task", "kind", "record", "seed", "plan"))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}, is no run: {line[:60]!r}") from error
        rows.setdefault(key, row)
    return rows


# --- a run


def is_due(step: int, steps: int, times: int) -> bool:
    """Whether something that happens so many times, evenly, happens at this step."""
    return step * times // steps > (step - 1) * times // steps


def num_tokens(batch: Any) -> int:
    """Of rows of a text, or of examples with two sides."""
    if isinstance(batch, torch.Tensor):
        return batch.numel()
    return sum(len(side) for example in batch for side in example)


def of_all_lengths(batches: Sequence[Any], count: int) -> Iterator[Any]:
    """So many batches, from short to long."""
    by_length = sorted(batches, key=num_tokens)
    for number in range(count):
        yield by_length[int((number + 0.5) * len(batches) / count)]


def timed_step(trainer: Any, batch: Any) -> float:
    """The CPU seconds of one step."""
    start = time.process_time()
    trainer.train_step(batch)
    return time.process_time() - start


def train(run: Run) -> dict[str, Any]:
    """One run from its beginning to its end, steps of the baseline in between; the row."""
    recipe, seed, baseline = run.recipe, run.seed, TASKS[run.task].recipe(0)
    trainer = new_trainer(run.task, recipe, seed)
    held_out, tokenizers = splits_of(run.task, seed)["held_out"], tuple(trainer.tokenizers.values())
    pacer = new_trainer(run.task, baseline, seed)
    paces = of_all_lengths(pacer.epoch(0), PACES)
    timed_step(pacer, pacer.epoch(0)[0])  # a program's first step does what the others need not
    seconds, pace, looks = 0.0, 0.0, []
    for batch in trainer.batches():
        seconds += timed_step(trainer, batch)
        if recipe != baseline and is_due(trainer.step, recipe.steps, PACES):
            pace += timed_step(pacer, next(paces)) / PACES
        if is_due(trainer.step, recipe.steps, LOOKS):
            nats = held_out_nats(trainer.averaged(), held_out[:HELD_OUT], tokenizers)
            looks.append([trainer.step, round(seconds, 2), round(nats, 4)])
        if trainer.step == recipe.steps:
            break
    pace = pace or seconds / recipe.steps  # the baseline is its own
    return {
        "task": run.task,
        "kind": run.kind,
        "record": run.name,
        "number": run.record,
        "seed": seed,
        "plan": plan_of(recipe),
        "recipe": asdict(recipe),
        "steps": recipe.steps,
        "cpu_seconds": round(seconds, 2),
        "baseline_step": round(pace, 5),
        "cost": round(seconds / pace, 1),
        "score": score_of(trainer.averaged(), held_out, tokenizers),
        "nats": looks[-1][-1],
        "looks": looks,
        "made": made(),
    }


def runs_of(
    task: str, record: int | None = None, *, seeds: Sequence[int] = SEEDS, effects: int = 0
) -> Iterator[Run]:
    """All runs of a task, or of one record, in their order; the first seed of all comes first."""
    numbers = range(len(TASKS[task].records))
    chosen = numbers if record is None else [record]
    for seed in seeds:
        yield from (Run(task, RECORD, number, seed) for number in chosen)
    for seed in seeds[:effects]:
        for kind in (ALONE, WITHOUT):
            # Nothing but the first record alone, and the last without nothing: what to compare to.
            yield from (Run(task, kind, number, seed) for number in numbers[1:])


# --- the table


def of_seeds(rows: Rows, task: str, kind: str, number: int) -> list[dict[str, Any]]:
    """The rows of a record, or of its effect, in the order of their seeds."""
    key = Run(task, kind, number, 0).key
    found = [row for (*names, _, plan), row in rows.items() if (*names, plan) == (*key[:3], key[4])]
    return sorted(found, key=lambda row: row["seed"])


def ratio(rows: Rows, task: str, number: int) -> float | None:
    """The mean cost of a record as a share of the baseline's steps; None where it has no rows."""
    costs = [row["cost"] for row in of_seeds(rows, task, RECORD, number)]
    return statistics.mean(costs) / TASKS[task].recipe(0).steps if costs else None


def effect(task: Task, found: Sequence[dict[str, Any]]) -> str:
    """Cells of mean score, held-out nats, and cost; of nothing where there are no rows."""
    if not found:
        return "| | | "
    means = {
        name: statistics.mean(row[name] for row in found) for name in ("score", "nats", "cost")
    }
    return f"| {task.shown(means['score'])} | {means['nats']:.3f} | {means['cost']:.0f} "


def records_table(rows: Rows, task: Task) -> list[str]:
    """A line for each record that has been trained; "!" where it misses the target."""
    lines = ["| | record | steps | right (worst) | seeds | cost | ratio |", "|" + " --- |" * 7]
    for number, record in enumerate(task.records):
        found = of_seeds(rows, task.name, RECORD, number)
        if found:
            scores, costs = ([row[what] for row in found] for what in ("score", "cost"))
            mean, steps = statistics.mean(scores), task.recipe(number).steps
            worst = max(scores) if task.target > 1 else min(scores)
            right = f"{task.shown(mean)} ({task.shown(worst)})" + " !" * (not task.reached(mean))
            cost = f"{statistics.mean(costs):.0f} | {ratio(rows, task.name, number):.2f}"
            lines.append(
                f"| {number} | {record.name} | {steps} | {right} | {len(found)} | {cost} |"
            )
    return lines if len(lines) > 2 else ["no record has been trained"]


def effects_table(rows: Rows, task: Task) -> list[str]:
    """A line for each change that has been trained alone or been left out."""
    names = "| change | alone: right | nats | cost | left out: right | nats | cost |"
    lines = [names, "|" + " --- |" * 7]
    for number, record in enumerate(task.records[1:], start=1):
        kinds = [of_seeds(rows, task.name, kind, number) for kind in (ALONE, WITHOUT)]
        if any(kinds):
            lines.append(f"| {record.name} {''.join(effect(task, kind) for kind in kinds)}|")
    return lines if len(lines) > 2 else ["no effect has been measured"]


def table(rows: Rows) -> str:
    """The records of all tasks, and what each change does alone and left out, as Markdown."""
    lines: list[str] = []
    for name, task in TASKS.items():
        lines += ["", f"**{name}**, target {task.shown(task.target)}", ""]
        lines += [*records_table(rows, task), "", *effects_table(rows, task)]
    return "\n".join(lines[1:])


# --- the program


def main() -> None:
    """Train what is missing, or print the table."""
    parser = argparse.ArgumentParser(description="the least time to a good model")
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--record", type=int, help="this record alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--effects", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--table", action="store_true", help="print it; train nothing")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    if args.table:
        print(table(read(args.out)))
        return
    torch.set_num_threads(1)
    with locked(args.out):
        mend(args.out)
        rows = read(args.out)
        for task in args.tasks:
            for run in runs_of(task, args.record, seeds=args.seeds, effects=args.effects):
                if run.key not in rows:
                    rows[run.key] = row = train(run)
                    append(args.out, row)
                    shown = {name: row[name] for name in ("steps", "cost", "score", "nats")}
                    print(run.task, run.kind, run.name, run.seed, shown, flush=True)


if __name__ == "__main__":
    main()
