"""Scaled dot-product attention: masks, the formula, the fused kernel, and a single head.

Axes: `b` batch, `h` head, `q` query, `k` key, `d` model width, `e` head width, `...` any before.

Built in chapter 4. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.2.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import (
    check_at_least_1,
    check_attention,
    check_attention_settings,
    check_causal,
    check_mask,
    check_values,
    known,
    without_autocast,
)

__all__ = [
    "ScaledDotProductAttention",
    "SelfAttention",
    "attention_weights",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
]

Backend = Literal["reference", "sdpa"]
Mask = Tensor | Literal["causal"]  # boolean, True = may be attended; or `causal_mask`, not built


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Mark the keys that are real tokens, for every head and every query.

    Args:
        ids: token ids, (b, k), an integer dtype.
        pad_id: the id that fills short rows.

    Returns:
        Boolean mask, (b, 1, 1, k); True = may be attended. It broadcasts to (b, h, q, k).

    Raises:
        ValueError: if `ids` is not two-dimensional.

    Example:
        >>> padding_mask(torch.tensor([[5, 7, 0]]))
        tensor([[[[ True,  True, False]]]])
    """
    if ids.dim() != 2:
        raise ValueError(f"ids must have shape (b, k), got {tuple(ids.shape)}")
    return (ids != pad_id)[:, None, None, :]  # (b, 1, 1, k)


def causal_mask(
    num_queries: int, num_keys: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Let each query see itself and what came before: the mask of section 3.2.3.

    The last query is aligned with the last key (bottom-right): with fewer queries than keys
    the queries are the *last* positions of the sequence, as in a cached decode.

    Args:
        num_queries: q.
        num_keys: k; as many as queries when left out.
        device: where to make the mask.

    Returns:
        Boolean mask, (q, k); True = may be attended.

    Raises:
        ValueError: if there are more queries than keys: the first would see nothing.

    Example:
        >>> causal_mask(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    num_keys = num_queries if num_keys is None else num_keys
    check_causal(num_queries, num_keys)
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.tril(num_keys - num_queries)


def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """How much each query takes from each key: softmax(Q Kᵀ / √d_k + bias), zero where masked.

    A query whose keys are all masked gets a row of zeros, never NaN. A bias of -inf masks.

    Args:
        query: (..., q, e), floating point.
        key: (..., k, e), the same dtype.
        mask: boolean, broadcastable to (..., q, k); True = may be attended. Or "causal", for
            `causal_mask(q, k)`.
        bias: floating point, broadcastable to (..., q, k); added to the scores (see `ALiBi`).
        scale: what Q Kᵀ is multiplied by; 1/√d_k when left out.

    Returns:
        Weights, (..., q, k), the dtype of `query`. Rows sum to 1, or to 0 with nothing to see.

    Raises:
        TypeError: if `mask` is not boolean, or `bias` not floating point.
        ValueError: if shapes do not fit together, or the mask's name is unknown.

    Example:
        >>> query, key = torch.zeros(1, 2), torch.zeros(4, 2)
        >>> attention_weights(query, key, torch.tensor([True, True, False, False]))
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])

    Paper: equation 1.
    """
    allowed = as_tensor(mask, query, key)
    check_attention(query, key, allowed, bias)
    hidden = None if allowed is None else ~allowed
    dtype = query.dtype
    # At least float32, as in PyTorch's kernel: bfloat16 rounds a score of 40 by up to 0.125.
    wide = torch.promote_types(dtype, torch.float32)
    query = query.to(wide) / math.sqrt(query.size(-1)) if scale is None else query.to(wide) * scale
    with without_autocast(query):
        scores = query @ key.to(wide).transpose(-2, -1)  # (..., q, k)
    if bias is not None:
        bias = bias.to(dtype)
        scores = scores + bias
        shut = bias == -torch.inf
        hidden = shut if hidden is None else hidden | shut
    if hidden is None:
        return scores.softmax(dim=-1).to(dtype)
    # The most negative finite number, not -inf: a row with no allowed key would be 0/0.
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(hidden, 0.0).to(dtype)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    backend: Backend = "sdpa",
) -> Tensor:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V, with a bias added to the scores if given.

    Args:
        query: (..., q, e), floating point.
        key: (..., k, e), the same dtype.
        value: (..., k, e'), the same dtype; e' may differ from e.
        mask: boolean, broadcastable to (..., q, k); True = may be attended. This is the polarity
            of `torch.nn.functional.scaled_dot_product_attention` and the opposite of
            `torch.nn.MultiheadAttention`. Or "causal", for `causal_mask(q, k)`, which "sdpa" then
            need not build: it leaves out what is hidden.
        bias: floating point, broadcastable to (..., q, k); added to the scores (see `ALiBi`).
            -inf masks.
        dropout: probability of zeroing a weight; the others are scaled by 1/(1 - dropout).
        scale: what Q Kᵀ is multiplied by; 1/√d_k when left out.
        enable_gqa: each head of keys and values, (..., heads, k, e), serves as many heads of
            queries as it takes.
        backend: "reference" is the explicit formula, "sdpa" PyTorch's fused kernel, which
            does not write the (q, k) weights to memory.

    Returns:
        (..., q, e'); zeros for a query whose keys are all masked.

    Raises:
        TypeError: if `mask` is not boolean, or `bias` not floating point.
        ValueError: if shapes do not fit together, `dropout` is outside [0, 1), or `backend` or the
            mask's name is unknown.

    Example:
        >>> value = torch.tensor([[1.0], [3.0]])
        >>> scaled_dot_product_attention(torch.zeros(1, 5), torch.zeros(2, 5), value)
        tensor([[2.]])

    Paper: section 3.2.1, equation 1.
    """
    check_values(key, value)
    check_attention_settings(dropout, backend)
    if enable_gqa:
        group = query.size(-3) // key.size(-3)
        key = key.repeat_interleave(group, -3)  # (..., h, k, e)
        value = value.repeat_interleave(group, -3)
    if backend == "reference":
        weights = attention_weights(query, key, mask, bias, scale)
        weights = F.dropout(weights, dropout) if dropout else weights
        return weights @ value  # (..., q, e')
    is_square = query.size(-2) == key.size(-2)
    if isinstance(mask, str) and mask == "causal" and bias is None and is_square:
        check_attention(query, key)
        return F.scaled_dot_product_attention(query, key, value, None, dropout, True, scale=scale)
    allowed = as_tensor(mask, query, key)
    check_attention(query, key, allowed, bias)
    seen = None if allowed is None else torch.atleast_2d(allowed)  # a mask, or a bias with one
    if bias is not None:
        bias = torch.atleast_2d(bias.to(query.dtype))
        seen = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
    if seen is None:
        return F.scaled_dot_product_attention(query, key, value, None, dropout, scale=scale)
    # For a row with no allowed key kernels have given NaN or 0: open such rows, zero the output.
    empty = ~(seen if bias is None else seen != -torch.inf).any(dim=-1, keepdim=True)
    if query.device.type == "cpu" and known(empty.any()) is False:  # a GPU would have to wait
        return F.scaled_dot_product_attention(query, key, value, seen, dropout, scale=scale)
    seen = seen.masked_fill(empty, 1.0)
    output = F.scaled_dot_product_attention(query, key, value, seen, dropout, scale=scale)
    return output.masked_fill(empty, 0.0)


def as_tensor(mask: Mask | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask that "causal" names; None for a single query, which sees everything."""
    check_mask(mask)
    if not isinstance(mask, str):
        return mask
    num_queries, num_keys = query.size(-2), key.size(-2)
    return None if num_queries == 1 else causal_mask(num_queries, num_keys, query.device)


class ScaledDotProductAttention(nn.Module):
    """`scaled_dot_product_attention` as a module, so that dropout follows train() and eval().

    Args:
        dropout: probability of zeroing an attention weight while training.
        backend: "sdpa" or "reference".
        scale: see `scaled_dot_product_attention`.

    Raises:
        ValueError: if `dropout` is outside [0, 1) or `backend` unknown.

    Paper: section 3.2.1.
    """

    def __init__(
        self, dropout: float = 0.0, backend: Backend = "sdpa", scale: float | None = None
    ) -> None:
        super().__init__()
        check_attention_settings(dropout, backend)
        self.dropout, self.scale = dropout, scale
        self.backend: Backend = backend

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend; shapes and errors as in `scaled_dot_product_attention`."""
        dropout = self.dropout if self.training else 0.0
        return scaled_dot_product_attention(
            query, key, value, mask, bias, dropout=dropout, scale=self.scale, backend=self.backend
        )

    def extra_repr(self) -> str:
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"dropout={self.dropout}, backend={self.backend!r}{scale}"


class SelfAttention(nn.Module):
    """One head of self-attention that also returns its weights.

    Each position makes a query, a key and a value of itself:
    Q = X W^Q, K = X W^K, V = X W^V, and the output is Attention(Q, K, V).

    Args:
        d_model: width of the input, d.
        d_k: width of queries, keys and values, e; `d_model` when left out.

    Raises:
        ValueError: if a width is below 1.

    Example:
        >>> output, weights = SelfAttention(8, 4)(torch.randn(2, 5, 8))
        >>> tuple(output.shape), tuple(weights.shape)
        ((2, 5, 4), (2, 5, 5))

    Paper: section 3.2.1; several heads: chapter 5.
    """

    def __init__(self, d_model: int, d_k: int | None = None) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, d_k=d_k)
        d_k = d_model if d_k is None else d_k
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_k, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend from each position of x, (b, q, d), to all of them; see `attention_weights`.

        Returns:
            Output (b, q, e) and weights (b, q, q).
        """
        weights = attention_weights(self.w_q(x), self.w_k(x), mask)  # (b, q, q)
        return weights @ self.w_v(x), weights
