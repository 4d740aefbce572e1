"""The configurations of Llama, Mistral and Qwen, as `config.json` says them.

Built in chapter 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from minitransformer.models.published_config import HIDDEN, DecoderConfig
from minitransformer.models.rotary_scaling import RotaryScaling

__all__ = ["LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"]

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
