"""Multi-head attention equals torch's, and is nothing but heads side by side."""

import itertools
import math

import pytest
import torch
from helpers import assert_same, randn, refuses, shaken, torch_attention

from minitransformer import (
    KVCache,
    MultiHeadAttention,
    RMSNorm,
    RotaryPositionalEncoding,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from minitransformer.layers import ALiBi

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


def same_weights(attention, **options):
    """A `MultiHeadAttention` with other options and the same weights."""
    other = MultiHeadAttention(D, attention.num_heads, **options)
    other.load_state_dict(attention.state_dict())
    return other


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
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)],
    ids=str,
)
def test_equals_torch_in_other_dtypes(backend, dtype, tolerance):
    ours = shaken(MultiHeadAttention(D, H, backend=backend))
    torchs = torch_attention(ours).to(dtype)
    x = [tensor.to(dtype) for tensor in inputs()]
    expected, _ = torchs(*x, attn_mask=~CAUSAL, key_padding_mask=~PADDING[:, 0, 0])
    assert_same(ours.to(dtype)(*x, CAUSAL & PADDING), expected, tolerance)


@each_backend
def test_drops_weights_only_while_training(backend):
    attention = MultiHeadAttention(D, H, dropout=0.5, backend=backend)
    plain = attention.eval()(*inputs())
    assert torch.equal(attention(*inputs()), plain)
    assert not torch.allclose(attention.train()(*inputs()), plain)


# --- each part where it belongs


def written_out(attention, query, key, value, mask, rotary=None):
    """What the parts of an attention make of its inputs, one after the other."""
    heads = []
    for w, x, norm in (
        (attention.w_q, query, attention.norm_q),
        (attention.w_k, key, attention.norm_k),
        (attention.w_v, value, None),
    ):
        x = w(x).unflatten(-1, (-1, attention.d_k)).transpose(1, 2)
        x = x if norm is None else norm(x)
        x = x if rotary is None or w is attention.w_v else rotary(x)
        heads.append(x.repeat_interleave(attention.num_heads // x.size(1), 1))
    bias = None if attention.position_bias is None else attention.position_bias(Q, K)
    output = scaled_dot_product_attention(*heads, mask, bias, backend="reference")
    return attention.w_o(output.transpose(1, 2).flatten(2))


PARTS = {
    "heads": {"num_heads": H},
    "shared keys": {"num_heads": 6, "num_kv_heads": 2},
    "one head of keys": {"num_heads": 6, "num_kv_heads": 1},
    "other widths": {"num_heads": 5, "d_k": 6, "bias": False},
    "rotary": {"num_heads": H, "rotary": RotaryPositionalEncoding(E)},
    "normed, then rotated": {
        "num_heads": H,
        "rotary": RotaryPositionalEncoding(E),
        "norm_q": RMSNorm(E),
        "norm_k": RMSNorm(E),
    },
    "alibi": {"num_heads": H, "position_bias": ALiBi(H)},
    "biases inside": {"num_heads": H, "output_bias": False},
    "bias outside": {"num_heads": H, "bias": False, "output_bias": True},
}


@each_backend
@pytest.mark.parametrize("options", PARTS.values(), ids=PARTS.keys())
def test_parts_are_used_in_their_order(backend, options):
    attention = shaken(MultiHeadAttention(D, **options, backend=backend))
    expected = written_out(attention, *inputs(), CAUSAL & PADDING, options.get("rotary"))
    cache = KVCache()
    assert_same(attention(*inputs(), CAUSAL & PADDING, cache), expected)
    kept = (B, attention.num_kv_heads, K, attention.d_k)
    assert cache.keys.shape == cache.values.shape == kept
    biases = [w.bias is not None for w in (attention.w_q, attention.w_o)]
    inside = options.get("bias", True)
    assert biases == [inside, options.get("output_bias", inside)]


@pytest.mark.parametrize(
    "part", [{"rotary": RotaryPositionalEncoding(2)}, {"position_bias": ALiBi(6)}]
)
def test_cached_attention_equals_full_attention(part):
    attention = shaken(MultiHeadAttention(D, 6, num_kv_heads=2, **part))
    x = inputs()[1]
    full = attention(x, x, x, causal_mask(K))
    cache = KVCache()
    for start, end in ((0, 3), (3, 4), (4, K)):
        new, mask = x[:, start:end], causal_mask(end - start, end)
        assert_same(attention(new, new, new, mask, cache), full[:, start:end])
        assert cache.length == end


@each_backend
@pytest.mark.parametrize("window", [1, 3, 6, 7, 100])
def test_window_hides_what_lies_further_back(window, backend):
    plain = shaken(MultiHeadAttention(D, H, backend=backend))
    attention = same_weights(plain, backend=backend, window=window)
    x = inputs()[1]
    near = torch.tensor([[q - k < window for k in range(K)] for q in range(K)])
    expected = plain(x, x, x, near & causal_mask(K) & PADDING)
    assert_same(attention(x, x, x, causal_mask(K) & PADDING), expected)
    assert_same(attention(x, x, x), plain(x, x, x, near))
    full, cache = attention(x, x, x, "causal"), KVCache()
    for start, end in ((0, 3), (3, 4), (4, K)):
        new = x[:, start:end]
        assert_same(attention(new, new, new, "causal", cache), full[:, start:end])


@each_backend
def test_scale_is_what_scores_are_multiplied_by(backend):
    usual = shaken(MultiHeadAttention(D, H, backend=backend))
    attention = same_weights(usual, backend=backend, scale=1.0)
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


def made(*shapes, **options):
    """An attention with these options, called with inputs of these shapes if there are any."""

    def call():
        for backend in ("reference", "sdpa"):
            attention = MultiHeadAttention(D, **({"num_heads": H, "backend": backend} | options))
            attention(*(randn(*shape) for shape in shapes or [(B, Q, D)] * 3))

    return call


test_what_does_not_fit_is_refused = refuses(
    ("num_heads must divide d_model, got 5 and 12", made(num_heads=5)),
    ("num_heads must divide d_model, got 24 and 12", made(num_heads=24)),
    ("must divide num_heads, got 4 and 6", made(num_heads=6, num_kv_heads=4)),
    ("must divide num_heads, got 12 and 6", made(num_heads=6, num_kv_heads=12)),
    ("'reference' or 'sdpa', got 'flash'", made(backend="flash")),
    (r"dropout must be at least 0 and below 1, got 1\.5", made(dropout=1.5)),
    ("query must have width d_model=12, got 10", made((B, Q, 10), (B, K, D), (B, K, D))),
    ("key must have width d_model=12, got 10", made((B, Q, D), (B, K, 10), (B, K, D))),
    ("value must have width d_model=12, got 10", made((B, Q, D), (B, K, D), (B, K, 10))),
    (r"query and key .*\(2, 3, 5, 4\) and \(3, 3, 7, 4\)", made((2, Q, D), (3, K, D), (3, K, D))),
    (r"key and value .*\(2, 3, 7, 4\) and \(3, 3, 7, 4\)", made((2, Q, D), (2, K, D), (3, K, D))),
    ("as many positions, got 6 and 7", made((B, Q, D), (B, 6, D), (B, K, D))),
)


@each_backend
def test_mask_of_three_axes_could_mean_rows_or_heads(backend):
    attention = MultiHeadAttention(D, H, backend=backend)
    rows = randn(B, Q, K, seed=9) > 0
    together = attention(*inputs(), rows[:, None])
    for row in range(B):
        alone = attention(*(x[row : row + 1] for x in inputs()), rows[row])
        assert_same(together[row : row + 1], alone)
    heads = randn(H, Q, K, seed=9) > 0
    assert_same(attention(*inputs(), heads[None]), attention(*inputs(), heads.expand(B, H, Q, K)))
    for num_heads, first in itertools.product((B, H), (B, H, 1)):
        attention = MultiHeadAttention(D, num_heads, backend=backend)
        message = rf"2 or 4 axes, got shape \({first}, 5, 7\); .*`mask\["
        with pytest.raises(ValueError, match=message):
            attention(*inputs(), randn(first, Q, K, seed=9) > 0)
