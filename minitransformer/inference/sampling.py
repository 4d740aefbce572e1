"""From scores to the next token: temperature, top-k, top-p and min-p.

Built in chapter 10. Papers: Fan et al. (2018), section 5.1 (top-k); Holtzman et al. (2020),
section 3.1 (top-p); Nguyen et al. (2024), section 3 (min-p).
"""

import math

import torch
from torch import Tensor

__all__ = ["min_p_filter", "next_token_probs", "top_k_filter", "top_p_filter"]

TINY = torch.finfo(torch.float32).tiny
"""A temperature like 0 for all scores there are, and not rounded to 0."""


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Keep the k highest scores; the others become -inf. Of equal scores at the edge all stay.

    Logits are (..., v); all stay if there are no more than k. A k below 1 is a `ValueError`.

    Example:
        >>> top_k_filter(torch.tensor([1.0, 4.0, 3.0]), 2)
        tensor([-inf, 4., 3.])
    """
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    edge = logits.topk(min(k, logits.size(-1)), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < edge, -torch.inf)


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens whose probabilities reach p together; the others become -inf.

    Logits are (..., v). Tokens are taken from the most probable on, so at least one stays. A p that
    is not above 0 and at most 1 is a `ValueError`.

    Example:
        >>> top_p_filter(torch.tensor([0.6, 0.1, 0.3]).log(), 0.7).exp()
        tensor([0.6000, 0.0000, 0.3000])
    """
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p must be above 0 and at most 1, got {p}")
    ordered, indices = logits.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(dim=-1, dtype=torch.float64)
    # The sum before a token decides, so the token that passes p is kept.
    dropped = probs.cumsum(dim=-1) - probs >= p
    dropped[..., 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, indices, dropped), -torch.inf)


def min_p_filter(logits: Tensor, m: float) -> Tensor:
    """Keep tokens at least m times as probable as the most probable one; the others become -inf.

    Logits are (..., v). An m that is not above 0 and at most 1 is a `ValueError`.

    Example:
        >>> min_p_filter(torch.tensor([0.6, 0.1, 0.3]).log(), 0.4).exp()
        tensor([0.6000, 0.0000, 0.3000])
    """
    if not 0.0 < m <= 1.0:
        raise ValueError(f"min_p must be above 0 and at most 1, got {m}")
    # p_i >= m p_max is z_i >= z_max + log m: the sum of the softmax cancels.
    edge = logits.amax(dim=-1, keepdim=True) + math.log(m)
    return logits.masked_fill(logits < edge, -torch.inf)


def next_token_probs(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """The distribution to draw the next token from: softmax(logits / temperature), cut off.

    Below 1 the temperature makes probable tokens more probable, above 1 all more alike; close to
    0 all goes to the most probable one. It acts first, then top-k, then top-p on what is left,
    then min-p.

    Args:
        logits: (..., v), floating point.
        temperature: above 0, and finite.
        top_k, top_p, min_p: see `top_k_filter`, `top_p_filter`, `min_p_filter`.

    Returns:
        Probabilities, (..., v), at least float32; rows sum to 1. An argument that is out of range
        is a `ValueError`.

    Example:
        >>> next_token_probs(torch.tensor([0.6, 0.1, 0.3]).log(), top_k=2)
        tensor([0.6667, 0.0000, 0.3333])
    """
    if not temperature > 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if temperature == math.inf:
        raise ValueError(f"temperature must be finite, got {temperature}")
    # Softmax sees differences alone. Those to the highest score may overflow to -inf, and should.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / max(temperature, TINY)
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    if min_p is not None:
        logits = min_p_filter(logits, min_p)
    return logits.softmax(dim=-1)
