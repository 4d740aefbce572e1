"""Caches that forget equal a mask, those that round stay close, and each takes what it says."""

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import KVCache, MultiHeadAttention
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
from minitransformer.layers.positional_encoding import RotaryPositionalEncoding

B, N, D, H = 2, 9, 12, 3


def attention(**options):
    torch.manual_seed(0)
    return MultiHeadAttention(D, H, **options).double().eval()


def x():
    return randn(B, N, D, seed=1, dtype=torch.float64)


def step_by_step(layer, x, cache, cuts=None):
    cuts = range(len(x[0]) + 1) if cuts is None else cuts
    outputs = []
    for a, b in zip(cuts, list(cuts)[1:], strict=False):
        new = x[:, a:b]
        outputs.append(layer(new, new, new, "causal", cache))
    return torch.cat(outputs, dim=1)


ROTARY = {"rotary": RotaryPositionalEncoding(D // H)}


@pytest.mark.parametrize("options", [{}, ROTARY, {"num_kv_heads": 1}])
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (3, 0), (3, 2), (1, 4), (20, 4)])
def test_rolling_cache_equals_its_mask(options, window, sinks):
    layer = attention(**options)
    rule = all_of(causal_rule, any_of(window_rule(window), lambda query, key: key < sinks))
    expected = layer(x(), x(), x(), BlockMask(rule, N, N).dense())
    cache = RollingCache(window, sinks)
    assert_same(step_by_step(layer, x(), cache), expected, 1e-12)
    assert cache.length == N
    assert cache.keys.size(-2) == min(N, window + sinks)


def test_rolling_cache_reads_a_prompt_at_once():
    layer = attention(**ROTARY)
    cache = RollingCache(20, 4)
    whole = layer(x(), x(), x(), "causal")
    assert_same(step_by_step(layer, x(), cache, [0, 4, 5, 9]), whole, 1e-12)


@pytest.mark.parametrize("make", [lambda: RollingCache(2, 1), QuantisedCache])
def test_rows_of_caches_are_selected_and_repeated(make):
    cache, alone, layer = make(), make(), attention()
    step_by_step(layer, x(), cache, [0, 4])
    cache.select(torch.tensor([1]))
    cache.repeat(3)
    step_by_step(layer, x()[1:], alone, [0, 4])
    new = x()[1:, 4:5]
    expected = layer(new, new, new, None, alone).expand(3, -1, -1)
    new = new.expand(3, -1, -1)
    assert_same(layer(new, new, new, None, cache), expected, 1e-12)
    assert cache.length == 5


def test_what_a_rolling_cache_forgot_does_not_come_back():
    cache = RollingCache(2, 1)
    step_by_step(attention(), x(), cache)
    with pytest.raises(ValueError, match="a RollingCache of 9 positions cannot keep 4"):
        cache.crop(4)
    quantised = QuantisedCache()
    step_by_step(attention(), x(), quantised, [0, 5])
    quantised.crop(2)
    assert (quantised.length, quantised.keys.size(-2)) == (2, 2)


def test_quantised_cache_is_close_and_small():
    layer = attention()
    whole = layer(x(), x(), x(), "causal")
    cache, exact = QuantisedCache(), KVCache()
    output = step_by_step(layer, x(), cache)
    assert (output - whole).abs().max() < 0.02 * whole.abs().max()
    assert not torch.equal(output, whole)
    step_by_step(layer.float(), x().float(), exact)
    width = D // H
    assert cache.num_bytes == 2 * B * H * N * (width + 4)
    assert exact.keys.numel() * 4 * 2 == 2 * B * H * N * 4 * width


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_rounding_is_at_most_half_a_step(scale):
    numbers = randn(B, H, N, 5, seed=2) * scale
    keys, _ = QuantisedCache().extend(numbers, numbers)
    step = numbers.abs().amax(-1, keepdim=True) / 127
    assert ((keys - numbers).abs() <= step * 0.501).all()


def test_zeros_stay_zeros():
    keys, values = QuantisedCache().extend(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3))
    assert keys.eq(0).all()
    assert values.eq(0).all()


@pytest.mark.parametrize("cuts", [range(N + 1), [0, 4, N], [0, 1, 5, 6, N]])
def test_latent_attention_with_its_cache_equals_keys_written_out(cuts):
    torch.manual_seed(0)
    layer = LatentAttention(D, H, d_latent=5).double()
    cache, outputs = LatentCache(), []
    for a, b in zip(cuts, list(cuts)[1:], strict=False):
        outputs.append(layer(x()[:, a:b], "causal", cache))
    assert_same(torch.cat(outputs, dim=1), layer(x(), "causal"), 1e-12)
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
    assert_same(latent(x(), "causal"), full(x(), x(), x(), "causal"), 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RollingCache(0), "window must be at least 1, got 0"),
        (lambda: RollingCache(1, -1), "sinks must be at least 0, got -1"),
        (lambda: LatentAttention(12, 5, 3), "got 5 and 12"),
        (lambda: LatentAttention(12, 3, 0), "d_latent must be at least 1, got 0"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
