"""The whole Transformer: its configuration, and encoder, decoder and embeddings assembled.

Built in chapter 8. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.attention import causal_mask, padding_mask
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Decoder, Encoder, LayerCache
from minitransformer.feed_forward import ACTIVATIONS
from minitransformer.positional_encoding import SinusoidalPositionalEncoding

__all__ = ["Transformer", "TransformerConfig"]


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that decides the shape of a `Transformer`.

    Args:
        src_vocab_size: tokens in the source vocabulary.
        tgt_vocab_size: tokens in the target vocabulary, v.
        d_model: width, d.
        num_heads: heads of each attention, h; divides d_model.
        num_encoder_layers: encoder layers, the paper's N.
        num_decoder_layers: decoder layers, the paper's N.
        d_ff: inner width of the feed-forward networks, f.
        dropout: probability of zeroing an element of a sub-layer's output or of the embedded
            tokens while training.
        activation: "relu" (the paper's) or "gelu", in the feed-forward networks.
        norm_first: False normalises after each residual connection (post-norm, the paper's),
            True before each sub-layer and once at the end of each stack (pre-norm).
        attention_bias: whether the attention projections have biases; the paper's have none.
        share_embeddings: source and target use one embedding (one vocabulary).
        tie_output: the output projection uses the target embedding's weight.
        max_len: longest sequence, in tokens, on either side.
        pad_id: the id that fills short rows of a batch.

    Raises:
        ValueError: if a value is out of range, or two do not fit together.

    Example:
        >>> TransformerConfig(100, 100, d_model=64, num_heads=5)
        Traceback (most recent call last):
        ...
        ValueError: num_heads must divide d_model, got 5 and 64

    Built in chapter 8. Paper: table 3.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    activation: str = "relu"
    norm_first: bool = False
    attention_bias: bool = True
    share_embeddings: bool = False
    tie_output: bool = True
    max_len: int = 1024
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name in (
            "src_vocab_size",
            "tgt_vocab_size",
            "d_model",
            "num_heads",
            "num_encoder_layers",
            "num_decoder_layers",
            "d_ff",
            "max_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads must divide d_model, got {self.num_heads} and {self.d_model}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {sorted(ACTIVATIONS)}, got {self.activation!r}"
            )
        if self.share_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError(
                "share_embeddings needs one vocabulary, got "
                f"src_vocab_size={self.src_vocab_size} and tgt_vocab_size={self.tgt_vocab_size}"
            )
        if not 0 <= self.pad_id < min(self.src_vocab_size, self.tgt_vocab_size):
            raise ValueError(
                f"pad_id must lie in both vocabularies, got {self.pad_id} with "
                f"{self.src_vocab_size} and {self.tgt_vocab_size} tokens"
            )

    @classmethod
    def base(cls, vocab_size: int = 37_000) -> "TransformerConfig":
        """The paper's base model, English to German: 65 million parameters in its table 3.

        Example:
            >>> config = TransformerConfig.base()
            >>> config.d_model, config.num_heads, config.d_ff, config.norm_first
            (512, 8, 2048, False)
        """
        return cls(vocab_size, vocab_size, attention_bias=False, share_embeddings=True)

    @property
    def layer_options(self) -> dict[str, Any]:
        """The keyword arguments of every `EncoderLayer` and `DecoderLayer` of the model."""
        return {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "activation": self.activation,
            "norm_first": self.norm_first,
            "attention_bias": self.attention_bias,
        }


class Transformer(nn.Module):
    """The encoder-decoder Transformer: token ids in, scores of the next token out.

    Parameters start as follows, whatever the layers did on their own:

    | parameter | start |
    | --- | --- |
    | embeddings, output projection | normal, mean 0, standard deviation 1/√d_model |
    | other matrices | uniform, Glorot & Bengio (2010) |
    | biases | 0 |
    | layer norm | gain 1, bias 0 |

    Args:
        config: the model's configuration.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> config = TransformerConfig(20, 30, d_model=12, num_heads=3, d_ff=16)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> model(torch.randint(1, 20, (2, 5)), torch.randint(1, 30, (2, 7))).shape
        torch.Size([2, 7, 30])

    Built in chapter 8. Paper: section 3, figure 1.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.src_embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding
            if config.share_embeddings
            else TokenEmbedding(config.tgt_vocab_size, config.d_model)
        )
        self.positions = SinusoidalPositionalEncoding(config.d_model, config.max_len)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config.num_encoder_layers, **config.layer_options)
        self.decoder = Decoder(config.num_decoder_layers, **config.layer_options)
        self.output_projection = OutputProjection(
            config.tgt_vocab_size,
            config.d_model,
            tied_to=self.tgt_embedding if config.tie_output else None,
        )
        for module in self.modules():
            if isinstance(module, TokenEmbedding | OutputProjection):
                std = 1 / math.sqrt(config.d_model)
                nn.init.normal_(module.weight, std=std, generator=generator)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def encode(self, src_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read the source once.

        Args:
            src_ids: (b, s), an integer dtype, short rows filled with `config.pad_id`.

        Returns:
            The memory, (b, s, d), and the mask of its real tokens, (b, 1, 1, s).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if ids are empty, not (b, s), outside the vocabulary or too long.
        """
        check_ids("src_ids", src_ids)
        src_mask = padding_mask(src_ids, self.config.pad_id)
        src = self.dropout(self.positions(self.src_embedding(src_ids)))
        return self.encoder(src, src_mask), src_mask

    def decode(
        self,
        tgt_ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        caches: Sequence[LayerCache] | None = None,
        start: int = 0,
    ) -> Tensor:
        """Score the token that follows each target position.

        Padding stands to the right of a row, where the causal mask hides it from real tokens.

        Args:
            tgt_ids: (b, t), an integer dtype; with caches, only the positions not in them yet.
            memory: from `encode`, (b, s, d).
            memory_mask: from `encode`, (b, 1, 1, s).
            caches: a `LayerCache` for each decoder layer.
            start: position of the first of `tgt_ids`: how many positions the caches hold.

        Returns:
            Logits, (b, t, v).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if ids are empty, not (b, t), outside the vocabulary or too long.
        """
        check_ids("tgt_ids", tgt_ids)
        length = tgt_ids.size(1)
        # A single newest position may look at everything there is: no mask is needed.
        tgt_mask = None if length == 1 else causal_mask(length, start + length, tgt_ids.device)
        tgt = self.dropout(self.positions(self.tgt_embedding(tgt_ids), start))
        return self.output_projection(self.decoder(tgt, memory, tgt_mask, memory_mask, caches))

    def forward(self, src_ids: Tensor, tgt_ids: Tensor) -> Tensor:
        """Score the token that follows each target position, given the whole source.

        Args:
            src_ids: (b, s), an integer dtype.
            tgt_ids: (b, t), an integer dtype; the target shifted right, from "begin" on.

        Returns:
            Logits, (b, t, v).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if batch sizes differ, or ids are empty, outside the vocabulary or too long.
        """
        if src_ids.size(0) != tgt_ids.size(0):
            raise ValueError(
                "src_ids and tgt_ids must have as many rows, "
                f"got {src_ids.size(0)} and {tgt_ids.size(0)}"
            )
        return self.decode(tgt_ids, *self.encode(src_ids))


def check_ids(name: str, ids: Tensor) -> None:
    """Raise an error unless ids are a non-empty (b, length)."""
    if ids.dim() != 2 or 0 in ids.shape:
        raise ValueError(
            f"{name} must have shape (b, length), both at least 1, got {(*ids.shape,)}"
        )
