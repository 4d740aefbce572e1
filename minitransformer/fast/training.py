"""The models' loss without anything for padding: what a training step computes.

The layers are those of the models. Their parts are called here in the same order, on packed
positions, (n, d): see `Packing`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from torch import Tensor

from minitransformer.attention import Mask, padding_mask
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.fast.attention import attend
from minitransformer.fast.dropout import drop
from minitransformer.fast.packing import PackedMask, Packing, up_to_last
from minitransformer.layer_norm import ResidualConnection
from minitransformer.loss import linear_cross_entropy
from minitransformer.multi_head_attention import MultiHeadAttention
from minitransformer.transformer import Transformer


def translation_loss(
    model: Transformer, src_ids: Tensor, tgt_ids: Tensor, targets: Tensor, smoothing: float
) -> Tensor:
    """`next_token_loss` of ids that fit together."""
    pad_id = model.config.pad_id
    src, tgt = Packing(src_ids != pad_id), Packing(up_to_last(targets != pad_id))
    src_mask = padding_mask(src_ids, pad_id)
    memory = src.pack(drop(model.dropout, model.embed(model.src_embedding, src_ids)))
    memory = transform(model.encoder, memory, PackedMask(src_mask, src, src))
    x = tgt.pack(drop(model.dropout, model.embed(model.tgt_embedding, tgt_ids)))
    to_memory = PackedMask(src_mask, tgt, src)
    x = transform(model.decoder, x, PackedMask("causal", tgt, tgt), memory, to_memory)
    weight, targets = model.output_projection.weight, tgt.pack(targets)
    return linear_cross_entropy(x, weight, targets, smoothing=smoothing, pad_id=pad_id)


def decoder_only_loss(
    model: DecoderOnlyTransformer, ids: Tensor, targets: Tensor, smoothing: float, mask: Mask
) -> Tensor:
    """`next_token_loss` of ids and targets that fit together."""
    pad_id = model.config.pad_id
    # What comes after the last target is seen by none before it, unless another mask says so.
    real = targets != pad_id
    is_causal = isinstance(mask, str)
    rows = Packing(up_to_last(real) if is_causal else real.new_ones(real.shape))
    x = rows.pack(drop(model.dropout, model.embed(model.embedding, ids)))
    x = transform(model.decoder, x, PackedMask(mask, rows, rows))
    weight, targets = model.output_projection.weight, rows.pack(targets)
    return linear_cross_entropy(x, weight, targets, smoothing=smoothing, pad_id=pad_id)


def transform(
    stack: Encoder | Decoder,
    x: Tensor,
    mask: PackedMask,
    memory: Tensor | None = None,
    memory_mask: PackedMask | None = None,
) -> Tensor:
    """A stack of layers on packed positions x, (n, d), and memory, (m, d)."""
    for layer in cast(Iterable[EncoderLayer | DecoderLayer], stack.layers):
        x = connect(layer.residual_1, x, partial(packed_attention, layer.self_attention, mask))
        last = layer.residual_2
        if isinstance(layer, DecoderLayer) and memory is not None and memory_mask is not None:
            ask = partial(packed_attention, layer.cross_attention, memory_mask, memory=memory)
            x = connect(layer.residual_2, x, ask)
            last = layer.residual_3
        x = connect(last, x, layer.feed_forward)
    return stack.norm(x)


def connect(
    residual: ResidualConnection, x: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """`ResidualConnection.forward`, with cheaper dropout."""
    if residual.norm_first:
        return x + drop(residual.dropout, sublayer(residual.norm(x)))
    return residual.norm(x + drop(residual.dropout, sublayer(x)))


def packed_attention(
    attention: MultiHeadAttention, mask: PackedMask, x: Tensor, memory: Tensor | None = None
) -> Tensor:
    """`MultiHeadAttention.forward` from x, (n, d), to itself or to memory, (m, d); (n, d)."""
    memory = x if memory is None else memory
    queries = attention.split_heads(mask.queries.unpack(attention.w_q(x)))
    keys = attention.split_heads(mask.keys.unpack(attention.w_k(memory)))
    values = attention.split_heads(mask.keys.unpack(attention.w_v(memory)))
    queries, keys = attention.prepare(queries, keys)
    heads = attend(attention, queries, keys, values, mask.mask)
    return attention.w_o(mask.queries.pack(heads.transpose(-3, -2).flatten(-2)))
