"""The configuration of GPT-2, and what its files call our weights.

Built in chapter 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from minitransformer.models.published_config import DecoderConfig, Stacked, linear

__all__ = ["GPT2Config"]

NAMES: Mapping[str, str | Stacked | None] = {
    "transformer.wte.weight": "embedding.weight",
    "transformer.wpe.weight": "positions.weight",
    **linear("transformer.ln_f", "decoder.norm"),
    **linear("transformer.h.*.ln_1", "decoder.layers.*.residual_1.norm"),
    **linear("transformer.h.*.ln_2", "decoder.layers.*.residual_2.norm"),
    **{
        f"transformer.h.*.{theirs}.{kind}": Stacked(
            tuple(f"decoder.layers.*.{name}.{kind}" for name in ours), kind == "weight"
        )
        for kind in ("weight", "bias")
        for theirs, ours in {
            "attn.c_attn": [f"self_attention.w_{letter}" for letter in "qkv"],
            "attn.c_proj": ["self_attention.w_o"],
            "mlp.c_fc": ["feed_forward.w_1"],
            "mlp.c_proj": ["feed_forward.w_2"],
        }.items()
    },
    "transformer.h.*.attn.bias": None,  # the causal mask
    "transformer.h.*.attn.masked_bias": None,
    "lm_head.weight": "output_projection.weight",
}


@dataclass(frozen=True, kw_only=True)
class GPT2Config(DecoderConfig):
    """The shape of a `GPT2`; left out, that of the smallest one that was published.

    Its fields are explained at `PublishedConfig`; `d_ff` is 4d when left out.

    Paper: Radford et al. (2019), table 2.
    """

    vocab_size: int = 50_257
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int | None = None
    max_len: int = 1024
    activation: str = "gelu_new"
    eps: float = 1e-5
    dropout: float = 0.1
    tie_output: bool = True
    eos_ids: tuple[int, ...] = (50_256,)

    model_type: ClassVar[str] = "gpt2"
    keys: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "n_embd": "d_model",
        "n_head": "num_heads",
        "n_layer": "num_layers",
        "n_inner": "d_ff",
        "n_positions": "max_len",
        "activation_function": "activation",
        "layer_norm_epsilon": "eps",
        "resid_pdrop": "dropout",
        "tie_word_embeddings": "tie_output",
        "eos_token_id": "eos_ids",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),  # of the order of sums, in half precision
        "add_cross_attention": (False,),
        "is_encoder_decoder": (False,),
    }
    without_effect: ClassVar[str] = "n_ctx|predict_special_tokens"
    positional_encoding: ClassVar[str] = "learned"
