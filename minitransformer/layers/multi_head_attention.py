"""Multi-head attention: several attentions side by side, each in its own subspace.

Built in chapter 5. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.2.2.
"""

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1, check_axes
from minitransformer.layers.attention import Backend, Mask, ScaledDotProductAttention, as_tensor
from minitransformer.layers.cache import KVCache
from minitransformer.layers.packing import PACKABLE, PackedMask

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O, headᵢ = Attention(QWᵢ^Q, KWᵢ^K, VWᵢ^V).

    The h projections of each kind are one matrix, (d, h·e), cut into heads afterwards. With fewer
    heads of keys and values, several queries' heads share one (grouped-query attention; a single
    one is multi-query attention): a cache then holds less, and the model is a little worse. In
    chapter 5 a single one for four heads of queries costs 3 to 5 points of next tokens right.

    Args:
        d_model: width in and out, d.
        num_heads: number of heads, h; divides d_model unless `d_k` is given.
        d_k: width of each head, e; d/h when left out.
        num_kv_heads: heads of keys and values; divides num_heads, which it is when left out.
        bias: whether the four projections have biases; the paper's formula has none,
            `torch.nn.MultiheadAttention` has them.
        output_bias: whether the last one, W^O, has one; as `bias` when left out.
        rotary: rotates queries and keys by their positions, see `RotaryPositionalEncoding`.
        position_bias: makes a bias of the scores, (h, q, k), see `ALiBi`.
        norm_q: normalises each head's queries, before they are rotated.
        norm_k: the same for keys.
        window: how many keys a query sees, itself and those before; all when left out.
        attention: computes the heads' outputs from queries, keys, values, mask and bias; a
            `ScaledDotProductAttention` with the next three arguments when left out.
        dropout: probability of zeroing an attention weight while training; the paper has none here.
        scale, backend: see `scaled_dot_product_attention`.

    Raises:
        ValueError: if a size is below 1; if `num_heads` does not divide `d_model`, or
            `num_kv_heads` not `num_heads`; if `dropout` is outside [0, 1) or `backend` unknown.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(12, num_heads=3)
        >>> x, memory = torch.randn(2, 4, 12), torch.randn(2, 7, 12)
        >>> attention(x, memory, memory).shape
        torch.Size([2, 4, 12])

    Paper: section 3.2.2; shared keys and values: Shazeer (2019), Ainslie et al.
    (2023).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_k: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        rotary: nn.Module | None = None,
        position_bias: nn.Module | None = None,
        norm_q: nn.Module | None = None,
        norm_k: nn.Module | None = None,
        window: int | None = None,
        attention: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        backend: Backend = "sdpa",
    ) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads, d_k=d_k)
        if d_k is None and d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got {num_heads} and {d_model}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads, got {num_kv_heads} and {num_heads}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.w_q = nn.Linear(d_model, num_heads * self.d_k, bias=bias)
        self.w_k = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        self.w_v = nn.Linear(d_model, num_kv_heads * self.d_k, bias=bias)
        output_bias = bias if output_bias is None else output_bias
        self.w_o = nn.Linear(num_heads * self.d_k, d_model, bias=output_bias)
        self.rotary, self.position_bias = rotary, position_bias
        self.norm_q, self.norm_k = norm_q, norm_k
        self.window = window
        self.attention = attention or ScaledDotProductAttention(dropout, backend, scale)

    def split_heads(self, x: Tensor) -> Tensor:
        """(b, n, heads·e) → (b, heads, n, e)."""
        return x.unflatten(-1, (-1, self.d_k)).transpose(-3, -2)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | PackedMask | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attend with every head and mix their outputs.

        Args:
            query: (b, q, d), floating point.
            key: (b, k, d).
            value: (b, k, d).
            mask: boolean, (q, k), or broadcastable to (b, h, q, k) with as many axes; True = may be
                attended. Or "causal". With a `PackedMask` vectors go in and out packed, (n, d).
            cache: keys and values of the positions before these, to be attended too; k counts them.
            positions: of queries and keys, for `rotary`, (q,) or (b, q), int64; from 0, or from
                what the cache holds, when left out.

        Returns:
            (b, q, d).

        Raises:
            TypeError: if `mask` is not boolean.
            ValueError: if a width is not d_model, shapes do not fit together, or there are
                `positions` and a `position_bias`, which counts by itself.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.dim() < 2 or x.size(-1) != self.d_model:
                check_axes(**{name: x})
                raise ValueError(f"{name} must have width d_model={self.d_model}, got {x.size(-1)}")
        packed = mask if isinstance(mask, PackedMask) else None
        seen = mask.mask if isinstance(mask, PackedMask) else mask
        start: int | Tensor = 0 if cache is None else cache.length
        if positions is not None:
            if self.position_bias is not None:
                name = type(self.position_bias).__name__
                raise ValueError(f"positions must be None with {name}, which counts by itself")
            start = positions.unsqueeze(-2)  # (1, q) or (b, 1, q), for every head
        queries = self.w_q(query)
        if packed is not None:
            queries = packed.queries.unpack(queries)  # (n, h·e) → (b, q, h·e)
        queries = self.prepare(queries, self.norm_q, start)  # (b, h, q, e)
        if cache is not None and key.size(-2) == 0:  # the cache holds all there is
            keys, values = cache.keys, cache.values
        else:
            keys, values = self.w_k(key), self.w_v(value)
            if packed is not None:
                keys, values = packed.keys.unpack(keys), packed.keys.unpack(values)
            keys = self.prepare(keys, self.norm_k, start)  # (b, kv heads, k, e)
            values = self.split_heads(values)  # (b, kv heads, k, e)
            if cache is not None:
                keys, values = cache.extend(keys, values)
        heads = self.attend(queries, keys, values, seen)  # (b, h, q, e)
        joined = heads.transpose(-3, -2).flatten(-2)  # (b, q, h·e)
        return self.w_o(joined if packed is None else packed.queries.pack(joined))

    def prepare(self, x: Tensor, norm: nn.Module | None, start: int | Tensor = 0) -> Tensor:
        """Queries or keys, (b, n, heads·e) → (b, heads, n, e), normed, rotated from `start`."""
        x = self.split_heads(x)
        x = x if norm is None else norm(x)
        return x if self.rotary is None else self.rotary(x, start)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask | None) -> Tensor:
        """The output of each head, (b, h, q, e), for keys and values (b, kv heads, k, e)."""
        if isinstance(mask, Tensor) and mask.dim() == 3 and queries.dim() == 4:
            raise ValueError(
                f"mask must have 2 or 4 axes, got shape {tuple(mask.shape)}; `mask[:, None]` is "
                "one for each row of the batch, `mask[None]` one for each head"
            )
        if self.window is not None:
            mask = within_window(self.window, as_tensor(mask, queries, keys), queries, keys)
        bias = None
        if self.position_bias is not None:
            bias = self.position_bias(queries.size(-2), keys.size(-2), queries.device)
        if self.num_kv_heads < self.num_heads:
            group = self.num_heads // self.num_kv_heads
            keys = keys.repeat_interleave(group, -3)  # (b, h, k, e)
            values = values.repeat_interleave(group, -3)
        return self.attention(queries, keys, values, mask, bias)


PACKABLE |= {
    MultiHeadAttention.forward: ("w_q", "w_k", "w_v", "w_o", "attention"),
    ScaledDotProductAttention.forward: (),  # it hides padding, so what is there does not matter
}


def within_window(window: int, mask: Tensor | None, queries: Tensor, keys: Tensor) -> Tensor:
    """The mask without keys `window` positions back or more."""
    num_queries, num_keys = queries.size(-2), keys.size(-2)
    position = torch.arange(num_keys, device=queries.device)
    near = position > position[num_keys - num_queries :, None] - window  # (q, k)
    return near if mask is None else near & mask
