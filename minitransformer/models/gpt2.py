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

from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.dropout import Dropout
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Encoder
from minitransformer.models.assembly import set_eps, start_normal
from minitransformer.models.published import Published, Stacked, norm
from minitransformer.models.published_config import ACTIVATION_NAMES, DecoderConfig
from minitransformer.positional_encoding import LearnedPositionalEncoding

__all__ = ["GPT2", "GPT2Config"]


@dataclass(frozen=True)
class GPT2Config(DecoderConfig):
    """The shape of a `GPT2`; left out, that of the smallest one that was published.

    Args:
        vocab_size: tokens, v.
        d_model: width, d.
        num_heads: heads, h.
        num_layers: layers, N.
        d_ff: inner width of the feed-forward networks, f; 4d when left out.
        max_len: longest text, in tokens.
        activation: as `config.json` calls it.
        eps: ε of the norms.
        dropout: as in `TransformerConfig`.
        tie_output: the output projection uses the embedding's weight.
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
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),  # of the order of sums, in half precision
        "add_cross_attention": (False,),
        "is_encoder_decoder": (False,),
    }
    positional_encoding: ClassVar[str] = "learned"


class GPT2(Published, DecoderOnlyTransformer):
    """GPT-2, with everything that a `DecoderOnlyTransformer` can do.

    Args:
        config: the model's configuration.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> model = GPT2(GPT2Config(vocab_size=30, d_model=12, num_heads=3, num_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, -1]])).shape
        torch.Size([2, 3, 30])

    Built in chapter 12. Paper: Radford et al. (2019), section 2.3.
    """

    config: Any
    config_class = GPT2Config
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        "transformer.wte.weight": "embedding.weight",
        "transformer.wpe.weight": "positions.weight",
        **norm("transformer.ln_f", "decoder.norm"),
        **norm("transformer.h.*.ln_1", "decoder.layers.*.residual_1.norm"),
        **norm("transformer.h.*.ln_2", "decoder.layers.*.residual_2.norm"),
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

    def __init__(self, config: GPT2Config, generator: torch.Generator | None = None) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=1.0)
        self.positions = LearnedPositionalEncoding(config.d_model, config.max_len)
        self.dropout = Dropout(config.dropout)
        self.decoder = Encoder(
            config.num_layers,
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_ff=4 * config.d_model if config.d_ff is None else config.d_ff,
            dropout=config.dropout,
            activation=ACTIVATION_NAMES[config.activation],
            norm_first=True,
        )
        tied_to = self.embedding if config.tie_output else None
        self.output_projection = OutputProjection(
            config.vocab_size, config.d_model, tied_to=tied_to
        )
        set_eps(self, config.eps)
        self.initialise(generator)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as Radford et al. did."""
        start_normal(self, 0.02, generator)
        layers: Any = self.decoder.layers
        for layer in layers:
            for last in (layer.self_attention.w_o, layer.feed_forward.w_2):
                std = 0.02 / math.sqrt(2 * self.config.num_layers)
                nn.init.normal_(last.weight, std=std, generator=generator)
