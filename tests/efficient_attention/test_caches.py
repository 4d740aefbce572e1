"""Caches that forget equal a mask, those that round stay close, and each takes what it says."""

from itertools import pairwise

import pytest
import torch
from helpers import assert_same, randn, refuses

from minitransformer import KVCache, MultiHeadAttention, RotaryPositionalEncoding
from minitransformer.efficient_attention import (
    BlockMask,
    LatentAttention,
    LatentCache,
    QuantisedCache,
    RollingCache,
    all_of,
    any_of,
    causal_rule,
    window_rule,
)

B, N, D, H = 2, 9, 12, 3
X = randn(B, N, D, seed=1, dtype=torch.float64)
ROTARY = {"rotary": RotaryPositionalEncoding(D // H)}
ONE_BY_ONE = tuple(range(N + 1))


def attention(**options):
    torch.manual_seed(0)
    return MultiHeadAttention(D, H, **options).double().eval()


def in_steps(layer, x, cache, cuts=ONE_BY_ONE):
    outputs = []
    for a, b in pairwise(cuts):
        new = x[:, a:b]
        inputs = (new,) if isinstance(cache, LatentCache) else (new, new, new)
        outputs.append(layer(*inputs, "causal", cache))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("options", [{}, ROTARY, {"num_kv_heads": 1}])
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (3, 0), (3, 2), (1, 4), (20, 4)])
def test_rolling_cache_equals_its_mask(options, window, sinks):
    layer = attention(**options)
    rule = all_of(causal_rule, any_of(window_rule(window), lambda query, key: key < sinks))
    cache = RollingCache(window, sinks)
    assert_same(in_steps(layer, X, cache), layer(X, X, X, BlockMask(rule, N).dense()), 1e-12)
    assert cache.length == N
    assert cache.keys.size(-2) == min(N, window + sinks)


def test_rolling_cache_reads_a_prompt_at_once():
    layer, cache = attention(**ROTARY), RollingCache(20, 4)
    assert_same(in_steps(layer, X, cache, [0, 4, 5, 9]), layer(X, X, X, "causal"), 1e-12)


@pytest.mark.parametrize(
    "make", [KVCache, lambda: KVCache(N), lambda: RollingCache(2, 1), QuantisedCache]
)
def test_rows_of_caches_are_selected_and_repeated(make):
    cache, alone, layer = make(), make(), attention()
    in_steps(layer, X, cache, range(5))
    for rows in ([1, 0], [1, 1, 0], [2, 0], [1, 0], [1]):  # the second row, by many ways
        cache.select(torch.tensor(rows))
    cache.repeat(3)
    in_steps(layer, X[1:], alone, range(5))
    new = X[1:, 4:5]
    expected = layer(new, new, new, None, alone).expand(3, -1, -1)
    new = new.expand(3, -1, -1)
    assert_same(layer(new, new, new, None, cache), expected, 1e-12)
    assert cache.length == 5


@pytest.mark.parametrize("make", [KVCache, lambda: KVCache(N), QuantisedCache])
def test_cropped_cache_goes_on_from_there(make):
    cache, layer = make(), attention()
    whole = in_steps(layer, X, cache)
    cache.crop(4)
    assert cache.length == cache.keys.size(-2) == 4
    assert_same(in_steps(layer, X, cache, range(4, N + 1)), whole[:, 4:], 1e-12)
    cache.reset()
    assert_same(in_steps(layer, X[:1], cache), whole[:1], 1e-12)
    rolling = RollingCache(2, 1)
    in_steps(layer, X, rolling)
    rolling.crop(N)
    with pytest.raises(ValueError, match="a RollingCache of 9 positions cannot keep 4"):
        rolling.crop(4)


def test_quantised_cache_is_close_and_small():
    layer, cache = attention(), QuantisedCache()
    whole, output = layer(X, X, X, "causal"), in_steps(layer, X, cache)
    assert 0 < (output - whole).abs().max() < 0.02 * whole.abs().max()
    assert cache.num_bytes == 2 * B * H * N * (D // H + 4)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_rounding_is_at_most_half_a_step(scale):
    numbers = randn(B, H, N, 5, seed=2) * scale
    keys, values = QuantisedCache().extend(numbers, 2 * numbers)
    step = numbers.abs().amax(-1, keepdim=True) / 127
    assert ((keys - numbers).abs() <= step * 0.501).all()
    assert torch.equal(values, 2 * keys)


@pytest.mark.parametrize("cuts", [ONE_BY_ONE, (0, 4, N), (0, 1, 5, 6, N)])
def test_latent_attention_with_its_cache_equals_keys_written_out(cuts):
    torch.manual_seed(0)
    layer, cache = LatentAttention(D, H, d_latent=5).double(), LatentCache()
    assert_same(in_steps(layer, X, cache, cuts), layer(X, "causal"), 1e-12)
    assert cache.latent.shape == (B, N, 5)


def test_latent_attention_is_attention_with_matrices_of_low_rank():
    torch.manual_seed(0)
    latent, full = LatentAttention(D, H, d_latent=5).double(), attention(bias=False)
    with torch.no_grad():
        for name, up in (("w_k", latent.w_uk), ("w_v", latent.w_uv)):
            getattr(full, name).weight.copy_(up.weight @ latent.w_dkv.weight)
        full.w_q.weight.copy_(latent.w_q.weight)
        full.w_o.weight.copy_(latent.w_o.weight)
    assert torch.linalg.matrix_rank(full.w_k.weight) == 5
    assert_same(latent(X, "causal"), full(X, X, X, "causal"), 1e-12)


test_bad_numbers_are_refused = refuses(
    ("window must be at least 1, got 0", lambda: RollingCache(0)),
    ("sinks must be at least 0, got -1", lambda: RollingCache(1, -1)),
    ("got 5 and 12", lambda: LatentAttention(12, 5, 3)),
)
