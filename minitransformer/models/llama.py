"""Llama, Mistral and Qwen: the decoder-only model as it has been built since 2023.

| | GPT-2 | Llama | Mistral | Qwen 2 | Qwen 3 |
| --- | --- | --- | --- | --- | --- |
| norms | layer norm | RMSNorm | RMSNorm | RMSNorm | RMSNorm, also of q and k |
| positions | learned | rotary | rotary | rotary | rotary |
| feed-forward | GELU | SwiGLU | SwiGLU | SwiGLU | SwiGLU |
| biases | everywhere | none | none | of q, k and v | none |
| heads of keys | h | fewer in large ones | fewer | fewer | fewer |
| width of a head | d/h | d/h | d/h | d/h | 128 |
| a query sees | all before | all before | 4096 in version 1 | all before | all before |
| output | tied | untied | untied | tied in small ones | tied in small ones |
| dropout | 0.1 | none | none | none | none |

The reasons that were given: RMSNorm takes less time; rotary positions let scores know distances;
SwiGLU had the lower loss; fewer heads of keys make a smaller cache; without biases large models
trained more steadily; the norms of q and k bound the scores. Chapter 12 measures each. SmolLM2
is a Llama whose output is tied.

Built in chapter 12. Papers: Touvron et al. (2023), section 2.2; Jiang et al. (2023), section 2;
Yang et al. (2024) and (2025), section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import nn

from minitransformer.layers.encoder_decoder import EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.hub import ACTIVATION_NAMES, HIDDEN, DecoderConfig, Names, Published
from minitransformer.models.rotary_scaling import RotaryScaling
from minitransformer.models.transformer import DecoderOnlyTransformer, start_normal

__all__ = ["Llama", "LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"]

PLAIN = RotaryScaling()
COMMON = HIDDEN | {
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "d_k",
    "rms_norm_eps": "eps",
    "rope_parameters": "rotary",
    "eos_token_id": "eos_ids",
}
ROTARY = ("rope_parameters", "rope_scaling", "rope_theta")


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """The shape of a `Llama`; left out, that of the first one with 7 billion parameters.

    Args:
        num_kv_heads: heads of keys and values; h when left out.
        d_k: width of a head, e; d/h when left out.
        rotary: how fast the pairs of queries and keys turn.
        attention_bias: whether the projections of attention have biases.
        mlp_bias: whether those of the feed-forward networks have.
        window: how many keys a query sees, its own among them; all before it when left out.
        first_window_layer: layers before this one see all.
        others: see `PublishedConfig`.

    Paper: Touvron et al. (2023), table 2.
    """

    vocab_size: int = 32_000
    d_model: int = 4096
    num_heads: int = 32
    num_layers: int = 32
    d_ff: int = 11_008
    num_kv_heads: int | None = None
    d_k: int | None = None
    max_len: int = 2048
    activation: str = "silu"
    eps: float = 1e-6
    rotary: RotaryScaling = PLAIN
    attention_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None
    first_window_layer: int = 0
    tie_output: bool = False
    eos_ids: tuple[int, ...] = (2,)

    model_type: ClassVar[str] = "llama"
    also: ClassVar[tuple[str, ...]] = ("mistral", "qwen2", "qwen3")
    architecture: ClassVar[str] = "LlamaForCausalLM"
    keys: ClassVar[Mapping[str, str]] = COMMON | {
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "rope_interleaved": (False,),
        "is_llama_config": (True, False),
    }
    without_effect: ClassVar[str] = "max_sequence_length"
    positional_encoding: ClassVar[str] = "rotary"
    norm: ClassVar[str] = "rms_norm"
    dropout: ClassVar[float] = 0.0
    output_bias: ClassVar[bool] = True  # where attention has biases, its last projection has one
    qk_norm: ClassVar[bool] = False

    @property
    def head_width(self) -> int:
        """The width of a head, e."""
        return self.d_model // self.num_heads if self.d_k is None else self.d_k

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        others = {key: value for key, value in content.items() if key not in ROTARY}
        others["rope_parameters"] = RotaryScaling.from_published(content)
        return super().of_family(others)

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says; a ValueError if the family has no setting for a field."""
        self.check_settings()
        return {
            **super().to_published(),
            "architectures": [self.architecture],
            "num_key_value_heads": self.num_kv_heads or self.num_heads,
            "head_dim": self.head_width,
            **self.rotary.to_published(),
        }


@dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaConfig):
    """The shape of a Mistral, see `LlamaConfig`; left out, that of the first one.

    Example:
        >>> MistralConfig().num_kv_heads, MistralConfig().window
        (8, 4096)
    """

    d_ff: int = 14_336
    num_kv_heads: int | None = 8
    max_len: int = 131_072
    window: int | None = 4096

    model_type: ClassVar[str] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    keys: ClassVar[Mapping[str, str]] = COMMON | {"sliding_window": "window"}
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(LlamaConfig):
    """The shape of a Qwen 2, see `LlamaConfig`: queries, keys and values have biases.

    Example:
        >>> Qwen2Config(num_layers=3, window=9, first_window_layer=2).layer_types[1:]
        ['full_attention', 'sliding_attention']
    """

    vocab_size: int = 151_936
    d_ff: int = 22_016
    num_kv_heads: int | None = 32
    max_len: int = 32_768
    attention_bias: bool = True
    first_window_layer: int = 28
    eos_ids: tuple[int, ...] = ()

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = COMMON | {
        "sliding_window": "window",
        "max_window_layers": "first_window_layer",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    output_bias: ClassVar[bool] = False

    @property
    def layer_types(self) -> list[str]:
        """What `config.json` calls the layers."""
        full = self.num_layers if self.window is None else self.first_window_layer
        kinds = ["full_attention"] * full + ["sliding_attention"] * self.num_layers
        return kinds[: self.num_layers]

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        content = {"sliding_window": 4096, **content}
        layer_types = content.pop("layer_types", None)
        if not content.pop("use_sliding_window", False):
            content["sliding_window"] = None
        elif layer_types is not None:
            content["max_window_layers"] = layer_types.count("full_attention")
        config = super().of_family(content)
        if layer_types not in (None, config.layer_types):
            raise ValueError(f"layer_types is {layer_types!r}, expected {config.layer_types!r}")
        return config

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration; see `LlamaConfig`."""
        return {**super().to_published(), "use_sliding_window": self.window is not None}


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(Qwen2Config):
    """The shape of a Qwen 3, see `LlamaConfig`: each head's queries and keys are normalised.

    Example:
        >>> Qwen3Config().d_k
        128
    """

    d_k: int | None = 128
    attention_bias: bool = False

    model_type: ClassVar[str] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = {**Qwen2Config.keys, "attention_bias": "attention_bias"}
    output_bias: ClassVar[bool] = True
    qk_norm: ClassVar[bool] = True


LAYER, OURS = "model.layers.*", "decoder.layers.*"
NAMES: Names = {
    "model.embed_tokens": "embedding",
    "model.norm": "decoder.norm",
    f"{LAYER}.input_layernorm": f"{OURS}.residual_1.norm",
    f"{LAYER}.post_attention_layernorm": f"{OURS}.residual_2.norm",  # but before the network
    f"{LAYER}.self_attn.q_norm": f"{OURS}.self_attention.norm_q",
    f"{LAYER}.self_attn.k_norm": f"{OURS}.self_attention.norm_k",
    **{f"{LAYER}.self_attn.{x}_proj": f"{OURS}.self_attention.w_{x}" for x in "qkvo"},
    f"{LAYER}.mlp.gate_proj": f"{OURS}.feed_forward.w_1",
    f"{LAYER}.mlp.up_proj": f"{OURS}.feed_forward.w_3",
    f"{LAYER}.mlp.down_proj": f"{OURS}.feed_forward.w_2",
    f"{LAYER}.self_attn.rotary_emb.inv_freq": None,
    "model.rotary_emb.inv_freq": None,
    "lm_head": "output_projection",
}
GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}


class Llama(Published, DecoderOnlyTransformer):
    """Llama, Mistral, Qwen 2, Qwen 3 or SmolLM2, as its configuration says.

    Args:
        config: a `LlamaConfig`, `MistralConfig`, `Qwen2Config` or `Qwen3Config`.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> config = LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, d_ff=20)
        >>> Llama(config)(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])
    """

    config: Any
    config_class = LlamaConfig
    architecture = "LlamaForCausalLM"
    prefix = "model."
    names = NAMES

    def add_positions(self) -> None:
        """Make the one table of angles, for the attentions of all layers."""
        self.rotary = self.config.rotary.encoding(self.config.head_width, self.config.max_len)

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer of a Llama."""
        config = self.config
        attention = MultiHeadAttention(
            config.d_model,
            config.num_heads,
            d_k=config.head_width,
            num_kv_heads=config.num_kv_heads,
            bias=config.attention_bias,
            output_bias=config.attention_bias and config.output_bias,
            rotary=self.rotary,
            norm_q=self.norm(config.head_width) if config.qk_norm else None,
            norm_k=self.norm(config.head_width) if config.qk_norm else None,
            window=config.window if index >= config.first_window_layer else None,
        )
        return EncoderLayer(
            config.d_model,
            self_attention=attention,
            feed_forward=self.feed_forward(),
            dropout=0.0,
            norm_first=True,
            norm=self.norm,
        )

    def feed_forward(self) -> nn.Module:
        """The feed-forward network of a layer."""
        config = self.config
        gate = GATED[ACTIVATION_NAMES[config.activation]]
        return FeedForward(config.d_model, config.d_ff, activation=gate, bias=config.mlp_bias)

    @property
    def max_len(self) -> int:
        """Longest text, in tokens; beyond the configuration's where its rotary rule allows it."""
        return self.config.rotary.longest(self.config.max_len)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew with σ = 0.02; the papers do not say how."""
        start_normal(self, 0.02, generator)
