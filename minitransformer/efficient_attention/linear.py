"""Attention without a softmax: what was read is kept in one matrix, whatever its length.

Without the exponential the product may be taken in another order, (φ(Q) φ(K)ᵀ) V = φ(Q) (φ(K)ᵀ V).
The sum in brackets is a matrix of fixed size that each key and value is added to. Three forms of
the same function: all pairs at once, sums over prefixes, and one step at a time.

Axes: `q` query, `k` key, `n` position, `e` head width, `m` features, `...` any before.

Built in chapter 15. Papers: Katharopoulos et al. (2020); Choromanski et al. (2021), section 2.3;
Schlag et al. (2021), section 4; Yang et al. (2025).
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.checks import (
    check_at_least_1,
    check_attention,
    check_causal,
    check_mask,
    check_values,
    without_autocast,
)
from minitransformer.layers.attention import Mask, as_tensor

__all__ = [
    "delta_rule",
    "elu_features",
    "linear_attention",
    "linear_attention_of_all_pairs",
    "linear_attention_step",
    "softmax_features",
]

Features = Callable[[Tensor], Tensor]  # (..., n, e) to (..., n, m), nowhere negative
State = tuple[Tensor, Tensor]  # Σ φ(k) vᵀ, (..., m, e'), and Σ φ(k), (..., m)


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere: as many features as components.

    Example:
        >>> elu_features(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0.3679, 1.0000, 3.0000])

    Paper: Katharopoulos et al. (2020), equation 7.
    """
    return F.elu(x) + 1


def softmax_features(directions: Tensor) -> Features:
    """Features whose products are exp(q·k / √e) on average over random directions (Performer).

    φ(x) = exp(w·x' − |x'|²/2) / √m with x' = x / e^¼, for each row w of `directions`.

    Args:
        directions: (m, e), standard normal; what comes back takes (..., n, e) to (..., n, m).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> features = softmax_features(torch.randn(100_000, 4, generator=generator))
        >>> query, key = torch.tensor([[0.5, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0, 1.0]])
        >>> kernel = features(query) @ features(key).T
        >>> bool((kernel / (query @ key.T / 2).exp() - 1).abs() < 0.05)
        True

    Paper: Choromanski et al. (2021), lemma 1.
    """
    num_features, width = directions.shape

    def features(x: Tensor) -> Tensor:
        if x.size(-1) != width:
            raise ValueError(f"x must have the directions' width {width}, got {x.size(-1)}")
        x = x / width**0.25
        exponents = x @ directions.mT.to(x) - x.square().sum(-1, keepdim=True) / 2
        return exponents.exp() / math.sqrt(num_features)

    return features


def at_least_float32(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in float32 what comes in less: a sum over many positions must not be rounded."""

    @wraps(attention)
    def computed(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        check_values(key, value)
        check_attention(query, key)
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query):
            output = attention(query.to(dtype), key.to(dtype), value.to(dtype), *args, **options)
        return output.to(query.dtype)

    return computed


@at_least_float32
def linear_attention_of_all_pairs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    *,
    features: Features = elu_features,
) -> Tensor:
    """Σ_k φ(q)·φ(k) v / Σ_k φ(q)·φ(k), every weight written out: the definition.

    Time O(q · k · m), memory O(q · k). Arguments as in `scaled_dot_product_attention`.

    Example:
        >>> value = torch.tensor([[1.0], [3.0]])
        >>> linear_attention_of_all_pairs(torch.zeros(1, 5), torch.zeros(2, 5), value)
        tensor([[2.]])

    Paper: Katharopoulos et al. (2020), equation 4.
    """
    allowed = as_tensor(mask, query, key)
    check_attention(query, key, allowed)
    weights = features(query) @ features(key).mT
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0.0)
    return divided(weights @ value, weights.sum(-1, keepdim=True))


@at_least_float32
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    *,
    features: Features = elu_features,
    block_size: int = 64,
) -> Tensor:
    """`linear_attention_of_all_pairs` with sums instead of pairs.

    Time O(n · m · e'), memory O(m · e') beside φ(Q), φ(K) and the output. With "causal" the pairs
    inside a block are written out: O(n · block_size · (m + e')) more time. There gradients keep the
    sums of each block, O(n · m · e' / block_size).

    Args:
        query, key, value: (..., q, e), (..., k, e) and (..., k, e'), floating point, of one dtype.
        mask: boolean, of keys only, broadcastable to (..., 1, k); True = may be attended. Or
            "causal", for `causal_mask(q, k)`.
        features: φ, (..., n, e) to (..., n, m), not negative.
        block_size: positions that are summed at once, with "causal".

    Returns (..., q, e'); zeros for a query that sees no key.

    Raises:
        TypeError: if `mask` is not boolean.
        ValueError: if shapes do not fit, or the mask tells queries apart or has no known name.

    Example:
        >>> value = torch.tensor([[1.0], [3.0]])
        >>> linear_attention(torch.zeros(2, 5), torch.zeros(2, 5), value, "causal")
        tensor([[1.],
                [2.]])

    Paper: Katharopoulos et al. (2020), equations 5, 6 and 9.
    """
    check_mask(mask)
    check_at_least_1(block_size=block_size)
    asked, known = features(query), features(key)
    if isinstance(mask, Tensor):
        check_attention(query, key, mask)
        seen = torch.atleast_2d(mask)
        if seen.size(-2) > 1:
            raise ValueError(f"mask must be the same for all queries, got one for {seen.size(-2)}")
        known = known.masked_fill(~seen.mT, 0.0)
    if not isinstance(mask, str):
        return divided(asked @ (known.mT @ value), asked @ known.sum(-2)[..., None])
    check_causal(query.size(-2), key.size(-2))
    before = key.size(-2) - query.size(-2)  # the queries are the last positions
    sums = known[..., :before, :].mT @ value[..., :before, :]
    total = known[..., :before, :].sum(-2)[..., None]
    new = asked, known[..., before:, :], value[..., before:, :]
    outputs = []
    for q, k, v in zip(*(x.split(block_size, -2) for x in new), strict=True):
        weights = (q @ k.mT).tril()
        mixed, divisor = q @ sums + weights @ v, q @ total + weights.sum(-1, keepdim=True)
        outputs.append(divided(mixed, divisor))
        sums, total = sums + k.mT @ v, total + k.sum(-2)[..., None]
    return torch.cat(outputs, dim=-2)


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None = None,
    *,
    features: Features = elu_features,
) -> tuple[Tensor, State]:
    """The next position of causal linear attention: the form of a recurrent network.

    Time and memory O(m · e') for each position, however many came before.

    Args:
        query, key, value: (..., e), (..., e) and (..., e'), floating point, of one dtype.
        state: what the step before returned; nothing was read yet when left out.
        features: φ, (..., e) to (..., m), not negative.

    Returns the output (..., e'); and the state, sums (..., m, e') and (..., m), at least float32.

    Example:
        >>> state = None
        >>> for value in (1.0, 3.0):
        ...     x = torch.zeros(5), torch.zeros(5), torch.tensor([value])
        ...     output, state = linear_attention_step(*x, state)
        >>> output
        tensor([2.])

    Paper: Katharopoulos et al. (2020), equations 16 to 20.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    asked, known = features(query.to(dtype)), features(key.to(dtype))
    pair = known[..., :, None] * value[..., None, :]
    sums, total = (pair, known) if state is None else (state[0] + pair, state[1] + known)
    with without_autocast(query):
        mixed = (asked[..., None, :] @ sums)[..., 0, :]
    output = divided(mixed, (asked * total).sum(-1, keepdim=True))
    return output.to(query.dtype), (sums, total)


def divided(mixed: Tensor, total: Tensor) -> Tensor:
    """A weighted sum over its weights' sum; zeros where there are none."""
    return mixed / total.masked_fill(total == 0, 1.0)


@at_least_float32
def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    """A matrix that is corrected, not only added to: a key's old value makes room for the new.

    S ← α S + β k (v − α Sᵀk)ᵀ, and the output is Sᵀq. With β = 1 and keys of length 1 the value
    that was stored last under a key is found again exactly. Without `decay` α is 1 (DeltaNet); with
    it, it is the gated delta rule.

    Time O(n · e · e'), one position after the other; memory O(e · e'), for gradients n times that.

    Args:
        query, key, value: (..., n, e), (..., n, e) and (..., n, e'), floating point, of one dtype.
            Keys are made to have length 1 here.
        strength: β, (..., n), from 0 (write nothing) to 1 (replace).
        decay: α, (..., n), from 0 (forget everything) to 1.

    Returns (..., n, e'), each position after it was written itself. Shapes that do not fit together
    are a ValueError.

    Example:
        >>> key = torch.eye(2)[[0, 1, 0]]
        >>> value = torch.tensor([[1.0], [2.0], [5.0]])
        >>> delta_rule(key, key, value, torch.ones(3)).T
        tensor([[1., 2., 5.]])

    Papers: Schlag et al. (2021), section 4.2; Yang et al. (2025), equation 10.
    """
    for name, gate in (("strength", strength), ("decay", decay)):
        if gate is not None and gate.shape != key.shape[:-1]:
            raise ValueError(
                f"{name} must have shape {tuple(key.shape[:-1])}, got {tuple(gate.shape)}"
            )
    key = F.normalize(key, dim=-1)
    state = key.new_zeros(*key.shape[:-2], key.size(-1), value.size(-1))
    gates = (strength,) if decay is None else (strength, decay)
    # All are cut at once: an index for each position would make n gradients of n positions each.
    rows = [x[..., None, :].unbind(-3) for x in (query, key, value)]
    rows += [gate[..., None, None].unbind(-3) for gate in gates]
    outputs = []
    for q, k, v, write, *fade in zip(*rows, strict=True):
        if fade:
            state = state * fade[0]
        state = state + k.mT * write * (v - k @ state)
        outputs.append(q @ state)
    return torch.cat(outputs, dim=-2)
