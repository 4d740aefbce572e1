"""Longer than ever seen: what a model must be shown to write numbers longer than any of training.

The main job with one thing changed, or two. What `SETTINGS` changes are the numbers of training
(never the longest: none has more words than the longest of the main job, nor more German letters
than the longest below a million), and how positions are told. The splits that are measured are
always those of the main job, and none of their numbers is trained on.

python -m benchmarks.experiments.longer                      what is not done yet, then the table
python -m benchmarks.experiments.longer --only usual shown   these settings alone
python -m benchmarks.experiments.longer --list               what remains, and the table
python -m benchmarks.experiments.longer --recipe fast        trained as --recipe fast trains
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import minitransformer as mt
from benchmarks import runs
from minitransformer.tasks.recipes import FAST, JOBS, words_and_subwords

SEEDS = (0, 1, 2, 3, 4)
SPLITS = ("held_out", "composition", "longer", "short", "long", "one million")
ROOM = 40  # tokens of a translation; the longest has 28
TESTED = 2_000  # pairs of a split


@dataclass(frozen=True)
class Setting:
    """The main job with something changed."""

    name: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """What `number_words` is asked for: another share of millions, or thousands with them."""
    positions: str = "sinusoidal"
    """The configuration's `positional_encoding`."""
    decoder: bool = True
    """Whether the decoder has positions, of those that act in attention."""
    spread: int = 0
    """In training each batch gets as many positions, in order, drawn from so many; 0: the first."""


SHOWN = {"millions": 0.15, "with_thousands": True}
SETTINGS = (
    Setting("usual"),
    Setting("shown", SHOWN),
    Setting("rotary", positions="rotary"),
    Setting("shown, rotary", SHOWN, positions="rotary"),
    Setting("more millions, rotary", {"millions": 0.15}, positions="rotary"),
    Setting("shown in 5 %, rotary", SHOWN | {"millions": 0.05}, positions="rotary"),
    Setting("shown, spread", SHOWN, spread=ROOM),
    Setting("shown, spread, rotary", SHOWN, positions="rotary", spread=ROOM),
    Setting("shown, ALiBi", SHOWN, positions="alibi"),
    Setting("shown, rotary, encoder alone", SHOWN, positions="rotary", decoder=False),
)


RECIPES = {"usual": {}, "fast": FAST["number-words"].settings}
"""How the main job is trained: what is not the default."""

Rows = dict[tuple[str, str, int], runs.Row]


# --- the numbers of training


def word_count(text: str) -> int:
    """Words between blanks: forty-two is one."""
    return len(text.split())


def most_words(pairs: Sequence[mt.TextPair]) -> int:
    """Of the longest source."""
    return max(word_count(pair.src) for pair in pairs)


@dataclass(frozen=True)
class Data:
    """What a run learns from and is measured on."""

    splits: dict[str, list[mt.TextPair]]
    texts: list[mt.TextPair]
    tokenizers: dict[str, mt.Tokenizer]
    encoded: list[mt.Example]


@lru_cache(maxsize=8)
def data_of(seed: int, **numbers: Any) -> Data:
    """Made once for all settings with the same numbers."""
    splits = mt.number_words(seed, **numbers)
    pairs = splits["train"]
    src, tgt = words_and_subwords(pairs)
    return Data(splits, pairs, {"src": src, "tgt": tgt}, mt.encode_pairs(pairs, src, tgt))


# --- positions


def tables(model: mt.Transformer) -> list[tuple[Any, torch.Tensor]]:
    """The parts of a model with a table of positions, and the tables."""
    kinds = (mt.SinusoidalPositionalEncoding, mt.RotaryPositionalEncoding)
    return [(part, part.table) for part in model.modules() if isinstance(part, kinds)]


class SpreadTrainer(runs.EncodedPairs):
    """A trainer that gives each batch other positions, in order (Ruoss et al., 2023)."""

    spread = 0

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update with the positions of its step."""
        if not self.spread:
            return super().train_step(batch)
        whole = tables(self.model)
        length = max(max(len(example.src), len(example.tgt)) for example in batch)
        self.seed(self.step + 1)
        drawn = torch.randperm(self.spread)[:length].sort().values
        for part, table in whole:
            part.table = table[drawn]
        try:
            return super().train_step(batch)
        finally:
            for part, table in whole:
                part.table = table


# --- a run


def new_trainer(recipe: str, setting: Setting, seed: int, data: Data) -> SpreadTrainer:
    """The main job with the changes of a recipe and a setting."""
    job = replace(
        JOBS["number-words"],
        splits=lambda _: {"train": data.texts[:1]},  # the model does not depend on them
        tokenizers=lambda _: tuple(data.tokenizers.values()),
        model={"positional_encoding": setting.positions},
    )
    usual = job.new_trainer(mt.TrainingConfig(**{"seed": seed} | RECIPES[recipe]))
    if not setting.decoder:
        for layer in usual.model.decoder.layers:
            layer.self_attention.rotary = layer.self_attention.position_bias = None
    trainer = SpreadTrainer(usual.model, data.encoded, data.tokenizers, usual.config)
    trainer.spread = setting.spread
    return trainer


def to_measure(splits: dict[str, list[mt.TextPair]]) -> dict[str, list[mt.TextPair]]:
    """The first pairs of the main job's splits, and numbers with one million."""
    million = [10**6 + rest for rest in random.Random(0).sample(range(1, 1000), 250)]
    found = {name: pairs[:TESTED] for name, pairs in splits.items() if name != "train"}
    found["one million"] = [
        mt.TextPair(*(mt.number_in_words(number, to) for to in ("en", "de"))) for number in million
    ]
    return found


def longest(trainer: mt.Trainer, pairs: Sequence[mt.TextPair]) -> list[int]:
    """Most words of a source, tokens of a source, and tokens of a target."""
    examples = mt.encode_pairs(pairs, *trainer.tokenizers.values())
    tokens = (max(len(e.src) for e in examples), max(len(e.tgt) - 1 for e in examples))
    return [most_words(pairs), *tokens]


def share(hits: Sequence[bool]) -> float | None:
    """How many of these are true; none where there are none."""
    return round(statistics.mean(hits), 5) if hits else None


@torch.no_grad()
def next_tokens(trainer: mt.Trainer, pairs: Sequence[mt.TextPair]) -> float:
    """The share of next tokens that are right, given the right beginning."""
    batch = mt.collate(mt.encode_pairs(pairs, *trainer.tokenizers.values()))
    trainer.model.eval()
    right = real = 0
    for src, tgt_input, tgt_output in zip(*(part.split(250) for part in batch), strict=True):
        is_real = tgt_output != 0
        hits = trainer.model(src, tgt_input).argmax(dim=-1) == tgt_output
        right, real = right + (hits & is_real).sum().item(), real + is_real.sum().item()
    return right / real


def train(recipe: str, setting: Setting, seed: int) -> runs.Row:
    """One run of a recipe from its beginning to its end; the row of the file."""
    data = data_of(seed, **setting.numbers)
    splits, pairs = data.splits, data.texts
    trainer = new_trainer(recipe, setting, seed, data)
    begun = time.process_time()
    trainer.fit(progress=False)
    tokenizers = trainer.tokenizers.values()
    tested = to_measure(splits)
    hits: dict[str, list[bool]] = {}
    for split, measured in tested.items():
        sources = [pair.src for pair in measured]
        written = mt.Translator(trainer.model, *tokenizers).translate(
            sources, max_new_tokens=ROOM - 1
        )
        hits[split] = [text == pair.tgt for text, pair in zip(written, measured, strict=True)]
        if split == "longer":
            thousands = sum("tausend" in text for text in written)
            is_long = [word_count(source) > most_words(splits["train"]) for source in sources]
            for part, wanted in (("short", False), ("long", True)):
                both = zip(hits["longer"], is_long, strict=True)
                hits[part] = [hit for hit, long in both if long is wanted]
    return {
        "recipe": recipe,
        "setting": setting.name,
        "seed": seed,
        "steps": trainer.step,
        "changes": changes_of(setting),
        "plan": plan(recipe, setting),
        "texts": runs.fingerprint([text for pair in pairs for text in pair]),
        "millions": sum("million" in pair.src for pair in pairs),
        "both": sum("million" in pair.src and "thousand" in pair.src for pair in pairs),
        "longest": {
            of: longest(trainer, texts)
            for of, texts in (("train", pairs), ("longer", splits["longer"]))
        },
        "right": {split: share(hits[split]) for split in SPLITS},
        "thousands": thousands,
        "next": round(next_tokens(trainer, tested["longer"]), 5),
        "cpu_seconds": round(time.process_time() - begun, 1),
        "made": runs.made(),
    }


# --- the file and the table


def changes_of(setting: Setting) -> dict[str, Any]:
    """What a setting changes, without what it leaves and its name."""
    usual, own = asdict(Setting("")), asdict(setting)
    return {name: own[name] for name in own if name != "name" and own[name] != usual[name]}


def plan(recipe: str, setting: Setting) -> str:
    """The fingerprint of all that is decided before a run."""
    return runs.plan_of(
        {"tested": TESTED, "model": {}, "training": RECIPES[recipe]}, asdict(setting)
    )


def read(path: Path) -> Rows:
    """The rows of these plans."""
    plans = {(recipe, s.name): plan(recipe, s) for recipe in RECIPES for s in SETTINGS}

    def key_of(row: runs.Row) -> tuple[str, str, int] | None:
        key = row["recipe"], row["setting"], row["seed"]
        return key if row["plan"] == plans.get(key[:2]) else None

    return runs.read_rows(path, key_of)


def remaining(
    rows: Rows, recipe: str, seeds: Sequence[int] = SEEDS, only: Sequence[str] = ()
) -> Iterator[tuple[Setting, int]]:
    """The runs that are missing, seed by seed, so that settings are paired at any time."""
    for seed in seeds:
        for setting in SETTINGS:
            if (not only or setting.name in only) and (recipe, setting.name, seed) not in rows:
                yield setting, seed


def cell(found: Sequence[float | None]) -> str:
    """The mean in per cent with its 95 % interval, cut off at 0 and 100; of one, the number."""
    shares = [number for number in found if number is not None]
    if not shares:
        return "–"
    if len(shares) < 2:
        return f"{shares[0]:.1%}"
    found = runs.interval(shares)
    low, high = max(0.0, found["low"]), min(1.0, found["high"])
    return f"{found['mean']:.1%} [{100 * low:.1f}, {100 * high:.1f}]"


def table(rows: Rows, recipe: str) -> str:
    """Of each setting the share of each split that is right: mean over seeds, 95 % interval."""
    lines = []
    for setting in SETTINGS:
        found = [row for key, row in sorted(rows.items()) if key[:2] == (recipe, setting.name)]
        if found:
            cells = [cell([row["right"][split] for row in found]) for split in SPLITS]
            following = cell([row["next"] for row in found])
            lines.append([setting.name, str(len(found)), *cells, following])
    return runs.markdown(["setting", "runs", *SPLITS, "next tokens of `longer`"], lines)


def main() -> None:
    parser = runs.options(__doc__, "longer.jsonl", SEEDS)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="SETTING")
    parser.add_argument("--recipe", choices=RECIPES, default="usual")
    parser.add_argument("--list", action="store_true", help="what remains; train nothing")
    args = parser.parse_args()
    rows = read(args.out)
    missing = list(remaining(rows, args.recipe, args.seeds, args.only))
    if args.list:
        for setting, seed in missing:
            print(f"{setting.name}, seed {seed}")
        print(table(rows, args.recipe))
        return
    torch.set_num_threads(1)
    with runs.appending(args.out) as append:
        for setting, seed in missing:
            row = train(args.recipe, setting, seed)
            rows[args.recipe, setting.name, seed] = row
            append(row)
            took = f"{row['cpu_seconds']:.0f} s"
            print(f"{setting.name}, seed {seed}:", row["right"], took, flush=True)
    print(table(rows, args.recipe))


if __name__ == "__main__":
    main()
