"""Multi30k, German to English, in 600 CPU-seconds: BLEU on test_2016_flickr.

python -m benchmarks.experiments.multi30k           what is not done yet; downloads the data
python -m benchmarks.experiments.multi30k --table   what came of it; trains nothing
MINITRANSFORMER_DATA=FOLDER python -m benchmarks.experiments.multi30k   reads FOLDER/multi30k/tok

The recipes are those of `python -m minitransformer train --task multi30k`. Hypotheses and
references are the data set's lower-cased, tokenised texts, so sacrebleu compares them token by
token, with `tokenize="none"`: the corpus BLEU that tutorials compute from lists of tokens. It needs
sacrebleu, which the package itself does not.

The clock is CPU time of one thread, of training alone. How many steps there are is decided before,
from what a step costs here. Recipes were looked for on `val`, with a seed that is none of these.
"""

import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import sacrebleu
import torch

import minitransformer as mt
from benchmarks.runs import Row, appending, half_width, made, markdown, options, read_rows, size
from minitransformer.tasks.multi30k import multi30k
from minitransformer.tasks.recipes import FAST, JOBS

BEAMS = 4
TEST = "test_2016_flickr"
SEEDS = (0, 1, 2, 3, 4)
LENGTH_PENALTY = 1.0  # chosen on `val`
BLEU = sacrebleu.BLEU(tokenize="none", force=True)  # tokenised texts are meant
# Muon's has two layers instead of three, and a vocabulary for each language: every place scores the
# whole English one, which is small, and no German. Both make a step cheaper: there are more steps.
RECIPES = {"Adam": JOBS["multi30k"], "Muon": FAST["multi30k"]}


def bleu_score(
    model: mt.Transformer,
    tokenizers: Iterable[mt.Tokenizer],
    pairs: list[mt.TextPair],
    num_beams: int = 1,
) -> float:
    """BLEU of a model's translations."""
    sources = [pair.src for pair in pairs]
    written = mt.Translator(model, *tokenizers).translate(
        sources, num_beams=num_beams, length_penalty=LENGTH_PENALTY
    )
    return BLEU.corpus_score(written, [[pair.tgt for pair in pairs]]).score


def train(name: str, seed: int) -> Row:
    """One run from its beginning to its end; the row."""
    recipe = RECIPES[name]
    splits = multi30k("de", "en")
    times = [time.process_time()]
    trainer = recipe.new_trainer(mt.TrainingConfig(seed=seed, **recipe.settings))
    times.append(time.process_time())
    trainer.fit(progress=False)
    times.append(time.process_time())
    model = trainer.averaged()
    tokenizers = list(trainer.tokenizers.values())
    row = {
        "recipe": name,
        "plan": {"model": recipe.model, "training": recipe.settings},
        "seed": seed,
        "parameters": size(model),
        "steps": trainer.step,
        "cpu_seconds": round(times[2] - times[1], 1),
    }
    targets = sum(len(tgt) - 1 for _, tgt in mt.encode_pairs(splits["val"], *tokenizers))
    loss = mt.Translator(model, *tokenizers).held_out_loss(splits["val"])
    row["nats"] = loss * targets / len(splits["val"])
    aside = {"tokenizers": times[1] - times[0]}
    for what, num_beams in (("greedy", 1), ("beam", BEAMS)):
        start = time.process_time()
        row[what] = bleu_score(model, tokenizers, splits[TEST], num_beams)
        aside[what] = time.process_time() - start
    return row | {
        "aside": {what: round(spent, 1) for what, spent in aside.items()},
        "signature": BLEU.get_signature().format(short=True),
        "made": made(),
    }


def read(path: Path) -> dict[tuple[str, int], Row]:
    """The rows of these recipes."""

    def key_of(row: Row) -> tuple[str, int] | None:
        recipe = RECIPES.get(row["recipe"])
        if recipe is None:
            return None
        same = recipe.model.items() <= row["plan"]["model"].items()
        same &= recipe.settings.items() <= row["plan"]["training"].items()
        return (row["recipe"], row["seed"]) if same else None

    return read_rows(path, key_of)


def table(rows: Iterable[Row]) -> str:
    """A line for each recipe that has been trained; means over seeds, with 95 % intervals."""
    lines = []
    for name in RECIPES:
        found = [row for row in rows if row["recipe"] == name]
        if found:
            longest = max(row["cpu_seconds"] for row in found)
            begun = [name, str(found[0]["steps"]), f"at most {longest:.0f}", str(len(found))]
            cells = [cell([row[what] for row in found]) for what in ("nats", "greedy", "beam")]
            lines.append([*begun, *cells])
    header = ["recipe", "steps", "CPU-seconds", "seeds", "nats", "greedy", "beam"]
    return markdown(header, lines)


def cell(numbers: list[float]) -> str:
    """The mean, and half of its interval where there are two or more."""
    half = f" ± {half_width(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{half}"


def main() -> None:
    parser = options(__doc__, "multi30k.jsonl", SEEDS)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--table", action="store_true", help="print it; train nothing")
    args = parser.parse_args()
    if args.table:
        print(table(read(args.out).values()))
        return
    torch.set_num_threads(1)
    with appending(args.out) as append:
        done = read(args.out)
        for name in args.recipes:
            for seed in args.seeds:
                if (name, seed) not in done:
                    row = train(name, seed)
                    append(row)
                    shown = {what: row[what] for what in ("cpu_seconds", "nats", "greedy", "beam")}
                    print(name, seed, shown, flush=True)


if __name__ == "__main__":
    main()
