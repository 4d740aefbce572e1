"""The schedules equal their formulas; bad settings are refused."""

import math

import pytest
import torch

from minitransformer import TrainingConfig, cosine_schedule
from minitransformer.training.schedules import linear_schedule, noam_schedule

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


@pytest.mark.parametrize("floor", [0.0, 0.0004])
@pytest.mark.parametrize(("warmup", "total"), [(0, 3), (1, 2), (7, 31), (100, 800)])
def test_rates_rise_linearly_then_fall_along_a_cosine_or_a_line(warmup, total, floor):
    sizes = {"peak": 0.003, "warmup_steps": warmup, "total_steps": total, "floor": floor}
    for schedule in (cosine_schedule, linear_schedule):
        rates = [schedule(step, **sizes) for step in range(total + 9)]
        for step, rate in enumerate(rates[: total + 1]):
            progress = (step - warmup) / (total + 1 - warmup)
            linear = schedule is linear_schedule
            left = 1 - progress if linear else math.cos(math.pi * progress / 2) ** 2
            falling = floor + (0.003 - floor) * left
            assert rate == pytest.approx(0.003 * step / warmup if step < warmup else falling)
        assert max(rates) == rates[warmup] == 0.003
        assert rates[total] > floor
        assert set(rates[total + 1 :]) == {floor}


@pytest.mark.parametrize(("step", "d_model", "warmup"), [(0, 12, 7), (3, 0, 7), (3, 12, 0)])
def test_paper_schedule_refuses_what_is_below_one(step, d_model, warmup):
    with pytest.raises(ValueError, match=f"at least 1, got {step}, {d_model} and {warmup}"):
        noam_schedule(step, d_model=d_model, warmup_steps=warmup)


@pytest.mark.parametrize("schedule", [cosine_schedule, linear_schedule])
@pytest.mark.parametrize(("step", "warmup", "total"), [(-1, 7, 31), (3, -1, 31), (3, 31, 31)])
def test_schedule_refuses_steps_that_do_not_fit(schedule, step, warmup, total):
    message = f"got step={step}, warmup_steps={warmup}, total_steps={total}"
    with pytest.raises(ValueError, match=message):
        schedule(step, peak=1.0, warmup_steps=warmup, total_steps=total)


def test_schedule_is_one_of_pytorchs():
    """`LambdaLR` multiplies the optimiser's rate, and counts from 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.003)
    sizes = {"warmup_steps": 3, "total_steps": 8, "floor": 0.1}
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: cosine_schedule(done + 1, peak=1.0, **sizes)
    )
    for step in range(1, 11):
        expected = 0.003 * cosine_schedule(step, peak=1.0, **sizes)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        scheduler.step()


# --- settings


def test_settings_choose_the_schedule():
    cosine = TrainingConfig(steps=40, warmup_steps=9, peak_learning_rate=0.02)
    paper = TrainingConfig(steps=40, warmup_steps=9, peak_learning_rate=None)
    for step in (1, 9, 10, 40):
        expected = cosine_schedule(step, peak=0.02, warmup_steps=9, total_steps=40)
        assert cosine.learning_rate(step, d_model=12) == expected
        expected = noam_schedule(step, d_model=12, warmup_steps=9)
        assert paper.learning_rate(step, d_model=12) == expected


def test_settings_choose_how_the_rate_falls():
    config = TrainingConfig(steps=40, warmup_steps=9, peak_learning_rate=0.02, schedule="linear")
    for step in (1, 9, 10, 40):
        expected = linear_schedule(step, peak=0.02, warmup_steps=9, total_steps=40)
        assert config.learning_rate(step, d_model=12) == expected


def test_paper_schedule_may_warm_up_for_longer_than_it_trains():
    config = TrainingConfig(steps=40, warmup_steps=4000, peak_learning_rate=None)
    assert config.learning_rate(40, d_model=512) == noam_schedule(40, d_model=512)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1, got 0"),
        (
            {"peak_learning_rate": math.nan},
            "peak_learning_rate must be above 0 and finite, got nan",
        ),
        (
            {"peak_learning_rate": math.inf},
            "peak_learning_rate must be above 0 and finite, got inf",
        ),
        ({"max_gradient_norm": math.nan}, "max_gradient_norm must be above 0 and finite, got nan"),
        ({"max_gradient_norm": math.inf}, "max_gradient_norm must be above 0 and finite, got inf"),
        ({"label_smoothing": math.nan}, "label_smoothing must be at least 0 and below 1, got nan"),
        ({"peak_learning_rate": 0.0}, r"peak_learning_rate must be above 0 and finite, got 0\.0"),
        ({"peak_learning_rate": -0.1}, r"peak_learning_rate must be above 0 and finite, got -0\.1"),
        ({"max_gradient_norm": 0.0}, r"max_gradient_norm must be above 0 and finite, got 0\.0"),
        ({"label_smoothing": 1.0}, r"smoothing must be at least 0 and below 1, got 1\.0"),
        ({"label_smoothing": -0.1}, r"smoothing must be at least 0 and below 1, got -0\.1"),
        ({"steps": 50, "warmup_steps": 50}, "warmup_steps must be below steps, got 50 and 50"),
        ({"precision": "fp16"}, "precision must be 'fp32' or 'bf16', got 'fp16'"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch must be at least 1, got 0"),
        (
            {"gradient_accumulation_steps": 0},
            "gradient_accumulation_steps must be at least 1, got 0",
        ),
        ({"schedule": "root"}, "schedule must be 'cosine' or 'linear', got 'root'"),
        (
            {"schedule": "linear", "peak_learning_rate": None},
            "schedule='linear' falls from a peak, but peak_learning_rate=None is the paper's",
        ),
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'adamw' or 'muon', got 'sgd'"),
        ({"weight_decay": 0.1}, r"optimizer='adam' decays nothing, got weight_decay=0\.1"),
        (
            {"weight_decay": -0.1, "optimizer": "adamw"},
            r"weight_decay must be at least 0 and finite, got -0",
        ),
        (
            {"weight_decay": math.nan, "optimizer": "adamw"},
            "weight_decay must be at least 0 and finite, got nan",
        ),
        ({"ema_decay": 1.0}, r"ema_decay must be at least 0 and below 1, got 1\.0"),
        ({"ema_decay": -0.5}, r"ema_decay must be at least 0 and below 1, got -0\.5"),
        ({"ema_decay": math.nan}, "ema_decay must be at least 0 and below 1, got nan"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 200.0}, r"steps must be int, got 200\.0"),
        ({"steps": math.nan}, "steps must be int, got nan"),
        ({"batch_size": True}, "batch_size must be int, got True"),
        ({"peak_learning_rate": "0.1"}, "peak_learning_rate must be float or None, got '0.1'"),
        ({"max_tokens_per_batch": 1e4}, r"max_tokens_per_batch must be int or None, got 10000\.0"),
        (
            {"gradient_accumulation_steps": True},
            "gradient_accumulation_steps must be int, got True",
        ),
        ({"ema_decay": "0.9"}, "ema_decay must be float, got '0.9'"),
    ],
    ids=str,
)
def test_settings_of_another_type_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        TrainingConfig(**settings)
