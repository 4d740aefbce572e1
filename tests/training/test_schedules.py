"""The schedules equal their formulas; bad settings are refused."""

import math
from functools import partial

import pytest
from helpers import refuses

import minitransformer as mt
from minitransformer import cosine_schedule
from minitransformer.training.schedules import linear_schedule, noam_schedule


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
    if warmup == 4000:  # which it is unless said otherwise
        assert rates[99] == noam_schedule(100, d_model=d_model)


@pytest.mark.parametrize("floor", [0.0, 0.0004])
@pytest.mark.parametrize(("warmup", "total"), [(0, 3), (1, 2), (7, 31), (100, 800)])
def test_rates_rise_linearly_then_fall_along_a_cosine_or_a_line(warmup, total, floor):
    sizes = {"peak": 0.003, "warmup_steps": warmup, "total_steps": total}
    sizes |= {"floor": floor} if floor else {}  # 0 unless said otherwise
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


FITTING = {"warmup_steps": 7, "total_steps": 31}
test_steps_that_do_not_fit_are_refused = refuses(
    ("at least 1, got 0, 12 and 7", lambda: noam_schedule(0, d_model=12, warmup_steps=7)),
    ("at least 1, got 3, 0 and 7", lambda: noam_schedule(3, d_model=0, warmup_steps=7)),
    ("at least 1, got 3, 12 and 0", lambda: noam_schedule(3, d_model=12, warmup_steps=0)),
    *(
        (
            f"got .*{name}={value}",
            partial(schedule, peak=1.0, **(FITTING | {"step": 3} | {name: value})),
        )
        for schedule in (cosine_schedule, linear_schedule)
        for name, value in (("step", -1), ("warmup_steps", -1), ("warmup_steps", 31))
    ),
)


def test_settings_choose_the_schedule():
    peak = {"steps": 40, "warmup_steps": 9, "peak_learning_rate": 0.02}
    sizes = {"peak": 0.02, "warmup_steps": 9, "total_steps": 40}
    paper = mt.TrainingConfig(steps=40, warmup_steps=4000, peak_learning_rate=None)  # for ever
    for step in (1, 9, 10, 40):
        rate = mt.TrainingConfig(**peak).learning_rate(step, d_model=12)
        assert rate == cosine_schedule(step, **sizes)
        rate = mt.TrainingConfig(**peak, schedule="linear").learning_rate(step, d_model=12)
        assert rate == linear_schedule(step, **sizes)
        rate = paper.learning_rate(step, d_model=12)
        assert rate == noam_schedule(step, d_model=12, warmup_steps=4000)


NAN, INF = math.nan, math.inf
RANGES = {
    "at least 1": {
        **{"batch_size": [-1], "max_tokens_per_batch": [0], "gradient_accumulation_steps": [0]},
        **{name: [0] for name in ("steps", "warmup_steps", "context_length")},
    },
    "above 0 and finite": {
        "peak_learning_rate": [0.0, -0.1, NAN, INF],
        "max_gradient_norm": [0.0, NAN, INF],
    },
    "at least 0 and finite": {"weight_decay": [-0.1, NAN, INF]},
    "at least 0 and below 1": {"label_smoothing": [-0.1, 1.0, NAN], "ema_decay": [-0.5, 1.0, NAN]},
}


def made(**settings):
    return partial(mt.TrainingConfig, **settings)


test_settings_out_of_range_are_refused = refuses(
    *(
        (f"{name} must be {bound}, got {value}", made(**{"optimizer": "adamw", name: value}))
        for bound, settings in RANGES.items()
        for name, values in settings.items()
        for value in values
    )
)
PAPERS = "schedule='linear' falls from a peak, but peak_learning_rate=None is the paper's"
test_settings_that_do_not_fit_are_refused = refuses(
    ("warmup_steps must be below steps, got 50 and 50", made(steps=50, warmup_steps=50)),
    ("precision must be 'fp32' or 'bf16', got 'fp16'", made(precision="fp16")),
    ("schedule must be 'cosine' or 'linear', got 'root'", made(schedule="root")),
    (PAPERS, made(schedule="linear", peak_learning_rate=None)),
    ("optimizer must be 'adam' or 'adamw' or 'muon', got 'sgd'", made(optimizer="sgd")),
    (r"optimizer='adam' decays nothing, got weight_decay=0\.1", made(weight_decay=0.1)),
    (r"steps must be int, got 200\.0", made(steps=200.0), TypeError),
    ("batch_size must be int, got True", made(batch_size=True), TypeError),
    ("must be float or None, got '0.1'", made(peak_learning_rate="0.1"), TypeError),
    (r"must be int or None, got 10000\.0", made(max_tokens_per_batch=1e4), TypeError),
)
