"""Mixtral and Qwen 3 MoE: a Llama whose feed-forward networks are mixtures of experts.

| | Llama | Mixtral 8x7B | Qwen 3 30B-A3B |
| --- | --- | --- | --- |
| feed-forward | SwiGLU | 8 SwiGLU, 2 for each token | 128 SwiGLU, 8 for each token |
| weights of the experts | | sum to 1 | sum to 1 |
| norms of q and k | none | none | RMSNorm |
| parameters | | 46.7 billion | 30.5 billion |
| active for a token | all | 12.9 billion | 3.4 billion |

Files hold each expert by its number. Qwen 3 can mix layers of experts with dense ones; no model of
the family that was published does, and such files are refused.

Built in "Mixture of experts", a deeper page of chapter 12. Papers: Jiang et al. (2024); Yang et al.
(2025), section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

from minitransformer.layers.mixture_of_experts import MixtureOfExperts
from minitransformer.models.hub import Names
from minitransformer.models.llama import (
    COMMON,
    LAYER,
    NAMES,
    OURS,
    Llama,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)
from minitransformer.models.rotary_scaling import RotaryScaling

__all__ = ["Mixtral", "MixtralConfig", "Qwen3Moe", "Qwen3MoeConfig"]

EXPERTS = {"num_experts_per_tok": "top_k", "router_aux_loss_coef": "balance_weight"}
MILLION = RotaryScaling(base=1e6)


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(MistralConfig):
    """The shape of a `Mixtral`; left out, that of 8x7B.

    Args:
        d_ff: inner width of each expert, f.
        num_experts: experts of a layer, g.
        top_k: experts of a token.
        balance_weight: α of each layer's balance loss, see `MixtureOfExperts`. The coefficient of
            `transformers` is of another sum: all layers' tokens together, times `top_k`.
        others: see `LlamaConfig`.

    Example:
        >>> MixtralConfig().num_experts, MixtralConfig().top_k
        (8, 2)
    """

    eps: float = 1e-5
    rotary: RotaryScaling = MILLION
    window: int | None = None
    num_experts: int = 8
    top_k: int = 2
    balance_weight: float = 0.001

    model_type: ClassVar[str] = "mixtral"
    architecture: ClassVar[str] = "MixtralForCausalLM"
    keys: ClassVar[Mapping[str, str]] = {
        **MistralConfig.keys,
        **EXPERTS,
        "num_local_experts": "num_experts",
    }
    without_effect: ClassVar[str] = "output_router_logits|router_jitter_noise"
    normalise: ClassVar[bool] = True

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        return super().of_family({"rope_theta": MILLION.base, **content})


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(LlamaConfig):
    """The shape of a `Qwen3Moe`, see `MixtralConfig`.

    Args:
        normalise: whether the weights of a token's experts sum to 1.
        others: see `MixtralConfig`.

    Example:
        >>> Qwen3MoeConfig().num_experts, Qwen3MoeConfig().top_k
        (128, 8)
    """

    vocab_size: int = 151_936
    d_model: int = 2048
    num_layers: int = 24
    d_ff: int = 768
    num_kv_heads: int | None = 4
    max_len: int = 32_768
    num_experts: int = 128
    top_k: int = 8
    balance_weight: float = 0.001
    normalise: bool = False
    eos_ids: tuple[int, ...] = ()

    model_type: ClassVar[str] = "qwen3_moe"
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"
    keys: ClassVar[Mapping[str, str]] = {
        **{key: ours for key, ours in COMMON.items() if ours != "d_ff"},
        **EXPERTS,
        "attention_bias": "attention_bias",
        "moe_intermediate_size": "d_ff",
        "norm_topk_prob": "normalise",
        "num_local_experts": "num_experts",
        "num_experts": "num_experts",
        "sliding_window": "window",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "decoder_sparse_step": (1,),
        "mlp_only_layers": ([],),
    }
    # The width of dense layers, and the first layer with a window: there are none.
    without_effect: ClassVar[str] = "output_router_logits|intermediate_size|max_window_layers"
    qk_norm: ClassVar[bool] = Qwen3Config.qk_norm

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        content = {"sliding_window": 4096, **content}
        if not content.pop("use_sliding_window", False):
            content["sliding_window"] = None
        return super().of_family(content)

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration; see `LlamaConfig`."""
        return {**super().to_published(), "use_sliding_window": self.window is not None}


def names_with_experts(block: str, **parts: str) -> Names:
    """The names of a Llama whose networks are a block with a router, `gate`, and experts."""
    dense = {name: ours for name, ours in NAMES.items() if ".mlp." not in name}
    return dense | {
        f"{LAYER}.{block}.gate": f"{OURS}.feed_forward.router",
        **{
            f"{LAYER}.{block}.experts.*.{theirs}": f"{OURS}.feed_forward.experts.*.{ours}"
            for ours, theirs in parts.items()
        },
    }


class Mixtral(Llama):
    """A Mixtral, or another Llama with experts.

    Args:
        config: a `MixtralConfig`.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> import torch
        >>> config = MixtralConfig(vocab_size=30, d_model=32, num_heads=8, num_layers=2, d_ff=20)
        >>> Mixtral(config)(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])
    """

    config_class = MixtralConfig
    architecture = "MixtralForCausalLM"
    names = names_with_experts("block_sparse_moe", w_1="w1", w_2="w2", w_3="w3")

    def feed_forward(self) -> nn.Module:
        """The experts of a layer, and their router."""
        config = self.config
        return MixtureOfExperts(
            config.d_model,
            [super(Mixtral, self).feed_forward() for _ in range(config.num_experts)],
            top_k=config.top_k,
            normalise=config.normalise,
            balance_weight=config.balance_weight,
        )


class Qwen3Moe(Mixtral):
    """A Qwen 3 with experts.

    Args:
        config: a `Qwen3MoeConfig`.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> import torch
        >>> sizes = {"d_model": 32, "num_heads": 8, "num_layers": 2, "d_ff": 20}
        >>> config = Qwen3MoeConfig(vocab_size=30, **sizes, num_experts=6, top_k=3)
        >>> Qwen3Moe(config)(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])
    """

    config_class: ClassVar[type[Any]] = Qwen3MoeConfig
    architecture = "Qwen3MoeForCausalLM"
    names = names_with_experts("mlp", w_1="gate_proj", w_2="down_proj", w_3="up_proj")
