"""What `ablations.py` trains: three small tasks, a baseline of each, and what is changed in it.

A setting names what it changes, and nothing else of the baseline is touched: fields of
`TransformerConfig` (model), of `TrainingConfig` (training), of the data, and what no
configuration has a word for, a function of `CHANGES` that is applied to the fresh model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import minitransformer as mt
from minitransformer.models.t5 import RelativePositionBias
from minitransformer.models.transformer import start_normal
from minitransformer.tasks.recipes import start_as_identity

MODEL: dict[str, Any] = {
    "d_model": 64,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_ff": 256,
    "dropout": 0.0,
    "activation": "relu",
    "norm_first": True,
    "norm": "layer_norm",
    "positional_encoding": "sinusoidal",
    "share_embeddings": False,
    "tie_output": True,
    "max_len": 128,
}
TRAINING: dict[str, Any] = {"steps": 400, "warmup_steps": 40, "label_smoothing": 0.0}
BASELINES: dict[str, dict[str, dict[str, Any]]] = {
    # English number words to German ones, in pieces.
    "number-words": {
        "model": MODEL | {"dropout": 0.1},
        "training": TRAINING
        | {"batch_size": 32, "peak_learning_rate": 4e-3, "label_smoothing": 0.1},
        "data": {"size": 10_000, "held_out": 400, "pieces": 305},
    },
    # English sentences of at most seven words to German ones, in words (pieces of 0).
    "grammar": {
        "model": MODEL,
        "training": TRAINING | {"batch_size": 64, "peak_learning_rate": 5e-3},
        "data": {"size": 15_000, "held_out": 300, "pieces": 0, "joint": False},
    },
    # English prose, Python's help topics and docstrings, to be gone on with.
    "text": {
        "model": MODEL | {"num_encoder_layers": 0, "share_embeddings": True},
        "training": TRAINING | {"batch_size": 24, "peak_learning_rate": 8e-3, "context_length": 64},
        "data": {"size": 800_000, "pieces": 512},
    },
}
"""Of each task what the baseline is. Sizes of data are pairs, and of the text characters."""

PAIRS = ("number-words", "grammar")
ALL = (*PAIRS, "text")


@dataclass(frozen=True)
class Setting:
    """One change of the baseline, or several at once."""

    name: str
    factor: str
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    change: str = ""
    """A name of `CHANGES`."""
    tasks: tuple[str, ...] = ALL
    parts: tuple[str, ...] = ()
    """The settings that are joined in this one."""

    def as_changes(self) -> dict[str, Any]:
        """What it changes, without what it leaves."""
        parts = {"model": self.model, "training": self.training, "data": self.data}
        named = {name: changes for name, changes in parts.items() if changes}
        return named | ({"change": self.change} if self.change else {})


def attentions(model: nn.Module) -> list[mt.MultiHeadAttention]:
    """Every attention of a model."""
    return [part for part in model.modules() if isinstance(part, mt.MultiHeadAttention)]


def stacks(model: Any) -> list[Any]:
    """The encoder, where there is one, and the decoder."""
    return [model.encoder, model.decoder] if hasattr(model, "encoder") else [model.decoder]


def relative(model: Any, generator: torch.Generator) -> None:
    """T5's learned bias for each bucket of distances, one table for each stack."""
    for stack in stacks(model):
        is_encoder = hasattr(model, "encoder") and stack is model.encoder
        bias = RelativePositionBias(
            model.config.num_heads, max_distance=model.config.max_len, bidirectional=is_encoder
        )
        for layer in stack.layers:
            layer.self_attention.position_bias = bias


def final_norm(model: Any, generator: torch.Generator) -> None:
    """End each stack on a norm, as `nn.Transformer` does in either order."""
    for stack in stacks(model):
        stack.norm = mt.LayerNorm(model.config.d_model)


def no_final_norm(model: Any, generator: torch.Generator) -> None:
    """Leave out the norm at the end of each stack."""
    for stack in stacks(model):
        stack.norm = nn.Identity()


def norm_of_queries_and_keys(model: Any, generator: torch.Generator) -> None:
    """RMSNorm of each head's queries and keys."""
    for part in attentions(model):
        part.norm_q, part.norm_k = mt.RMSNorm(part.d_k), mt.RMSNorm(part.d_k)


def no_attention_scale(model: Any, generator: torch.Generator) -> None:
    """Scores as they are, not divided by √e."""
    for part in attentions(model):
        part.attention.scale = 1.0


def dropout_inside(model: Any, generator: torch.Generator) -> None:
    """Also drop attention weights and inner units, as the paper's code does since version 2."""
    for part in model.modules():
        if isinstance(part, mt.MultiHeadAttention):
            part.attention.dropout = 0.1
        elif isinstance(part, mt.FeedForward):
            part.dropout.p = 0.1


def sines_then_cosines(model: Any, generator: torch.Generator) -> None:
    """The table of the paper's code: sines in one half, cosines in the other, 10000 reached."""
    table = model.positions.table
    length, width = table.shape
    half = width // 2
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = position * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    table.copy_(torch.cat([angle.sin(), angle.cos()], dim=1))


def embeddings_times(power: float) -> Callable[[Any, torch.Generator], None]:
    """Multiply rows of embeddings by this power of d instead of its root."""

    def apply(model: Any, generator: torch.Generator) -> None:
        for part in model.modules():
            if isinstance(part, mt.TokenEmbedding):
                part.scale = model.config.d_model**power

    return apply


def torch_start(model: Any, generator: torch.Generator) -> None:
    """The starting values of `nn.Linear` and `nn.Embedding`."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5), generator=generator)
            if part.bias is not None:
                bound = 1 / math.sqrt(part.in_features)
                nn.init.uniform_(part.bias, -bound, bound, generator=generator)
        elif isinstance(part, mt.TokenEmbedding):
            nn.init.normal_(part.weight, generator=generator)


def normal_start(std: float) -> Callable[[Any, torch.Generator], None]:
    """GPT-2's start: normal, and what ends in a residual smaller with the number of these."""

    def apply(model: Any, generator: torch.Generator) -> None:
        start_normal(model, std, generator)
        for stack in stacks(model):
            named = list(stack.named_modules())
            last = [part for name, part in named if name.endswith(("w_o", "w_2"))]
            for part in last:
                nn.init.normal_(part.weight, std=std / math.sqrt(len(last)), generator=generator)

    return apply


CHANGES: dict[str, Callable[[Any, torch.Generator], None]] = {
    "relative": relative,
    "final norm": final_norm,
    "no final norm": no_final_norm,
    "norm of queries and keys": norm_of_queries_and_keys,
    "no attention scale": no_attention_scale,
    "dropout inside": dropout_inside,
    "sines, then cosines": sines_then_cosines,
    "embeddings times 1": embeddings_times(0.0),
    "embeddings times d": embeddings_times(1.0),
    "PyTorch's start": torch_start,
    "normal, 0.02": normal_start(0.02),
    "normal, 0.07": normal_start(0.02 * math.sqrt(768 / 64)),  # 0.02 at GPT-2's width
    "residuals from 0": lambda model, generator: start_as_identity(model),
}
"""What no configuration has a word for."""


def deep(encoder: int, decoder: int) -> dict[str, Any]:
    """So many layers on either side, of which the baseline has two."""
    layers = {"num_encoder_layers": encoder, "num_decoder_layers": decoder}
    return {name: number for name, number in layers.items() if number != MODEL[name]}


def batches(task: str, sizes: dict[int, int]) -> list[Setting]:
    """Sizes of a batch with numbers of steps; warm-up is a tenth of these, as in the baseline."""
    found = []
    for size, steps in sizes.items():
        training = {"batch_size": size, "steps": steps, "warmup_steps": steps // 10}
        name, tasks = f"batch of {size}, {steps} steps", (task,)
        found.append(Setting(name, "batch size", training=training, tasks=tasks))
    for size in list(sizes)[:2]:
        name, training = f"batch of {size}, 400 steps", {"batch_size": size}
        found.append(Setting(name, "batch size", training=training, tasks=(task,)))
    return found


def amounts(task: str, unit: str, sizes: tuple[int, ...]) -> list[Setting]:
    """How much there is to learn from; the vocabulary stays that of the baseline's data."""
    return [
        Setting(f"{size:,} {unit}", "data", data={"size": size}, tasks=(task,)) for size in sizes
    ]


SINGLE = [
    # The learning rate is a factor of its own: the baseline at other rates.
    Setting("learned positions", "positions", {"positional_encoding": "learned"}),
    Setting("rotary positions", "positions", {"positional_encoding": "rotary"}),
    Setting("ALiBi", "positions", {"positional_encoding": "alibi"}),
    Setting("no positions", "positions", {"positional_encoding": "none"}),
    Setting("relative positions", "positions", {"positional_encoding": "none"}, change="relative"),
    Setting("post-norm", "norm", {"norm_first": False}),
    Setting("RMSNorm", "norm", {"norm": "rms_norm"}),
    Setting("no final norm", "norm", change="no final norm"),
    Setting("post-norm, final norm", "norm", {"norm_first": False}, change="final norm"),
    Setting("norm of queries and keys", "norm", change="norm of queries and keys"),
    Setting("1+1 layers", "layers", deep(1, 1), tasks=PAIRS),
    Setting("4+4 layers", "layers", deep(4, 4), tasks=PAIRS),
    Setting("1+2 layers", "layers", deep(1, 2), tasks=PAIRS),
    Setting("2+1 layers", "layers", deep(2, 1), tasks=PAIRS),
    Setting("1+3 layers", "layers", deep(1, 3), tasks=PAIRS),
    Setting("3+1 layers", "layers", deep(3, 1), tasks=PAIRS),
    Setting("1 layer", "layers", {"num_decoder_layers": 1}, tasks=("text",)),
    Setting("4 layers", "layers", {"num_decoder_layers": 4}, tasks=("text",)),
    Setting("1 head", "heads", {"num_heads": 1}),
    Setting("2 heads", "heads", {"num_heads": 2}),
    Setting("8 heads", "heads", {"num_heads": 8}),
    Setting("16 heads", "heads", {"num_heads": 16}),
    Setting("no warm-up", "warm-up", training={"warmup_steps": 1}),
    Setting("warm-up of 10", "warm-up", training={"warmup_steps": 10}),
    Setting("warm-up of 120", "warm-up", training={"warmup_steps": 120}),
    Setting("warm-up of 240", "warm-up", training={"warmup_steps": 240}),
    Setting("dropout 0", "dropout", {"dropout": 0.0}, tasks=("number-words",)),
    Setting("dropout 0.1", "dropout", {"dropout": 0.1}, tasks=("grammar", "text")),
    Setting("dropout 0.2", "dropout", {"dropout": 0.2}),
    Setting("dropout 0.3", "dropout", {"dropout": 0.3}),
    Setting("smoothing 0", "smoothing", training={"label_smoothing": 0.0}, tasks=("number-words",)),
    Setting("smoothing 0.1", "smoothing", training={"label_smoothing": 0.1}, tasks=ALL[1:]),
    Setting("smoothing 0.2", "smoothing", training={"label_smoothing": 0.2}),
    *amounts("number-words", "pairs", (1_000, 3_000, 30_000)),
    *amounts("grammar", "pairs", (1_500, 5_000)),
    *amounts("text", "characters", (50_000, 200_000)),
    Setting("d_model 32", "d_model", {"d_model": 32}),
    Setting("d_model 128", "d_model", {"d_model": 128}),
    Setting("d_ff 64", "d_ff", {"d_ff": 64}),
    Setting("d_ff 128", "d_ff", {"d_ff": 128}),
    Setting("d_ff 512", "d_ff", {"d_ff": 512}),
    # Gated networks have three matrices: two thirds of the width hold as many weights.
    Setting("GELU", "activation", {"activation": "gelu"}),
    Setting("SiLU", "activation", {"activation": "silu"}),
    Setting("SwiGLU", "activation", {"activation": "swiglu", "d_ff": 171}),
    Setting("GEGLU", "activation", {"activation": "geglu", "d_ff": 171}),
    Setting("untied output", "embeddings", {"tie_output": False}),
    Setting("embeddings times 1", "embeddings", change="embeddings times 1"),
    Setting("embeddings times d", "embeddings", change="embeddings times d"),
    Setting("joint vocabulary", "embeddings", data={"joint": True}, tasks=("grammar",)),
    Setting(
        "one table of three",
        "embeddings",
        {"share_embeddings": True},
        data={"joint": True},
        tasks=("grammar",),
    ),
    Setting("no attention scale", "attention scale", change="no attention scale"),
    # What the paper leaves open, or its code decides otherwise: the page on departures.
    Setting("no attention biases", "details", {"attention_bias": False}),
    Setting("dropout inside too", "details", change="dropout inside"),
    Setting("sines, then cosines", "details", change="sines, then cosines"),
    Setting("PyTorch's start", "start", change="PyTorch's start"),
    Setting("normal start, 0.02", "start", change="normal, 0.02"),
    Setting("normal start, 0.07", "start", change="normal, 0.07"),
    Setting("residuals from 0", "start", change="residuals from 0"),
    *batches("number-words", {16: 800, 64: 200, 128: 100}),
    *batches("grammar", {32: 800, 128: 200, 256: 100}),
    *batches("text", {12: 800, 48: 200, 96: 100}),
    *(
        Setting(f"{pieces} pieces", "vocabulary", data={"pieces": pieces}, tasks=(task,))
        for task, sizes in (
            ("number-words", (261, 280, 400, 800)),  # 261 are the bytes and what is special
            ("grammar", (300, 600, 1_200)),
            ("text", (300, 1_024)),
        )
        for pieces in sizes
    ),
]


def joined(factor: str, *parts: str) -> Setting:
    """Several settings at once."""
    found = [next(setting for setting in SINGLE if setting.name == part) for part in parts]
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for part in found:
        model |= part.model
        training |= part.training
        data |= part.data
    tasks = tuple(task for task in ALL if all(task in setting.tasks for setting in found))
    name = ", ".join(parts)
    return Setting(name, factor, model, training, data, tasks=tasks, parts=parts)


DEPTHS = ("1+1 layers", "4+4 layers", "1 layer", "4 layers")
DEEP = "depth × norm × warm-up"
SPARSE = "dropout × data"
SETTINGS = [
    *SINGLE,
    joined(DEEP, "post-norm", "no warm-up"),
    *(joined(DEEP, depth, "post-norm") for depth in DEPTHS),
    *(joined(DEEP, depth, "no warm-up") for depth in DEPTHS),
    *(joined(DEEP, depth, "post-norm", "no warm-up") for depth in DEPTHS),
    *(
        joined(SPARSE, dropout, setting.name)
        for setting in SINGLE
        if setting.factor == "data" and setting.data["size"] != 30_000
        for dropout in ("dropout 0", "dropout 0.1", "dropout 0.3")
        if (dropout == "dropout 0") == (setting.tasks[0] == "number-words")
        or dropout == "dropout 0.3"
    ),
]
BASELINE = Setting("baseline", "learning rate")
FACTORS = [
    "learning rate",
    "positions",
    "norm",
    "layers",
    "heads",
    "warm-up",
    "dropout",
    "smoothing",
    DEEP,
    "data",
    "d_model",
    "d_ff",
    "activation",
    "attention scale",
    "embeddings",
    "start",
    "batch size",
    "vocabulary",
    "details",
    SPARSE,
]
"""In the order of importance, in which they are trained."""


def settings_of(task: str, factor: str) -> list[Setting]:
    """The settings of a factor that a task has."""
    return [s for s in SETTINGS if s.factor == factor and task in s.tasks]
