"""The speedrun: the least time from random weights to a good model, as a list of records.

python -m benchmarks.experiments.speedrun number-words               all runs that are missing
python -m benchmarks.experiments.speedrun number-words --record 3    one record
python -m benchmarks.experiments.speedrun number-words --effects 2   each change alone, and left out
python -m benchmarks.experiments.speedrun --table                    what came of it; trains nothing
MINITRANSFORMER_DATA=FOLDER python -m benchmarks.experiments.speedrun shakespeare   no download

The recipes stand in `speedrun_records.py`. A record counts when the mean of five seeds reaches the
target. To break one, add yours there and train it.

- The target must be reached at the end of the recipe's own schedule, after a number of steps that
  is decided before. No lucky moment counts. The seeds on which a recipe was looked for are others.
- The clock is CPU time of one thread, of training steps alone. A second says little on a machine
  with other work, so steps of the baseline are timed in between, in the same run: a record's cost
  is in steps of the baseline, and its ratio is that cost over the baseline's number of steps.
- The baseline is `torch.nn.Transformer` as it comes with the paper's recipe, in the fewest steps
  (in hundreds) in which it reaches the target.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import minitransformer as mt
from benchmarks import runs
from benchmarks.experiments.speedrun_records import TASKS, Recipe, Task
from benchmarks.runs import options
from benchmarks.speed import torch_transformer as twins
from minitransformer.tasks.recipes import JOBS, start_as_identity

SEEDS = (0, 1, 2, 3, 4)
LOOKS = 12
PACES = 24
HELD_OUT = 256
RECORD, ALONE, WITHOUT = "record", "alone", "without"
CONTEXT = 64
PAIRS = {"num_encoder_layers": 2, "num_decoder_layers": 2, "max_len": 128}
TEXT = {"num_encoder_layers": 0, "num_decoder_layers": 4, "max_len": CONTEXT}
SHAPES = {"shakespeare": TEXT | {"share_embeddings": True}}
"""Of a task's models, what no recipe changes; `PAIRS` where it is not named."""
ADDRESS = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


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
        return self.task, self.kind, self.name, self.seed, plan(self.recipe)


Rows = dict[tuple[str, str, str, int, str], runs.Row]


def plan(recipe: Recipe) -> str:
    """The fingerprint of what a recipe changes in `Recipe()`."""
    usual = asdict(Recipe())
    changed = {name: value for name, value in asdict(recipe).items() if value != usual[name]}
    return runs.fingerprint([json.dumps(changed, sort_keys=True)])


def read(path: Path) -> Rows:
    """All rows."""
    names = "task", "kind", "record", "seed", "plan"
    return runs.read_rows(path, lambda row: tuple(row[name] for name in names))


# --- how a recipe trains: its data, its model and its trainer


def shakespeare(seed: int = 0) -> dict[str, list[Any]]:
    """Plays of Shakespeare: nine tenths of the text to learn, the rest to be measured on.

    The last tenth is held out, in pieces of `CONTEXT` characters and the one that follows. The seed
    draws nothing here.
    """
    path = runs.downloaded("tinyshakespeare", "input.txt", ADDRESS, SHA256)
    text = path.read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    starts = range(cut, len(text) - CONTEXT, CONTEXT)
    return {"train": [text[:cut]], "held_out": [text[i : i + CONTEXT + 1] for i in starts]}


SPLITS = {
    "number-words": JOBS["number-words"].splits,
    "grammar": JOBS["grammar"].splits,
    "shakespeare": shakespeare,
}


@lru_cache(maxsize=2)
def splits_of(task: str, seed: int) -> dict[str, list[Any]]:
    """Texts, or pairs of them, for training and held out; the seed draws pairs."""
    return SPLITS[task](seed)


@lru_cache(maxsize=4)
def tokenizers_of(task: str, seed: int, target_tokens: int | None) -> tuple[mt.Tokenizer, ...]:
    """Characters of a text; words of a source, and subwords or words of its target."""
    texts = splits_of(task, seed)["train"]
    if isinstance(texts[0], str):
        return (mt.CharacterTokenizer.train(texts),)
    src, tgt = zip(*texts, strict=True)
    target = (
        mt.BPETokenizer.train(tgt, target_tokens) if target_tokens else mt.WordTokenizer.train(tgt)
    )
    return mt.WordTokenizer.train(src), target


def new_model(task: str, recipe: Recipe, vocab_sizes: tuple[int, ...], seed: int) -> Any:
    """A fresh model; both libraries start with the same weights."""
    names = "d_model", "num_heads", "d_ff", "dropout", "positional_encoding"
    options: dict[str, Any] = {name: getattr(recipe, name) for name in names}
    options |= {"norm_first": True} | SHAPES.get(task, PAIRS)
    config = mt.TransformerConfig(
        src_vocab_size=vocab_sizes[0], tgt_vocab_size=vocab_sizes[-1], **options
    )
    kind = mt.Transformer if config.num_encoder_layers else mt.DecoderOnlyTransformer
    model = kind(config, torch.Generator().manual_seed(seed))
    if recipe.zero_start:
        start_as_identity(model)
    if recipe.library == "ours":
        return model
    if isinstance(model, mt.DecoderOnlyTransformer):
        return twins.TorchDecoderOnly(model)
    return twins.TorchTransformer(model, dropout_inside=True)


def new_trainer(task: str, recipe: Recipe, seed: int) -> mt.Trainer:
    """A recipe's training from its beginning."""
    tokenizers = tokenizers_of(task, seed, recipe.target_tokens)
    sizes = tuple(tokenizer.vocab_size for tokenizer in tokenizers)
    model = new_model(task, recipe, sizes, seed)
    kind = mt.Trainer if len(tokenizers) == 2 else mt.LanguageModelTrainer
    trainer = kind(model, splits_of(task, seed)["train"], *tokenizers, recipe.training(seed))
    if recipe.library != "ours":
        vars(trainer)["loss"] = partial(twins.torch_loss, trainer)
    return trainer


@torch.no_grad()
def held_out_nats(model: Any, texts: list[Any], tokenizers: tuple[mt.Tokenizer, ...]) -> float:
    """The loss of a character of texts; of a pair, summed over its tokens.

    Neither depends on the vocabulary.
    """
    model.eval()
    if isinstance(texts[0], mt.TextPair):
        batch = mt.collate(mt.encode_pairs(texts, *tokenizers))
        tokens = int((batch.tgt_output != 0).sum())
        return float(mt.next_token_loss(model, *batch)) * tokens / len(texts)
    rows = torch.tensor([tokenizers[0].encode(text) for text in texts]).split(128)
    losses = (mt.next_token_loss(model, part[:, :-1], part[:, 1:]).item() for part in rows)
    total = sum(loss * len(part) for loss, part in zip(losses, rows, strict=True))
    return total / len(texts)


def score_of(model: Any, held_out: list[Any], tokenizers: tuple[mt.Tokenizer, ...]) -> float:
    """What a run is judged by: the share of pairs without a mistake, or nats a character."""
    if isinstance(held_out[0], mt.TextPair):
        return mt.Translator(twins.as_ours(model), *tokenizers).exact_match(held_out)
    return held_out_nats(twins.as_ours(model), held_out, tokenizers)


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


def train(run: Run) -> runs.Row:
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
        "plan": plan(recipe),
        "recipe": asdict(recipe),
        "steps": recipe.steps,
        "cpu_seconds": round(seconds, 2),
        "baseline_step": round(pace, 5),
        "cost": round(seconds / pace, 1),
        "score": score_of(trainer.averaged(), held_out, tokenizers),
        "nats": looks[-1][-1],
        "looks": looks,
        "made": runs.made(),
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


def of_seeds(rows: Rows, task: str, kind: str, number: int) -> list[runs.Row]:
    """The rows of a record, or of its effect, in the order of their seeds."""
    key = Run(task, kind, number, 0).key
    found = [row for (*names, _, plan), row in rows.items() if (*names, plan) == (*key[:3], key[4])]
    return sorted(found, key=lambda row: row["seed"])


def ratio(rows: Rows, task: str, number: int) -> float | None:
    """The mean cost of a record as a share of the baseline's steps; None where it has no rows."""
    costs = [row["cost"] for row in of_seeds(rows, task, RECORD, number)]
    return statistics.mean(costs) / TASKS[task].recipe(0).steps if costs else None


def effect(task: Task, found: Sequence[runs.Row]) -> list[str]:
    """Cells of mean score, held-out nats, and cost; of nothing where there are no rows."""
    if not found:
        return ["", "", ""]
    means = {
        name: statistics.mean(row[name] for row in found) for name in ("score", "nats", "cost")
    }
    return [task.shown(means["score"]), f"{means['nats']:.3f}", f"{means['cost']:.0f}"]


def records_table(rows: Rows, task: Task) -> str:
    """A line for each record that has been trained; "!" where it misses the target."""
    lines = []
    for number, record in enumerate(task.records):
        found = of_seeds(rows, task.name, RECORD, number)
        if found:
            scores = [row["score"] for row in found]
            mean = statistics.mean(scores)
            worst = max(scores) if task.target > 1 else min(scores)
            right = f"{task.shown(mean)} ({task.shown(worst)})" + " !" * (not task.reached(mean))
            cost = statistics.mean(row["cost"] for row in found)
            share = f"{ratio(rows, task.name, number):.2f}"
            begun = [str(number), record.name, str(task.recipe(number).steps), right]
            lines.append([*begun, str(len(found)), f"{cost:.0f}", share])
    header = ["", "record", "steps", "right (worst)", "seeds", "cost", "ratio"]
    return runs.markdown(header, lines) if lines else "no record has been trained"


def effects_table(rows: Rows, task: Task) -> str:
    """A line for each change that has been trained alone or been left out."""
    lines = []
    for number, record in enumerate(task.records[1:], start=1):
        alone, without = (of_seeds(rows, task.name, kind, number) for kind in (ALONE, WITHOUT))
        if alone or without:
            lines.append([record.name, *effect(task, alone), *effect(task, without)])
    header = ["change", "alone: right", "nats", "cost", "left out: right", "nats", "cost"]
    return runs.markdown(header, lines) if lines else "no effect has been measured"


def table(rows: Rows) -> str:
    """The records of all tasks, and what each change does alone and left out, as Markdown."""
    parts = []
    for name, task in TASKS.items():
        parts.append(f"**{name}**, target {task.shown(task.target)}")
        parts += [records_table(rows, task), effects_table(rows, task)]
    return "\n\n".join(parts)


# --- the program


def main() -> None:
    parser = options(__doc__, "speedrun.jsonl", SEEDS)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--record", type=int, help="this record alone")
    parser.add_argument("--effects", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--table", action="store_true", help="print it; train nothing")
    args = parser.parse_args()
    if args.table:
        print(table(read(args.out)))
        return
    torch.set_num_threads(1)
    with runs.appending(args.out) as append:
        rows = read(args.out)
        for task in args.tasks:
            for run in runs_of(task, args.record, seeds=args.seeds, effects=args.effects):
                if run.key not in rows:
                    rows[run.key] = row = train(run)
                    append(row)
                    shown = {name: row[name] for name in ("steps", "cost", "score", "nats")}
                    print(run.task, run.kind, run.name, run.seed, shown, flush=True)


if __name__ == "__main__":
    main()
