"""The decoder-only model: the same layers in one causal stack, for writing text.

Built in chapter 10. Papers: Liu et al. (2018); "Improving Language Understanding by Generative
Pre-Training" (Radford et al., 2018).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minitransformer.checks import check_ids, check_padding
from minitransformer.layers.attention import Mask, causal_mask
from minitransformer.layers.cache import KVCache
from minitransformer.layers.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layers.packing import Packing, packed_mask, takes_packed, up_to_last
from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import TokenModel, cached_length

__all__ = ["DecoderOnlyTransformer"]


class DecoderOnlyTransformer(TokenModel):
    """A Transformer without encoder: token ids in, scores of the next token out.

    A decoder layer without cross-attention is an `EncoderLayer` with a causal mask, so the model
    is a stack of those.

    Args:
        config: the model's configuration, see `TransformerConfig.decoder_only`.
        generator: source of the starting values; PyTorch's global one when left out.

    Raises:
        ValueError: if the configuration has encoder layers.

    Example:
        >>> config = TransformerConfig.decoder_only(30, num_layers=2, d_model=12, num_heads=3)
        >>> model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
        >>> model(torch.randint(1, 30, (2, 7))).shape
        torch.Size([2, 7, 30])

    Papers: Liu et al. (2018), section 4.2.3; Radford et al. (2018).
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.num_encoder_layers:
            raise ValueError(
                f"num_encoder_layers must be 0, got {config.num_encoder_layers}; "
                "TransformerConfig.decoder_only makes such a configuration"
            )
        vocab_size, d_model = config.tgt_vocab_size, config.d_model
        self.embedding = TokenEmbedding(vocab_size, d_model, scale=config.embedding_scale)
        self.decoder = self.stack(config.num_decoder_layers)
        tied_to = self.embedding if config.tie_output else None
        self.output_projection = OutputProjection(vocab_size, d_model, tied_to=tied_to)
        self.initialise(generator)

    def decode(
        self,
        ids: Tensor,
        caches: Sequence[KVCache] | None = None,
        left_padding: Tensor | None = None,
        mask: Mask = "causal",
    ) -> Tensor:
        """Score the token that follows each position.

        Padding to the right of a row is hidden by the causal mask. In generation rows of unequal
        length must end together, so there padding stands to the left, and is masked; elsewhere it
        is refused, unless `mask` says what may be seen.

        Args:
            ids: (b, t), an integer dtype; with caches, only the positions not in them yet.
            caches: a `KVCache` for each layer; `ids` follow what they hold.
            left_padding: how many ids of padding each row begins with, (b,), int64.
            mask: boolean, broadcastable to (b, h, t, cached + t); True = may be attended. It
                stands in place of the causal mask, for a prefix may see what comes later: write
                `documents & causal_mask(t)` where it may not. It has to hide padding to the right.

        Returns:
            Logits, (b, t, v).

        Raises:
            TypeError: if ids are not integers, or `mask` is not boolean.
            ValueError: if ids are empty, not (b, t), outside the vocabulary or too long; if there
                is not a cache for each layer, or one holds more positions than another; if `mask`
                does not broadcast; if padding stands before other ids and nothing masks it.
        """
        check_ids("ids", ids)
        if caches is None and left_padding is None and isinstance(mask, str):
            check_padding("ids", ids, self.config.pad_id)
        start = cached_length(caches, len(self.decoder.layers))
        if left_padding is not None:
            end = start + ids.size(1)
            real = torch.arange(end, device=ids.device) >= left_padding[:, None, None, None]
            seen = causal_mask(ids.size(1), end, ids.device) if mask == "causal" else mask
            mask = real & seen
        x = self.dropout(self.embed(self.embedding, ids, start, left_padding))
        return self.output_projection(self.decoder(x, mask, caches))

    def hidden(self, ids: Tensor, *, needed: Tensor, mask: Mask = "causal") -> Tensor:
        """What `forward` scores at the positions that are needed; padding is not computed.

        Args:
            ids: (b, t), an integer dtype.
            needed: boolean, (b, t).
            mask: see `decode`.

        Returns:
            A vector for each needed position, row after row, (n, d).

        Raises:
            TypeError: as in `forward`.
            ValueError: as in `forward`.
        """
        check_ids("ids", ids)
        packs = isinstance(mask, str) and takes_packed(self.decoder)
        if isinstance(mask, str):
            check_padding("ids", ids, self.config.pad_id)
        # What comes after the last needed one is seen by none before it.
        rows = Packing(up_to_last(needed) if packs else None)
        x = rows.pack(self.dropout(self.embed(self.embedding, ids)))
        return self.decoder(x, packed_mask(mask, rows, rows))[rows.pack(needed)]

    def forward(self, ids: Tensor, mask: Mask = "causal") -> Tensor:
        """Score the token that follows each position; as `decode`."""
        return self.decode(ids, mask=mask)
