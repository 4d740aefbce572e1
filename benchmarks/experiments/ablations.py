"""What matters: small models on three tasks, one thing changed at a time, with error bars.

Every run is a few hundred steps of a small model on one thread, 10 to 30 seconds. What is changed
stands in `ablation_settings.py`, and `ablation_table.py` prints what came of it.

python -m benchmarks.experiments.ablations                     all that is not done yet: many hours
python -m benchmarks.experiments.ablations --only norm heads   these factors, after the baselines
python -m benchmarks.experiments.ablations --list              what remains; trains nothing

Stop it when you like: what is done stands in `ablations.jsonl`, and the same command goes on. The
baselines come first, at three rates, then one factor after the other in the order of importance.
"text" is left out where Python's documents are others than those of the rows that are there.

- Rates. A comparison at one rate misleads. Each setting is trained at half, once and twice the
  baseline's peak on two seeds of their own (`SELECTION_SEEDS`). Where the lowest mean of held-out
  losses lies at the border, a quarter or four times is tried too. Then five other seeds (`SEEDS`)
  are trained at the baseline's rate and, where that is another, at the setting's best.
- Pairs. Runs of a task with one seed have the same texts, vocabulary and order of batches, and
  start from the same draw as far as shapes agree. Of "number-words" and "grammar" the seed draws
  the texts too. "text", Python's help topics and docstrings, is the same for all seeds, and
  differs between versions of Python.
- Hopeless runs. Where after a third of the steps the held-out loss is more than `HOPELESS` times
  the entropy of the training targets' single tokens, the run is stopped. Who has only learned how
  often each token occurs goes on, for some learn the rest later. A run also ends where its loss is
  no number.
"""

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import minitransformer as mt
from benchmarks import runs
from benchmarks.experiments import ablation_settings as choices
from benchmarks.experiments import since_2017
from benchmarks.runs import fingerprint, size

SEEDS = (0, 1, 2, 3, 4)
SELECTION_SEEDS = (100, 101)
RATES = (1.0, 0.5, 2.0)
FURTHER = {0.5: 0.25, 2.0: 4.0}
"""What is tried beyond, where one of these is the best."""
HOPELESS = 1.1
WORDS = 7  # of an English sentence of the grammar task, at most
LOOKS = {4: True, 3: False, 2: True, 1: True}
"""At which parts of the steps a run is measured, and whether it writes, too."""
FILE = runs.RESULTS / "ablations.jsonl"


@dataclass(frozen=True)
class Run:
    """One training."""

    task: str
    setting: choices.Setting
    rate: float
    seed: int

    @property
    def key(self) -> tuple[str, str, float, int]:
        """What a line of the file is found by."""
        return self.task, self.setting.name, self.rate, self.seed


Rows = dict[tuple[str, str, float, int], runs.Row]


def plan(task: str, setting: choices.Setting) -> str:
    """The fingerprint of a setting and of the baseline that it changes."""
    return runs.plan_of(choices.BASELINES[task], setting.as_changes())


def read(path: Path) -> Rows:
    """The rows of this plan."""
    plans = {
        (task, setting.name): plan(task, setting)
        for task in choices.BASELINES
        for setting in [
            choices.BASELINE,
            *(s for f in choices.FACTORS for s in choices.settings_of(task, f)),
        ]
    }

    def key_of(row: runs.Row) -> tuple[str, str, float, int] | None:
        key = row["task"], row["setting"], row["rate"], row["seed"]
        return key if row["plan"] == plans.get(key[:2]) else None

    return runs.read_rows(path, key_of)


# --- what is to be done


def final_loss(row: runs.Row | None) -> float:
    """The held-out loss at the end; infinite where there was none."""
    if row is None or row["outcome"] != "ended":
        return math.inf
    return float(row["looks"][-1]["per_character"])


def best_rate(
    rows: Rows, task: str, name: str, among: Sequence[float] = (*RATES, *FURTHER.values())
) -> float:
    """The rate with the lowest mean on the selection seeds; of equal ones the first."""
    found = {}
    for rate in among:
        keys = [(task, name, rate, seed) for seed in SELECTION_SEEDS]
        if all(key in rows for key in keys):
            found[rate] = statistics.mean(final_loss(rows[key]) for key in keys)
    return min(found, key=lambda rate: found[rate], default=1.0)


def schedule(rows: Rows, only: Sequence[str] = ()) -> Iterator[Run]:
    """All runs in their order; which rates there will be depends on what the rows say by then."""
    for task in choices.BASELINES:
        for seed in SEEDS:
            yield from (Run(task, choices.BASELINE, rate, seed) for rate in RATES)
        yield from selection(rows, task, choices.BASELINE)
        best = best_rate(rows, task, choices.BASELINE.name)
        yield from (Run(task, choices.BASELINE, best, seed) for seed in SEEDS)
    for factor in only or choices.FACTORS:
        for task in choices.BASELINES:
            if factor == choices.BASELINE.factor:
                for seed in SEEDS:
                    yield from (
                        Run(task, choices.BASELINE, rate, seed) for rate in FURTHER.values()
                    )
            settings = choices.settings_of(task, factor)
            for setting in settings:
                yield from selection(rows, task, setting)
            for seed in SEEDS:
                for setting in settings:
                    rates = {1.0: None, best_rate(rows, task, setting.name): None}
                    yield from (Run(task, setting, rate, seed) for rate in rates)


def selection(rows: Rows, task: str, setting: choices.Setting) -> Iterator[Run]:
    """The runs that decide on a setting's rate."""
    for seed in SELECTION_SEEDS:
        yield from (Run(task, setting, rate, seed) for rate in RATES)
    further = FURTHER.get(best_rate(rows, task, setting.name, RATES))
    if further:
        yield from (Run(task, setting, further, seed) for seed in SELECTION_SEEDS)


# --- the data of a task


@dataclass(frozen=True)
class Task:
    """Texts, tokenizers, and what they become."""

    texts: list[Any]
    tokenizers: dict[str, mt.Tokenizer]
    encoded: Any
    """Examples, or the stream of a text."""
    held_out: tuple[Tensor, ...]
    """What the model reads, one tensor or two, and the targets."""
    references: list[mt.TextPair]
    characters: int
    """Of the held-out targets."""
    unigram: float
    fingerprint: str


def entropy(targets: Sequence[int]) -> float:
    """Nats that a token needs if nothing is known but how often each occurs."""
    counts = Counter(targets).values()
    return math.log(len(targets)) - sum(n * math.log(n) for n in counts) / len(targets)


@lru_cache(maxsize=32)
def drawn_pairs(
    task: str, seed: int, size: int, held_out: int
) -> tuple[list[mt.TextPair], list[mt.TextPair]]:
    """Training and held-out pairs; fewer of them are the first of more."""
    if task == "number-words":
        splits = mt.number_words(seed, num_train=size, num_held_out=held_out)
        return splits["train"], splits["held_out"]
    # Two of five sentences, and every seventh held-out one, are short.
    splits = mt.grammar_sentences(seed, num_train=3 * size, num_held_out=9 * held_out)
    short = {
        name: [pair for pair in splits[name] if len(pair.src.split()) <= WORDS]
        for name in ("train", "held_out")
    }
    train, rest = short["train"][:size], short["held_out"][:held_out]
    if (len(train), len(rest)) != (size, held_out):
        raise ValueError(f"there are {len(train)} and {len(rest)} short sentences, not enough")
    return train, rest


@lru_cache(maxsize=16)
def translation(task: str, seed: int, size: int, held_out: int, pieces: int, joint: bool) -> Task:
    """A task of pairs. Its vocabulary is that of the baseline's pairs, however many are learned."""
    usual = choices.BASELINES[task]["data"]["size"]
    pairs, references = drawn_pairs(task, seed, max(size, usual), held_out)
    src_texts, tgt_texts = ([pair[side] for pair in pairs[:usual]] for side in (0, 1))
    src: mt.Tokenizer
    tgt: mt.Tokenizer
    if pieces:
        tgt = mt.BPETokenizer.train(tgt_texts, pieces)
        words = task == "number-words"  # of the source
        src = (
            mt.WordTokenizer.train(src_texts) if words else mt.BPETokenizer.train(src_texts, pieces)
        )
    else:
        src, tgt = mt.WordTokenizer.train(src_texts), mt.WordTokenizer.train(tgt_texts)
    if joint:
        src = tgt = mt.WordTokenizer.train([*src_texts, *tgt_texts])
    examples = mt.encode_pairs(pairs[:size], src, tgt)
    return Task(
        pairs[:size],
        {"src": src, "tgt": tgt},
        examples,
        tuple(mt.collate(mt.encode_pairs(references, src, tgt))),
        references,
        sum(len(pair.tgt) for pair in references),
        entropy([token for example in examples for token in example.tgt[1:]]),
        fingerprint([text for pair in [*pairs[:usual], *references] for text in pair]),
    )


@lru_cache(maxsize=4)
def prose(size: int, pieces: int, context_length: int) -> Task:
    """The text, in rows for measuring; its vocabulary is that of all of it."""
    usual = choices.BASELINES["text"]["data"]["size"]
    train, held_out = since_2017.split(since_2017.documents(int(1.2 * usual)))
    tokenizer = mt.BPETokenizer.train(train, pieces)
    whole = "\n\n".join(train)[:usual]
    texts = [whole[:size]]
    stream = mt.token_stream(texts, tokenizer)
    rest = mt.token_stream(held_out, tokenizer)
    rest = F.pad(rest, (0, -(len(rest) - 1) % context_length))
    rows = rest.unfold(0, context_length + 1, context_length)
    return Task(
        texts,
        {"text": tokenizer},
        stream,
        (rows[:, :-1], rows[:, 1:]),
        [],
        sum(map(len, held_out)),
        entropy(stream[1:].tolist()),
        fingerprint([whole, *held_out]),
    )


# --- a run


def configured(run: Run) -> dict[str, dict[str, Any]]:
    """The baseline with the changes of a run: model, training and data."""
    baseline, setting = choices.BASELINES[run.task], run.setting
    found = {
        "model": baseline["model"] | setting.model,
        "training": baseline["training"] | setting.training | {"seed": run.seed},
        "data": baseline["data"] | setting.data,
    }
    found["training"]["peak_learning_rate"] *= run.rate
    return found


def task_of(run: Run) -> Task:
    """The data of a run."""
    options = configured(run)
    if run.task == "text":
        return prose(**options["data"], context_length=options["training"]["context_length"])
    return translation(run.task, run.seed, **{"joint": False} | options["data"])


def new_model(run: Run, task: Task) -> Any:
    """A fresh model, drawn from the run's seed."""
    tokenizers = list(task.tokenizers.values())
    config = mt.TransformerConfig(
        src_vocab_size=tokenizers[0].vocab_size,
        tgt_vocab_size=tokenizers[-1].vocab_size,
        **configured(run)["model"],
    )
    kind = mt.Transformer if config.num_encoder_layers else mt.DecoderOnlyTransformer
    generator = torch.Generator().manual_seed(run.seed)
    model = kind(config, generator)
    if run.setting.change:
        choices.CHANGES[run.setting.change](model, generator)
    return model


@torch.no_grad()
def look(model: Any, task: Task, step: int, writes: bool) -> dict[str, float]:
    """Measure a model as it is now."""
    model.eval()
    total = count = right = 0.0
    for parts in zip(*(part.split(100) for part in task.held_out), strict=True):
        *read_by_model, targets = parts
        logits, real = model(*read_by_model), targets != 0
        total += F.cross_entropy(logits[real], targets[real], reduction="sum").item()
        right += (logits.argmax(dim=-1) == targets)[real].sum().item()
        count += real.sum().item()
    found = {"step": step, "loss": total / count, "per_character": total / task.characters}
    if writes and task.references:
        longest = task.held_out[-1].size(1)
        tokenizers = task.tokenizers.values()
        right = mt.Translator(model, *tokenizers).exact_match(
            task.references, max_new_tokens=longest
        )
        found["right"] = right
    elif writes:
        found["right"] = right / count
    return found


def train(run: Run) -> runs.Row:
    """One run from its beginning to its end; the row of the file."""
    task = task_of(run)
    model = new_model(run, task)
    config = mt.TrainingConfig(**configured(run)["training"])
    trainer: mt.Trainer
    if run.task == "text":
        trainer = mt.LanguageModelTrainer(model, task.encoded, task.tokenizers["text"], config)
    else:
        trainer = runs.EncodedPairs(model, task.encoded, task.tokenizers, config)
    begun = time.process_time()  # a program's first optimizer takes seconds to import
    looks: list[dict[str, float]] = []
    outcome = "ended"
    for part, writes in LOOKS.items():
        try:
            trainer.fit(-(-config.steps // part), progress=False)
        except FloatingPointError:
            outcome = "not finite"
            break
        looks.append(look(model, task, trainer.step, writes))
        if not math.isfinite(looks[-1]["loss"]):
            looks.pop()
            outcome = "not finite"
            break
        if part == 3 and looks[-1]["loss"] > HOPELESS * task.unigram:
            outcome = "stopped"
            break
    return {
        "task": run.task,
        "factor": run.setting.factor,
        "setting": run.setting.name,
        "seed": run.seed,
        "rate": run.rate,
        "changes": run.setting.as_changes(),
        "plan": plan(run.task, run.setting),
        "texts": task.fingerprint,
        "parameters": size(model),
        "unigram": round(task.unigram, 5),
        "outcome": outcome,
        "looks": [{name: round(value, 5) for name, value in row.items()} for row in looks],
        "cpu_seconds": round(time.process_time() - begun, 2),
        "made": runs.made(),
    }


# --- the program


def show(rows: Rows, only: Sequence[str]) -> None:
    """Print how many runs of each factor and task are missing, and what the done ones took."""
    to_do = {run.key: run for run in schedule(rows, only) if run.key not in rows}
    missing = Counter((run.setting.factor, run.task) for run in to_do.values())
    for (factor, task), count in missing.items():
        print(f"{factor:<24} {task:<14} {count:>5}")
    hours = sum(row["cpu_seconds"] for row in rows.values()) / 3600
    print(f"{len(rows)} runs are done, in {hours:.2f} CPU hours; {missing.total()} or more remain")
    if rows:
        print(f"at the mean so far, {missing.total() * hours / len(rows):.1f} hours")


def other_texts(run: Run, rows: Rows) -> set[str]:
    """The texts of rows of the same task and seed, if they are others: nothing could be paired."""
    before = {row["texts"] for key, row in rows.items() if (key[0], key[3]) == (run.task, run.seed)}
    return before - {task_of(run).fingerprint}


def main() -> None:
    parser = argparse.ArgumentParser(description="what matters: one thing changed at a time")
    parser.add_argument("--only", nargs="+", choices=choices.FACTORS, default=[], metavar="FACTOR")
    parser.add_argument("--list", action="store_true", help="what remains; train nothing")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    if args.list:
        show(read(args.out), args.only)
        return
    torch.set_num_threads(1)
    with runs.appending(args.out) as append:
        rows = read(args.out)
        left_out: set[str] = set()
        for run in schedule(rows, args.only):
            if run.key in rows or run.task in left_out:
                continue
            if others := other_texts(run, rows):
                print(f"{run.task} is left out: its rows are of other texts, {others}", flush=True)
                left_out.add(run.task)
                continue
            rows[run.key] = row = train(run)
            append(row)
            last = row["looks"][-1] if row["looks"] else {}
            print(*run.key, row["outcome"], last, f"{row['cpu_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
