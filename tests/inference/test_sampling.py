"""The next token's distribution is the definition of temperature, top-k, top-p and min-p."""

import pytest
import torch
from helpers import assert_same, randn, refuses
from transformers.generation import MinPLogitsWarper

from minitransformer.inference.sampling import (
    min_p_filter,
    next_token_probs,
    top_k_filter,
    top_p_filter,
)

LOGITS = 2 * randn(2, 3, 31)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0])
def test_temperature_divides_scores_and_what_was_forbidden_stays_so(temperature):
    expected = LOGITS.double().div(temperature).softmax(-1).float()
    assert_same(next_token_probs(LOGITS, temperature=temperature), expected)
    assert_same(next_token_probs(LOGITS, temperature=temperature, top_p=1.0), expected)
    logits = LOGITS.index_fill(-1, torch.arange(0, 31, 2), -torch.inf)
    for options in ({"top_k": 20}, {"top_p": 0.99}, {"min_p": 1e-6}):
        probs = next_token_probs(logits, temperature=temperature, **options)
        assert (probs[..., ::2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-320])
def test_without_warmth_the_highest_scores_share_everything(temperature, dtype):
    logits = torch.tensor([[1.0, 30.0, -5.0, 30.0], [-torch.inf, -30.0, -20.0, -20.5]], dtype=dtype)
    probs = next_token_probs(logits, temperature=temperature)
    assert probs.tolist() == [[0.0, 0.5, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cuts", [{}, {"temperature": 0.7}, {"top_p": 0.9}, {"min_p": 0.05}])
def test_scores_in_half_the_precision_have_exact_probabilities(dtype, cuts):
    logits = (10 * LOGITS).to(dtype)
    exact = next_token_probs(logits.double(), **cuts)
    assert_same(next_token_probs(logits, **cuts), exact.float(), 1e-5)


@pytest.mark.parametrize("k", [1, 2, 9, 31, 50])
def test_top_k_keeps_the_k_highest(k):
    filtered = top_k_filter(LOGITS, k)
    for row, kept in zip(LOGITS.view(-1, 31), filtered.view(-1, 31), strict=True):
        best = sorted(range(31), key=lambda i: -row[i])[:k]
        assert set(kept.isfinite().nonzero().flatten().tolist()) == set(best)
        assert torch.equal(kept[best], row[best])
    with_equals = top_k_filter(torch.tensor([1.0, 2.0, 2.0, 3.0]), 2)
    assert with_equals.tolist() == [-torch.inf, 2.0, 2.0, 3.0]


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_the_fewest_that_reach_p(p):
    filtered = top_p_filter(LOGITS, p)
    for row, kept in zip(LOGITS.view(-1, 31).double(), filtered.view(-1, 31), strict=True):
        probs = row.softmax(-1)
        best, total = [], 0.0
        for index in sorted(range(31), key=lambda i: -row[i]):
            if total >= p:
                break
            best.append(index)
            total += probs[index].item()
        assert set(kept.isfinite().nonzero().flatten().tolist()) == set(best)


@pytest.mark.parametrize("m", [1e-6, 0.03, 0.3, 1.0])
def test_min_p_is_that_of_transformers(m):
    """It keeps what is at least m times as probable as the best."""
    assert torch.equal(min_p_filter(LOGITS, m), MinPLogitsWarper(m)(None, LOGITS))


def test_temperature_acts_first_then_top_k_then_top_p_then_min_p():
    probs = next_token_probs(LOGITS, temperature=0.5, top_k=7, top_p=0.8, min_p=0.2)
    by_rank_and_sum = top_p_filter(top_k_filter(LOGITS / 0.5, 7), 0.8)
    assert_same(probs, min_p_filter(by_rank_and_sum, 0.2).softmax(-1))
    assert not torch.equal(by_rank_and_sum.softmax(-1), probs)


def cut(**options):
    return lambda: next_token_probs(LOGITS, **options)


test_bad_options_are_refused = refuses(
    (r"temperature must be above 0, got 0\.0", cut(temperature=0.0)),
    ("temperature must be above 0, got nan", cut(temperature=float("nan"))),
    ("temperature must be finite, got inf", cut(temperature=float("inf"))),
    ("top_k must be at least 1, got 0", cut(top_k=0)),
    (r"top_p must be above 0 and at most 1, got 0\.0", cut(top_p=0.0)),
    (r"top_p must be above 0 and at most 1, got 1\.1", cut(top_p=1.1)),
    (r"min_p must be above 0 and at most 1, got 0\.0", cut(min_p=0.0)),
    (r"min_p must be above 0 and at most 1, got 1\.1", cut(min_p=1.1)),
)
