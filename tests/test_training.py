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
    linear_schedule,
    noam_schedule,
)
from minitransformer import loss as loss_module

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
    monkeypatch.setattr(loss_module, "MAX_LOGITS", max_logits)
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


def torch_loss(hidden, weight, targets, smoothing):
    """The same loss by PyTorch."""
    logits = (hidden @ weight.T).flatten(0, -2)
    options = {"ignore_index": 0, "label_smoothing": smoothing}
    return F.cross_entropy(logits, targets.flatten(), **options)


OUR_LOSSES = {
    "linear": linear_cross_entropy,
    "logits": lambda hidden, weight, targets, **options: label_smoothing_loss(
        hidden @ weight.T, targets, **options
    ),
}
each_loss = pytest.mark.parametrize("ours", OUR_LOSSES.values(), ids=OUR_LOSSES.keys())


@each_loss
@each_smoothing
@pytest.mark.parametrize("impossible", [4, 6], ids=["another token", "a target"])
def test_impossible_token_costs_what_it_costs_in_torch(ours, smoothing, impossible):
    """Its logit is -inf: nothing if it is no target and there is no smoothing, else all."""
    hidden, weight = randn(2, 5, 12).abs(), randn(V, 12, seed=1)
    weight[impossible] = -torch.inf
    expected = torch_loss(hidden, weight, TARGETS, smoothing)
    assert expected.isfinite() == (smoothing == 0 and impossible == 4)
    assert_same(ours(hidden, weight, TARGETS, smoothing=smoothing), expected)


@each_loss
@each_smoothing
def test_loss_in_float64_is_computed_in_float64(ours, smoothing):
    hidden = randn(2, 5, 12, dtype=torch.float64, grad=True)
    weight = randn(V, 12, seed=1, dtype=torch.float64, grad=True)
    loss = ours(hidden, weight, TARGETS, smoothing=smoothing)
    expected = torch_loss(hidden, weight, TARGETS, smoothing)
    assert_same(loss, expected, 1e-12)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    for one, other in zip(gradients, torch.autograd.grad(expected, (hidden, weight)), strict=True):
        assert_same(one, other, 1e-12)


@pytest.mark.parametrize("num_chunks", [2, 16])
def test_gradient_of_bfloat16_weights_is_as_near_as_torchs(num_chunks, monkeypatch):
    n, v, d = 512, 601, 32
    monkeypatch.setattr(loss_module, "MAX_LOGITS", n // num_chunks * v)
    hidden, weight = randn(n, d).bfloat16(), (randn(v, d, seed=1) / d**0.5).bfloat16()
    targets = torch.randint(1, v, (n,), generator=torch.Generator().manual_seed(2))
    gradients = []
    for dtype, loss in (
        (torch.float64, lambda h, w, t: F.cross_entropy(h @ w.T, t)),
        (torch.bfloat16, lambda h, w, t: F.cross_entropy((h @ w.T).float(), t)),
        (torch.bfloat16, lambda h, w, t: linear_cross_entropy(h, w, t, smoothing=0.0)),
    ):
        weights = weight.to(dtype, copy=True).requires_grad_()
        loss(hidden.to(dtype), weights, targets).backward()
        assert weights.grad.dtype == dtype
        gradients.append(weights.grad.double())
    exact, torchs, ours = gradients
    assert (ours - exact).norm() <= 1.02 * (torchs - exact).norm()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # what the compiler does
@each_loss
@each_smoothing
def test_loss_can_be_differentiated_mapped_and_compiled_as_a_function(ours, smoothing, monkeypatch):
    monkeypatch.setattr(loss_module, "MAX_LOGITS", 2 * V)
    hidden, weight = randn(3, 5, 12), randn(V, 12, seed=1)
    targets = torch.cat([TARGETS, TARGETS[:1] - 1])
    weights = torch.stack([weight, weight + 1, 2 * weight])

    def loss(hidden, weight, targets):
        return ours(hidden, weight, targets, smoothing=smoothing)

    def expected(hidden, weight, targets):
        return torch_loss(hidden, weight, targets, smoothing)

    value, whole = (torch.func.grad_and_value(f, (0, 1)) for f in (loss, expected))
    inputs = {
        (None, None, None): (hidden, weight, targets),
        (0, None, 0): (hidden, weight, targets),
        (None, None, 0): (hidden[1], weight, targets),
        (0, None, None): (hidden, weight, targets[0]),
        (None, 0, None): (hidden, weights, targets),
    }
    for axes, tensors in inputs.items():
        mapped = value if axes == (None, None, None) else torch.func.vmap(value, axes)
        (grad_hidden, grad_weight), losses = mapped(*tensors)
        for i in range(3):
            row = [x if axis is None else x[i] for x, axis in zip(tensors, axes, strict=True)]
            (expected_hidden, expected_weight), single = whole(*row)
            pick = (lambda x: x) if axes == (None, None, None) else (lambda x, i=i: x[i])
            assert_same(pick(losses), single)
            assert_same(pick(grad_hidden), expected_hidden, 1e-6)
            assert_same(pick(grad_weight), expected_weight, 1e-6)

    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(*leaves, targets)
    single = expected(*leaves, targets)
    assert_same(compiled, single)
    for one, other in zip(
        torch.autograd.grad(compiled, leaves), torch.autograd.grad(single, leaves), strict=True
    ):
        assert_same(one, other, 1e-6)


def test_second_derivative_of_linear_cross_entropy_is_refused():
    hidden, weight = randn(2, 5, 12, grad=True), randn(V, 12, seed=1)
    loss = linear_cross_entropy(hidden, weight, TARGETS)
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated only once"):
        gradient.sum().backward()

    def length(hidden):
        return torch.func.grad(linear_cross_entropy)(hidden, weight, TARGETS).square().sum()

    with pytest.raises(RuntimeError, match="can be differentiated only once"):
        torch.func.grad(length)(hidden.detach())


@pytest.mark.parametrize("bad", [-1, V, 400])
@each_loss
def test_target_outside_the_vocabulary_is_refused(ours, bad):
    targets = TARGETS.clone()
    targets[0, 3] = bad
    with pytest.raises(ValueError, match=f"target {bad} lies outside the vocabulary of {V} tokens"):
        ours(randn(2, 5, 12), randn(V, 12), targets)


def test_padding_may_lie_outside_the_vocabulary():
    logits = randn(2, 5, V)
    outside = TARGETS.masked_fill(TARGETS == 0, -100)
    expected = label_smoothing_loss(logits, TARGETS)
    assert_same(label_smoothing_loss(logits, outside, pad_id=-100), expected)
    weight = torch.eye(V)
    assert_same(linear_cross_entropy(logits, weight, outside, pad_id=-100), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool])
def test_targets_that_are_not_int64_are_refused(dtype):
    with pytest.raises(TypeError, match=f"targets must be int64, got {dtype}"):
        label_smoothing_loss(randn(2, 5, V), TARGETS.to(dtype))
    with pytest.raises(TypeError, match=f"targets must be int64, got {dtype}"):
        linear_cross_entropy(randn(2, 5, 12), randn(V, 12), TARGETS.to(dtype))


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


def test_rows_of_text_are_those_that_fit():
    assert TrainingConfig(batch_size=7).rows_of_text() == 7
    assert TrainingConfig(batch_tokens=200, context_length=64).rows_of_text() == 3
    message = "a row of context_length=64 tokens is longer than batch_tokens=63"
    with pytest.raises(ValueError, match=message):
        TrainingConfig(batch_tokens=63, context_length=64).rows_of_text()


def test_paper_schedule_may_warm_up_for_longer_than_it_trains():
    config = TrainingConfig(steps=40, warmup_steps=4000, peak_learning_rate=None)
    assert config.learning_rate(40, d_model=512) == noam_schedule(40, d_model=512)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1, got 0"),
        ({"peak_learning_rate": math.nan}, "peak_learning_rate must be finite, got nan"),
        ({"peak_learning_rate": math.inf}, "peak_learning_rate must be finite, got inf"),
        ({"max_gradient_norm": math.nan}, "max_gradient_norm must be finite, got nan"),
        ({"max_gradient_norm": math.inf}, "max_gradient_norm must be finite, got inf"),
        ({"label_smoothing": math.nan}, "label_smoothing must be at least 0 and below 1, got nan"),
        ({"peak_learning_rate": 0.0}, r"peak_learning_rate must be above 0, got 0\.0"),
        ({"peak_learning_rate": -0.1}, r"peak_learning_rate must be above 0, got -0\.1"),
        ({"max_gradient_norm": 0.0}, r"max_gradient_norm must be above 0, got 0\.0"),
        ({"label_smoothing": 1.0}, r"smoothing must be at least 0 and below 1, got 1\.0"),
        ({"label_smoothing": -0.1}, r"smoothing must be at least 0 and below 1, got -0\.1"),
        ({"steps": 50, "warmup_steps": 50}, "warmup_steps must be below steps, got 50 and 50"),
        ({"precision": "fp16"}, "precision must be 'fp32' or 'bf16', got 'fp16'"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1, got 0"),
        ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
        ({"schedule": "root"}, "schedule must be 'cosine' or 'linear', got 'root'"),
        (
            {"schedule": "linear", "peak_learning_rate": None},
            "schedule='linear' falls from a peak, but peak_learning_rate=None is the paper's",
        ),
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'adamw' or 'muon', got 'sgd'"),
        ({"weight_decay": 0.1}, r"optimizer='adam' decays nothing, got weight_decay=0\.1"),
        ({"weight_decay": -0.1, "optimizer": "adamw"}, r"weight_decay must be at least 0, got -0"),
        ({"weight_decay": math.nan, "optimizer": "adamw"}, "weight_decay must be finite, got nan"),
        ({"average": 1.0}, r"average must be at least 0 and below 1, got 1\.0"),
        ({"average": -0.5}, r"average must be at least 0 and below 1, got -0\.5"),
        ({"average": math.nan}, "average must be at least 0 and below 1, got nan"),
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
        ({"batch_tokens": 1e4}, r"batch_tokens must be int or None, got 10000\.0"),
        ({"accumulate": True}, "accumulate must be int, got True"),
        ({"average": "0.9"}, "average must be float, got '0.9'"),
    ],
    ids=str,
)
def test_settings_of_another_type_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        TrainingConfig(**settings)
