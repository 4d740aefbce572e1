"""The two whole models: embeddings, positions and stacks of layers assembled.

Built in chapters 8 and 10. Papers: "Attention Is All You Need" (Vaswani et al., 2017), section 3;
Liu et al. (2018); "Improving Language Understanding by Generative Pre-Training" (Radford et al.,
2018).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.checks import check_ids, check_padding, check_rows
from minitransformer.layers.attention import Mask, causal_mask, padding_mask
from minitransformer.layers.cache import KVCache
from minitransformer.layers.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layers.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import NORMS, Dropout
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.layers.packing import (
    Packing,
    counts_positions,
    packed_mask,
    takes_packed,
    up_to_last,
)
from minitransformer.layers.positional_encoding import (
    ALiBi,
    LearnedPositionalEncoding,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from minitransformer.models.config import TransformerConfig
from minitransformer.models.pretrained import Pretrained

__all__ = ["DecoderOnlyTransformer", "Transformer"]

POSITIONS = {"sinusoidal": SinusoidalPositionalEncoding, "learned": LearnedPositionalEncoding}


class TokenModel(Pretrained):
    """What the two models have in common: how tokens become vectors, and how training starts.

    Parameters start as follows, whatever the layers did on their own:

    | parameter | start |
    | --- | --- |
    | embeddings, output projection | normal, mean 0, standard deviation 1/√d_model |
    | other matrices | uniform, Glorot & Bengio (2010) |
    | learned positions | normal, mean 0, mean square 1/2 |
    | biases | 0 |
    | norms | weight 1, bias 0 |

    A model with layers of your own is a class derived from one of the two that overrides
    `attention`, `layer` or `stack`. It is saved and loaded by its name, see `register`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.positions: nn.Module | None = None
        self.add_positions()
        self.dropout = Dropout(config.dropout)

    def add_positions(self) -> None:
        """Make the module that adds positions to tokens' vectors, if there is one."""
        kind = POSITIONS.get(self.config.positional_encoding)
        if kind is not None:
            self.positions = kind(self.config.d_model, self.config.max_len)

    def norm(self, d_model: int) -> nn.Module:
        """A norm as configured."""
        return NORMS[self.config.norm](d_model, self.config.eps)

    def attention(self, *, cross: bool = False) -> nn.Module:
        """An attention as configured; cross-attention knows no positions."""
        config, d_k = self.config, self.config.d_model // self.config.num_heads
        layout: Any = config.rotary_layout
        parts: dict[str, Any] = {}
        if config.positional_encoding == "rotary" and not cross:
            parts["rotary"] = RotaryPositionalEncoding(
                d_k, config.max_len, layout, base=config.rotary_base
            )
        elif config.positional_encoding == "alibi" and not cross:
            parts["position_bias"] = ALiBi(config.num_heads)
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            bias=config.attention_bias,
            **parts,
        )

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer as configured, of a decoder with cross-attention or of another stack."""
        config = self.config
        parts: dict[str, Any] = {
            "self_attention": self.attention(),
            "feed_forward": FeedForward(config.d_model, config.d_ff, activation=config.activation),
            "dropout": config.dropout,
            "norm_first": config.norm_first,
            "norm": self.norm,
        }
        if not cross:
            return EncoderLayer(config.d_model, **parts)
        return DecoderLayer(config.d_model, cross_attention=self.attention(cross=True), **parts)

    def stack(self, num_layers: int, *, cross: bool = False) -> Any:
        """A `Decoder` with cross-attention, or else an `Encoder`."""
        layers = [self.layer(index, cross=cross) for index in range(num_layers)]
        norm = self.norm(self.config.d_model) if self.config.norm_first else None
        return Decoder(layers, norm) if cross else Encoder(layers, norm)

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
        start: int | Tensor = 0,
    ) -> Tensor:
        """Vectors of tokens, (b, length, d), and their positions where the vectors carry them.

        `start` is the position of the first one, or those of all, (length,) or (b, length).
        """
        end = ids.size(1) + (0 if isinstance(start, Tensor) else start)
        if end > self.max_len:
            raise ValueError(f"a sequence of {end} positions is longer than max_len={self.max_len}")
        pad_id = self.config.pad_id
        x = embedding(ids if pad_id >= 0 else ids.masked_fill(ids == pad_id, 0))
        if self.positions is not None:
            x = self.positions(x, start)
        return x


def start_normal(model: nn.Module, std: float, generator: torch.Generator | None) -> None:
    """Draw all matrices and tables from a normal distribution; biases start at 0, norms at 1.

    Source: Radford et al. (2018), section 4.1, and Devlin et al.'s code, with a σ of 0.02.

    Example:
        >>> linear = nn.Linear(300, 200)
        >>> start_normal(linear, 0.02, torch.Generator().manual_seed(0))
        >>> round(linear.weight.std().item(), 3), linear.bias.abs().sum().item()
        (0.02, 0.0)
    """
    tables = TokenEmbedding | OutputProjection | LearnedPositionalEncoding | nn.Embedding
    for module in model.modules():
        if isinstance(module, tables | nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=std, generator=generator)
            if (bias := module._parameters.get("bias")) is not None:
                nn.init.zeros_(bias)


class Transformer(TokenModel):
    """The encoder-decoder Transformer: token ids in, scores of the next token out.

    Args:
        config: the model's configuration.
        generator: source of the starting values; PyTorch's global one when left out.

    Raises:
        ValueError: if the configuration has no encoder layers.

    Example:
        >>> sizes = {"d_model": 12, "num_heads": 3, "d_ff": 16}
        >>> config = TransformerConfig(src_vocab_size=20, tgt_vocab_size=30, **sizes)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> model(torch.randint(1, 20, (2, 5)), torch.randint(1, 30, (2, 7))).shape
        torch.Size([2, 7, 30])

    Paper: section 3, figure 1.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        if config.num_encoder_layers < 1:
            raise ValueError(
                f"num_encoder_layers must be at least 1, got {config.num_encoder_layers}; "
                "a model without encoder is a DecoderOnlyTransformer"
            )
        d_model, scale = config.d_model, config.embedding_scale
        self.src_embedding = TokenEmbedding(config.src_vocab_size, d_model, scale=scale)
        self.tgt_embedding = self.src_embedding
        if not config.share_embeddings:
            self.tgt_embedding = TokenEmbedding(config.tgt_vocab_size, d_model, scale=scale)
        self.encoder = self.stack(config.num_encoder_layers)
        self.decoder = self.stack(config.num_decoder_layers, cross=True)
        tied_to = self.tgt_embedding if config.tie_output else None
        self.output_projection = OutputProjection(config.tgt_vocab_size, d_model, tied_to=tied_to)
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
        real = src_ids != self.config.pad_id
        src = Packing(real if packs else None, always=counts_positions(self.encoder))
        tgt = Packing(up_to_last(needed) if packs else None, always=counts_positions(self.decoder))
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
        **options: Any,
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
            options: `positions`, that of each id, (t,) or (b, t), int64, which count from what the
                caches hold when left out: several documents in a row may each start at 0.

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
        where: int | Tensor = start
        if left_padding is not None:
            end = start + ids.size(1)
            real = torch.arange(end, device=ids.device) >= left_padding[:, None, None, None]
            seen = causal_mask(ids.size(1), end, ids.device) if mask == "causal" else mask
            mask = real & seen  # (b, 1, t, cached + t)
            own = torch.arange(ids.size(1), device=ids.device)
            where = start + own - left_padding[:, None]  # (b, t)
        x = self.dropout(self.embed(self.embedding, ids, options.get("positions", where)))
        return self.output_projection(self.decoder(x, mask, caches, **options))

    def hidden(
        self, ids: Tensor, *, needed: Tensor, mask: Mask = "causal", **options: Any
    ) -> Tensor:
        """What `forward` scores at the positions that are needed; padding is not computed.

        Args:
            ids: (b, t), an integer dtype.
            needed: boolean, (b, t).
            mask: see `decode`.
            options: see `decode`.

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
        always = counts_positions(self.decoder)
        rows = Packing(up_to_last(needed) if packs else None, always=always)
        x = rows.pack(self.dropout(self.embed(self.embedding, ids, options.get("positions", 0))))
        return self.decoder(x, packed_mask(mask, rows, rows), **options)[rows.pack(needed)]

    def forward(self, ids: Tensor, mask: Mask = "causal", **options: Any) -> Tensor:
        """Score the token that follows each position; as `decode`."""
        return self.decode(ids, mask=mask, **options)
