"""Every attention function takes the same masks, refuses by the same words, computes as finely."""

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    attention_weights,
    causal_mask,
    record_attention,
    scaled_dot_product_attention,
)
from minitransformer.efficient_attention import (
    LatentAttention,
    causal_rule,
    delta_rule,
    flash_attention,
    linear_attention,
    linear_attention_of_all_pairs,
)

SOFTMAX = {
    "sdpa": scaled_dot_product_attention,
    "reference": lambda *x: scaled_dot_product_attention(*x, backend="reference"),
    "module": lambda *x: ScaledDotProductAttention()(*x),
    "weights": lambda q, k, v, *mask: attention_weights(q, k, *mask) @ v,
    "flash": lambda *x: flash_attention(*x, block_size=5),
}
LINEAR = {
    "linear": lambda *x: linear_attention(*x, block_size=3),
    "linear, all pairs": linear_attention_of_all_pairs,
}
FUNCTIONS = SOFTMAX | LINEAR
UNMASKED = {"delta rule": lambda q, k, v: delta_rule(q, k, v, q.new_full(q.shape[:-1], 0.2))}
MODULES = {
    "multi-head": MultiHeadAttention(4, 2),
    "latent": lambda x, *_: LatentAttention(4, 2, 3)(x),
}
E = 4


def each(functions):
    return pytest.mark.parametrize("attend", functions.values(), ids=functions.keys())


def inputs(q, k, *before, **options):
    return [randn(*before, n, E, seed=n + e, **options) for n, e in ((q, 0), (k, 1), (k, 2))]


@each(FUNCTIONS)
@pytest.mark.parametrize(("q", "k"), [(1, 1), (1, 7), (5, 7), (13, 13)])
def test_the_word_causal_is_the_causal_mask(attend, q, k):
    tensors = inputs(q, k, 2, 3, dtype=torch.float64)
    exact = FUNCTIONS["linear, all pairs"] if attend in LINEAR.values() else FUNCTIONS["reference"]
    assert_same(attend(*tensors, "causal"), exact(*tensors, causal_mask(q, k)), 1e-12)


@each(FUNCTIONS)
def test_what_is_no_mask_is_refused(attend):
    with pytest.raises(ValueError, match="must not exceed num_keys, got 7 queries, 5 keys"):
        attend(*inputs(7, 5), "causal")
    for mask, error in (("casual", ValueError), (True, TypeError), (causal_rule, TypeError)):
        with pytest.raises(error, match=r"mask must be a boolean tensor.* or 'causal', got"):
            attend(*inputs(5, 5), mask)


@each(FUNCTIONS | UNMASKED | MODULES)
def test_one_axis_and_integers_are_refused(attend):
    for x in (torch.zeros(()), torch.zeros(E)):
        with pytest.raises(ValueError, match=r"at least 2 axes.* got shape \((4,)?\)"):
            attend(x, x, x)
    query, key, value = inputs(5, 5)
    if attend not in MODULES.values():
        with pytest.raises(TypeError, match=r"key must be floating point, got torch.int64"):
            attend(query, key.long(), value)


def in_half(dtype):
    """What other people's tests give: all scores are positive, and tens of them."""
    tensors = [5 * torch.rand(1, 2, 128, 80, generator=torch.Generator().manual_seed(0))] * 3
    return [x.roll(n, -2).to(dtype) for n, x in enumerate(tensors)]


@each(FUNCTIONS | UNMASKED)
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.015), (torch.float16, 0.002)])
def test_half_the_precision_rounds_the_result_alone(attend, autocast, dtype, tolerance):
    halves = in_half(dtype)
    exact = attend(*(x.double() for x in halves))
    with torch.autocast("cpu", dtype, enabled=autocast):
        output = attend(*halves)
    assert output.dtype == dtype
    size = exact.abs() if attend not in UNMASKED.values() else exact.abs().max()
    assert float(((output - exact).abs() / size).max()) < tolerance


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.005), (torch.float16, 0.001)])
def test_recorded_weights_are_rounded_once(autocast, dtype, tolerance):
    halves = in_half(dtype)
    attention = ScaledDotProductAttention()
    with record_attention(attention) as maps, torch.autocast("cpu", dtype, enabled=autocast):
        attention(*halves)
    exact = attention_weights(*(x.double() for x in halves[:2]))
    assert float((maps[""] - exact).abs().max()) < tolerance
