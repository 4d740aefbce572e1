"""Multi30k, German to English, in 600 CPU-seconds: BLEU on test_2016_flickr.

python benchmarks/multi30k.py             all runs that are not done yet; downloads the data
python benchmarks/multi30k.py --table     what came of it; trains nothing
MINITRANSFORMER_DATA=FOLDER python benchmarks/multi30k.py    reads FOLDER/multi30k/tok

Hypotheses and references are the data set's lower-cased, tokenised texts, so sacrebleu compares
them token by token, with `tokenize="none"`: the corpus BLEU that tutorials compute from lists of
tokens. It needs sacrebleu, which the package itself does not.

The clock is CPU time of one thread, of training steps alone. How many steps there are is decided
before, from what a step costs here. Recipes were looked for on `val`, with a seed that is none of
these. Stop the program when you like: what is done stands in `multi30k.jsonl`, and the same
command goes on. Each line is one run, an object:

- recipe: its name; plan: all of it; seed.
- parameters; steps; cpu_seconds: of all training steps; aside: CPU seconds of what is not in
  them, "tokenizers" (with the encoding of all texts), "greedy" and "beam".
- nats: the held-out loss of a pair, summed over its tokens, on `val`.
- greedy, beam: BLEU on the test split, `BEAMS` wide; signature: sacrebleu's.
- made: date, python, torch, minitransformer, threads, processor and its instructions.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from ablations import append, made, mend
from since_2017 import half_width

from minitransformer import (
    BPETokenizer,
    TextPair,
    Tokenizer,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    encode_pairs,
)
from minitransformer.files import locked
from minitransformer.tasks.multi30k import multi30k
from minitransformer.tasks.recipes import start_as_identity

BEAMS = 4
TEST = "test_2016_flickr"
SEEDS = (0, 1, 2, 3, 4)
BUDGET, GOAL = 600, 39  # CPU-seconds of training, and BLEU with beam search, which the last reaches
BLEU = sacrebleu.BLEU(tokenize="none", force=True)  # tokenised texts are meant
FILE = Path(__file__).with_suffix(".jsonl")
SIZES: dict[str, Any] = {
    "d_model": 128,
    "num_heads": 4,
    "num_encoder_layers": 3,
    "num_decoder_layers": 3,
}
SIZES |= {"d_ff": 512, "norm_first": True, "positional_encoding": "rotary", "max_len": 256}


@dataclass(frozen=True)
class Recipe:
    """All that is decided before a run."""

    src_tokens: int | None
    """Size of the source's vocabulary; None where both languages share one, and its embedding."""
    tgt_tokens: int
    training: dict[str, Any]
    """As `TrainingConfig` names it."""
    model: dict[str, Any] = field(default_factory=lambda: dict(SIZES))
    """As `TransformerConfig` names it."""
    zero_start: bool = False
    """Whether each sub-layer's last projection starts at zero, so that layers start as identity."""
    alpha: float = 1.0
    """Of beam search, chosen on `val`."""


RECIPES = {
    "Adam": Recipe(
        None,
        4_261,  # 5 special tokens, 256 bytes, 4,000 merges
        {"steps": 3_500, "batch_size": 32, "warmup_steps": 200, "peak_learning_rate": 3e-3},
    ),
    # Two layers instead of three, and a vocabulary for each language: every place scores the whole
    # English one, which is small, and no German. Both make a step cheaper, so there are more steps.
    "Muon": Recipe(
        4_000,
        2_000,
        {"steps": 5_000, "batch_size": 32, "warmup_steps": 300, "peak_learning_rate": 8e-3}
        | {"optimizer": "muon", "schedule": "linear"},
        SIZES | {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.05},
        zero_start=True,
    ),
}


def tokenizers_of(recipe: Recipe, pairs: Iterable[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """Subwords: a vocabulary for each language, or one for both."""
    src, tgt = zip(*pairs, strict=True)
    if recipe.src_tokens is None:
        both = BPETokenizer.train((*src, *tgt), recipe.tgt_tokens)
        return both, both
    return BPETokenizer.train(src, recipe.src_tokens), BPETokenizer.train(tgt, recipe.tgt_tokens)


def new_trainer(recipe: Recipe, seed: int, pairs: list[TextPair]) -> Trainer:
    """A recipe's training from its beginning."""
    src, tgt = tokenizers_of(recipe, pairs)
    options = recipe.model | {"share_embeddings": src is tgt}
    config = TransformerConfig(
        src_vocab_size=src.vocab_size, tgt_vocab_size=tgt.vocab_size, **options
    )
    model = Transformer(config, torch.Generator().manual_seed(seed))
    if recipe.zero_start:
        start_as_identity(model)
    return Trainer(model, pairs, src, tgt, TrainingConfig(seed=seed, **recipe.training))


def bleu_score(
    model: Transformer,
    tokenizers: Iterable[Tokenizer],
    pairs: list[TextPair],
    num_beams: int = 1,
    alpha: float = 1.0,
) -> float:
    """BLEU of a model's translations."""
    sources = [pair.src for pair in pairs]
    written = Translator(model, *tokenizers).translate(
        sources, num_beams=num_beams, length_penalty=alpha
    )
    return BLEU.corpus_score(written, [[pair.tgt for pair in pairs]]).score


def train(name: str, seed: int) -> dict[str, Any]:
    """One run from its beginning to its end; the row."""
    recipe, splits = RECIPES[name], multi30k("de", "en")
    aside: dict[str, float] = {}
    seconds, start = 0.0, time.process_time()
    trainer = new_trainer(recipe, seed, splits["train"])
    aside["tokenizers"] = time.process_time() - start
    for batch in trainer.batches():
        start = time.process_time()
        trainer.train_step(batch)
        seconds += time.process_time() - start
        if trainer.step == trainer.config.steps:
            break
    model, tokenizers = trainer.averaged(), list(trainer.tokenizers.values())
    targets = sum(len(tgt) - 1 for _, tgt in encode_pairs(splits["val"], *tokenizers))
    row = {
        "recipe": name,
        "plan": asdict(recipe),
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": trainer.step,
        "cpu_seconds": round(seconds, 1),
        "nats": Translator(model, *tokenizers).held_out_loss(splits["val"])
        * targets
        / len(splits["val"]),
    }
    for what, num_beams in (("greedy", 1), ("beam", BEAMS)):
        start = time.process_time()
        row[what] = bleu_score(model, tokenizers, splits[TEST], num_beams, recipe.alpha)
        aside[what] = time.process_time() - start
    aside = {what: round(spent, 1) for what, spent in aside.items()}
    signature = BLEU.get_signature().format(short=True)
    return row | {"aside": aside, "signature": signature, "made": made()}


# --- the file and the table


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of these recipes; a torn last line does not count.

    Raises:
        ValueError: if another line is damaged.
    """
    rows = []
    content = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            if row["recipe"] in RECIPES and row["plan"] == asdict(RECIPES[row["recipe"]]):
                rows.append(row)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}, is no run: {line[:60]!r}") from error
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each recipe that has been trained; means over seeds, with 95 % intervals."""
    lines = ["| recipe | steps | CPU-seconds | seeds | nats | greedy | beam |", "|" + " --- |" * 7]
    for name in RECIPES:
        found = [row for row in rows if row["recipe"] == name]
        if found:
            cells = [cell([row[what] for row in found]) for what in ("nats", "greedy", "beam")]
            longest = max(row["cpu_seconds"] for row in found)
            begun = f"| {name} | {found[0]['steps']} | at most {longest:.0f} | {len(found)} |"
            lines.append(" ".join([begun, " | ".join(cells), "|"]))
    return "\n".join(lines)


def cell(numbers: list[float]) -> str:
    """The mean, and half of its interval where there are two or more."""
    half = f" ± {half_width(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{half}"


def main() -> None:
    """Train what is missing, or print the table."""
    parser = argparse.ArgumentParser(description="German to English on Multi30k, with its BLEU.")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--table", action="store_true", help="print it; train nothing")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    if args.table:
        print(table(read(args.out)))
        return
    torch.set_num_threads(1)
    with locked(args.out):
        mend(args.out)
        done = {(row["recipe"], row["seed"]) for row in read(args.out)}
        for name in args.recipes:
            for seed in args.seeds:
                if (name, seed) not in done:
                    row = train(name, seed)
                    append(args.out, row)
                    shown = {what: row[what] for what in ("cpu_seconds", "nats", "greedy", "beam")}
                    print(name, seed, shown, flush=True)


if __name__ == "__main__":
    main()
