"""Attention equals its formula, in both backends, under every kind of mask and bias."""

import math

import pytest
import torch
from helpers import assert_same, randn, refuses

from minitransformer import (
    ScaledDotProductAttention,
    SelfAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

B, H, Q, K, E = 2, 3, 5, 7, 4
PADDING = padding_mask(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]]))
RANDOM = randn(B, H, Q, K, seed=9) > 0
EMPTY = RANDOM.clone()
EMPTY[0, 1, 2] = EMPTY[1, :, 4] = False
MASKS = {
    "none": None,
    "padding": PADDING,
    "causal": causal_mask(Q, K),
    "padding and causal": PADDING & causal_mask(Q, K),
    "random": RANDOM | (torch.arange(K) == 3),
    "empty rows": EMPTY,
    "all empty": torch.zeros(Q, K, dtype=torch.bool),
    "one for all queries": torch.arange(K) % 3 > 0,
    "whole queries": torch.arange(Q)[:, None] != 2,
    "a batch of one": RANDOM[:1, :1],
}
BIASES = [None, (B, H, Q, K), (H, Q, K), (B, 1, 1, K), (Q, 1), (K,)]
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
each_backend = pytest.mark.parametrize("backend", ["reference", "sdpa"])
each_opening = pytest.mark.parametrize("mask", [None, RANDOM], ids=["open", "masked"])


def inputs(value_width=6, **options):
    query, key = randn(B, H, Q, E, seed=1, **options), randn(B, H, K, E, seed=2, **options)
    return query, key, randn(B, H, K, value_width, seed=3, **options)


def with_gradients(output, tensors):
    """The output, and the gradients of a weighted sum of it."""
    weighting = randn(*output.shape, seed=4, dtype=output.dtype)
    return [output, *torch.autograd.grad((output * weighting).sum(), tensors)]


def attention_with_loops(query, key, value, mask, bias=None):
    """Equation 1, one number after another."""
    bias = torch.zeros(1) if bias is None else bias
    bias = bias.expand(B, H, Q, K).tolist()
    query, key, value = (x.tolist() for x in (query, key, value))
    open_keys = torch.ones(B, H, Q, K) if mask is None else mask.expand(B, H, Q, K)
    output = torch.zeros(B, H, Q, len(value[0][0][0]))
    for b in range(B):
        for h in range(H):
            for q in range(Q):
                weights = {}
                for k in range(K):
                    if open_keys[b, h, q, k]:
                        dot = sum(query[b][h][q][e] * key[b][h][k][e] for e in range(E))
                        weights[k] = math.exp(dot / math.sqrt(E) + bias[b][h][q][k])
                for k, weight in weights.items():
                    for e, number in enumerate(value[b][h][k]):
                        output[b, h, q, e] += weight / sum(weights.values()) * number
    return output


@each_mask
@each_backend
@pytest.mark.parametrize("shape", BIASES, ids=str)
@pytest.mark.parametrize("value_width", [E, 6], ids=["e", "another width"])
def test_vectorised_equals_loops(mask, backend, shape, value_width):
    """With zeros, exactly, for a query whose keys are all hidden."""
    tensors = inputs(value_width)
    bias = None if shape is None else randn(*shape, seed=8)
    output = scaled_dot_product_attention(*tensors, mask, bias, backend=backend)
    assert_same(output, attention_with_loops(*tensors, mask, bias))
    empty = torch.zeros(Q, 1) > 0 if mask is None else ~mask.any(dim=-1, keepdim=True)
    assert (output == 0).equal(empty.expand_as(output))


@each_mask
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # bfloat16 keeps 8 bits: one rounding is up to 0.4 %, and the kernels round at other places.
    [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3), (torch.float64, 1e-12)],
    ids=str,
)
def test_sdpa_equals_reference_with_finite_gradients(mask, biased, dtype, tolerance):
    results = []
    for backend in ("reference", "sdpa"):
        tensors = [*inputs(dtype=dtype, grad=True), randn(H, Q, K, seed=8, grad=True)]
        tensors = tensors if biased else tensors[:3]
        output = scaled_dot_product_attention(*tensors[:3], mask, *tensors[3:], backend=backend)
        results.append(with_gradients(output, tensors))
    for ours, fused in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert_same(fused, ours, tolerance)


SHUT = torch.zeros(Q, K)
SHUT[1, 2:], SHUT[3] = -torch.inf, -torch.inf


@each_mask
@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_bias_of_minus_infinity_is_a_mask(mask, backend, dtype):
    """The same as where the mask says so, zero rows and gradients included."""
    allowed = (SHUT == 0) if mask is None else mask & (SHUT == 0)
    bias = (randn(H, Q, K, seed=8) + SHUT).to(dtype)
    results = []
    for keys, numbers in ((mask, bias), (allowed, bias.nan_to_num(neginf=0))):
        tensors = (*inputs(dtype=dtype, grad=True), numbers.requires_grad_())
        output = scaled_dot_product_attention(*tensors[:3], keys, tensors[3], backend=backend)
        results.append(with_gradients(output, tensors))
    for ours, expected in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert_same(ours, expected, 1e-5)
    empty = ~allowed.any(dim=-1).expand(B, H, Q)
    assert (results[0][0][empty] == 0).all()


@each_opening
@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_bias_that_is_no_number_spoils_its_query_in_both_backends(number, mask):
    bias = randn(Q, K, seed=8)
    bias[2, 4] = number
    for backend in ("reference", "sdpa"):
        output = scaled_dot_product_attention(*inputs(), mask, bias, backend=backend)
        spoilt = torch.zeros(B, H, Q, dtype=torch.bool)
        spoilt[:, :, 2] = True if mask is None else mask[:, :, 2, 4]
        assert torch.equal(output.isnan().all(-1), spoilt)
        assert torch.equal(output.isnan().any(-1), spoilt)


@each_backend
@each_opening
@pytest.mark.parametrize("shape", [(B, 1), (1, H), (H,)], ids=str)
def test_leading_axes_broadcast(backend, mask, shape):
    query, (_, key, value) = randn(*shape, Q, E, seed=1), inputs()
    output = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    assert_same(output, attention_with_loops(query.expand(B, H, Q, E), key, value, mask))


@each_backend
def test_heads_share_keys_and_scores_have_a_scale(backend):
    query, (_, key, value) = randn(B, 2 * H, Q, E, seed=1), inputs()
    output = scaled_dot_product_attention(
        query, key, value, PADDING, scale=0.3, enable_gqa=True, backend=backend
    )
    wide = (x.repeat_interleave(2, 1) for x in (key, value))
    query = query * 0.3 * math.sqrt(E)
    assert_same(output, scaled_dot_product_attention(query, *wide, PADDING))


@each_mask
def test_weights_are_a_distribution_over_allowed_keys(mask):
    query, key, _ = inputs()
    weights = attention_weights(query, key, mask)
    mask = torch.ones(B, H, Q, K, dtype=torch.bool) if mask is None else mask.expand(B, H, Q, K)
    assert torch.equal(weights > 0, mask)
    assert_same(weights.sum(-1), mask.any(-1).float())


@each_backend
@pytest.mark.parametrize("number", [33, 100, 250])
def test_dot_products_above_the_range_of_float16(backend, number):
    """64 · 33² is above 65504; divided by √64 it is not, and 64 · 100² is even then."""
    query, key = torch.full((2, Q, 64), float(number)), torch.full((2, K, 64), float(number))
    key[:, 3] *= 1 - 1e-3
    value = randn(2, K, 6)
    exact = scaled_dot_product_attention(query, key.half().float(), value)
    halves = (x.half() for x in (query, key, value))
    assert_same(scaled_dot_product_attention(*halves, backend=backend).float(), exact, 2e-3)


def test_gradient_equals_finite_differences():
    shapes = ((H, Q, E), (H, K, E), (H, K, 2))
    tensors = [randn(*shape, dtype=torch.float64, grad=True) for shape in shapes]

    def attention(query, key, value):
        return scaled_dot_product_attention(query, key, value, EMPTY[1], backend="reference")

    assert torch.autograd.gradcheck(attention, tensors)


@each_backend
@pytest.mark.parametrize("mask", [None, MASKS["random"]], ids=["open", "masked"])
def test_dropout_zeroes_weights_and_scales_the_rest_only_while_training(backend, mask):
    query, key, _ = inputs()
    identity = torch.eye(K).expand(B, H, K, K)  # attention to it shows the weights themselves
    kept = attention_weights(query, key, mask) / (1 - 0.25)
    attention = ScaledDotProductAttention(0.25, backend)
    torch.manual_seed(0)
    dropped = attention(query, key, identity, mask)
    gone = (dropped == 0) & (kept != 0)
    assert 0.1 < gone.sum() / (kept != 0).sum() < 0.4
    assert_same(dropped[~gone], kept[~gone])
    assert_same(attention.eval()(query, key, identity, mask), kept * (1 - 0.25))
    assert f"dropout=0.25, backend='{backend}'" in repr(attention)


# --- masks


@pytest.mark.parametrize(("num_queries", "num_keys"), [(7, None), (1, 1), (1, 7), (3, 7), (6, 7)])
def test_causal_mask_is_the_end_of_the_lower_triangle(num_queries, num_keys):
    square = torch.tensor([[key <= query for key in range(7)] for query in range(7)])
    k = num_keys or num_queries
    assert torch.equal(causal_mask(num_queries, num_keys), square[k - num_queries : k, :k])
    assert causal_mask(num_queries, device="meta").device.type == "meta"


@each_backend
@pytest.mark.parametrize("num_queries", [1, 3, 5])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_the_word_causal_is_the_causal_mask_with_gradients(backend, num_queries, biased):
    tensors = [randn(2, 3, n, 4, seed=s, grad=True) for s, n in enumerate((num_queries, 5, 5))]
    options = {"bias": randn(num_queries, 5, seed=3) if biased else None, "backend": backend}
    word, matrix = (
        with_gradients(scaled_dot_product_attention(*tensors, mask, **options), tensors)
        for mask in ("causal", causal_mask(num_queries, 5))
    )
    for ours, theirs in zip(word, matrix, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("pad_id", [0, 9])
def test_padding_mask_is_false_exactly_at_padding(pad_id):
    ids = torch.tensor([[4, 9, 0], [9, 9, 5]])
    mask = padding_mask(ids, pad_id)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.flatten(1).tolist() == [[i != pad_id for i in row] for row in ids.tolist()]


# --- bad input


SHAPES = [(K, Q), (Q, K - 1), (B, Q, K), (H + 1, Q, K), (H, B, Q, K), (1, B, H, Q, K), (E,)]


@each_backend
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_does_not_broadcast_is_refused(backend, shape):
    written = rf"\({', '.join(map(str, shape))},?\)"
    for part in ({"mask": torch.ones(shape) > 0}, {"bias": torch.zeros(shape)}):
        message = rf"{next(iter(part))} of shape {written} .* shape \(2, 3, 5, 7\)"
        with pytest.raises(ValueError, match=message):
            scaled_dot_product_attention(*inputs(), **part, backend=backend)


def attended(*tensors, **options):
    """A call with other tensors or options than the usual, in both backends."""

    def call():
        for backend in ("reference", "sdpa"):
            scaled_dot_product_attention(*(tensors or inputs()), **({"backend": backend} | options))

    return call


HIDDEN = torch.zeros(Q, K).masked_fill(~causal_mask(Q, K), -torch.inf)
ONES = "by `mask == 1` where 1 means may be attended"
test_what_does_not_fit_is_refused = refuses(
    (r"boolean .* got torch.float32.*by `mask == 0`$", attended(mask=HIDDEN), TypeError),
    ("by `mask == 0`$", attended(mask=HIDDEN.clamp(min=-1e9)), TypeError),
    (f"mask must be boolean .* got torch.int32.*{ONES}", attended(mask=RANDOM.int()), TypeError),
    (
        f"mask must be boolean .* got torch.float32.*{ONES}",
        attended(mask=RANDOM.float()),
        TypeError,
    ),
    ("bias must be floating.* got torch.bool; a boolean", attended(bias=RANDOM), TypeError),
    ("bias must be floating.* got torch.int64; a bool", attended(bias=RANDOM.long()), TypeError),
    ("same width, got 3 and 4", attended(randn(Q, 3), randn(K, E), randn(K, E))),
    ("as many positions, got 7 and 6", attended(randn(Q, E), randn(K, E), randn(6, E))),
    (
        r"query and key must have the same axes.*\(3, 5, 4\)",
        attended(randn(3, Q, E), randn(2, K, E), randn(2, K, E)),
    ),
    (
        r"key and value must have the same axes.*\(3, 7, 4\)",
        attended(randn(2, Q, E), randn(2, K, E), randn(3, K, E)),
    ),
    (r"ids must have shape \(b, k\), got \(3,\)", lambda: padding_mask(torch.ones(3).long())),
)


@pytest.mark.parametrize("kind", [ScaledDotProductAttention, attended], ids=["module", "function"])
def test_settings_are_checked(kind):
    for options, message in (
        ({"backend": "flash"}, "'reference' or 'sdpa', got 'flash'"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": math.nan}, "dropout must be at least 0 and below 1, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**options)()


@pytest.mark.slow
@each_backend
@pytest.mark.parametrize("biased", [False, True], ids=["mask", "mask and bias"])
def test_attention_can_be_mapped_and_compiled_with_a_mask(backend, biased):
    def attention(query, key, value, mask, bias):
        bias = bias if biased else None
        return scaled_dot_product_attention(query, key, value, mask, bias, backend=backend)

    def squares(*tensors):
        return attention(*tensors).square().sum()

    bias = randn(B, H, Q, K, seed=8)
    bias[1, 0, 2] = -torch.inf
    tensors = (*inputs(), EMPTY, bias)
    expected = attention(*tensors)
    assert_same(torch.func.vmap(attention)(*tensors), expected, 4e-6)
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    assert_same(compiled(*tensors), expected, 4e-6)

    gradients = torch.func.grad(squares, argnums=(0, 1, 2))
    for ours, theirs in zip(torch.func.vmap(gradients)(*tensors), gradients(*tensors), strict=True):
        assert ours.isfinite().all()
        assert_same(ours, theirs)


@pytest.mark.parametrize(("d_k", "width"), [(4, 4), (None, 12)])
def test_self_attention_is_the_formula_on_three_projections(d_k, width):
    head, x, mask = SelfAttention(12, d_k), randn(B, Q, 12), causal_mask(Q)
    output, weights = head(x, mask)
    query, key, value = (x @ linear.weight.T for linear in (head.w_q, head.w_k, head.w_v))
    scores = (query @ key.transpose(1, 2) / math.sqrt(width)).masked_fill(~mask, -math.inf)
    assert_same(weights, scores.softmax(-1))
    assert_same(output, scores.softmax(-1) @ value)
    assert output.shape == (B, Q, width)
