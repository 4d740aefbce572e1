"""Dense feed-forward networks and mixtures of experts, with as many active parameters: what pays?

Every model is a small decoder of chapter 12 (pre-norm, RMSNorm, rotary positions, SwiGLU) on the
text of `since_2017`. "dense" is as wide as the active experts of a token together, "wide" has as
many parameters as the mixture, "longer" is "dense" with as many steps as the time of a mixture
allows, "no balance" is the mixture without the balance loss. "dense", "wide" and "8 experts" are
trained at every rate on a seed of its own, and the best rate trains the other seeds, which see the
same batches. The other two take the rate of what they change.

python -m benchmarks.experiments.mixture_of_experts     about four minutes of one core

Of each run: held-out bits per character; CPU seconds of training; and of the mixtures, for each
layer, the share of held-out tokens that chose each expert, over all tokens and by kind of token,
and how much of an expert's choice follows from the token alone (mutual information of a token's
first expert and its id, or its kind, as a share of the entropy of the first expert).
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import minitransformer as mt
from benchmarks.experiments.since_2017 import NUM_CHARACTERS, best, documents, split
from benchmarks.runs import Row, Runs, fingerprint, interval, options, paired, size
from minitransformer.layers import FeedForward, MixtureOfExperts

SHAPE: dict[str, Any] = {"num_layers": 2, "d_model": 64, "num_heads": 4, "dropout": 0.0}
SHAPE |= {"norm_first": True, "norm": "rms_norm", "activation": "swiglu", "attention_bias": False}
SHAPE |= {"positional_encoding": "rotary", "max_len": 128}
D_FF = 168
TRAINING = {"steps": 200, "batch_size": 6, "context_length": 128, "warmup_steps": 20}
TRAINING |= {"label_smoothing": 0.0}
SETTINGS: dict[str, Row] = {
    "dense": {},
    "longer": {"steps": 300},
    "wide": {"d_ff": 4 * D_FF},
    "8 experts": {"experts": 8, "top_k": 2},
    "no balance": {"experts": 8, "top_k": 2, "balance_weight": 0.0},
}
"""Experts are `D_FF` / `top_k` wide: as many weights are active as in "dense"."""
RATE_OF = {"longer": "dense", "no balance": "8 experts"}
"""Settings that take the rate that is best for another."""
RATES = (8e-3, 1.6e-2)
SELECTION_SEED = 100
KINDS = {
    "white space": r"\s+",
    "word begins": r"\s+[A-Za-z].*",
    "word goes on": r"[A-Za-z]+",
    "digits": r"[0-9]+",
    "punctuation": r".*",
}
"""What a token is, by the first pattern that matches it whole."""
HELD_OUT = 40_000  # characters
LOOKED_AT = 24  # batches of held-out rows


def new_model(vocab_size: int, setting: Row, seed: int) -> mt.DecoderOnlyTransformer:
    """A fresh model: dense, or each network exchanged for experts."""
    d_ff = setting.get("d_ff", D_FF)
    config = mt.TransformerConfig.decoder_only(vocab_size, d_ff=d_ff, **SHAPE)
    generator = torch.Generator().manual_seed(seed)
    model = mt.DecoderOnlyTransformer(config, generator)
    given = {"top_k", "balance_weight"} & setting.keys()
    if "experts" in setting:
        torch.manual_seed(seed)
        for layer in model.decoder.layers:
            experts = [
                FeedForward(config.d_model, D_FF // setting["top_k"], activation="swiglu")
                for _ in range(setting["experts"])
            ]
            chosen = {name: setting[name] for name in given}
            layer.feed_forward = MixtureOfExperts(config.d_model, experts, **chosen)
        model.initialise(generator)
    return model


def active(model: mt.DecoderOnlyTransformer) -> int:
    """How many parameters compute something for a token."""
    idle = 0
    for part in model.modules():
        if isinstance(part, MixtureOfExperts):
            idle += (len(part.experts) - part.top_k) * size(part.experts[0])
    return size(model) - idle


class Text:
    """What is read, what is measured on, and the runs."""

    def __init__(self, out: Path) -> None:
        self.train_texts, held_out = split(documents(NUM_CHARACTERS))
        self.held_out = ["\n\n".join(held_out)[:HELD_OUT]]
        self.tokenizer = mt.BPETokenizer.train(self.train_texts, 512)
        self.stream = mt.token_stream(self.train_texts, self.tokenizer)
        self.fingerprint = fingerprint([*self.train_texts, *self.held_out], 16)
        rows = mt.token_stream(self.held_out, self.tokenizer).unfold(0, 128, 128)
        self.rows = rows[: 6 * LOOKED_AT]
        texts = [self.tokenizer.decode([index]) for index in range(self.tokenizer.vocab_size)]
        self.kinds = torch.tensor([kind_of(text) for text in texts])
        plan = (SHAPE, D_FF, TRAINING, SETTINGS, HELD_OUT, LOOKED_AT, KINDS)
        self.runs = Runs(out, plan, self.fingerprint, torch.__version__)

    def found(self, name: str, rate: float, seed: int) -> Row:
        """What one run found."""
        key = f"{name}, {rate:g}, {seed}"
        return dict(self.runs.run(key, partial(self.train, SETTINGS[name], rate, seed)))

    def train(self, setting: Row, rate: float, seed: int) -> Row:
        """Train one model, and measure it."""
        model = new_model(self.tokenizer.vocab_size, setting, seed)
        steps = setting.get("steps", TRAINING["steps"])
        settings = TRAINING | {"steps": steps, "peak_learning_rate": rate, "seed": seed}
        config = mt.TrainingConfig(**settings)
        trainer = mt.LanguageModelTrainer(model, self.stream, self.tokenizer, config)
        before = self.routing(model)  # what an untrained router does already
        begun = time.process_time()
        try:
            trainer.fit(progress=False)
        except FloatingPointError:
            return {"bits": None, "seconds": None, "layers": [], "before": []}
        seconds = time.process_time() - begun
        writer = mt.TextGenerator(model, self.tokenizer)
        bits = writer.bits_per_character(self.held_out, context_length=128)
        found = {"layers": self.routing(model), "before": before}
        return {"bits": bits, "seconds": round(seconds, 2), **found}

    @torch.no_grad()
    def routing(self, model: mt.DecoderOnlyTransformer) -> list[Row]:
        """What the routers of each layer have learned, on held-out rows."""
        parts = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
        chosen: dict[Any, list[Tensor]] = {part: [] for part in parts}

        def note(part: Any, inputs: tuple[Tensor]) -> None:
            chosen[part].append(part.route(inputs[0].flatten(0, 1))[2])

        hooks = [part.register_forward_pre_hook(note) for part in parts]
        for ids in self.rows.split(6):
            model.eval()(ids)
        for hook in hooks:
            hook.remove()
        return [self.of_layer(torch.cat(chosen[part]), len(part.experts)) for part in parts]

    def of_layer(self, chosen: Tensor, count: int) -> Row:
        """Shares of the experts, over all tokens and by kind; and what the token alone says."""
        ids, first = self.rows.flatten(), chosen[:, 0]
        kinds = self.kinds[ids]

        def shares(mask: Tensor) -> list[float]:
            load = chosen[mask].flatten().bincount(minlength=count) / max(1, mask.sum().item())
            return [round(share, 4) for share in load.tolist()]

        names = enumerate(KINDS)
        return {
            "load": shares(torch.ones_like(ids, dtype=torch.bool)),
            "by_kind": {name: shares(kinds == index) for index, name in names},
            "by_id": round(explained(first, ids, count, len(self.kinds)), 4),
            "by_kind_alone": round(explained(first, kinds, count, len(KINDS)), 4),
        }


def kind_of(text: str) -> int:
    """The number of a token's kind."""
    patterns = enumerate(KINDS.values())
    return next(i for i, pattern in patterns if re.fullmatch(pattern, text, re.DOTALL))


def explained(experts: Tensor, labels: Tensor, count: int, num_labels: int) -> float:
    """Mutual information of two labels of each token, as a share of the entropy of the first."""
    joint = torch.zeros(count, num_labels, dtype=torch.float64)
    joint.index_put_((experts, labels), torch.ones(len(experts)).double(), accumulate=True)
    joint /= joint.sum()
    entropy = -joint.sum(1).xlogy(joint.sum(1)).sum().item()
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    information = (joint.xlogy(joint) - joint.xlogy(independent)).sum().item()
    return information / entropy if entropy else math.nan


def most_of(kind: str, layer: Row) -> float:
    """The share of the tokens of a kind that chose the expert which most of them chose."""
    return float(max(layer["by_kind"][kind]))


MEASURES: dict[str, Callable[[Row], float]] = {
    "most_loaded": lambda layer: max(layer["load"]) / statistics.mean(layer["load"]),
    "unused": lambda layer: sum(x < statistics.mean(layer["load"]) / 20 for x in layer["load"]),
    "by_id": lambda layer: float(layer["by_id"]),
    "by_kind_alone": lambda layer: float(layer["by_kind_alone"]),
    **{f"most of {kind}": partial(most_of, kind) for kind in KINDS},
}


def summary(runs: Sequence[Row]) -> Row:
    """Of the seeds of a setting: means with intervals; of routers the mean of all layers."""
    found: Row = {"bits": [run["bits"] for run in runs], "seconds": [r["seconds"] for r in runs]}
    if None in found["bits"]:
        return found
    found["mean"] = statistics.mean(found["bits"])
    for when in ("layers", "before") if runs[0]["layers"] else ():
        found[when] = {
            name: interval([statistics.mean(map(measure, run[when])) for run in runs])
            for name, measure in MEASURES.items()
        }
    return found


def results_of(text: Text, rates: Sequence[float], seeds: Sequence[int]) -> Row:
    """All that the results file holds; what is not measured yet is measured now."""
    settings: dict[str, Row] = {}
    for name, setting in SETTINGS.items():
        of = RATE_OF.get(name, name)
        selection = {rate: text.found(of, rate, SELECTION_SEED)["bits"] for rate in rates}
        model = new_model(text.tokenizer.vocab_size, setting, 0)
        settings[name] = {
            **setting,
            "parameters": size(model),
            "active": active(model),
            "rate": best(selection),
            "selection": {f"{rate:g}": bits for rate, bits in selection.items()},
        }
    runs: dict[str, list[Row]] = {name: [] for name in settings}
    for seed in seeds:
        for name, row in settings.items():
            runs[name].append(text.found(name, row["rate"], seed))
    for name, row in settings.items():
        row |= summary(runs[name])
        if "mean" in row and "mean" in settings["dense"]:
            row["over_dense"] = paired(row["bits"], settings["dense"]["bits"])
    return text.runs.finish(
        {
            "text": text.fingerprint,
            "model": SHAPE | {"d_ff": D_FF},
            "training": TRAINING,
            "rates": list(rates),
            "seeds": list(seeds),
            "kinds": list(KINDS),
            "settings": settings,
            "first_seed": {name: runs[name][0]["layers"] for name in runs},
        }
    )


def main() -> None:
    parser = options(__doc__, "mixture_of_experts.json", range(5))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    args = parser.parse_args()
    results = results_of(Text(args.out), args.rates, args.seeds)
    print("bits per character; minus dense, and its 95 % interval; CPU seconds")
    for name, row in results["settings"].items():
        found = row["over_dense"]
        cells = "  ".join(f"{found[key]:+.3f}" for key in ("difference", "low", "high"))
        print(f"{name:<30} {row['mean']:.3f}  {cells}  {statistics.mean(row['seconds']):5.1f}")


if __name__ == "__main__":
    main()
