"""What a training takes, before it starts: operations, memory, time and money.

Axes: `b` rows that a device has at once, `t` positions of a row, `d` width, `f` inner width,
`h` heads, `e` width of a head, `v` vocabulary. Counted from the configuration, for a position:

| | weights | numbers kept for the backward pass |
| --- | --- | --- |
| attention | 2·d·h·e, and as many for its heads of keys and values | 2d, 4·h·e or 5 |
| feed-forward | 2·d·f; gated 3·d·f | 2d, 2f; gated 2d, 4f; with ReLU f less |
| k of g experts | d·g, and k·3·d·f at work | 2d, 2g, and k·(3d, 4f) |
| end of a stack | | d; pre-norm 2d |
| logits | v·d | v |

2d are a norm's input and result; 4·h·e are queries, keys, values and what they bring, which kernels
copy where queries are rotated or padding is masked: 5·h·e. 2f are the activation's input and
result, 4f those, the second factor and the product; ReLU's result tells where its input was
negative. Left out are two numbers of each norm, one of each head, and what is not one kernel
everywhere: a CPU's RMS norm keeps another d, and its attention with ALiBi the weights.

Built in chapter 18. Sources: Kaplan et al. (2020), section 2.1; Hoffmann et al. (2022), appendix F;
Korthikanti et al. (2022), section 4; Rajbhandari et al. (2019), section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from minitransformer.checks import check_at_least_1, check_instance, check_types
from minitransformer.layers.feed_forward import GATED
from minitransformer.models.config import TransformerConfig

__all__ = ["HARDWARE", "Hardware", "Plan", "plan"]

PUBLISHED = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")

BYTES: Mapping[str, tuple[int, int, int]] = {"float32": (4, 4, 8), "mixed": (2, 2, 12)}
"""Of a parameter, its gradient, and what Adam keeps for it: two means in float32, and in mixed
precision the float32 weight too, of which the model computes with a copy in two bytes."""


def check_positive(**numbers: float) -> None:
    """Raise an error that names the first number that is not above 0; NaN is not."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}")


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
        check_positive(flops=self.flops, flops_float32=self.flops_float32, memory=self.memory)
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
        active: of these, what a token meets; of the experts it is the chosen ones.
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
    active: int
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
        idle = "" if self.active == self.parameters else f"; active {self.active:,}"
        rows = {
            "parameters": f"{self.parameters:,}{idle}",
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

    **Operations.** A weight meets each token in one product and one sum: 2 operations, and 4 in the
    backward pass, for the gradients of inputs and of weights: 6N for N weights. Attention's h·e
    products and sums with each of t keys, and with t values, make 4·t·h·e a layer, 12·t·h·e with
    the backward pass. Keys that the causal mask hides are counted, as is usual; norms, activations,
    Adam and tables that are only looked up are not. Of a plain number, all is N.

    **Memory.** A device holds parameters, gradients and Adam's state, in either precision 16 bytes
    a parameter; with "fsdp" its share of each, and *gathered* for a while: the layer in use and the
    next, what is outside layers, and the gradients of one of these. *Activations* are what backward
    passes need with a fused attention, which keeps no weights, and a byte for each number that
    dropout decides on. Checkpointing keeps the input of each layer, and computes what is inside
    again, one layer at a time. *Logits* are log probabilities and their gradient, in float32, of
    which the models' own `loss` keeps a part only. The peak is a little below the total, since
    activations go as gradients come; what PyTorch, its kernels and the network need is not counted.

    **Time.** All operations, repeated ones included, by the utilised part of the peak.

    Args:
        config: a `TransformerConfig`, a `GPT2Config`, a `LlamaConfig` or one derived from it; or a
            number of parameters.
        tokens: of the whole training; with an encoder, pairs of one of source and one of target.
        gpus, hardware: how many devices, and which.
        utilisation: share of the peak that is reached, network included; 0.3 to 0.5 is usual.
        batch_size: rows that a device has at once, b.
        length: tokens of a row, t; the configuration's `max_len` when left out.
        precision: "float32", or "mixed": computed in 16 bits, with weights in float32 for Adam.
        sharding: "none" (each device has all, as DDP does), or "fsdp" (each has its share).
        checkpointing: whether layers are computed again in the backward pass.

    Raises:
        TypeError: if an argument is of another type.
        ValueError: if one is out of range, or `length` beyond what the model takes.

    Example:
        >>> from minitransformer.models.config import TransformerConfig
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
    """
    layers, outside = parts_of(config)
    check_instance("hardware", hardware, Hardware)
    for name, number in {"gpus": gpus, "batch_size": batch_size, "length": length}.items():
        if number is not None:
            check_instance(name, number, int)
            check_at_least_1(**{name: number})
    longest = getattr(config, "max_len", 0)
    length = longest if length is None else length
    has_end = getattr(config, "positional_encoding", "none") not in ("alibi", "none")
    if has_end and length > longest:
        raise ValueError(f"length must be at most max_len={longest}, got {length}")
    check_positive(tokens=tokens)
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be above 0 and at most 1, got {utilisation}")
    if precision not in BYTES:
        raise ValueError(f"precision must be one of {(*BYTES,)}, got {precision!r}")
    if sharding not in ("none", "fsdp"):
        raise ValueError(f"sharding must be 'none' or 'fsdp', got {sharding!r}")
    parts, sizes = (*layers, outside), BYTES[precision]
    parameters = sum(part.parameters for part in parts)
    per_token = sum(6 * part.weights + 12 * part.attended * length for part in parts)
    again = 0.0
    if checkpointing:  # in each layer, the third that is the forward pass
        again = (per_token - (6 * outside.weights if layers else 0)) / 3
    shards = gpus if sharding == "fsdp" else 1
    kinds = zip(("parameters", "gradients", "optimiser"), sizes, strict=True)
    memory = {kind: size * parameters / shards for kind, size in kinds}
    if shards > 1 and layers:
        layer = max(layer.parameters for layer in layers)
        memory["gathered"] = sizes[0] * (2 * layer + outside.parameters)
        memory["gathered"] += sizes[1] * max(layer, outside.parameters)
    if layers:
        inputs = 0
        if checkpointing:  # the inputs of all layers, and what is inside one
            inputs = config.d_model * len(layers)
            parts = (max(layers, key=lambda layer: layer.saved), outside)
        bytes_kept = sizes[0] * inputs + sum(sizes[0] * x.saved + x.masked for x in parts)
        memory["activations"] = batch_size * length * bytes_kept
        memory["logits"] = batch_size * length * 8 * config.tgt_vocab_size
    return Plan(
        parameters=parameters,
        active=parameters - sum(part.idle for part in parts),
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


def peak_of(hardware: Hardware, precision: str) -> float:
    """Operations a second that a device could do."""
    return hardware.flops if precision == "mixed" else hardware.flops_float32


@dataclass(frozen=True)
class Part:
    """A layer, or what is outside of layers: its parameters, and numbers for each position."""

    weights: int  # in matrices of products
    others: int = 0  # biases, gains, and tables that are only looked up
    attended: int = 0  # h·e of its attentions together
    saved: int = 0  # for the backward pass, but for logits
    masked: int = 0  # what dropout decides on
    idle: int = 0  # weights of experts that a token does not use

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.weights + self.others + self.idle


def parts_of(config: Any) -> tuple[tuple[Part, ...], Part]:
    """The layers of a configuration, and what is outside of them; a number is all outside."""
    if isinstance(config, int | float) and not isinstance(config, bool):
        check_at_least_1(config=int(config))
        return (), Part(int(config))
    translates = isinstance(config, TransformerConfig)
    if not translates and getattr(config, "model_type", None) not in PUBLISHED:
        raise TypeError(
            "config must be a TransformerConfig, a GPT2Config, a LlamaConfig, one derived from it, "
            f"or a number of parameters, got {type(config).__name__}"
        )
    d, v = config.d_model, config.tgt_vocab_size
    encoders = config.num_encoder_layers if translates else 0
    decoders = config.num_decoder_layers if translates else config.num_layers
    layers = (layer_of(config),) * decoders
    if encoders:
        decoder = layer_of(config, attentions=2, padded=1)
        layers = (layer_of(config, padded=1),) * encoders + (decoder,) * decoders
    tables = 0 if config.tie_output else v * d  # looked up only; a tied one is the projection
    if encoders and not config.share_embeddings:
        tables += config.src_vocab_size * d
    if config.positional_encoding == "learned":
        tables += config.max_len * d
    stacks = bool(encoders) + 1
    return layers, Part(
        weights=v * d,
        others=tables + stacks * norm_size(config) * config.norm_first,
        saved=stacks * (1 + config.norm_first) * d,
        masked=stacks * d if config.dropout else 0,
    )


def norm_size(config: Any) -> int:
    """Parameters of a norm: RMS norm has no bias."""
    return config.d_model if config.norm == "rms_norm" else 2 * config.d_model


def layer_of(config: Any, attentions: int = 1, padded: int = 0) -> Part:
    """Count one layer: attention blocks, `padded` of them with a padding mask, and a network."""
    is_llama = hasattr(config, "rotary")
    d, h = config.d_model, config.num_heads
    f = 4 * d if config.d_ff is None else config.d_ff
    e = config.head_width if is_llama else d // h
    width, kv_width = h * e, (getattr(config, "num_kv_heads", None) or h) * e

    biases = 0
    if getattr(config, "attention_bias", True):
        biases = width + 2 * kv_width + d * getattr(config, "output_bias", True)
    saved = 2 * d + 4 * width
    if getattr(config, "qk_norm", False):
        biases += 2 * e
        saved += width + kv_width
    copies = max(padded, attentions) if config.positional_encoding == "rotary" else padded

    gated = is_llama or config.activation in GATED
    network_saved = 2 * d + (4 if gated else 2) * f - f * (config.activation in ("relu", "reglu"))
    network_biases = (2 * f if gated else f) + d
    network_biases *= getattr(config, "mlp_bias", not gated)
    network, idle = (3 if gated else 2) * d * f, 0
    if experts := getattr(config, "num_experts", 0):
        network, idle = config.top_k * network + d * experts, (experts - config.top_k) * network
        network_saved = 2 * d + 2 * experts + config.top_k * (network_saved + d)
    return Part(
        weights=attentions * 2 * d * (width + kv_width) + network,
        idle=idle,
        others=attentions * biases + network_biases + (attentions + 1) * norm_size(config),
        attended=attentions * width,
        saved=attentions * saved + copies * width + network_saved,
        masked=(attentions + 1) * d if config.dropout else 0,
    )
