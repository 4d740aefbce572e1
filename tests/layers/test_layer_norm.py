"""Layer norm equals torch's and its formula; the residual connection has two orders."""

import math

import pytest
import torch
from helpers import assert_same, randn, shaken, torch_norm
from torch import nn

from minitransformer import LayerNorm, RMSNorm
from minitransformer.layers.layer_norm import ResidualConnection, layer_norm, rms_norm


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])  # at 1e-3 it matters where ε stands
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_module_and_function_equal_torch_with_gradients(scale, eps):
    ours = shaken(LayerNorm(12, eps))
    torchs = torch_norm(ours)
    results = []
    for norm in (torchs, ours, lambda x: layer_norm(x, ours.weight, ours.bias, eps)):
        x = (scale * (randn(2, 5, 12) + 1)).requires_grad_()
        output = norm(x)
        (output * randn(2, 5, 12, seed=4)).sum().backward()
        results.append((output, scale * x.grad))
    for output, gradient in results[1:]:
        assert_same(output, results[0][0])
        assert_same(gradient, results[0][1])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_rms_norm_equals_torch_with_gradients(scale, eps):
    ours, torchs = shaken(RMSNorm(12, eps)), nn.RMSNorm(12, eps)
    torchs.load_state_dict({"weight": ours.weight})
    results = []
    for norm in (torchs, ours, lambda x: rms_norm(x, ours.weight, eps)):
        x = (scale * (randn(2, 5, 12) + 1)).requires_grad_()
        output = norm(x)
        (output * randn(2, 5, 12, seed=4)).sum().backward()
        results.append((output, scale * x.grad))
    for output, gradient in results[1:]:
        assert_same(output, results[0][0])
        assert_same(gradient, results[0][1])


def test_rms_norm_of_centred_rows_is_layer_norm():
    x = randn(2, 5, 12)
    x -= x.mean(dim=-1, keepdim=True)
    assert_same(rms_norm(x, torch.ones(12)), layer_norm(x, torch.ones(12), torch.zeros(12)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-2, 1.0, 300.0, 3e4])  # 256² is no float16
def test_functions_equal_torch_in_other_dtypes(dtype, size):
    gain, bias = shaken(LayerNorm(12)).to(dtype).parameters()
    x = (randn(2, 5, 12) + 0.1).clamp(-2, 2) * size
    x = x.to(dtype).requires_grad_()
    tolerance = 4 * torch.finfo(dtype).eps
    for ours, torchs in (
        (layer_norm(x, gain, bias), nn.functional.layer_norm(x, (12,), gain, bias, 1e-5)),
        # PyTorch's rms_norm squares in float16 until 2.5: it has double precision here.
        (rms_norm(x, gain), nn.functional.rms_norm(x.double(), (12,), gain.double(), 1e-5)),
    ):
        torchs = torchs.to(dtype)
        assert ours.dtype == dtype
        assert ours.isfinite().all()
        assert_same(ours, torchs, tolerance)
        gradients = (torch.autograd.grad(y.sum(), x)[0] * size for y in (ours, torchs))
        assert_same(*gradients, 10 * tolerance)


def test_unknown_norm_is_refused():
    with pytest.raises(ValueError, match=r"one of \['layer_norm', 'rms_norm'\], got 'batch'"):
        ResidualConnection(12, norm="batch")


def test_residual_connection_takes_either_norm():
    assert isinstance(ResidualConnection(12).norm, LayerNorm)
    assert isinstance(ResidualConnection(12, norm="rms_norm").norm, RMSNorm)


def test_equals_the_formula_in_plain_numbers():
    row, gain, bias = [1.0, 2.0, 4.0, 9.0], [0.5, 2.0, 1.0, -1.0], [0.1, 0.0, -0.3, 2.0]
    mean = sum(row) / 4
    variance = sum((number - mean) ** 2 for number in row) / 4
    expected = [
        g * (number - mean) / math.sqrt(variance + 0.25) + b
        for number, g, b in zip(row, gain, bias, strict=True)
    ]
    output = layer_norm(torch.tensor(row), torch.tensor(gain), torch.tensor(bias), eps=0.25)
    assert_same(output, torch.tensor(expected))


def test_positions_do_not_mix():
    norm, x = shaken(LayerNorm(12)), randn(2, 5, 12)
    changed = x.clone()
    changed[0, 3] += randn(12, seed=1)
    same = torch.ones(2, 5, dtype=torch.bool)
    same[0, 3] = False
    assert torch.equal(norm(x)[same], norm(changed)[same])
    assert not torch.allclose(norm(x)[0, 3], norm(changed)[0, 3])


def test_constant_row_becomes_the_bias():
    norm = shaken(LayerNorm(12))
    assert_same(norm(torch.full((3, 12), 7.0)), norm.bias.expand(3, 12))


def test_new_norm_has_gain_one_and_bias_zero():
    assert torch.equal(LayerNorm(12).weight, torch.ones(12))
    assert torch.equal(LayerNorm(12).bias, torch.zeros(12))


def test_gradient_equals_finite_differences():
    x, gain, bias = (
        randn(*shape, seed=seed, dtype=torch.float64, grad=True)
        for seed, shape in enumerate([(2, 5, 3), (3,), (3,)])
    )
    assert torch.autograd.gradcheck(layer_norm, (x, gain, bias))


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_residual_connection_has_its_order(norm_first):
    residual = shaken(ResidualConnection(12, norm_first=norm_first))
    sublayer, x = nn.Linear(12, 12), randn(2, 5, 12)
    norm = torch_norm(residual.norm)
    expected = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    assert_same(residual(x, sublayer), expected)


def test_dropout_zeroes_what_the_sublayer_adds_but_never_x():
    residual = ResidualConnection(12, dropout=0.5, norm_first=True)
    x = randn(2, 5, 12)
    torch.manual_seed(0)
    added = residual(x, lambda x: torch.full_like(x, 3.0)) - x
    assert set(added.round(decimals=3).flatten().tolist()) == {0.0, 6.0}
    assert_same(residual.eval()(x, lambda x: torch.full_like(x, 3.0)), x + 3.0)


def test_dropout_comes_before_the_norm_in_post_norm():
    residual, sums = ResidualConnection(12, dropout=0.5), []
    residual.norm.register_forward_pre_hook(lambda _, args: sums.append(args[0]))
    x = randn(2, 5, 12)
    torch.manual_seed(0)
    output = residual(x, lambda x: torch.full_like(x, 3.0))
    assert set((sums[0] - x).round(decimals=3).flatten().tolist()) == {0.0, 6.0}
    assert_same(output, residual.norm(sums[0]))
