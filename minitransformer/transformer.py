"""The whole model: embeddings, positions and stacks of layers assembled.

Built in chapter 8. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minitransformer.attention import padding_mask
from minitransformer.checks import check_ids, check_padding, check_rows
from minitransformer.config import TransformerConfig
from minitransformer.decoding import KVCache
from minitransformer.dropout import Dropout
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Decoder, Encoder
from minitransformer.packing import Packing, packed_mask, takes_packed, up_to_last
from minitransformer.positional_encoding import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from minitransformer.pretrained import Pretrained

__all__ = ["Transformer"]


class TokenModel(Pretrained):
    """What the two models have in common: how tokens become vectors, and how training starts.

    Parameters start as follows, whatever the layers did on their own:

    | parameter | start |
    | --- | --- |
    | embeddings, output projection | normal, mean 0, standard deviation 1/√d_model |
    | other matrices | uniform, Glorot & Bengio (2010) |
    | learned positions | normal, mean 0, mean square 1/2 |
    | biases | 0 |
    | norms | gain 1, bias 0 |
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.positions: nn.Module | None = None
        if config.positional_encoding == "sinusoidal":
            self.positions = SinusoidalPositionalEncoding(config.d_model, config.max_len)
        elif config.positional_encoding == "learned":
            self.positions = LearnedPositionalEncoding(config.d_model, config.max_len)
        self.dropout = Dropout(config.dropout)

    @property
    def max_len(self) -> float:
        """Longest sequence, in tokens; infinite where no table of positions ends."""
        has_no_end = self.config.positional_encoding in ("alibi", "none")
        return math.inf if has_no_end else self.config.max_len

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a text, here the end of this package's tokenizers."""
        return (2,)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as in the table above."""
        for module in self.modules():
            if isinstance(module, TokenEmbedding | OutputProjection):
                std = 1 / math.sqrt(self.config.d_model)
                nn.init.normal_(module.weight, std=std, generator=generator)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, LearnedPositionalEncoding):
                nn.init.normal_(module.weight, std=math.sqrt(0.5), generator=generator)

    def embed(
        self,
        embedding: TokenEmbedding,
        ids: Tensor,
        start: int = 0,
        left_padding: Tensor | None = None,
    ) -> Tensor:
        """Vectors of tokens, (b, length, d), and their positions where the vectors carry them."""
        end = start + ids.size(1)
        if end > self.max_len:
            raise ValueError(f"a sequence of {end} positions is longer than max_len={self.max_len}")
        pad_id = self.config.pad_id
        x = embedding(ids if pad_id >= 0 else ids.masked_fill(ids == pad_id, 0))
        if self.positions is not None:
            x = self.positions(x, start if left_padding is None else start - left_padding)
        return x


class Transformer(TokenModel):
    """The encoder-decoder Transformer: token ids in, scores of the next token out.

    Args:
        config: the model's configuration.
        generator: source of the starting values; PyTorch's global one when left out.

    Raises:
        ValueError: if the configuration has no encoder layers.

    Example:
        >>> config = TransformerConfig(20, 30, d_model=12, num_heads=3, d_ff=16)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> model(torch.randint(1, 20, (2, 5)), torch.randint(1, 30, (2, 7))).shape
        torch.Size([2, 7, 30])

    Built in chapter 8. Paper: section 3, figure 1.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.num_encoder_layers < 1:
            raise ValueError(
                f"num_encoder_layers must be at least 1, got {config.num_encoder_layers}; "
                "a model without encoder is a DecoderOnlyTransformer"
            )
        self.src_embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        self.tgt_embedding = (
            self.src_embedding
            if config.share_embeddings
            else TokenEmbedding(config.tgt_vocab_size, config.d_model)
        )
        self.encoder = Encoder(config.num_encoder_layers, **config.layer_options)
        self.decoder = Decoder(config.num_decoder_layers, **config.layer_options)
        self.output_projection = OutputProjection(
            config.tgt_vocab_size,
            config.d_model,
            tied_to=self.tgt_embedding if config.tie_output else None,
        )
        self.initialise(generator)

    def encode(self, src_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read the source once.

        Args:
            src_ids: (b, s), an integer dtype, short rows filled with `config.pad_id`.

        Returns:
            The memory, (b, s, d), and the mask of its real tokens, (b, 1, 1, s).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if ids are empty, not (b, s), outside the vocabulary or too long; if
                padding stands before other ids.
        """
        check_ids("src_ids", src_ids)
        check_padding("src_ids", src_ids, self.config.pad_id)
        src_mask = padding_mask(src_ids, self.config.pad_id)
        src = self.dropout(self.embed(self.src_embedding, src_ids))
        return self.encoder(src, src_mask), src_mask

    def decode(
        self,
        tgt_ids: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Score the token that follows each target position.

        Padding stands to the right of a row, where the causal mask hides it from real tokens.
        All rows may begin with pad_id nevertheless, as targets of some published models do.

        Args:
            tgt_ids: (b, t), an integer dtype; with caches, only the positions not in them yet.
            memory: from `encode`, (b, s, d).
            memory_mask: from `encode`, (b, 1, 1, s).
            caches: a `KVCache` for each decoder layer; `tgt_ids` follow what they hold.

        Returns:
            Logits, (b, t, v).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if ids are empty, not (b, t), outside the vocabulary or too long; if there
                is not a cache for each layer, or one holds more positions than another; without
                caches, if padding stands before other ids.
        """
        check_ids("tgt_ids", tgt_ids)
        if caches is None:
            check_padding("tgt_ids", tgt_ids, self.config.pad_id, may_begin=True)
        start = cached_length(caches, len(self.decoder.layers))
        tgt = self.dropout(self.embed(self.tgt_embedding, tgt_ids, start))
        return self.output_projection(self.decoder(tgt, memory, "causal", memory_mask, caches))

    def hidden(self, src_ids: Tensor, tgt_ids: Tensor, *, needed: Tensor) -> Tensor:
        """What `forward` scores at the positions that are needed; padding is not computed.

        Layers that take packed positions get them, (n, d), see `Packing`.

        Args:
            src_ids: (b, s), an integer dtype.
            tgt_ids: (b, t), an integer dtype.
            needed: boolean, (b, t).

        Returns:
            A vector for each needed position, row after row, (n, d).

        Raises:
            TypeError: as in `forward`.
            ValueError: as in `forward`.
        """
        check_rows(src_ids, tgt_ids)
        check_padding("src_ids", src_ids, self.config.pad_id)
        check_padding("tgt_ids", tgt_ids, self.config.pad_id, may_begin=True)
        packs = takes_packed(self.encoder) and takes_packed(self.decoder)
        src_mask = padding_mask(src_ids, self.config.pad_id)
        src = Packing(src_ids != self.config.pad_id if packs else None)
        tgt = Packing(up_to_last(needed) if packs else None)
        memory = src.pack(self.dropout(self.embed(self.src_embedding, src_ids)))  # (n, d)
        memory = self.encoder(memory, packed_mask(src_mask, src, src))
        x = tgt.pack(self.dropout(self.embed(self.tgt_embedding, tgt_ids)))  # (m, d)
        to_memory = packed_mask(src_mask, tgt, src)
        x = self.decoder(x, memory, packed_mask("causal", tgt, tgt), to_memory)
        return x[tgt.pack(needed)]

    def forward(self, src_ids: Tensor, tgt_ids: Tensor) -> Tensor:
        """Score the token that follows each target position, given the whole source.

        Args:
            src_ids: (b, s), an integer dtype.
            tgt_ids: (b, t), an integer dtype; the target shifted right, from "begin" on.

        Returns:
            Logits, (b, t, v).

        Raises:
            TypeError: if ids are not integers.
            ValueError: if batch sizes differ, or ids are empty, outside the vocabulary or too long,
                or padding stands before other ids.
        """
        check_rows(src_ids, tgt_ids)
        return self.decode(tgt_ids, *self.encode(src_ids))


def cached_length(caches: Sequence[KVCache] | None, num_layers: int) -> int:
    """How many positions the caches of a stack hold, one for each layer; 0 without any."""
    if caches is None:
        return 0
    if len(caches) != num_layers:
        raise ValueError(f"caches must be one for each of {num_layers} layers, got {len(caches)}")
    lengths = [cache.length for cache in caches]
    if any(length != lengths[0] for length in lengths):
        raise ValueError(f"caches must hold the same number of positions, got {lengths}")
    return lengths[0]
