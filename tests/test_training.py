"""The loss equals torch's cross-entropy; the schedules equal their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, randn

from minitransformer import (
    TrainingConfig,
    cosine_schedule,
    label_smoothing_loss,
    linear_cross_entropy,
    noam_schedule,
    training,
)

V = 31
TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 2, 0, 0, 0]])
each_smoothing = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])


# --- loss


@each_smoothing
@pytest.mark.parametrize("pad_id", [0, 2])
def test_loss_equals_torch_with_gradient(smoothing, pad_id):
    ours, torchs = (randn(2, 5, V, grad=True) for _ in range(2))
    loss = label_smoothing_loss(ours, TARGETS, smoothing=smoothing, pad_id=pad_id)
    expected = F.cross_entropy(
        torchs.flatten(0, 1), TARGETS.flatten(), ignore_index=pad_id, label_smoothing=smoothing
    )
    assert_same(loss, expected)
    loss.backward()
    expected.backward()
    assert_same(ours.grad, torchs.grad, 1e-6)


@each_smoothing
def test_loss_equals_its_formula(smoothing):
    logits = randn(3, V)
    targets = torch.tensor([4, 0, 30])  # the one in the middle is padding
    total = 0.0
    for position in (0, 2):
        numbers = logits[position].tolist()
        normaliser = math.log(sum(math.exp(number) for number in numbers))
        for token, number in enumerate(numbers):
            share = smoothing / V + (1 - smoothing) * (token == targets[position].item())
            total += share * (normaliser - number)
    loss = label_smoothing_loss(logits, targets, smoothing=smoothing)
    assert loss.item() == pytest.approx(total / 2, rel=1e-5)


@each_smoothing
@pytest.mark.parametrize("max_logits", [1, 3 * V, 2**22], ids=["by one", "by three", "at once"])
@pytest.mark.parametrize("pad_id", [0, 2])
def test_linear_cross_entropy_equals_the_loss_of_the_logits(
    smoothing, max_logits, pad_id, monkeypatch
):
    monkeypatch.setattr(training, "MAX_LOGITS", max_logits)
    hidden, weight = randn(2, 5, 12, grad=True), randn(V, 12, seed=1, grad=True)
    loss = linear_cross_entropy(hidden, weight, TARGETS, smoothing=smoothing, pad_id=pad_id)
    expected = label_smoothing_loss(hidden @ weight.T, TARGETS, smoothing=smoothing, pad_id=pad_id)
    assert_same(loss, expected)
    gradients = torch.autograd.grad(3 * loss, (hidden, weight))
    for ours, theirs in zip(
        gradients, torch.autograd.grad(3 * expected, (hidden, weight)), strict=True
    ):
        assert_same(ours, theirs)


def test_linear_cross_entropy_stays_finite_with_huge_logits():
    hidden, weight = (1e4 * randn(2, 5, 12)).requires_grad_(), randn(V, 12, seed=1, grad=True)
    loss = linear_cross_entropy(hidden, weight, TARGETS)
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_linear_cross_entropy_in_bfloat16_is_near():
    hidden, weight = randn(2, 5, 12, grad=True), randn(V, 12, seed=1, grad=True)
    exact = linear_cross_entropy(hidden, weight, TARGETS)
    with torch.autocast("cpu", torch.bfloat16):
        rough = linear_cross_entropy(hidden, weight, TARGETS)
    assert_same(rough, exact, 2e-2)
    (gradient,) = torch.autograd.grad(rough, weight)
    assert_same(gradient, torch.autograd.grad(exact, weight)[0], 2e-2)


def test_linear_cross_entropy_names_two_widths_that_differ():
    with pytest.raises(ValueError, match="got 12 and 11"):
        linear_cross_entropy(randn(2, 5, 12), randn(V, 11), TARGETS)


def test_linear_cross_entropy_needs_a_target():
    with pytest.raises(ValueError, match=r"all 10 targets are padding \(id 7\)"):
        linear_cross_entropy(randn(2, 5, 12), randn(V, 12), torch.full((2, 5), 7), pad_id=7)


def test_smoothing_is_a_tenth_unless_said_otherwise():
    logits = randn(2, 5, V)
    expected = label_smoothing_loss(logits, TARGETS, smoothing=0.1)
    assert label_smoothing_loss(logits, TARGETS) == expected


def test_padding_does_not_count():
    logits = randn(2, 5, V, grad=True)
    loss = label_smoothing_loss(logits, TARGETS)
    loss.backward()
    assert (logits.grad[TARGETS == 0] == 0).all()
    assert (logits.grad[TARGETS != 0] != 0).any(-1).all()
    changed = logits.detach().clone()
    changed[TARGETS == 0] = torch.nan
    assert_same(label_smoothing_loss(changed, TARGETS), loss.detach())


def test_loss_of_half_precision_logits_is_computed_in_full():
    logits = (10 * randn(2, 5, V)).bfloat16()
    loss = label_smoothing_loss(logits, TARGETS)
    assert loss.dtype == torch.float32
    assert_same(loss, label_smoothing_loss(logits.float(), TARGETS), 1e-6)


def test_targets_of_padding_alone_are_refused():
    with pytest.raises(ValueError, match=r"all 10 targets are padding \(id 7\)"):
        label_smoothing_loss(randn(2, 5, V), torch.full((2, 5), 7), pad_id=7)


@pytest.mark.parametrize("shape", [(2, 4, V), (10, V), (2, 5)], ids=str)
def test_logits_of_another_shape_are_refused(shape):
    message = rf"logits \({', '.join(map(str, shape))}\) .* targets \(2, 5\)"
    with pytest.raises(ValueError, match=message):
        label_smoothing_loss(torch.zeros(shape), TARGETS)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {smoothing}"):
        label_smoothing_loss(randn(2, 5, V), TARGETS, smoothing=smoothing)


# --- schedules


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (12, 7), (64, 1)])
def test_paper_schedule_rises_linearly_then_falls_with_the_root(d_model, warmup):
    rates = [
        noam_schedule(step, d_model=d_model, warmup_steps=warmup)
        for step in range(1, 3 * warmup + 3)
    ]
    peak = 1 / math.sqrt(d_model * warmup)
    for step, rate in enumerate(rates, 1):
        shape = step / warmup if step < warmup else math.sqrt(warmup / step)
        assert rate == pytest.approx(peak * shape, rel=1e-12)
    assert max(rates) == rates[warmup - 1]
    assert rates[warmup - 1] == pytest.approx(peak)


def test_paper_schedule_warms_up_for_4000_steps_unless_said_otherwise():
    rates = {step: noam_schedule(step, d_model=512) for step in (3999, 4000, 4001)}
    assert max(rates, key=rates.get) == 4000


@pytest.mark.parametrize(("warmup", "total"), [(1, 2), (7, 31), (100, 800)])
def test_cosine_schedule_rises_linearly_then_falls_along_a_cosine(warmup, total):
    rates = [
        cosine_schedule(step, peak=0.003, warmup_steps=warmup, total_steps=total)
        for step in range(1, total + 1)
    ]
    for step, rate in enumerate(rates, 1):
        if step < warmup:
            assert rate == pytest.approx(0.003 * step / warmup)
        else:
            angle = math.pi * (step - warmup) / (total + 1 - warmup)
            assert rate == pytest.approx(0.003 * math.cos(angle / 2) ** 2)
    assert max(rates) == rates[warmup - 1] == 0.003
    assert 0 < rates[-1] == min(rates[warmup:])


def test_cosine_schedule_ends_near_zero_and_is_half_in_the_middle():
    options = {"peak": 1.0, "warmup_steps": 99, "total_steps": 1098}
    assert cosine_schedule(99, **options) == 1.0
    assert cosine_schedule(100, **options) == pytest.approx(1.0, abs=1e-5)
    assert cosine_schedule(599, **options) == pytest.approx(0.5)
    assert 0 < cosine_schedule(1098, **options) < 1e-5


@pytest.mark.parametrize(("step", "d_model", "warmup"), [(0, 12, 7), (3, 0, 7), (3, 12, 0)])
def test_paper_schedule_refuses_what_is_below_one(step, d_model, warmup):
    with pytest.raises(ValueError, match=f"at least 1, got {step}, {d_model} and {warmup}"):
        noam_schedule(step, d_model=d_model, warmup_steps=warmup)


@pytest.mark.parametrize(
    ("step", "warmup", "total"), [(0, 7, 31), (32, 7, 31), (3, 0, 31), (3, 31, 31), (3, 40, 31)]
)
def test_cosine_schedule_refuses_steps_that_do_not_fit(step, warmup, total):
    message = f"got step={step}, warmup_steps={warmup}, total_steps={total}"
    with pytest.raises(ValueError, match=message):
        cosine_schedule(step, peak=1.0, warmup_steps=warmup, total_steps=total)


# --- settings


def test_settings_choose_the_schedule():
    cosine = TrainingConfig(steps=40, warmup_steps=9, peak_learning_rate=0.02)
    paper = TrainingConfig(steps=40, warmup_steps=9, peak_learning_rate=None)
    for step in (1, 9, 10, 40):
        expected = cosine_schedule(step, peak=0.02, warmup_steps=9, total_steps=40)
        assert cosine.learning_rate(step, d_model=12) == expected
        expected = noam_schedule(step, d_model=12, warmup_steps=9)
        assert paper.learning_rate(step, d_model=12) == expected


def test_paper_schedule_may_warm_up_for_longer_than_it_trains():
    config = TrainingConfig(steps=40, warmup_steps=4000, peak_learning_rate=None)
    assert config.learning_rate(40, d_model=512) == noam_schedule(40, d_model=512)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1, got 0"),
        ({"peak_learning_rate": 0.0}, r"peak_learning_rate must be above 0, got 0\.0"),
        ({"peak_learning_rate": -0.1}, r"peak_learning_rate must be above 0, got -0\.1"),
        ({"max_gradient_norm": 0.0}, r"max_gradient_norm must be above 0, got 0\.0"),
        ({"label_smoothing": 1.0}, r"smoothing must be at least 0 and below 1, got 1\.0"),
        ({"label_smoothing": -0.1}, r"smoothing must be at least 0 and below 1, got -0\.1"),
        ({"steps": 50, "warmup_steps": 50}, "warmup_steps must be below steps, got 50 and 50"),
        ({"precision": "fp16"}, "precision must be 'fp32' or 'bf16', got 'fp16'"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)
