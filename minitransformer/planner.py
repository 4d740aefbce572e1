"""What a training takes, before it starts: operations, memory, time and money.

Axes: `b` rows that a device has at once, `t` positions of a row, `d` width, `h` heads, `e` width of
a head, `v` vocabulary.

Built in chapter 18. Sources: Kaplan et al. (2020), section 2.1; Hoffmann et al. (2022), appendix F;
Korthikanti et al. (2022), section 4; Rajbhandari et al. (2019), section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from minitransformer.checks import check_at_least_1, check_instance, check_types
from minitransformer.counting import Counts, counts_of

__all__ = ["HARDWARE", "Hardware", "Plan", "plan"]

BYTES: Mapping[str, tuple[int, int, int]] = {"float32": (4, 4, 8), "mixed": (2, 2, 12)}
"""Of a parameter, its gradient, and what Adam keeps for it: two means in float32, and in mixed
precision the float32 weight too, of which the model computes with a copy in two bytes."""


def check_positive(name: str, number: float) -> None:
    """Raise an error unless a number is above 0; NaN is not."""
    if not number > 0:
        raise ValueError(f"{name} must be above 0, got {number}")


def check_count(name: str, number: int) -> int:
    """Return a number of things, if it is one."""
    check_instance(name, number, int)
    check_at_least_1(**{name: number})
    return number


@dataclass(frozen=True)
class Hardware:
    """A device, by what its maker says of it.

    Args:
        name: what it is called.
        flops: floating-point operations a second, dense, in 16 bits: of "mixed" precision.
        flops_float32: the same in float32, without TF32.
        memory: in bytes.
        price: of an hour, in dollars: a round assumption, not an offer.

    Raises:
        TypeError: if a value is of another type.
        ValueError: if a number is not above 0, or the price below.

    Example:
        >>> Hardware("mine", flops=165e12, flops_float32=83e12, memory=24e9, price=0.5).memory
        24000000000.0
    """

    name: str
    flops: float
    flops_float32: float
    memory: float
    price: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("flops", "flops_float32", "memory"):
            check_positive(name, getattr(self, name))
        if not self.price >= 0:
            raise ValueError(f"price must be at least 0, got {self.price}")


HARDWARE = {
    "V100": Hardware("V100", 125e12, 15.7e12, 32e9, 1.0),
    "A100": Hardware("A100", 312e12, 19.5e12, 80e9, 2.0),
    "H100": Hardware("H100", 989e12, 67e12, 80e9, 3.0),
    "H200": Hardware("H200", 989e12, 67e12, 141e9, 3.5),
}
"""NVIDIA's devices with most memory, in their SXM form, by name."""


@dataclass(frozen=True)
class Plan:
    """What `plan` returns: what was assumed, and what follows. Printed, it is a table of both.

    Attributes:
        parameters: of the model.
        flops_per_token: operations of one token, forward and backward.
        flops: of the training, without those that checkpointing does twice.
        seconds: how long all of it takes.
        memory: bytes on each device by what they hold, and their "total".

    Example:
        >>> made = plan(1_000_000_000, 20e9, gpus=8, hardware=HARDWARE["H100"])
        >>> isinstance(made, Plan), f"{made.flops:.1e}", round(made.gpu_hours)
        (True, '1.2e+20', 84)
    """

    parameters: int
    tokens: float
    gpus: int
    hardware: Hardware
    utilisation: float
    batch_size: int
    length: int
    precision: str
    sharding: str
    checkpointing: bool
    flops_per_token: float
    flops: float
    seconds: float
    memory: Mapping[str, float]

    @property
    def days(self) -> float:
        """How long all of it takes."""
        return self.seconds / 86_400

    @property
    def gpu_hours(self) -> float:
        """The hours of all devices together."""
        return self.gpus * self.seconds / 3600

    @property
    def cost(self) -> float:
        """What they cost, in dollars."""
        return self.gpu_hours * self.hardware.price

    @property
    def fits(self) -> bool:
        """Whether a device holds what is counted here."""
        return self.memory["total"] <= self.hardware.memory

    def __str__(self) -> str:
        device, memory = self.hardware, {k: f"{x / 1e9:,.2f} GB" for k, x in self.memory.items()}
        memory["total"] += f" of {device.memory / 1e9:,g}{'' if self.fits else ': does not fit'}"
        peak = peak_of(device, self.precision) / 1e12
        rows = {
            "parameters": f"{self.parameters:,}",
            "operations": f"{self.flops:.2e}; of a token {self.flops_per_token:.2e}",
            "time": f"{self.days:,.2f} days, {self.gpu_hours:,.0f} device hours",
            "cost": f"{self.cost:,.0f} dollars",
            "memory of each device": "",
            **{f"  {kind}": size for kind, size in memory.items()},
            "assumed": "",
            "  tokens": f"{self.tokens:.3g}",
            "  devices": f"{self.gpus:,} {device.name}, {device.price:g} dollars an hour each",
            "  utilisation": f"{self.utilisation:.0%} of {peak:g} Tflop/s, network included",
            "  rows at once": f"{self.batch_size} of {self.length or 'unknown'} tokens",
            "  precision": f"{self.precision}, {sum(BYTES[self.precision])} bytes a parameter",
            "  sharding": self.sharding,
            "  checkpointing": "of every layer" if self.checkpointing else "none",
        }
        return "\n".join(f"{name:<22}{value}".rstrip() for name, value in rows.items())


def plan(
    config: Any,
    tokens: float,
    gpus: int = 1,
    hardware: Hardware = HARDWARE["A100"],
    *,
    utilisation: float = 0.4,
    batch_size: int = 1,
    length: int | None = None,
    precision: Literal["float32", "mixed"] = "mixed",
    sharding: Literal["none", "fsdp"] = "none",
    checkpointing: bool = False,
) -> Plan:
    """What training a model takes.

    **Operations.** A weight meets each token in one product and one sum: 2 operations. The backward
    pass has twice as many, for the gradients of inputs and of weights: 6N for N weights. Attention
    multiplies without weights: h·e products and sums with each of t keys, and as many with t
    values, make 4·t·h·e a layer, 12·t·h·e with the backward pass. Keys that the causal mask hides
    are counted, as is usual, though fused kernels leave them out; norms, activations and Adam are
    not. N is without tables that are only looked up. Of a plain number, all is N, and nothing is
    known of attention.

    **Memory.** A device holds parameters, gradients and Adam's state, in either precision 16 bytes
    a parameter; with "fsdp" its share of each, and *gathered* for a while: the layer in use and the
    next, what is outside layers, and the gradients of one of these. *Activations* are what backward
    passes need of this package's layers, counted in `counting`: with a fused attention, which keeps
    no weights, and a byte for each number that dropout decides on. Checkpointing keeps the input of
    each layer, and computes what is inside again, one layer at a time. *Logits* are log
    probabilities and their gradient, in float32, of which the models' own `loss` keeps a part only.
    The peak is a little below the total, since activations go as gradients come; what PyTorch, its
    kernels and the network need for themselves is not counted.

    **Time.** All operations, repeated ones included, by the utilised part of the peak. What the
    network costs is in the utilisation.

    Args:
        config: a `TransformerConfig`, a `GPT2Config`, a `LlamaConfig` or one derived from it; or a
            number of parameters.
        tokens: of the whole training; with an encoder, pairs of one of source and one of target.
        gpus: how many devices.
        hardware: which.
        utilisation: share of the peak that is reached; with many devices 0.3 to 0.5 is usual.
        batch_size: rows that a device has at once, b.
        length: tokens of a row, t; the configuration's `max_len` when left out.
        precision: "float32", or "mixed": computed in 16 bits, with weights in float32 for Adam.
        sharding: "none" (each device has all, as DDP does), or "fsdp" (each has its share).
        checkpointing: whether layers are computed again in the backward pass.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if one is out of range, or `length` beyond what the model takes.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> config = TransformerConfig.decoder_only(50_000, num_layers=12, d_model=768, d_ff=3072)
        >>> print(plan(config, 2.5e9, gpus=8, batch_size=16))
        parameters            123,454,464
        operations            2.13e+18; of a token 8.53e+08
        time                  0.02 days, 5 device hours
        cost                  9 dollars
        memory of each device
          parameters          0.25 GB
          gradients           0.25 GB
          optimiser           1.48 GB
          activations         3.96 GB
          logits              6.55 GB
          total               12.49 GB of 80
        assumed
          tokens              2.5e+09
          devices             8 A100, 2 dollars an hour each
          utilisation         40% of 312 Tflop/s, network included
          rows at once        16 of 1024 tokens
          precision           mixed, 16 bytes a parameter
          sharding            none
          checkpointing       none

    Sources: Kaplan et al. (2020), section 2.1; Hoffmann et al. (2022),
    appendix F; memory: Korthikanti et al. (2022), section 4; Rajbhandari et al. (2019), section 3.
    """
    counts = counts_of(config)
    check_instance("hardware", hardware, Hardware)
    length = (counts.default_length or 0) if length is None else check_count("length", length)
    check_count("gpus", gpus)
    check_count("batch_size", batch_size)
    if length > counts.longest:
        raise ValueError(f"length must be at most max_len={counts.longest}, got {length}")
    check_positive("tokens", tokens)
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be above 0 and at most 1, got {utilisation}")
    if precision not in BYTES:
        raise ValueError(f"precision must be one of {(*BYTES,)}, got {precision!r}")
    if sharding not in ("none", "fsdp"):
        raise ValueError(f"sharding must be 'none' or 'fsdp', got {sharding!r}")
    attended = sum(layer.attended for layer in counts.layers)
    per_token = 6 * counts.weights + 12 * attended * length
    once = 6 * counts.projection if counts.layers else 0  # what checkpointing leaves as it is
    again = (per_token - once) / 3 if checkpointing else 0.0
    memory = memory_of(counts, precision, gpus if sharding == "fsdp" else 1)
    if counts.layers:
        saved, masked = counts.kept(checkpointing)
        positions = batch_size * length
        memory["activations"] = positions * (BYTES[precision][0] * saved + masked)
        memory["logits"] = positions * 8 * counts.vocab_size
    return Plan(
        parameters=counts.parameters,
        tokens=tokens,
        gpus=gpus,
        hardware=hardware,
        utilisation=utilisation,
        batch_size=batch_size,
        length=length,
        precision=precision,
        sharding=sharding,
        checkpointing=checkpointing,
        flops_per_token=per_token,
        flops=per_token * tokens,
        seconds=(per_token + again) * tokens / (gpus * peak_of(hardware, precision) * utilisation),
        memory={**memory, "total": sum(memory.values())},
    )


def memory_of(counts: Counts, precision: str, shards: int) -> dict[str, float]:
    """Bytes of what a device holds whatever it reads."""
    sizes = BYTES[precision]
    kinds = zip(("parameters", "gradients", "optimiser"), sizes, strict=True)
    memory = {kind: size * counts.parameters / shards for kind, size in kinds}
    if shards > 1 and counts.layers:
        layer = max(layer.parameters for layer in counts.layers)
        memory["gathered"] = sizes[0] * (2 * layer + counts.outside)
        memory["gathered"] += sizes[1] * max(layer, counts.outside)
    return memory


def peak_of(hardware: Hardware, precision: str) -> float:
    """Operations a second that a device could do."""
    return hardware.flops if precision == "mixed" else hardware.flops_float32
