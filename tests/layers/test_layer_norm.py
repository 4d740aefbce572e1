"""Norms equal torch's and their formulas; dropout keeps the mean; the residual has two orders."""

import pytest
import torch
from helpers import assert_same, randn, shaken, torch_norm
from torch import nn

from minitransformer import Dropout, LayerNorm, RMSNorm
from minitransformer.layers import ResidualConnection, layer_norm, rms_norm


def torch_rms_norm(ours):
    twin = nn.RMSNorm(12, ours.eps)
    twin.load_state_dict(ours.state_dict())
    return twin


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])  # at 1e-3 it matters where ε stands
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize(
    ("kind", "function", "twin"),
    [(LayerNorm, layer_norm, torch_norm), (RMSNorm, rms_norm, torch_rms_norm)],
)
def test_module_and_function_equal_torch_with_gradients(kind, function, twin, scale, eps):
    ours, results = shaken(kind(12, eps)), []
    for norm in (twin(ours), ours, lambda x: function(x, *ours.parameters(), eps)):
        x = (scale * (randn(2, 5, 12) + 1)).requires_grad_()
        output = norm(x)
        (output * randn(2, 5, 12, seed=4)).sum().backward()
        results.append((output, scale * x.grad))
    for output, gradient in results[1:]:
        assert_same(output, results[0][0])
        assert_same(gradient, results[0][1])


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
        assert ours.isfinite().all()
        assert_same(ours, torchs.to(dtype), tolerance)
        gradients = (torch.autograd.grad(y.sum(), x)[0] * size for y in (ours, torchs.to(dtype)))
        assert_same(*gradients, 10 * tolerance)


def test_new_norm_changes_no_scale():
    assert LayerNorm(12).weight.eq(1).all()
    assert LayerNorm(12).bias.eq(0).all()
    assert RMSNorm(12).weight.eq(1).all()


# --- dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_the_share_and_scales_the_rest(p):
    torch.manual_seed(0)
    n = 200_000
    y = Dropout(p)(torch.ones(n))
    dropped = (y == 0).float().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations
    kept = y[y != 0]
    assert_same(kept, torch.full_like(kept, 1 / (1 - p)), 1e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=5 * (p / (1 - p) / n) ** 0.5)


def test_neighbours_are_dropped_independently():
    """Four elements share one random number: none may tell of another."""
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(100_000, 4)) == 0).float()
    assert_same(torch.corrcoef(dropped.T), torch.eye(4), 0.02)
    assert_same(dropped.mean(dim=0), torch.full((4,), 0.5), 0.01)


@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (2, 5, 3), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shape_and_dtype_stay_and_gradients_reach_what_was_kept(shape, dtype):
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    y = Dropout(0.5)(x)
    assert (y.shape, y.dtype) == (shape, dtype)
    assert set(y.flatten().tolist()) <= {0.0, 2.0}
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_the_seed_decides_and_at_zero_or_in_evaluation_nothing_at_one_all_is_dropped():
    torch.manual_seed(3)
    first, second = (Dropout(0.5)(torch.ones(50)) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(torch.ones(50)), first)
    assert not torch.equal(first, second)
    x = randn(3, 7)
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x
    assert not Dropout(1.0)(x).any()


TRANSFORMS = {
    "compiled": lambda x: torch.compile(Dropout(0.5), fullgraph=True, backend="eager")(x),
    "exported": lambda x: torch.export.export(Dropout(0.5), (x,)).module()(x),
    "differentiated": torch.func.grad(lambda x: Dropout(0.5)(x).sum()),
    "a mask for each row": torch.func.vmap(Dropout(0.5), randomness="different"),
    "one mask": torch.func.vmap(Dropout(0.5), randomness="same"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_dropout_can_be_transformed(name):
    if name.endswith(("row", "mask")) and torch.__version__ < "2.6":
        pytest.skip("this PyTorch cannot look at numbers as others inside vmap")
    y = TRANSFORMS[name](torch.ones(30, 31))
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    assert y.mean().item() == pytest.approx(1.0, abs=0.4 if name == "one mask" else 0.2)
    assert len(y.unique(dim=0)) == (1 if name == "one mask" else 30)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_residual_connection_has_its_order_and_drops_what_is_added(norm_first):
    residual = shaken(ResidualConnection(12, norm_first=norm_first))
    sublayer, x = nn.Linear(12, 12), randn(2, 5, 12)
    norm = torch_norm(residual.norm)
    expected = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
    assert_same(residual(x, sublayer), expected)
    residual = ResidualConnection(12, dropout=0.5, norm_first=norm_first)
    norm, residual.norm = residual.norm, nn.Identity()
    torch.manual_seed(0)
    added = residual(x, lambda x: torch.full_like(x, 3.0)) - x
    assert set(added.round(decimals=3).flatten().tolist()) == {0.0, 6.0}
    residual.norm = norm.eval()
    expected = x + 3 if norm_first else norm(x + 3)
    assert_same(residual.eval()(x, lambda x: torch.full_like(x, 3.0)), expected)


def test_residual_connection_takes_a_norm_by_name_or_by_what_makes_it():
    assert isinstance(ResidualConnection(12).norm, LayerNorm)
    assert isinstance(ResidualConnection(12, norm="rms_norm").norm, RMSNorm)
    assert ResidualConnection(12, norm=lambda d: RMSNorm(d, 0.5)).norm.eps == 0.5
    with pytest.raises(ValueError, match=r"one of \['layer_norm', 'rms_norm'\], got 'batch'"):
        ResidualConnection(12, norm="batch")
