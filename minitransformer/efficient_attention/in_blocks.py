"""Attention in blocks: the same numbers as the formula, without the n² weights in memory.

The softmax needs the sum of a row before its first weight is known. A running maximum and a running
sum put that off: what was added up so far is shrunk whenever a larger score turns up.

Axes: `q` query, `k` key, `e` head width, `n` position, `...` any before.

Built in chapter 15. Papers: Milakov and Gimelshein (2018); Rabe and Staats (2021); Dao et al.
(2022), algorithms 1 and 4.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitransformer.checks import (
    check_at_least_1,
    check_attention,
    check_causal,
    check_mask,
    check_values,
    without_autocast,
)
from minitransformer.efficient_attention.block_mask import BlockMask, Visit, blocks
from minitransformer.layers.attention import Mask

__all__ = [
    "flash_attention",
    "flash_attention_with_lse",
    "flash_backward",
    "flash_forward",
    "merge_attention",
]

AnyMask = Mask | BlockMask


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: AnyMask | None = None, *, block_size: int = 128
) -> Tensor:
    """Attention(Q, K, V), one block of queries and keys at a time.

    Time: O(q · k · e), less what "causal" or a `BlockMask` leaves out. Memory beside what goes in
    and out: O(block_size²); for gradients O(q) more, as weights are computed again.

    Args:
        query, key, value: (..., q, e), (..., k, e) and (..., k, e'), floating point, of one dtype.
        mask: boolean, broadcastable to (..., q, k), True = may be attended; or "causal"; or a
            `BlockMask`, whose empty blocks are never computed.
        block_size: queries, and keys, in a block; a `BlockMask` has its own.

    Returns (..., q, e'); zeros for a query whose keys are all masked.

    Raises:
        TypeError: if `mask` is not boolean.
        ValueError: if shapes do not fit, `block_size` is below 1, or the mask's name is unknown.

    Example:
        >>> value = torch.tensor([[1.0], [3.0]])
        >>> flash_attention(torch.zeros(1, 5), torch.zeros(2, 5), value, block_size=1)
        tensor([[2.]])

    Paper: Dao et al. (2022), algorithm 1.
    """
    return flash_attention_with_lse(query, key, value, mask, block_size=block_size)[0]


def flash_attention_with_lse(
    query: Tensor, key: Tensor, value: Tensor, mask: AnyMask | None = None, *, block_size: int = 128
) -> tuple[Tensor, Tensor]:
    """`flash_attention`, and the logarithm of what each query's weights were divided by.

    Returns the output (..., q, e'), and log Σ exp(scores), (..., q), at least float32; -inf for a
    query whose keys are all masked. `merge_attention` needs both.

    Example:
        >>> query, key, value = torch.zeros(1, 5), torch.zeros(2, 5), torch.ones(2, 1)
        >>> flash_attention_with_lse(query, key, value)[1].exp()
        tensor([2.])
    """
    check_values(key, value)
    check_mask(mask, BlockMask)
    check_attention(query, key, mask if isinstance(mask, Tensor) else None)
    check_at_least_1(block_size=block_size)
    q, k = query.size(-2), key.size(-2)
    if isinstance(mask, str):
        check_causal(q, k)
    if isinstance(mask, BlockMask) and (mask.num_queries, mask.num_keys) != (q, k):
        raise ValueError(
            f"mask is for {mask.num_queries} queries and {mask.num_keys} keys, got {q} and {k}"
        )
    axes = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key, value = (x.expand(*axes, *x.shape[-2:]) for x in (query, key, value))
    output, lse = InBlocks.apply(query, key, value, mask, block_size)
    return output, lse


def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | BlockMask | None = None,
    block_size: int = 128,
) -> tuple[Tensor, Tensor]:
    """The algorithm: one pass over the keys for each block of queries; no gradients, no checks.

    Example:
        >>> x = torch.eye(3)
        >>> output, lse = flash_forward(x, x, x, "causal", block_size=2)
        >>> tuple(output.shape), tuple(lse.shape)
        ((3, 3), (3,))
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    output = query.new_zeros(*query.shape[:-1], value.size(-1))
    lse = query.new_zeros(query.shape[:-1], dtype=dtype)
    for queries, seen in visits(mask, query, key, block_size):
        asked = query[..., queries, :].to(dtype) / math.sqrt(query.size(-1))
        largest = torch.full_like(asked[..., :1], -torch.inf)
        total = torch.zeros_like(largest)
        mixed = torch.zeros_like(output[..., queries, :], dtype=dtype)
        for keys, allowed in seen:
            scores = asked @ key[..., keys, :].to(dtype).mT
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
            finite = largest.masked_fill(largest == -torch.inf, 0.0)  # nothing seen: e^-inf = 0
            weights, shrink = (scores - finite).exp(), (before - finite).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            mixed = mixed * shrink + weights @ value[..., keys, :].to(dtype)
        output[..., queries, :] = (mixed / total.masked_fill(total == 0, 1.0)).to(output.dtype)
        lse[..., queries] = (largest + total.log())[..., 0]
    return output, lse


def flash_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    d_output: Tensor,
    d_lse: Tensor,
    mask: Mask | BlockMask | None = None,
    block_size: int = 128,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; each block's weights are computed again from lse.

    Example:
        >>> x = torch.eye(3)
        >>> parts = flash_backward(x, x, x, *flash_forward(x, x, x), x, torch.zeros(3))
        >>> [tuple(part.shape) for part in parts]
        [(3, 3), (3, 3), (3, 3)]
    """
    scale = 1 / math.sqrt(query.size(-1))
    d_query, d_key, d_value = (torch.zeros_like(x, dtype=lse.dtype) for x in (query, key, value))
    for queries, seen in visits(mask, query, key, block_size):
        asked = query[..., queries, :].to(lse.dtype) * scale
        d_mixed = d_output[..., queries, :].to(lse.dtype)
        divisor = lse[..., queries, None]
        divisor = divisor.masked_fill(divisor == -torch.inf, torch.inf)  # nothing seen: no weight
        # All weights of a row share one number: what its output and its sum moved by.
        common = (d_mixed * output[..., queries, :]).sum(-1, keepdim=True)
        common = common - d_lse[..., queries, None]
        for keys, allowed in seen:
            known, carried = (x[..., keys, :].to(lse.dtype) for x in (key, value))
            scores = asked @ known.mT
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            weights = (scores - divisor).exp()
            d_value[..., keys, :] += weights.mT @ d_mixed
            d_scores = weights * (d_mixed @ carried.mT - common)
            d_query[..., queries, :] += d_scores @ known * scale
            d_key[..., keys, :] += d_scores.mT @ asked
    return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


class InBlocks(torch.autograd.Function):
    """`flash_forward`, whose backward pass is `flash_backward`."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, *visited: Any
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(query):
            output, lse = flash_forward(query, key, value, *visited)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.visited = visited
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        tensors = *ctx.saved_tensors, d_output, d_lse
        with without_autocast(d_output):
            return (*flash_backward(*tensors, *ctx.visited), None, None)


def visits(mask: AnyMask | None, query: Tensor, key: Tensor, block_size: int) -> Iterator[Visit]:
    """For each block of queries the blocks of keys to visit, and what is hidden there, if any."""
    if not (mask is None or isinstance(mask, Tensor | str)):
        yield from mask.visits(query.device)
        return
    first = key.size(-2) - query.size(-2)  # for "causal" the queries are the last positions
    positions = torch.arange(key.size(-2), device=query.device)
    for queries in blocks(query.size(-2), block_size):
        if isinstance(mask, str):
            own = positions[first:][queries, None]
            seen = (
                (keys, None if keys.stop <= first + queries.start else positions[keys] <= own)
                for keys in blocks(first + queries.stop, block_size)
            )
            yield queries, seen
        else:
            cut = blocks(key.size(-2), block_size)
            yield queries, ((keys, part_of(mask, queries, keys)) for keys in cut)


def part_of(mask: Tensor | None, queries: slice, keys: slice) -> Tensor | None:
    """A block of a mask that broadcasts to (..., q, k)."""
    if mask is None:
        return None
    mask = torch.atleast_2d(mask)
    rows = mask[..., queries, :] if mask.size(-2) > 1 else mask
    return rows[..., keys] if rows.size(-1) > 1 else rows


def merge_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention to several sets of keys, put together to attention to all of them.

    Each part weighs as much as the sum under its weights: softmax over their log-sum-exps. Time and
    memory: O(parts · q · e'), whatever the number of keys.

    Args:
        parts: of each the output (..., q, e') and the log-sum-exp (..., q), of the same queries; at
            least 1. What is returned is that of all keys together.

    Example:
        >>> one = (torch.tensor([[2.0]]), torch.tensor([0.0]))
        >>> three = (torch.tensor([[6.0]]), torch.tensor([3.0]).log())
        >>> merge_attention([one, three])[0]
        tensor([[5.]])

    Paper: Rabe and Staats (2021), section 3.
    """
    if not parts:
        raise ValueError("parts must have at least 1 entry, got 0")
    outputs = torch.stack([output for output, _ in parts])
    lses = torch.stack([lse for _, lse in parts])
    empty = (lses == -torch.inf).all(dim=0)
    lse = lses.masked_fill(empty, 0.0).logsumexp(dim=0)
    weights = (lses - lse).exp()[..., None]
    return (weights * outputs).sum(dim=0).to(outputs.dtype), lse.masked_fill(empty, -torch.inf)
