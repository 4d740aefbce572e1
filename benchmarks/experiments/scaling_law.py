"""A scaling law of one's own: the loss of eight sizes of model at several budgets of tokens.

The decoder-only model of 10 thousand to 5 million parameters reads Python's own standard library,
character by character. Every run is a training from its start, with its own cosine fall to zero, so
that each is one independent point (size, tokens, loss). `scaling_fit.py` puts a law through them.

python -m benchmarks.experiments.scaling_law                 30 minutes of one core
python -m benchmarks.experiments.scaling_law --list          what remains; trains nothing
python -m benchmarks.experiments.scaling_law --report        what came of it; trains nothing
python -m benchmarks.experiments.scaling_law --law           the law of the runs so far

- Text. The modules at the top of the standard library, code and docstrings, about 4.7 million
  characters: the same wherever this version of Python is. One module of twenty, drawn by its name,
  is held out. A token is a character, of a hundred. The longest run reads a quarter of the text, so
  no run but those of the part "repeated" reads anything twice.
- Rates. Part "rates" tries three peaks at each of three sizes, on a seed of its own. The best were
  0.032, the highest, 0.008 and 0.004 at widths of 18, 72 and 128. So the rule is half of one over
  the width (`rate_of`), at all budgets.
- What is fitted. Part "fitted" has seven sizes and three budgets. One seed of what is cheap comes
  first, further seeds and the dear ones last (`SEEDS`).
- What is predicted. The largest size and the two longest budgets, part "left out". Before the first
  of them is trained, the law and its predictions are written down: the line whose part is
  "prediction". The line "law" is of all points; the last one in the file counts.
- Text that is read again. Part "repeated" trains one size for the longest fitted budget, on only as
  much text as the shortest one has.
"""

import argparse
import hashlib
import string
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import minitransformer as mt
from benchmarks.experiments import scaling_fit as fits
from benchmarks.runs import RESULTS, Row, appending, fingerprint, made, plan_of, read_rows

# d_model, num_layers, num_heads
SIZES = {
    "10k": (18, 2, 3),
    "25k": (30, 2, 3),
    "60k": (48, 2, 3),
    "130k": (72, 2, 4),
    "350k": (96, 3, 6),
    "800k": (128, 4, 8),
    "2M": (192, 5, 6),
    "5M": (256, 6, 8),
}
BETWEEN = {"95k": (60, 2, 3)}
"""Predicted, and trained in chapter 16, at the budget `BUDGETS[2]`."""
SHAPES = SIZES | BETWEEN
CONTEXT = 64
BATCH = 4  # rows
STEPS = (256, 512, 1024, 2048, 4096)
BUDGETS = tuple(steps * BATCH * CONTEXT for steps in STEPS)
"""In tokens; the last is left out."""
SEEDS = {
    "10k": (5, 5, 3),
    "25k": (5, 5, 3),
    "60k": (5, 5, 3),
    "130k": (5, 5, 3),
    "350k": (3, 3, 1),
    "800k": (3, 1, 1),
    "2M": (1, 1, 1),
}
"""How many at each budget that is fitted."""
FIRST = 4e11
"""Operations of the largest run that is done before anything is predicted."""
LEFT_OUT = (
    *(("25k", 3), ("5M", 0), ("130k", 3), ("350k", 3)),
    *(("5M", 1), ("130k", 4), ("350k", 4), ("5M", 2)),
)
"""Sizes and budgets that are predicted before they are trained."""
RATED = {
    "10k": (1, (8e-3, 1.6e-2, 3.2e-2)),
    "130k": (1, (4e-3, 8e-3, 1.6e-2)),
    "800k": (0, (2e-3, 4e-3, 8e-3)),
}
"""At which budget, and which peaks are tried."""
SELECTION_SEED = 100
REPEATED = "350k"
COMMON = {"norm_first": True, "positional_encoding": "rotary", "dropout": 0.0, "max_len": CONTEXT}
ALPHABET = "".join(sorted(set(string.printable) - set("\r\v\f")))
HELD_OUT_ROWS = 512
SAMPLES = 400
"""Of the bootstrap."""
FITTED_AT_LAST = ("fitted", "left out")
OPERATIONS = (3e10, 1e11, 3e11, 1e12)
"""Of trainings for which the best size is asked."""
FILE = RESULTS / "scaling_law.jsonl"


class Run(NamedTuple):
    """One training, and what a line of the file is found by."""

    part: str
    size: str
    tokens: int
    rate: float
    seed: int
    unique: int | None = None


Rows = dict[Run, Row]


# --- what is to be done


def rate_of(size: str) -> float:
    """The peak learning rate of a size: what suited three widths, half of one over the width."""
    return float(f"{0.5 / SHAPES[size][0]:.2g}")


def schedule() -> Iterator[Run]:
    """All runs in their order: one seed of what is cheap comes first, then what it predicts."""
    for size, (budget, rates) in RATED.items():
        yield from (Run("rates", size, BUDGETS[budget], rate, SELECTION_SEED) for rate in rates)
    runs = [
        Run("fitted", size, BUDGETS[budget], rate_of(size), seed)
        for seed in range(5)
        for budget in range(3)
        for size, seeds in SEEDS.items()
        if seed < seeds[budget]
    ]
    first = [run for run in runs if not run.seed and operations_of(*run[1:3]) <= FIRST]
    yield from first
    for size, budget in LEFT_OUT:
        yield Run("left out", size, BUDGETS[budget], rate_of(size), 0)
        if size == REPEATED and budget == 3:
            yield Run("repeated", size, BUDGETS[2], rate_of(size), 0, BUDGETS[0])
    yield from (run for run in runs if run not in first)


# --- the text and the models


@dataclass(frozen=True)
class Text:
    """What is read, and what is measured on."""

    tokenizer: mt.Tokenizer
    stream: Tensor
    held_out: Tensor
    """Rows, (n, CONTEXT + 1)."""
    characters: int
    """Of the held-out targets."""
    fingerprint: str


def modules(folder: Path) -> dict[str, str]:
    """The text of each module at the top of a library; not what describes one machine."""
    files = [path for path in sorted(folder.glob("*.py")) if "sysconfigdata" not in path.name]
    return {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in files}


def is_held_out(name: str) -> bool:
    """Whether a module is measured on: by its name, so that other versions agree."""
    return hashlib.sha256(name.encode()).digest()[0] % 20 == 0


def stream_of(texts: Sequence[str], tokenizer: mt.CharacterTokenizer) -> Tensor:
    """`mt.token_stream`, of texts of characters in a tenth of its time."""
    table = np.full(256, tokenizer.unk_id)
    for character in ALPHABET:
        table[ord(character)] = tokenizer.ids[character]
    parts: list[Any] = []
    for text in texts:
        ids = table[np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)]
        strange = [place for place, character in enumerate(text) if not character.isascii()]
        ids[strange] = tokenizer.unk_id
        parts += [[tokenizer.bos_id], ids, [tokenizer.eos_id]]
    return torch.from_numpy(np.concatenate(parts))


@lru_cache(maxsize=1)
def text_of(folder: Path | None = None) -> Text:
    """Read, split and encode the standard library."""
    found = modules(folder or Path(sysconfig.get_paths()["stdlib"]))
    train = [text for name, text in found.items() if not is_held_out(name)]
    held_out = [text for name, text in found.items() if is_held_out(name)]
    tokenizer = mt.CharacterTokenizer([*ALPHABET])
    rows = stream_of(held_out, tokenizer).unfold(0, CONTEXT + 1, CONTEXT)
    # Evenly from all of it: one module alone would have the words of one subject.
    rows = rows[torch.linspace(0, len(rows) - 1, HELD_OUT_ROWS).round().long()]
    return Text(
        tokenizer,
        stream_of(train, tokenizer),
        rows,
        int((rows[:, 1:] > mt.Tokenizer.eos_id).sum()),
        fingerprint([*train, *held_out]),
    )


def config_of(size: str) -> mt.TransformerConfig:
    """The configuration of a size."""
    width, layers, heads = SHAPES[size]
    options: dict[str, Any] = {"d_model": width, "num_heads": heads, "d_ff": 4 * width} | COMMON
    vocab_size = len(ALPHABET) + len(mt.Tokenizer.special_tokens)
    return mt.TransformerConfig.decoder_only(vocab_size, num_layers=layers, **options)


def parameters_of(size: str) -> tuple[int, int]:
    """Parameters of the embedding, and all others."""
    config = config_of(size)
    embedding = config.tgt_vocab_size * config.d_model
    return embedding, int(mt.plan(config, 1).parameters) - embedding


def operations_of(size: str, tokens: int) -> float:
    """Floating-point operations of a training."""
    return mt.plan(config_of(size), tokens, length=CONTEXT).flops


def training_of(run: Run) -> mt.TrainingConfig:
    """How a run is trained: a tenth of the steps is warm-up."""
    steps = run.tokens // (BATCH * CONTEXT)
    return mt.TrainingConfig(
        steps=steps,
        batch_size=BATCH,
        context_length=CONTEXT,
        warmup_steps=max(1, steps // 10),
        peak_learning_rate=run.rate,
        seed=run.seed,
    )


@torch.no_grad()
def measured(model: mt.DecoderOnlyTransformer, text: Text) -> dict[str, float]:
    """The held-out loss."""
    model.eval()
    total = 0.0
    for rows in text.held_out.split(64):
        scores, targets = model(rows[:, :-1]), rows[:, 1:]
        total += F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum").item()
    count = text.held_out[:, 1:].numel()
    return {"loss": round(total / count, 5), "per_character": round(total / text.characters, 5)}


def train(run: Run) -> Row:
    """One run from its beginning to its end; the row of the file."""
    text = text_of()
    generator = torch.Generator().manual_seed(run.seed)
    model = mt.DecoderOnlyTransformer(config_of(run.size), generator)
    # A row more: rows begin anywhere in the first.
    stream = text.stream[: run.unique and run.unique + CONTEXT + 1]
    trainer = mt.LanguageModelTrainer(model, stream, text.tokenizer, training_of(run))
    begun = time.process_time()
    found: Row = {"outcome": "ended"}
    try:
        trainer.fit(progress=False)
        found |= measured(model, text)
    except FloatingPointError:
        found["outcome"] = "not finite"
    embedding, others = parameters_of(run.size)
    return {
        **run._asdict(),
        "plan": plan(run),
        "texts": text.fingerprint,
        "embedding": embedding,
        "others": others,
        "operations": operations_of(run.size, run.tokens),
        "epochs": round(run.tokens / len(stream), 3),
        **found,
        "cpu_seconds": round(time.process_time() - begun, 2),
        "made": made(),
    }


def plan(run: Run) -> str:
    """The fingerprint of all that is decided before a run."""
    return plan_of(COMMON, SHAPES[run.size], CONTEXT, BATCH, ALPHABET, HELD_OUT_ROWS)


def read(path: Path) -> tuple[Rows, dict[str, Row]]:
    """The runs of this plan, and the last prediction and law, by part."""
    found: dict[str, Row] = {}

    def key_of(row: Row) -> Run | None:
        if row["part"] in ("prediction", "law"):
            found[row["part"]] = row
            return None
        run = Run(**{name: row[name] for name in Run._fields})
        return run if run.size in SHAPES and row["plan"] == plan(run) else None

    return read_rows(path, key_of), found


# --- what follows from the runs


def runs_of(
    rows: Rows, parts: Sequence[str] = ("fitted",), embedding: bool = True
) -> list[tuple[float, float, float]]:
    """Parameters, tokens and loss of the runs of some parts that ended."""
    return [
        (row["others"] + embedding * row["embedding"], run.tokens, row["loss"])
        for run, row in rows.items()
        if run.part in parts and row["outcome"] == "ended"
    ]


def predicted(found: fits.Fitted, size: str, tokens: int) -> Row:
    """What is expected of a run."""
    parameters = sum(parameters_of(size))
    loss, low, high = (round(number, 4) for number in fits.prediction(found, parameters, tokens))
    named = {"size": size, "parameters": parameters, "tokens": tokens}
    return {**named, "loss": loss, "low": low, "high": high}


def prediction_row(rows: Rows) -> Row:
    """What is known before the part "left out" is trained."""
    found = fits.fitted(runs_of(rows), SAMPLES)
    left_out = [run for run in schedule() if run.part == "left out"]
    return {
        "part": "prediction",
        "runs": len(runs_of(rows)),
        "law": fits.summary(found),
        "predicted": [predicted(found, run.size, run.tokens) for run in left_out],
        "made": made(),
    }


def law_row(rows: Rows) -> Row:
    """What is known of all points, and how much of that depends on how it is asked."""
    runs = runs_of(rows, FITTED_AT_LAST)
    found = fits.fitted(runs, SAMPLES)
    sizes = np.array([float(sum(parameters_of(size))) for size in SIZES])
    per_token = np.array([operations_of(size, 1) for size in SIZES])
    best = []
    for operations in OPERATIONS:
        size, *drawn = (
            fits.best_sizes(law, operations, sizes, per_token) for law in (found.law, found.drawn)
        )
        best.append(
            {
                "operations": operations,
                "size": [round(float(number)) for number in (size, *fits.interval(drawn[0]))],
            }
        )
    others = {
        "without embedding": fits.fitted(runs_of(rows, FITTED_AT_LAST, embedding=False), SAMPLES),
        "seeds as points": fits.fitted(runs, SAMPLES, by_run=True),
        "squares": fits.fitted(runs, SAMPLES, delta=1.0),
    }
    return {
        "part": "law",
        "runs": len(runs),
        "law": fits.summary(found),
        "best": best,
        "others": {name: fits.summary(other) for name, other in others.items()},
        "predicted": [predicted(found, size, BUDGETS[2]) for size in BETWEEN],
        "made": made(),
    }


# --- the program


def shown(numbers: Sequence[float]) -> str:
    """An estimate and its interval."""
    value, low, high = (f"{number:.4g}" for number in numbers)
    return f"{value} [{low}, {high}]"


def report(rows: Rows, found: dict[str, Row]) -> Iterator[str]:
    """What is known so far, in lines."""
    cells: dict[tuple[str, str, int], list[str]] = {}
    for run, row in rows.items():
        what = f"{run.rate:.2g}: {row.get('loss')}" if run.part == "rates" else str(row.get("loss"))
        cells.setdefault((run.part, run.size, run.tokens), []).append(what)
    for (part, size, tokens), losses in cells.items():
        yield f"{part:<9} {size:>4} {tokens:>8}  {'  '.join(losses)}"
    for row in found.values():
        yield f"\n{row['part']}, from {row['runs']} runs"
        for name, law in {"": row["law"], **row.get("others", {})}.items():
            yield name
            yield from (f"  {key:<8} {shown(law[key])}" for key in law if key != "residual")
            yield f"  residual {law['residual']:.2%}"
        for best in row.get("best", []):
            yield f"  {best['operations']:.0e} operations: best size {shown(best['size'])}"
        for guess in row["predicted"]:
            trained = [
                row["loss"]
                for run, row in rows.items()
                if (run.part, run.size, run.tokens) == ("left out", guess["size"], guess["tokens"])
            ]
            numbers = shown([guess[key] for key in ("loss", "low", "high")])
            yield f"  {guess['size']:>4} {guess['tokens']:>8}  {numbers}, trained {trained}"
    seconds = sum(row["cpu_seconds"] for row in rows.values())
    yield f"\n{len(rows)} runs in {seconds / 60:.1f} CPU minutes"


def main() -> None:
    parser = argparse.ArgumentParser(description="a scaling law of one's own")
    parser.add_argument("--list", action="store_true", help="what remains; train nothing")
    parser.add_argument("--report", action="store_true", help="what is known; train nothing")
    parser.add_argument("--law", action="store_true", help="of the runs so far; train nothing")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.list or args.report:
        rows, found = read(args.out)
        missing = [run for run in schedule() if run not in rows]
        print(*(missing if args.list else report(rows, found)), sep="\n")
        return
    with appending(args.out) as append:
        rows, found = read(args.out)
        for run in schedule():
            if run in rows or args.law:
                continue
            if run.part == "left out" and "prediction" not in found:
                found["prediction"] = prediction_row(rows)
                append(found["prediction"])
            texts = {row["texts"] for row in rows.values()}
            if texts - {text_of().fingerprint}:
                parser.error(f"the rows that are there are of another text: {texts.pop()}")
            rows[run] = row = train(run)
            append(row)
            print(*run, row.get("loss"), f"{row['cpu_seconds']:.0f} s", flush=True)
        if found.get("law", {}).get("runs") != len(runs_of(rows, FITTED_AT_LAST)):
            found["law"] = law_row(rows)
            append(found["law"])
        print(*report(rows, found), sep="\n")


if __name__ == "__main__":
    main()
