"""Attention in blocks equals the formula: outputs, gradients, sums, and never n² in memory."""

import itertools

import pytest
import torch
from helpers import assert_same, randn, refuses

from minitransformer import scaled_dot_product_attention
from minitransformer.efficient_attention import (
    BlockMask,
    PeakMemory,
    all_of,
    any_of,
    causal_rule,
    dilated_rule,
    flash_attention,
    flash_attention_with_lse,
    global_rule,
    merge_attention,
    random_rule,
    strided_rule,
    window_rule,
)

B, H, E, V = 2, 3, 4, 6
LENGTHS = [(5, 7), (7, 7), (1, 9), (13, 13)]
RULES = {
    "causal": causal_rule,
    "window": window_rule(3),
    "dilated": dilated_rule(2, 3),
    "strided": strided_rule(3),
    "global": any_of(window_rule(2), global_rule(1)),
    "causal window": all_of(causal_rule, window_rule(3)),
    "random": random_rule(13, 1, 4, torch.Generator().manual_seed(3)),
    "nothing": lambda query, key: (query < 0) & (key < 0),
}
each_length = pytest.mark.parametrize(("q", "k"), LENGTHS)
each_block_size = pytest.mark.parametrize("block_size", [1, 3, 4, 64])


def inputs(q, k, **options):
    options = {"dtype": torch.float64, "grad": True} | options
    return (
        randn(B, H, q, E, seed=1, **options),
        randn(B, H, k, E, seed=2, **options),
        randn(B, H, k, V, seed=3, **options),
    )


def masks(q, k):
    random = randn(B, 1, q, k, seed=4) > 0
    random[0, :, 0] = False  # an empty row
    return {
        "none": None,
        "causal": "causal",
        "padding": randn(B, 1, 1, k, seed=5) > 0,
        "random": random,
        "keys": torch.arange(k) % 3 > 0,
        "queries": torch.arange(q)[:, None] != 2,
        "all hidden": torch.zeros(q, k, dtype=torch.bool),
    } | {name: BlockMask(rule, q, k, block_size=4) for name, rule in RULES.items()}


@each_length
@each_block_size
@pytest.mark.parametrize("name", masks(1, 1))
def test_equals_the_formula_with_gradients(q, k, block_size, name):
    mask = masks(q, k)[name]
    tensors = inputs(q, k)
    output = flash_attention(*tensors, mask, block_size=block_size)
    dense = mask.dense() if isinstance(mask, BlockMask) else mask
    expected = scaled_dot_product_attention(*tensors, dense, backend="reference")
    assert_same(output, expected, 1e-12)
    seed = randn(*output.shape, seed=6, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(output, tensors, seed),
        torch.autograd.grad(expected, tensors, seed),
        strict=True,
    ):
        assert_same(ours, theirs, 1e-12)


@each_length
@pytest.mark.parametrize("name", ["none", "padding", "all hidden"])
def test_sum_of_weights_is_returned(q, k, name):
    query, key, value = inputs(q, k)
    mask = masks(q, k)[name]
    _, lse = flash_attention_with_lse(query, key, value, mask, block_size=3)
    scores = query @ key.transpose(-2, -1) / E**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    assert_same(lse, scores.logsumexp(-1), 1e-12)


def test_gradients_go_through_the_sum_too():
    tensors = inputs(5, 7)
    assert torch.autograd.gradcheck(
        lambda *x: flash_attention_with_lse(*x, "causal", block_size=3), tensors
    )


@pytest.mark.parametrize("cuts", [(0, 7), (0, 3, 7), (0, 1, 2, 7)])
def test_parts_of_the_keys_are_merged(cuts):
    query, key, value = inputs(5, 7)
    parts = [
        flash_attention_with_lse(query, key[..., a:b, :], value[..., a:b, :])
        for a, b in itertools.pairwise(cuts)
    ]
    output, lse = merge_attention(parts)
    expected = scaled_dot_product_attention(query, key, value)
    assert_same(output, expected, 1e-12)
    assert_same(lse, flash_attention_with_lse(query, key, value)[1], 1e-12)
    ours, theirs = (torch.autograd.grad(x.sin().sum(), query)[0] for x in (output, expected))
    assert_same(ours, theirs, 1e-12)


def test_merging_nothing_seen_gives_zeros():
    query, key, value = inputs(5, 7)
    hidden = torch.zeros(5, 7, dtype=torch.bool)
    empty = flash_attention_with_lse(query, key, value, hidden)
    output, lse = merge_attention([empty, empty])
    assert output.eq(0).all()
    assert lse.eq(-torch.inf).all()
    full = flash_attention_with_lse(query, key, value)
    merged, _ = merge_attention([empty, full])
    assert_same(merged, full[0], 1e-12)
    for x in (output, merged):
        gradients = torch.autograd.grad(x.sum(), (query, key, value), retain_graph=True)
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("n", [600, 1200])
@pytest.mark.parametrize("kind", ["none", "causal", "window"])
def test_no_tensor_has_n_squared_elements(kind, n):
    width, size = 2, 30
    query, key, value = (randn(n, width, seed=s, grad=True) for s in (1, 2, 3))
    window = BlockMask(all_of(causal_rule, window_rule(40)), n, block_size=size)
    mask = {"none": None, "causal": "causal", "window": window}[kind]
    with PeakMemory() as flash:
        flash_attention(query, key, value, mask, block_size=size).sum().backward()
    dense = window.dense() if kind == "window" else mask
    with PeakMemory() as formula:
        scaled_dot_product_attention(query, key, value, dense, backend="reference").sum().backward()
    assert flash.largest <= n * width
    assert flash.peak < 4 * (20 * n * width + 6 * size * size)
    assert formula.largest == n * n
    assert formula.peak > 4 * n * n


def test_hidden_blocks_are_not_computed():
    """A number that would spread lies where nobody looks."""
    query, key, value = (x.detach().clone() for x in inputs(12, 12))
    value[..., 8:, :] = torch.nan
    causal = BlockMask(causal_rule, 12, 12, block_size=4)
    assert flash_attention(query, key, value, causal)[..., :8, :].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_as_exact_as_float32(dtype):
    query, key, value = (x.detach().to(dtype) for x in inputs(40, 40))
    exact = scaled_dot_product_attention(query.double(), key.double(), value.double())
    output = flash_attention(query, key, value, block_size=7)
    assert output.dtype == dtype
    assert (output.double() - exact).abs().max() < 2 * torch.finfo(dtype).eps


def test_large_scores_do_not_overflow():
    query, key, value = (x.detach() * 1e3 for x in inputs(5, 7))
    output = flash_attention(query, key, value, block_size=2)
    assert_same(output, scaled_dot_product_attention(query, key, value, backend="reference"))


def test_heads_may_share_keys():
    query, key, value = inputs(5, 7)
    key, value = key[:, :1], value[:, :1]
    expected = scaled_dot_product_attention(query, key.expand(-1, H, -1, -1), value)
    assert_same(flash_attention(query, key, value, block_size=3), expected, 1e-12)


def attended(**changes):
    tensors = dict(zip(("query", "key", "value"), inputs(5, 7), strict=True))
    return lambda: flash_attention(**(tensors | changes))


test_what_does_not_fit_is_refused = refuses(
    ("BlockMask or 'causal', got 'casual'", attended(mask="casual")),
    ("3 queries and 7 keys, got 5 and 7", attended(mask=BlockMask(causal_rule, 3, 7))),
    (r"\(5, 6\) does not broadcast", attended(mask=torch.ones(5, 6) > 0)),
    ("block_size must be at least 1, got 0", attended(block_size=0)),
    ("as many positions, got 7 and 6", attended(value=torch.zeros(B, H, 6, V))),
    ("at least 1 entry, got 0", lambda: merge_attention([])),
)
