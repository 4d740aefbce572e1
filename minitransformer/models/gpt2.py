"""GPT-2: the decoder-only model with learned positions, as it was published.

| | paper's decoder | GPT-2 | why |
| --- | --- | --- | --- |
| norms | after each residual | before each sub-layer, one at the end | deep stacks start well |
| positions | sinusoidal | learned | as in GPT-1; no reason was given |
| embeddings | times √d | as they are | all start with σ = 0.02 |
| activation | ReLU | GELU, its tanh form | as in GPT-1 |
| start | not said | σ = 0.02; W^O and W₂ by √(2N) less | 2N vectors add up in a residual |
| padding | an id | none: rows are filled with -1 | texts were laid end to end |

Built in chapter 12. Paper: "Language Models are Unsupervised Multitask Learners" (Radford et al.,
2019), section 2.3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from minitransformer.layers.encoder_decoder import EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.models.hub import ACTIVATION_NAMES, DecoderConfig, Names, Published, Stacked
from minitransformer.models.transformer import DecoderOnlyTransformer, start_normal

__all__ = ["GPT2", "GPT2Config"]

LAYER, OURS = "transformer.h.*", "decoder.layers.*"
NAMES: Names = {
    "transformer.wte": "embedding",
    "transformer.wpe": "positions",
    "transformer.ln_f": "decoder.norm",
    f"{LAYER}.ln_1": f"{OURS}.residual_1.norm",
    f"{LAYER}.ln_2": f"{OURS}.residual_2.norm",
    f"{LAYER}.attn.c_attn": Stacked(tuple(f"{OURS}.self_attention.w_{x}" for x in "qkv")),
    f"{LAYER}.attn.c_proj": Stacked((f"{OURS}.self_attention.w_o",)),
    f"{LAYER}.mlp.c_fc": Stacked((f"{OURS}.feed_forward.w_1",)),
    f"{LAYER}.mlp.c_proj": Stacked((f"{OURS}.feed_forward.w_2",)),
    f"{LAYER}.attn.bias": None,  # the causal mask
    f"{LAYER}.attn.masked_bias": None,
    "lm_head": "output_projection",
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


class GPT2(Published, DecoderOnlyTransformer):
    """GPT-2, with everything that a `DecoderOnlyTransformer` can do.

    Example:
        >>> model = GPT2(GPT2Config(vocab_size=30, d_model=12, num_heads=3, num_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])
    """

    config: Any
    config_class = GPT2Config
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    names = NAMES

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer of GPT-2."""
        config = self.config
        d, f = config.d_model, 4 * config.d_model if config.d_ff is None else config.d_ff
        return EncoderLayer(
            d,
            config.num_heads,
            feed_forward=FeedForward(d, f, activation=ACTIVATION_NAMES[config.activation]),
            dropout=config.dropout,
            norm_first=True,
            norm=self.norm,
        )

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as Radford et al. did."""
        for part in ("embedding", "positions", "decoder", "output_projection"):
            start_normal(self.get_submodule(part), 0.02, generator)
        for layer in self.decoder.layers:
            for last in (layer.self_attention.w_o, layer.feed_forward.w_2):
                std = 0.02 / math.sqrt(2 * self.config.num_layers)
                nn.init.normal_(last.weight, std=std, generator=generator)
