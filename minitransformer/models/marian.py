"""Marian and BART: the encoder-decoder as it was published, for translating and for mending texts.

| | paper's model | Marian | BART | why |
| --- | --- | --- | --- | --- |
| positions | sines, cosines in turn | all sines first | learned, a table a side | not said |
| embeddings | times √d | times √d | as they are | BART's all start with σ = 0.02 |
| a norm of them | none | none | one a side | not said |
| activation | ReLU | swish | GELU | BART's as in GPT |
| bias of logits | none | one | one, which stays 0 | Marian's recurrent models had it |
| targets begin with | an id of their own | padding, a row of zeros | the end | not said |
| start | not said | Glorot, as in chapter 8 | σ = 0.02 | BART's as in GPT |

Marian is a toolkit, and the models meant here are those of OPUS-MT, trained with it. Its own angles
reach 1/10000 in the last pair of features, like those of the paper's code. Published files are read
by `transformers` with the paper's angles, which end one step before; so they are here. Both
have one vocabulary and one table of it, for reading, writing and scoring.

Built in chapter 13. Papers: "Marian: Fast Neural Machine Translation in C++" (Junczys-Dowmunt et
al., 2018); "BART: Denoising Sequence-to-Sequence Pre-training" (Lewis et al., 2020), section 2.1.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.layers.embeddings import TokenEmbedding
from minitransformer.layers.encoder_decoder import DecoderLayer, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import LayerNorm
from minitransformer.layers.positional_encoding import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from minitransformer.models.hub import Published
from minitransformer.models.marian_config import BARTConfig, MarianConfig
from minitransformer.models.published_config import ACTIVATION_NAMES
from minitransformer.models.transformer import Transformer, start_normal

__all__ = ["BART", "Marian"]


class Marian(Published, Transformer):
    """Marian, with everything that a `Transformer` can do.

    Targets begin with `config.start_id`; `generate` knows it.

    Example:
        >>> sizes = {"encoder_num_heads": 3, "decoder_num_heads": 2, "pad_id": 29, "start_id": 29}
        >>> sizes |= {"vocab_size": 30, "d_model": 12, "encoder_d_ff": 20, "decoder_d_ff": 16}
        >>> model = Marian(MarianConfig(**sizes, num_encoder_layers=1, num_decoder_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, 29]]), torch.tensor([[29, 4], [29, 3]])).shape
        torch.Size([2, 2, 30])
    """

    config: Any
    config_class = MarianConfig
    architecture = "MarianMTModel"
    prefix = "model."
    names = MarianConfig.names

    def __init__(self, config: Any, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        self.output_projection.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer; both sides have their own number of heads and inner width."""
        config, d, side = self.config, self.config.d_model, "decoder" if cross else "encoder"
        width, activation = getattr(config, f"{side}_d_ff"), ACTIVATION_NAMES[config.activation]
        return (DecoderLayer if cross else EncoderLayer)(
            d,
            getattr(config, f"{side}_num_heads"),
            feed_forward=FeedForward(d, width, activation=activation),
            dropout=config.dropout,
            norm_first=config.norm_first,
            norm=self.norm,
        )

    def add_positions(self) -> None:
        """The paper's table, its columns in another order: all sines, then all cosines."""
        self.positions = SinusoidalPositionalEncoding(self.config.d_model, self.config.max_len)
        table = self.positions.table
        self.positions.table = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as a `Transformer`; the vector of padding is 0."""
        super().initialise(generator)
        nn.init.zeros_(self.src_embedding.weight[self.config.pad_id])

    def embed(
        self, embedding: TokenEmbedding, ids: Tensor, start: int = 0, left_padding: Any = None
    ) -> Tensor:
        """As a `Transformer`; what padding, the begin of targets, is read as learns nothing."""
        x = super().embed(embedding, ids, start, left_padding)
        return torch.where((ids == self.config.pad_id)[..., None], x.detach(), x)

    def translated(
        self, weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Published weights under our names; the bias of logits is 0 where it is left out."""
        ours = super().translated(weights, parameters)
        table = ours.get("src_embedding.weight", torch.empty(0))
        return {"output_projection.bias": table.new_zeros(self.config.vocab_size)} | ours


class BART(Marian):
    """BART, with everything that a `Transformer` can do; its arguments are those of `Marian`.

    Example:
        >>> sizes = {"encoder_num_heads": 3, "decoder_num_heads": 2}
        >>> sizes |= {"vocab_size": 30, "d_model": 12, "encoder_d_ff": 20, "decoder_d_ff": 16}
        >>> model = BART(BARTConfig(**sizes, num_encoder_layers=1, num_decoder_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([[2, 4], [2, 3]])).shape
        torch.Size([2, 2, 30])
    """

    config_class = BARTConfig
    architecture = "BartForConditionalGeneration"
    names = BARTConfig.names

    def __init__(self, config: Any, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        # A second module with the same weight, by which `embed` knows the side.
        scale = config.embedding_scale
        self.tgt_embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=scale)
        self.tgt_embedding.weight = self.src_embedding.weight

    def add_positions(self) -> None:
        """A table and a norm for each side; the first two rows of a table are never read."""
        d_model, max_len = self.config.d_model, self.config.max_len
        for side in ("src", "tgt"):
            setattr(self, f"{side}_positions", LearnedPositionalEncoding(d_model, max_len + 2))
            setattr(self, f"{side}_norm", LayerNorm(d_model))

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, with σ = 0.02; the vector of padding is 0."""
        start_normal(self, 0.02, generator)
        nn.init.zeros_(self.src_embedding.weight[self.config.pad_id])

    def embed(
        self, embedding: TokenEmbedding, ids: Tensor, start: int = 0, left_padding: Any = None
    ) -> Tensor:
        """Vectors of tokens and positions, normed: with the table and the norm of their side."""
        side = "src" if embedding is self.src_embedding else "tgt"
        positions, norm = getattr(self, f"{side}_positions"), getattr(self, f"{side}_norm")
        return norm(positions(super().embed(embedding, ids, start), start + 2))
