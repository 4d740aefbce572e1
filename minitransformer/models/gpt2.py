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
from typing import Any

import torch
from torch import nn

from minitransformer.layers.encoder_decoder import EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.models.decoder_only import DecoderOnlyTransformer
from minitransformer.models.gpt2_config import NAMES, GPT2Config
from minitransformer.models.hub import Published
from minitransformer.models.published_config import ACTIVATION_NAMES
from minitransformer.models.transformer import start_normal

__all__ = ["GPT2"]


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
