"""Dropout drops each element alone, with its probability, and keeps the mean."""

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import Dropout

each_p = pytest.mark.parametrize("p", [0.1, 0.5, 0.9])


@each_p
def test_drops_the_share_and_scales_the_rest(p):
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
def test_shape_and_dtype_stay(shape, dtype):
    y = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert y.shape == shape
    assert y.dtype == dtype
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_gradient_flows_through_what_was_kept():
    x = randn(3, 7, grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert_same(x.grad, 2.0 * (y != 0), 0)


def test_the_seed_decides():
    torch.manual_seed(3)
    first, second = (Dropout(0.5)(torch.ones(50)) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(torch.ones(50)), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_does_nothing_at_zero_or_in_evaluation(p, training):
    x = randn(3, 7)
    assert Dropout(p).train(training)(x) is x


def test_probability_one_drops_everything():
    assert not Dropout(1.0)(torch.ones(9)).any()


# --- what transforms functions


def assert_drops_half(y):
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    assert y.mean().item() == pytest.approx(1.0, abs=0.2)


def test_can_be_compiled_as_a_single_graph():
    compiled = torch.compile(Dropout(0.5), fullgraph=True, backend="eager")
    first, second = (compiled(torch.ones(30, 31)) for _ in range(2))
    assert_drops_half(first)
    assert not torch.equal(first, second)


def test_can_be_exported():
    exported = torch.export.export(Dropout(0.5), (torch.ones(30, 31),)).module()
    assert_drops_half(exported(torch.ones(30, 31)))


@pytest.mark.skipif(
    torch.__version__ < "2.6", reason="this PyTorch cannot look at numbers as others inside vmap"
)
def test_can_be_vectorised_with_a_mask_for_each():
    y = torch.func.vmap(Dropout(0.5), randomness="different")(torch.ones(5, 30, 31))
    assert_drops_half(y)
    assert len({tuple(row.flatten().tolist()) for row in y}) == 5
    y = torch.func.vmap(Dropout(0.5), randomness="same")(torch.ones(5, 30, 31))
    assert len({tuple(row.flatten().tolist()) for row in y}) == 1


def test_can_be_differentiated_as_a_function():
    y = torch.func.grad(lambda x: Dropout(0.5)(x).sum())(torch.ones(30, 31))
    assert_drops_half(y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_drops_the_share_and_the_seed_decides():
    dropout, x = Dropout(0.1), torch.ones(300_000, device="cuda")
    torch.manual_seed(3)
    y = dropout(x)
    assert (y == 0).float().mean().item() == pytest.approx(0.1, abs=0.005)
    assert_same(y[y != 0], torch.full_like(y[y != 0], 1 / 0.9), 1e-5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), y)
