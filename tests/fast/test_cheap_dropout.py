"""Cheap dropout drops each element alone, with its probability, and keeps the mean."""

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import Dropout
from minitransformer.fast.dropout import drop

each_p = pytest.mark.parametrize("p", [0.1, 0.5, 0.9])


@each_p
def test_drops_the_share_and_scales_the_rest(p):
    torch.manual_seed(0)
    n = 200_000
    y = drop(Dropout(p), torch.ones(n))
    dropped = (y == 0).float().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations
    kept = y[y != 0]
    assert_same(kept, torch.full_like(kept, 1 / (1 - p)), 1e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=5 * (p / (1 - p) / n) ** 0.5)


def test_neighbours_are_dropped_independently():
    """Four elements share one random number: none may tell of another."""
    torch.manual_seed(0)
    dropped = (drop(Dropout(0.5), torch.ones(100_000, 4)) == 0).float()
    assert_same(torch.corrcoef(dropped.T), torch.eye(4), 0.02)
    assert_same(dropped.mean(dim=0), torch.full((4,), 0.5), 0.01)


@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (2, 5, 3), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shape_and_dtype_stay(shape, dtype):
    y = drop(Dropout(0.5), torch.ones(shape, dtype=dtype))
    assert y.shape == shape
    assert y.dtype == dtype
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_gradient_flows_through_what_was_kept():
    x = randn(3, 7, grad=True)
    y = drop(Dropout(0.5), x)
    y.sum().backward()
    assert_same(x.grad, 2.0 * (y != 0), 0)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_does_nothing_at_zero_or_in_evaluation(p, training):
    x = randn(3, 7)
    assert drop(Dropout(p).train(training), x) is x


def test_probability_one_drops_everything():
    assert not drop(Dropout(1.0), torch.ones(9)).any()


def test_its_own_generator_is_the_only_one_it_draws_from():
    dropout = Dropout(0.5)
    torch.manual_seed(3)
    first = drop(dropout, torch.ones(5, 7))
    dropout.generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    assert torch.equal(drop(dropout, torch.ones(5, 7)), first)
    assert not torch.equal(drop(dropout, torch.ones(5, 7)), first)
    assert torch.equal(torch.get_rng_state(), before)
