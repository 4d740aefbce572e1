"""Attention equals its formula, in both backends, under every kind of mask."""

import math

import pytest
import torch
from helpers import assert_same, randn

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
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
each_backend = pytest.mark.parametrize("backend", ["reference", "sdpa"])


def inputs(value_width=6, **options):
    query, key = randn(B, H, Q, E, seed=1, **options), randn(B, H, K, E, seed=2, **options)
    return query, key, randn(B, H, K, value_width, seed=3, **options)


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
@pytest.mark.parametrize("value_width", [E, 6], ids=["e", "another width"])
def test_vectorised_equals_loops(mask, backend, value_width):
    query, key, value = inputs(value_width)
    output = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    assert_same(output, attention_with_loops(query, key, value, mask))


@each_mask
@each_backend
@pytest.mark.parametrize("shape", [(B, H, Q, K), (H, Q, K), (B, 1, 1, K), (Q, 1), (K,)], ids=str)
def test_bias_is_added_to_the_scores(mask, backend, shape):
    query, key, value = inputs()
    bias = randn(*shape, seed=8)
    output = scaled_dot_product_attention(query, key, value, mask, bias, backend=backend)
    assert_same(output, attention_with_loops(query, key, value, mask, bias))


@each_mask
def test_bias_gets_the_same_gradient_in_both_backends(mask):
    gradients = []
    for backend in ("reference", "sdpa"):
        bias = randn(H, Q, K, seed=8, grad=True)
        output = scaled_dot_product_attention(*inputs(), mask, bias, backend=backend)
        (output * randn(*output.shape, seed=4)).sum().backward()
        gradients.append(bias.grad)
    assert gradients[0].isfinite().all()
    assert_same(*gradients)


SHUT = torch.zeros(Q, K)
SHUT[1, 2:], SHUT[3] = -torch.inf, -torch.inf


def shut_in(dtype):
    """A bias of normal numbers, with -inf at some keys of a query and at all of another."""
    return (randn(H, Q, K, seed=8) + SHUT).to(dtype)


@each_mask
@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_bias_of_minus_infinity_is_a_mask(mask, backend, dtype):
    """The same as where the mask says so, zero rows and gradients included."""
    allowed = (SHUT == 0) if mask is None else mask & (SHUT == 0)
    results = []
    for keys, numbers in ((mask, shut_in(dtype)), (allowed, shut_in(dtype).nan_to_num(neginf=0))):
        tensors = (*inputs(dtype=dtype, grad=True), numbers.requires_grad_())
        output = scaled_dot_product_attention(*tensors[:3], keys, tensors[3], backend=backend)
        loss = (output * randn(*output.shape, seed=4, dtype=dtype)).sum()
        results.append([output, *torch.autograd.grad(loss, tensors)])
    for ours, expected in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert_same(ours, expected, 1e-5)
    empty = ~allowed.any(dim=-1).expand(B, H, Q)
    assert empty[:, :, 3].all()
    assert (results[0][0][empty] == 0).all()


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
@pytest.mark.parametrize("mask", [None, RANDOM], ids=["open", "masked"])
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
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_bias_that_is_no_floating_point_is_refused(backend, dtype):
    with pytest.raises(TypeError, match=f"bias must be floating point.* got {dtype}; a boolean"):
        scaled_dot_product_attention(*inputs(), None, RANDOM.to(dtype), backend=backend)


@each_backend
def test_bias_follows_the_dtype_of_the_query(backend):
    inputs_16 = inputs(dtype=torch.bfloat16)
    output = scaled_dot_product_attention(*inputs_16, PADDING, randn(H, Q, K), backend=backend)
    assert output.dtype == torch.bfloat16


@each_backend
@pytest.mark.parametrize("shape", [(Q + 1, K), (H + 1, Q, K), (1, B, H, Q, K), (E,)], ids=str)
def test_bias_that_does_not_broadcast_is_refused(backend, shape):
    with pytest.raises(ValueError, match=r"bias of shape .* scores of shape \(2, 3, 5, 7\)"):
        scaled_dot_product_attention(*inputs(), None, torch.zeros(shape), backend=backend)


@each_mask
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # bfloat16 keeps 8 bits: one rounding is up to 0.4 %, and the kernels round at other places.
    [
        (torch.float32, 1e-5),
        (torch.bfloat16, 3e-2),
        (torch.float16, 4e-3),
        (torch.float64, 1e-12),
    ],
    ids=str,
)
def test_sdpa_equals_reference_with_gradients(mask, dtype, tolerance):
    results = []
    for backend in ("reference", "sdpa"):
        tensors = inputs(dtype=dtype, grad=True)
        output = scaled_dot_product_attention(*tensors, mask, backend=backend)
        weighting = randn(*output.shape, seed=4, dtype=dtype)
        results.append([output, *torch.autograd.grad((output * weighting).sum(), tensors)])
    for ours, fused in zip(*results, strict=True):
        assert_same(fused, ours, tolerance)


@each_backend
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("num_keys", [64, 65])
def test_bfloat16_is_near_on_both_sides_of_the_change_to_the_kernel(backend, mask, num_keys):
    query, key, value = (randn(2, 3, n, 8, seed=n) for n in (9, num_keys, num_keys))
    halves = (x.bfloat16() for x in (query, key, value))
    output = scaled_dot_product_attention(*halves, mask, backend=backend)
    exact = scaled_dot_product_attention(query, key, value, mask, backend="reference")
    assert output.dtype == torch.bfloat16
    assert_same(output.float(), exact, 3e-2)


@each_backend
@pytest.mark.parametrize("mask", [None, RANDOM], ids=["open", "masked"])
@pytest.mark.parametrize("shape", [(B, 1), (1, H), (H,)], ids=str)
def test_leading_axes_broadcast(backend, mask, shape):
    query, (_, key, value) = randn(*shape, Q, E, seed=1), inputs()
    output = scaled_dot_product_attention(query, key, value, mask, backend=backend)
    assert_same(output, attention_with_loops(query.expand(B, H, Q, E), key, value, mask))


@each_backend
@pytest.mark.parametrize("name", ["empty rows", "all empty"])
def test_query_that_sees_nothing_gets_exact_zeros(backend, name):
    mask = MASKS[name]
    output = scaled_dot_product_attention(*inputs(), mask, backend=backend)
    empty = ~mask.any(dim=-1).expand(B, H, Q)
    assert (output[empty] == 0).all()
    assert (output[~empty] != 0).all()


@each_backend
@pytest.mark.parametrize("name", ["empty rows", "all empty"])
def test_query_that_sees_nothing_has_finite_gradients(backend, name):
    tensors = inputs(grad=True)
    scaled_dot_product_attention(*tensors, MASKS[name], backend=backend).square().sum().backward()
    for tensor in tensors:
        assert tensor.grad.isfinite().all()
    assert (tensors[0].grad[1, :, 4] == 0).all()


@each_mask
def test_weights_are_a_distribution_over_allowed_keys(mask):
    query, key, _ = inputs()
    weights = attention_weights(query, key, mask)
    mask = torch.ones(B, H, Q, K, dtype=torch.bool) if mask is None else mask.expand(B, H, Q, K)
    assert weights.shape == (B, H, Q, K)
    assert (weights[~mask] == 0).all()
    assert (weights[mask] > 0).all()
    assert_same(weights.sum(-1), mask.any(-1).float())


@each_backend
def test_large_scores_stay_finite(backend):
    query, key, value = (1e4 * x for x in inputs())
    assert scaled_dot_product_attention(query, key, value, EMPTY, backend=backend).isfinite().all()


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


@pytest.mark.parametrize("name", ["none", "causal", "empty rows"])
def test_gradient_equals_finite_differences(name):
    shapes = ((H, Q, E), (H, K, E), (H, K, 2))
    tensors = [randn(*shape, dtype=torch.float64, grad=True) for shape in shapes]
    mask = EMPTY[1] if name == "empty rows" else MASKS[name]

    def attention(query, key, value):
        return scaled_dot_product_attention(query, key, value, mask, backend="reference")

    assert torch.autograd.gradcheck(attention, tensors)


@each_backend
@pytest.mark.parametrize("mask", [None, RANDOM | (torch.arange(K) == 3)], ids=["open", "masked"])
def test_dropout_zeroes_weights_and_scales_the_rest(backend, mask):
    query, key, _ = inputs()
    identity = torch.eye(K).expand(B, H, K, K)  # attention to it shows the weights themselves
    kept = attention_weights(query, key, mask) / (1 - 0.25)
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(
        query, key, identity, mask, dropout=0.25, backend=backend
    )
    gone = (dropped == 0) & (kept != 0)
    assert 0.1 < gone.sum() / (kept != 0).sum() < 0.4
    assert_same(dropped[~gone], kept[~gone])


@each_backend
def test_module_drops_out_only_while_training(backend):
    attention = ScaledDotProductAttention(dropout=0.5, backend=backend)
    tensors = inputs()
    plain = scaled_dot_product_attention(*tensors, RANDOM)
    assert not torch.allclose(attention.train()(*tensors, RANDOM), plain)
    assert_same(attention.eval()(*tensors, RANDOM), plain)


def test_module_shows_its_settings():
    assert "dropout=0.5, backend='reference'" in repr(ScaledDotProductAttention(0.5, "reference"))


# --- masks


def test_causal_mask_of_a_square_is_the_lower_triangle():
    expected = [[key <= query for key in range(Q)] for query in range(Q)]
    assert causal_mask(Q).tolist() == expected
    assert causal_mask(Q).dtype == torch.bool


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 7), (3, 7), (6, 7), (7, 7)])
def test_causal_mask_of_a_rectangle_is_the_end_of_the_square(num_queries, num_keys):
    square = causal_mask(num_keys)
    assert torch.equal(causal_mask(num_queries, num_keys), square[num_keys - num_queries :])


def test_causal_mask_is_made_where_asked():
    assert causal_mask(2, 3, device="meta").device.type == "meta"


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match="7 queries, 5 keys"):
        causal_mask(7, 5)


@pytest.mark.parametrize("pad_id", [0, 9])
def test_padding_mask_is_false_exactly_at_padding(pad_id):
    ids = torch.tensor([[4, 9, 0], [9, 9, 5]])
    mask = padding_mask(ids, pad_id)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.flatten(1).tolist() == [[i != pad_id for i in row] for row in ids.tolist()]


def test_padding_mask_needs_a_batch():
    with pytest.raises(ValueError, match=r"ids must have shape \(b, k\), got \(3,\)"):
        padding_mask(torch.tensor([1, 2, 3]))


@each_backend
@pytest.mark.parametrize("num_queries", [1, 3, 5])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_the_word_causal_is_the_causal_mask_with_gradients(backend, num_queries, biased):
    query, key = randn(2, 3, num_queries, 4, grad=True), randn(2, 3, 5, 4, seed=1, grad=True)
    value, bias = randn(2, 3, 5, 6, seed=2, grad=True), randn(num_queries, 5, seed=3)
    options = {"bias": bias if biased else None, "backend": backend}
    mask = causal_mask(num_queries, 5)
    word = scaled_dot_product_attention(query, key, value, "causal", **options)
    matrix = scaled_dot_product_attention(query, key, value, mask, **options)
    assert_same(word, matrix)
    for ours, theirs in zip(
        torch.autograd.grad(word.square().sum(), (query, key, value)),
        torch.autograd.grad(matrix.square().sum(), (query, key, value)),
        strict=True,
    ):
        assert_same(ours, theirs)


# --- bad input


@each_backend
def test_query_and_key_of_different_widths_are_refused(backend):
    query, key, value = inputs()
    with pytest.raises(ValueError, match="same width, got 3 and 4"):
        scaled_dot_product_attention(query[..., :3], key, value, backend=backend)


@each_backend
def test_key_and_value_of_different_lengths_are_refused(backend):
    query, key, value = inputs()
    with pytest.raises(ValueError, match="as many positions, got 7 and 6"):
        scaled_dot_product_attention(query, key, value[..., :6, :], backend=backend)


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_mask_that_is_not_boolean_is_refused(backend, dtype):
    with pytest.raises(TypeError, match=rf"mask must be boolean .* got {dtype}"):
        scaled_dot_product_attention(*inputs(), RANDOM.to(dtype), backend=backend)


@each_backend
@pytest.mark.parametrize(
    "shape", [(K, Q), (Q, K - 1), (B, Q, K), (H, B, Q, K), (1, B, H, Q, K)], ids=str
)
def test_mask_that_does_not_broadcast_is_refused(backend, shape):
    message = rf"mask of shape \({', '.join(map(str, shape))}\) .* scores of shape \(2, 3, 5, 7\)"
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*inputs(), torch.ones(shape) > 0, backend=backend)


@each_backend
@pytest.mark.parametrize(
    ("mask", "advice"),
    [
        (torch.zeros(Q, K).masked_fill(~causal_mask(Q, K), -torch.inf), "by `mask == 0`$"),
        (torch.zeros(Q, K).masked_fill(~causal_mask(Q, K), -1e9), "by `mask == 0`$"),
        (RANDOM.int(), "by `mask == 1` where 1 means may be attended"),
        (RANDOM.float(), "by `mask == 1` where 1 means may be attended"),
    ],
    ids=["additive", "nearly additive", "integers", "zeros and ones"],
)
def test_advice_on_a_mask_of_numbers_depends_on_what_it_holds(backend, mask, advice):
    with pytest.raises(TypeError, match=advice):
        scaled_dot_product_attention(*inputs(), mask, backend=backend)


@each_backend
@pytest.mark.parametrize(("index", "names"), [(0, "query and key"), (2, "key and value")])
def test_leading_axes_that_do_not_fit_are_refused(backend, index, names):
    tensors = list(inputs())
    tensors[index] = tensors[index].repeat(2, 1, 1, 1)
    with pytest.raises(ValueError, match=rf"{names} must have the same axes.*\((2|4), 3, "):
        scaled_dot_product_attention(*tensors, backend=backend)


def test_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="'reference' or 'sdpa', got 'flash'"):
        scaled_dot_product_attention(*inputs(), backend="flash")
    with pytest.raises(ValueError, match="'reference' or 'sdpa', got 'flash'"):
        ScaledDotProductAttention(backend="flash")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan])
def test_dropout_out_of_range_is_refused(dropout):
    message = f"dropout must be at least 0 and below 1, got {dropout}"
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*inputs(), dropout=dropout)
    with pytest.raises(ValueError, match=message):
        ScaledDotProductAttention(dropout)


def test_more_queries_than_keys_are_not_causal():
    with pytest.raises(ValueError, match="got 5 queries, 3 keys"):
        scaled_dot_product_attention(randn(5, 4), randn(3, 4), randn(3, 4), "causal")


@each_backend
def test_a_mask_of_another_name_is_refused(backend):
    x = randn(3, 4)
    with pytest.raises(ValueError, match="'casual'"):
        scaled_dot_product_attention(x, x, x, "casual", backend=backend)


# --- PyTorch's transforms


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

    gradients = torch.func.vmap(torch.func.grad(squares, argnums=(0, 1, 2)))(*tensors)
    for ours, theirs in zip(
        gradients, torch.func.grad(squares, argnums=(0, 1, 2))(*tensors), strict=True
    ):
        assert ours.isfinite().all()
        assert_same(ours, theirs)


# --- one head


@pytest.mark.parametrize(("d_k", "width"), [(4, 4), (None, 12)])
def test_self_attention_is_the_formula_on_three_projections(d_k, width):
    head, x, mask = SelfAttention(12, d_k), randn(B, Q, 12), causal_mask(Q)
    output, weights = head(x, mask)
    query, key, value = (x @ linear.weight.T for linear in (head.w_q, head.w_k, head.w_v))
    scores = (query @ key.transpose(1, 2) / math.sqrt(width)).masked_fill(~mask, -math.inf)
    assert_same(weights, scores.softmax(-1))
    assert_same(output, scores.softmax(-1) @ value)
    assert output.shape == (B, Q, width)
