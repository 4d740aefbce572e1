"""What changed between the decoder of 2017 and today's, one switch at a time: which change pays?

Every model is a `DecoderOnlyTransformer` of the same width, depth, text and budget, without
dropout. "2017" is the paper's decoder without its second attention: post-norm, LayerNorm,
sinusoidal positions, ReLU, heads of keys and values as many as heads, biases in all projections,
tied output, Glorot start. "modern" has everything switched but GELU, which SwiGLU replaces, and the
start for the width, which GPT-2's replaces: a little Llama with norms of queries and keys, whose
embeddings keep the factor √d. Each switch is measured from both sides: put on in 2017, taken off in
modern.

python -m benchmarks.experiments.since_2017   about three quarters of an hour of one core

Each setting is trained once at every rate on a seed of its own, and the best rate trains all other
seeds. Runs of a seed see the same batches, so that differences are paired.

The text is what every machine has, Python's help topics and the docstrings of its library; one of
twenty documents is held out, and no paragraph of it is in the rest. Versions of Python differ.
"""

import ast
import math
import random
import statistics
import sysconfig
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

import minitransformer as mt
from benchmarks.experiments.ablation_settings import norm_of_queries_and_keys, normal_start
from benchmarks.runs import Row, Runs, fingerprint, options, paired, size

SWITCHES = {
    "pre-norm": ("norm after each residual", "norm before each sub-layer, one at the end"),
    "rms norm": ("LayerNorm", "RMSNorm"),
    "rotary": ("sinusoidal positions", "rotary positions"),
    "gelu": ("ReLU", "GELU"),
    "swiglu": ("ReLU", "SwiGLU of two thirds of the width"),
    "grouped heads": ("heads of keys and values as many as heads", "half as many"),
    "no biases": ("biases in all projections", "none"),
    "qk norm": ("queries and keys as they are", "RMSNorm of each head's queries and keys"),
    "untied": ("output tied to the embedding", "output of its own"),
    "start": ("Glorot, embeddings 1/√d", "normal, σ = 0.02, W^O and W₂ by √(2N) less"),
    "wide start": ("Glorot, embeddings 1/√d", "the same with σ = 0.02 √(768/d)"),
}
MODERN = frozenset(SWITCHES) - {"gelu", "wide start"}
INSTEAD = {"gelu": "swiglu", "wide start": "start"}
"""What a switch that is not in modern replaces there."""
SETTINGS = {
    "2017": frozenset[str](),
    **{f"2017 + {switch}": frozenset({switch}) for switch in SWITCHES},
    "modern": MODERN,
    **{f"modern - {switch}": MODERN - {switch} for switch in SWITCHES if switch in MODERN},
    **{f"modern - {old} + {new}": MODERN - {old} | {new} for new, old in INSTEAD.items()},
}
COMPARISONS = [
    ("all", "2017", "modern", "2017"),
    *((switch, "2017", f"2017 + {switch}", "2017") for switch in SWITCHES),
    *(
        (switch, "modern", "modern", f"modern - {switch}")
        for switch in SWITCHES
        if switch in MODERN
    ),
    *(
        (new, "modern", f"modern - {old} + {new}", f"modern - {old}")
        for new, old in INSTEAD.items()
    ),
    ("swiglu over gelu", "2017", "2017 + swiglu", "2017 + gelu"),
    ("swiglu over gelu", "modern", "modern", "modern - swiglu + gelu"),
]
"""Switch, rest, with it, without it."""

SHAPE: dict[str, Any] = {
    "num_layers": 2,
    "d_model": 64,
    "num_heads": 4,
    "d_ff": 256,
    "dropout": 0.0,
}
CONTEXT = 128
TRAINING = {"steps": 300, "batch_size": 6, "context_length": CONTEXT, "warmup_steps": 30}
TRAINING |= {"label_smoothing": 0.0}
RATES = (4e-3, 8e-3, 1.6e-2)
SELECTION_SEED = 100
NUM_CHARACTERS = 900_000


def documents(size: int) -> list[str]:
    """Help topics and modules' docstrings, at least `size` characters of them if there are."""
    found = list(topics.values())
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if sum(map(len, found)) >= size:
            break
        tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        parts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        found.append("\n\n".join(part for part in parts if part))
    return [text for text in found if text]


def split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """What to train on, and a twentieth held out, of which no paragraph stands in the rest."""
    shuffled = random.Random(12).sample(texts, len(texts))
    count = len(texts) // 20
    held_out = shuffled[:count]
    paragraphs = {part for text in held_out for part in text.split("\n\n")}
    kept = ([p for p in text.split("\n\n") if p not in paragraphs] for text in shuffled[count:])
    return ["\n\n".join(parts) for parts in kept if parts], held_out


def new_model(vocab_size: int, switches: frozenset[str], seed: int) -> mt.DecoderOnlyTransformer:
    """A fresh model with these switches on."""
    gate, bias = "swiglu" in switches, "no biases" not in switches
    activation = "swiglu" if gate else "gelu" if "gelu" in switches else "relu"
    # Three matrices of two thirds hold as many weights as two.
    d_ff = round(2 / 3 * SHAPE["d_ff"]) if gate else SHAPE["d_ff"]
    num_kv_heads = SHAPE["num_heads"] // 2 if "grouped heads" in switches else None
    changes = {
        "d_ff": d_ff,
        "activation": activation,
        "norm_first": "pre-norm" in switches,
        "norm": "rms_norm" if "rms norm" in switches else "layer_norm",
        "attention_bias": bias,
        "num_kv_heads": num_kv_heads,
        "positional_encoding": "rotary" if "rotary" in switches else "sinusoidal",
        "tie_output": "untied" not in switches,
        "max_len": CONTEXT,
    }
    config = mt.TransformerConfig.decoder_only(vocab_size, **SHAPE | changes)
    generator = torch.Generator().manual_seed(seed)
    model = mt.DecoderOnlyTransformer(config, generator)
    layers: Any = model.decoder.layers
    for layer in layers:
        # The configuration has no word for these two.
        layer.feed_forward = mt.FeedForward(config.d_model, d_ff, activation=activation, bias=bias)
    if "qk norm" in switches:
        norm_of_queries_and_keys(model, generator)
    model.initialise(generator)
    if switches & {"start", "wide start"}:
        # What 0.02 is at GPT-2's width, beside Glorot's 1/√d.
        std = 0.02 * (math.sqrt(768 / config.d_model) if "wide start" in switches else 1)
        normal_start(std)(model, generator)
    return model


class Text:
    """What is read, what is measured on, and the runs."""

    def __init__(self, out: Path) -> None:
        self.train_texts, self.held_out = split(documents(NUM_CHARACTERS))
        self.tokenizer = mt.BPETokenizer.train(self.train_texts, 512)
        self.fingerprint = fingerprint([*self.train_texts, *self.held_out], 16)
        self.runs = Runs(out, SHAPE, TRAINING, self.fingerprint, torch.__version__)

    def bits(self, setting: str, rate: float, seed: int) -> float | None:
        """Held-out bits per character of one run; None if its loss became infinite."""
        name = f"{setting}, {rate:g}, {seed}"
        return self.runs.run(name, partial(self.train, setting, rate, seed))

    def train(self, setting: str, rate: float, seed: int) -> float | None:
        """Train one model, and measure it."""
        model = new_model(self.tokenizer.vocab_size, SETTINGS[setting], seed)
        config = mt.TrainingConfig(**TRAINING, peak_learning_rate=rate, seed=seed)
        trainer = mt.LanguageModelTrainer(model, self.train_texts, self.tokenizer, config)
        try:
            trainer.fit(progress=False)
        except FloatingPointError:
            return None
        writer = mt.TextGenerator(model, self.tokenizer)
        return writer.bits_per_character(self.held_out, context_length=CONTEXT)

    def results(self, rates: Sequence[float], seeds: Sequence[int]) -> Row:
        """All that the results file holds; what is not measured yet is measured now."""
        settings: dict[str, Row] = {}
        for name, switches in SETTINGS.items():
            selection = {rate: self.bits(name, rate, SELECTION_SEED) for rate in rates}
            settings[name] = {
                "switches": [switch for switch in SWITCHES if switch in switches],
                "parameters": size(new_model(self.tokenizer.vocab_size, switches, 0)),
                "rate": best(selection),
                "selection": {f"{rate:g}": bits for rate, bits in selection.items()},
                "bits": [],
            }
        for seed in seeds:
            for name, row in settings.items():
                row["bits"].append(self.bits(name, row["rate"], seed))
        for row in settings.values():
            row["mean"] = None if None in row["bits"] else statistics.mean(row["bits"])
        results = {
            "text": {
                "train_characters": sum(map(len, self.train_texts)),
                "held_out_characters": sum(map(len, self.held_out)),
                "train_tokens": sum(len(self.tokenizer.encode(text)) for text in self.train_texts),
                "vocab_size": self.tokenizer.vocab_size,
                "fingerprint": self.fingerprint,
            },
            "model": SHAPE,
            "training": TRAINING,
            "rates": list(rates),
            "selection_seed": SELECTION_SEED,
            "seeds": list(seeds),
            "switches": {name: {"old": old, "new": new} for name, (old, new) in SWITCHES.items()},
            "settings": settings,
            "comparisons": list(comparisons(settings)),
        }
        return self.runs.finish(results)


def best(selection: dict[float, float | None]) -> float:
    """The rate with the fewest bits."""
    return min((math.inf if bits is None else bits, rate) for rate, bits in selection.items())[1]


def comparisons(settings: dict[str, Row]) -> Iterator[Row]:
    """Each switch, paired by seeds, with its interval."""
    for switch, rest, name, other in COMPARISONS:
        row = {"switch": switch, "rest": rest, "with": name, "without": other}
        ours, theirs = settings[name]["bits"], settings[other]["bits"]
        if None in [*ours, *theirs]:
            missing = ("differences", "difference", "low", "high", "excludes_zero")
            yield row | dict.fromkeys(missing)
            continue
        found = paired(ours, theirs)
        yield {**row, **found, "excludes_zero": found["low"] > 0 or found["high"] < 0}


def shown(number: float | None, form: str) -> str:
    """A number that may be missing."""
    return "infinite" if number is None else format(number, form)


def main() -> None:
    parser = options(__doc__, "since_2017.json", range(5))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    args = parser.parse_args()
    results = Text(args.out).results(args.rates, args.seeds)
    print("bits per character: with the switch - without it, and its 95 % interval")
    print("switch            rest    difference     low    high")
    for row in results["comparisons"]:
        cells = "  ".join(shown(row[key], "+.3f") for key in ("difference", "low", "high"))
        star = "*" if row["excludes_zero"] else ""
        print(f"{row['switch']:<16}  {row['rest']:<6}  {cells} {star}")


if __name__ == "__main__":
    main()
