"""Multi-head attention equals torch's, and is nothing but heads side by side."""

import math

import pytest
import torch
from helpers import assert_same, randn, shaken, torch_attention

from minitransformer import (
    KVCache,
    MultiHeadAttention,
    RMSNorm,
    RotaryPositionalEncoding,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from minitransformer.layers.positional_encoding import ALiBi

B, Q, K, H, D, E = 2, 5, 7, 3, 12, 4
PADDING = padding_mask(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]]))
CAUSAL = causal_mask(Q, K)
each_backend = pytest.mark.parametrize("backend", ["reference", "sdpa"])


def inputs(grad=False):
    return (
        randn(B, Q, D, seed=1, grad=grad),
        randn(B, K, D, seed=2, grad=grad),
        randn(B, K, D, seed=3, grad=grad),
    )


@each_backend
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
def test_equals_torch_with_gradients(backend, bias, causal, padded):
    ours = shaken(MultiHeadAttention(D, H, bias=bias, backend=backend))
    torchs = torch_attention(ours)
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask = mask & CAUSAL if causal else mask
    mask = mask & PADDING if padded else mask

    x, y = inputs(grad=True), inputs(grad=True)
    output = ours(*x, mask)
    expected, _ = torchs(  # torch's masks say where not to look
        *y,
        attn_mask=~CAUSAL if causal else None,
        key_padding_mask=~PADDING[:, 0, 0] if padded else None,
    )
    assert_same(output, expected)
    weighting = randn(B, Q, D, seed=4)
    (output * weighting).sum().backward()
    (expected * weighting).sum().backward()
    for ours_x, torchs_x in zip(x, y, strict=True):
        assert_same(ours_x.grad, torchs_x.grad)
    assert_same(ours.w_o.weight.grad, torchs.out_proj.weight.grad)
    assert_same(
        torch.cat([ours.w_q.weight.grad, ours.w_k.weight.grad, ours.w_v.weight.grad]),
        torchs.in_proj_weight.grad,
    )


@each_backend
def test_each_head_attends_with_its_own_slice(backend):
    attention = shaken(MultiHeadAttention(D, H, backend=backend))
    query, key, value = inputs()
    heads = []
    for h in range(H):
        rows = slice(h * E, (h + 1) * E)
        projected = [
            x @ linear.weight[rows].T + linear.bias[rows]
            for x, linear in (
                (query, attention.w_q),
                (key, attention.w_k),
                (value, attention.w_v),
            )
        ]
        heads.append(scaled_dot_product_attention(*projected, PADDING[:, 0], backend="reference"))
    expected = torch.cat(heads, dim=-1) @ attention.w_o.weight.T + attention.w_o.bias
    assert_same(attention(query, key, value, PADDING), expected)


def test_order_of_keys_does_not_matter():
    attention = MultiHeadAttention(D, H)
    query, key, value = inputs()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    shuffled = attention(query, key[:, order], value[:, order], PADDING[..., order])
    assert_same(shuffled, attention(query, key, value, PADDING))


@each_backend
def test_drops_weights_only_while_training(backend):
    attention = MultiHeadAttention(D, H, dropout=0.5, backend=backend)
    plain = attention.eval()(*inputs())
    assert torch.equal(attention(*inputs()), plain)
    assert not torch.allclose(attention.train()(*inputs()), plain)


@pytest.mark.parametrize(("bias", "count"), [(True, 4 * D * D + 4 * D), (False, 4 * D * D)])
def test_parameters_are_four_projections(bias, count):
    attention = MultiHeadAttention(D, H, bias=bias)
    assert sum(parameter.numel() for parameter in attention.parameters()) == count


# --- shared keys and values


@each_backend
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_shared_heads_equal_full_heads_with_repeated_projections(num_kv_heads, backend):
    grouped = shaken(MultiHeadAttention(D, 6, num_kv_heads=num_kv_heads, backend=backend))
    full = MultiHeadAttention(D, 6, backend=backend)
    state = grouped.state_dict()
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        heads = state[name].unflatten(0, (num_kv_heads, 2))
        state[name] = heads.repeat_interleave(6 // num_kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    assert_same(grouped(*inputs(), PADDING), full(*inputs(), PADDING))


def test_shared_heads_make_a_cache_smaller():
    attention, cache = MultiHeadAttention(D, 6, num_kv_heads=2), KVCache()
    attention(*inputs(), cache=cache)
    assert cache.keys.shape == cache.values.shape == (B, 2, K, 2)
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count == 2 * (D * D + D) + 2 * (D * 4 + 4)


@pytest.mark.parametrize("num_kv_heads", [4, 5, 12])
def test_shared_heads_that_do_not_divide_the_heads_are_refused(num_kv_heads):
    with pytest.raises(ValueError, match=f"num_heads, got {num_kv_heads} and 6"):
        MultiHeadAttention(D, 6, num_kv_heads=num_kv_heads)


# --- positions inside attention


@each_backend
@pytest.mark.parametrize("num_kv_heads", [3, 1])
def test_rotary_turns_queries_and_keys_but_not_values(backend, num_kv_heads):
    options = {"num_kv_heads": num_kv_heads, "backend": backend}
    attention = shaken(MultiHeadAttention(D, H, rotary=RotaryPositionalEncoding(E), **options))
    plain = MultiHeadAttention(D, H, **options)
    plain.load_state_dict(attention.state_dict())
    query, key, value = inputs()
    turn = RotaryPositionalEncoding(E)
    queries, keys, values = (
        plain.split_heads(w(x))
        for w, x in ((plain.w_q, query), (plain.w_k, key), (plain.w_v, value))
    )
    queries = turn(queries)
    group = H // num_kv_heads
    heads = scaled_dot_product_attention(
        queries, turn(keys).repeat_interleave(group, 1), values.repeat_interleave(group, 1), CAUSAL
    )
    expected = plain.w_o(heads.transpose(1, 2).flatten(2))
    cache = KVCache()
    assert_same(attention(query, key, value, CAUSAL, cache), expected)
    assert torch.equal(cache.values, values)
    assert_same(cache.keys, turn(keys))


@each_backend
def test_alibi_is_added_to_the_scores(backend):
    attention = shaken(MultiHeadAttention(D, H, position_bias=ALiBi(H), backend=backend))
    query, key, value = inputs()
    keys, values = (
        attention.split_heads(attention.w_k(key)),
        attention.split_heads(attention.w_v(value)),
    )
    queries = attention.split_heads(attention.w_q(query))
    scores = queries @ keys.mT / math.sqrt(E) + ALiBi(H)(Q, K)
    weights = scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    expected = attention.w_o((weights @ values).transpose(1, 2).flatten(2))
    assert_same(attention(query, key, value, CAUSAL), expected)


@pytest.mark.parametrize("scheme", ["rotary", "position_bias"])
def test_cached_attention_equals_full_attention(scheme):
    part = {"rotary": RotaryPositionalEncoding(2), "position_bias": ALiBi(6)}[scheme]
    attention = shaken(MultiHeadAttention(D, 6, num_kv_heads=2, **{scheme: part}))
    x = inputs()[1]
    full = attention(x, x, x, causal_mask(K))
    cache = KVCache()
    for start, end in ((0, 3), (3, 4), (4, K)):
        new, mask = x[:, start:end], causal_mask(end - start, end)
        assert_same(attention(new, new, new, mask, cache), full[:, start:end])
        assert cache.length == end


@pytest.mark.parametrize(("num_heads", "d_model"), [(5, 12), (24, 12)])
def test_heads_that_do_not_divide_the_width_are_refused(num_heads, d_model):
    with pytest.raises(ValueError, match=f"got {num_heads} and {d_model}"):
        MultiHeadAttention(d_model, num_heads)


@pytest.mark.parametrize(("index", "name"), [(0, "query"), (1, "key"), (2, "value")])
def test_wrong_width_is_refused_by_name(index, name):
    tensors = list(inputs())
    tensors[index] = tensors[index][..., :10]
    with pytest.raises(ValueError, match=f"{name} must have width d_model=12, got 10"):
        MultiHeadAttention(D, H)(*tensors)


def test_settings_of_the_attention_are_checked_at_once():
    with pytest.raises(ValueError, match="'reference' or 'sdpa', got 'flash'"):
        MultiHeadAttention(D, H, backend="flash")
    with pytest.raises(ValueError, match=r"dropout must be at least 0 and below 1, got 1\.5"):
        MultiHeadAttention(D, H, dropout=1.5)


@each_backend
@pytest.mark.parametrize("num_heads", [B, H], ids=["as many as rows", "others"])
@pytest.mark.parametrize("first", [B, H, 1])
def test_mask_of_three_axes_could_mean_rows_or_heads(backend, num_heads, first):
    attention = MultiHeadAttention(D, num_heads, backend=backend)
    mask = randn(first, Q, K, seed=9) > 0
    with pytest.raises(ValueError, match=rf"2 or 4 axes, got shape \({first}, 5, 7\); .*`mask\["):
        attention(*inputs(), mask)


@each_backend
def test_mask_for_each_row_and_for_each_head_as_the_error_says(backend):
    attention = MultiHeadAttention(D, H, backend=backend)
    rows = randn(B, Q, K, seed=9) > 0
    together = attention(*inputs(), rows[:, None])
    for row in range(B):
        alone = attention(*(x[row : row + 1] for x in inputs()), rows[row])
        assert_same(together[row : row + 1], alone)
    heads = randn(H, Q, K, seed=9) > 0
    assert_same(attention(*inputs(), heads[None]), attention(*inputs(), heads.expand(B, H, Q, K)))


@each_backend
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2, 3, 3), r"query and key .* got shapes \(2, 3, 5, 4\) and \(3, 3, 7, 4\)"),
        ((2, 2, 3), r"key and value .* got shapes \(2, 3, 7, 4\) and \(3, 3, 7, 4\)"),
    ],
)
def test_batches_that_do_not_match_are_refused(backend, sizes, message):
    lengths = (Q, K, K)
    tensors = [randn(b, n, D) for b, n in zip(sizes, lengths, strict=True)]
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(D, H, backend=backend)(*tensors)


@each_backend
def test_more_values_than_keys_are_refused(backend):
    query, key, value = inputs()
    with pytest.raises(ValueError, match="as many positions, got 6 and 7"):
        MultiHeadAttention(D, H, backend=backend)(query, key[:, :6], value)


@each_backend
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)],
    ids=str,
)
def test_equals_torch_in_other_dtypes(backend, dtype, tolerance):
    ours = shaken(MultiHeadAttention(D, H, backend=backend))
    torchs = torch_attention(ours).to(dtype)
    x = [tensor.to(dtype) for tensor in inputs()]
    mask = CAUSAL & PADDING
    expected, _ = torchs(*x, attn_mask=~CAUSAL, key_padding_mask=~PADDING[:, 0, 0])
    assert_same(ours.to(dtype)(*x, mask), expected, tolerance)


def test_mask_of_the_other_kind_is_refused():
    additive = torch.zeros(Q, K).masked_fill(~CAUSAL, -torch.inf)
    with pytest.raises(TypeError, match=r"got torch\.float32"):
        MultiHeadAttention(D, H)(*inputs(), additive)


# --- what other models do besides


def test_heads_of_another_width():
    attention = shaken(MultiHeadAttention(D, 5, d_k=6, bias=False))
    shapes = [tuple(w.weight.shape) for w in (attention.w_q, attention.w_k, attention.w_o)]
    assert shapes == [(30, D), (30, D), (D, 30)]
    query, key, value = inputs()
    parts = zip((attention.w_q, attention.w_k, attention.w_v), (query, key, value), strict=True)
    queries, keys, values = (w(x).unflatten(-1, (5, 6)).transpose(1, 2) for w, x in parts)
    heads = scaled_dot_product_attention(queries, keys, values, CAUSAL)
    assert_same(
        attention(query, key, value, CAUSAL), attention.w_o(heads.transpose(1, 2).flatten(2))
    )


def test_queries_and_keys_are_normed_before_they_are_turned():
    turn = RotaryPositionalEncoding(E)
    norms = {"norm_q": RMSNorm(E), "norm_k": RMSNorm(E)}
    attention = shaken(MultiHeadAttention(D, H, rotary=turn, **norms))
    query, key, value = inputs()
    queries = turn(attention.norm_q(attention.split_heads(attention.w_q(query))))
    keys = turn(attention.norm_k(attention.split_heads(attention.w_k(key))))
    values = attention.split_heads(attention.w_v(value))
    heads = scaled_dot_product_attention(queries, keys, values, CAUSAL)
    expected = attention.w_o(heads.transpose(1, 2).flatten(2))
    assert_same(attention(query, key, value, CAUSAL), expected)


@each_backend
@pytest.mark.parametrize("window", [1, 3, 6, 7, 100])
def test_window_hides_what_lies_further_back(window, backend):
    plain = shaken(MultiHeadAttention(D, H, backend=backend))
    attention = MultiHeadAttention(D, H, backend=backend, window=window)
    attention.load_state_dict(plain.state_dict())
    x = inputs()[1]
    near = torch.tensor([[q - k < window for k in range(K)] for q in range(K)])
    expected = plain(x, x, x, near & causal_mask(K) & PADDING)
    backwards = plain(x, x, x, near)
    assert_same(attention(x, x, x, causal_mask(K) & PADDING), expected)
    assert_same(attention(x, x, x), backwards)
    full, cache = attention(x, x, x, "causal"), KVCache()
    for start, end in ((0, 3), (3, 4), (4, K)):
        new = x[:, start:end]
        assert_same(attention(new, new, new, "causal", cache), full[:, start:end])


@pytest.mark.parametrize(("bias", "output_bias"), [(True, False), (False, True)])
def test_the_last_projection_has_its_own_bias(bias, output_bias):
    attention = MultiHeadAttention(D, H, bias=bias, output_bias=output_bias)
    assert [w.bias is not None for w in (attention.w_q, attention.w_o)] == [bias, output_bias]


@each_backend
def test_scale_is_what_scores_are_multiplied_by(backend):
    usual = shaken(MultiHeadAttention(D, H, backend=backend))
    attention = MultiHeadAttention(D, H, backend=backend, scale=1.0)
    attention.load_state_dict(usual.state_dict())
    with torch.no_grad():
        attention.w_q.weight /= math.sqrt(E)
        attention.w_q.bias /= math.sqrt(E)
    assert_same(attention(*inputs(), CAUSAL), usual(*inputs(), CAUSAL))


def test_what_heads_compute_is_an_argument():
    class Sum(torch.nn.Module):
        def forward(self, query, key, value, mask=None, bias=None):
            return value.sum(-2, keepdim=True).expand_as(query)

    attention = MultiHeadAttention(D, H, attention=Sum())
    x = inputs()[1]
    assert_same(attention(x, x, x), attention.w_o(attention.w_v(x).sum(1, True).expand_as(x)))
