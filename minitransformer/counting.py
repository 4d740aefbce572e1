"""What a model has, counted from its configuration alone: parameters, products, numbers it keeps.

Axes: `d` width, `f` inner width, `h` heads, `e` width of a head, `v` vocabulary.

| for one position | weights | kept for the backward pass |
| --- | --- | --- |
| attention | 2·d·h·e, and as many for its heads of keys and values | 2d, 4·h·e or 5 |
| feed-forward | 2·d·f; gated 3·d·f | 2d, 2f; gated 2d, 4f; with ReLU f less |
| end of a stack | | d; pre-norm 2d |
| logits | v·d | v |

2d are the norm's input and what comes out of it; 4·h·e are queries, keys, values and what they
bring, which is copied, 5·h·e, where queries were turned or a padding mask applied: then kernels lay
it out by heads. 2f are the activation's input and result, 4f those, the second factor and the
product; ReLU's result tells where its input was negative. Left out are a few numbers, two for a
norm and one for each head, and what is not one kernel everywhere: a CPU's RMS norm keeps another d,
and its attention with ALiBi keeps the weights.

Built in chapter 18. Source of the idea: Korthikanti et al. (2022), section 4.1.
"""

import math
from dataclasses import dataclass
from typing import Any

from minitransformer.checks import check_at_least_1
from minitransformer.config import TransformerConfig
from minitransformer.feed_forward import GATED

PUBLISHED = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Layer:
    """One layer: parameters, and numbers a position."""

    weights: int  # in matrices of products
    others: int  # biases and gains
    attended: int  # h·e of its attentions together
    saved: int
    masked: int  # what dropout decides on

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.weights + self.others


@dataclass(frozen=True)
class Counts:
    """A model: its layers, and what is outside of them."""

    layers: tuple[Layer, ...]
    projection: int  # weights of the output projection; of a plain number, all
    tables: int = 0  # parameters outside layers that are in no product, or counted already
    d_model: int = 0
    vocab_size: int = 0
    saved: int = 0  # outside layers, but for logits
    masked: int = 0
    default_length: int | None = None
    longest: float = math.inf

    @property
    def weights(self) -> int:
        """In matrices of products."""
        return sum(layer.weights for layer in self.layers) + self.projection

    @property
    def outside(self) -> int:
        """Parameters that are in no layer."""
        return self.projection + self.tables

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(layer.parameters for layer in self.layers) + self.outside

    def kept(self, checkpointing: bool) -> tuple[int, int]:
        """Numbers that a position keeps, but for logits, and how many dropout decides on."""
        inside = self.layers
        if checkpointing:  # the inputs of all layers, and what is inside one
            inside = (max(self.layers, key=lambda layer: layer.saved),)
        inputs = self.d_model * len(self.layers) if checkpointing else 0
        saved = self.saved + inputs + sum(layer.saved for layer in inside)
        return saved, self.masked + sum(layer.masked for layer in inside)


def counts_of(config: Any) -> Counts:
    """Count what a configuration says; its model is not made. A number is one of parameters."""
    if isinstance(config, int | float) and not isinstance(config, bool):
        check_at_least_1(config=int(config))
        return Counts((), projection=int(config))
    published = getattr(config, "model_type", None)
    if not isinstance(config, TransformerConfig) and published not in PUBLISHED:
        raise TypeError(
            "config must be a TransformerConfig, a GPT2Config, a LlamaConfig, one derived from it, "
            f"or a number of parameters, got {type(config).__name__}"
        )
    d, v = config.d_model, config.tgt_vocab_size
    encoder, decoder = stacks_of(config)
    tables = 0 if config.tie_output else v * d  # looked up only; a tied one is the projection
    if encoder and not config.share_embeddings:
        tables += config.src_vocab_size * d
    if config.positional_encoding == "learned":
        tables += config.max_len * d
    stacks = bool(encoder) + 1
    if config.norm_first:
        tables += stacks * norm_size(config)
    has_end = config.positional_encoding not in ("alibi", "none")
    return Counts(
        (*encoder, *decoder),
        projection=v * d,
        tables=tables,
        d_model=d,
        vocab_size=v,
        saved=stacks * (2 if config.norm_first else 1) * d,
        masked=stacks * d if config.dropout else 0,
        default_length=config.max_len,
        longest=config.max_len if has_end else math.inf,
    )


def stacks_of(config: Any) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """The layers of encoder and decoder."""
    if not isinstance(config, TransformerConfig):
        return (), (layer_of(config),) * config.num_layers
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if not encoder:
        return (), (layer_of(config),) * decoder
    return (layer_of(config, padded=1),) * encoder, (layer_of(config, 2, padded=1),) * decoder


def norm_size(config: Any) -> int:
    """Parameters of a norm: RMS norm has no bias."""
    return config.d_model if config.norm == "rms_norm" else 2 * config.d_model


def layer_of(config: Any, attentions: int = 1, padded: int = 0) -> Layer:
    """A layer with so many attentions, of them padded so many, and one network behind them."""
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
    return Layer(
        weights=attentions * 2 * d * (width + kv_width) + (3 if gated else 2) * d * f,
        others=attentions * biases + network_biases + (attentions + 1) * norm_size(config),
        attended=attentions * width,
        saved=attentions * saved + copies * width + network_saved,
        masked=(attentions + 1) * d if config.dropout else 0,
    )
