"""Multi-head attention: several attentions side by side, each in its own subspace.

Built in chapter 5. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.2.2.
"""

from torch import Tensor, nn

from minitransformer.attention import Backend, ScaledDotProductAttention

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O, headᵢ = Attention(QWᵢ^Q, KWᵢ^K, VWᵢ^V).

    The h projections of each kind are one matrix, (d, h·e), cut into heads afterwards.

    Args:
        d_model: width in and out, d.
        num_heads: number of heads, h; divides d_model, and each head has width e = d/h.
        dropout: probability of zeroing an attention weight while training; the paper has none here.
        bias: whether the four projections have biases; the paper's formula has none,
            `torch.nn.MultiheadAttention` has them.
        backend: "sdpa" or "reference", see `scaled_dot_product_attention`.

    Raises:
        ValueError: if `num_heads` does not divide `d_model`.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(12, num_heads=3)
        >>> x, memory = torch.randn(2, 4, 12), torch.randn(2, 7, 12)
        >>> attention(x, memory, memory).shape
        torch.Size([2, 4, 12])

    Built in chapter 5. Paper: section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        backend: Backend = "sdpa",
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got {num_heads} and {d_model}")
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, d_model, bias=bias)
        self.w_v = nn.Linear(d_model, d_model, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.attention = ScaledDotProductAttention(dropout, backend)

    def split_heads(self, x: Tensor) -> Tensor:
        """(b, n, h·e) → (b, h, n, e)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def keys_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Project keys and values, (b, k, d), to heads, (b, h, k, e): what a cache stores."""
        return self.split_heads(self.w_k(key)), self.split_heads(self.w_v(value))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Attend from `query`, (b, q, d), to projected keys and values; returns (b, q, d)."""
        heads = self.attention(self.split_heads(self.w_q(query)), keys, values, mask)
        return self.w_o(heads.transpose(-3, -2).flatten(-2))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Attend with every head and mix what they bring.

        Args:
            query: (b, q, d), floating point.
            key: (b, k, d).
            value: (b, k, d).
            mask: boolean, broadcastable to (b, h, q, k); True = may be attended.

        Returns:
            (b, q, d).

        Raises:
            TypeError: if `mask` is not boolean.
            ValueError: if a width is not d_model, or shapes do not fit together.
        """
        d_model = self.w_q.in_features
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.size(-1) != d_model:
                raise ValueError(f"{name} must have width d_model={d_model}, got {x.size(-1)}")
        return self.attend(query, *self.keys_values(key, value), mask)
