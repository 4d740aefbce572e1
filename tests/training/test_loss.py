"""The loss equals torch's cross-entropy, of logits and without them, on packed positions too."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import SRC_IDS, TGT_IDS, assert_same, decoder_only_model, randn, refuses, small_model

from minitransformer import label_smoothing_loss, next_token_loss
from minitransformer.training import loss as loss_module
from minitransformer.training.loss import linear_cross_entropy

V = 31
TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 2, 0, 0, 0]])
HIDDEN, WEIGHT = randn(2, 5, 12), randn(V, 12, seed=1)
each_smoothing = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])


def torch_loss(hidden, weight, targets, smoothing=0.0, bias=None, pad_id=0):
    """The same loss by PyTorch."""
    logits = F.linear(hidden, weight, bias).flatten(0, -2)
    options = {"ignore_index": pad_id, "label_smoothing": smoothing}
    return F.cross_entropy(logits, targets.flatten(), **options)


def logits_loss(hidden, weight, targets, *, bias=None, **options):
    """The loss of the logits."""
    return label_smoothing_loss(F.linear(hidden, weight, bias), targets, **options)


each_loss = pytest.mark.parametrize("ours", [linear_cross_entropy, logits_loss])


@each_loss
@each_smoothing
@pytest.mark.parametrize("pad_id", [0, 2])
@pytest.mark.parametrize("max_logits", [1, 3 * V, 2**22], ids=["by one", "by three", "at once"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_loss_equals_torch_with_gradients(
    ours, smoothing, pad_id, max_logits, dtype, has_bias, monkeypatch
):
    monkeypatch.setattr(loss_module, "MAX_LOGITS", max_logits)
    leaves = [randn(2, 5, 12), randn(V, 12, seed=1), randn(V, seed=2)][: 2 + has_bias]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    bias = leaves[2] if has_bias else None
    options = {"smoothing": smoothing, "bias": bias, "pad_id": pad_id}
    loss = ours(*leaves[:2], TARGETS, **options)
    expected = torch_loss(*leaves[:2], TARGETS, **options)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_same(loss, expected, tolerance)
    gradients = torch.autograd.grad(3 * loss, leaves)
    for one, other in zip(gradients, torch.autograd.grad(3 * expected, leaves), strict=True):
        assert_same(one, other, tolerance)


def test_linear_cross_entropy_stays_finite_with_huge_logits():
    leaves = [(1e4 * HIDDEN).requires_grad_(), randn(V, 12, seed=1, grad=True)]
    loss = linear_cross_entropy(*leaves, TARGETS)
    assert all(x.isfinite().all() for x in (loss, *torch.autograd.grad(loss, leaves)))


def test_linear_cross_entropy_in_bfloat16_is_near():
    hidden, weight = randn(2, 5, 12, grad=True), randn(V, 12, seed=1, grad=True)
    exact = linear_cross_entropy(hidden, weight, TARGETS)
    with torch.autocast("cpu", torch.bfloat16):
        rough = linear_cross_entropy(hidden, weight, TARGETS)
    assert_same(rough, exact, 2e-2)
    (gradient,) = torch.autograd.grad(rough, weight)
    assert_same(gradient, torch.autograd.grad(exact, weight)[0], 2e-2)


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
        return ours(hidden, weight, targets, smoothing=smoothing, pad_id=2)

    def expected(hidden, weight, targets):
        return torch_loss(hidden, weight, targets, smoothing, pad_id=2)

    value, whole = (torch.func.grad_and_value(f, (0, 1)) for f in (loss, expected))

    def assert_same_values(found, tensors):
        (grads, single), (expected_grads, expected_single) = found, whole(*tensors)
        assert_same(single, expected_single)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            assert_same(grad, expected_grad, 1e-6)

    assert_same_values(value(hidden, weight, targets), (hidden, weight, targets))
    for axes, tensors in {
        (0, None, 0): (hidden, weight, targets),
        (None, None, 0): (hidden[1], weight, targets),
        (0, None, None): (hidden, weight, targets[0]),
        (None, 0, None): (hidden, weights, targets),
    }.items():
        (grad_hidden, grad_weight), losses = torch.func.vmap(value, axes)(*tensors)
        for i in range(3):
            row = [x if axis is None else x[i] for x, axis in zip(tensors, axes, strict=True)]
            assert_same_values(((grad_hidden[i], grad_weight[i]), losses[i]), row)

    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(*leaves, targets)
    grads = torch.autograd.grad(compiled, leaves)
    assert_same_values((grads, compiled.detach()), (hidden.detach(), weight.detach(), targets))


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


def one_more(target):
    """The targets with another one in the place of 19."""
    return TARGETS.masked_fill(TARGETS == 19, target)


@each_loss
@pytest.mark.parametrize(
    ("error", "targets", "options", "message"),
    [
        (TypeError, TARGETS.int(), {}, r"targets must be int64, got torch\.int32"),
        (TypeError, TARGETS > 0, {}, r"targets must be int64, got torch\.bool"),
        (ValueError, one_more(-1), {}, "target -1 lies outside"),
        (ValueError, one_more(V), {}, f"target {V} lies outside the vocabulary of {V} tokens"),
        (ValueError, 0 * TARGETS + 7, {"pad_id": 7}, r"all 10 targets are padding \(id 7\)"),
        (ValueError, TARGETS[:, :4], {}, r"same shape, got \(2, 5\) and \(2, 4\)"),
        (ValueError, TARGETS, {"smoothing": -0.1}, r"at least 0 and below 1, got -0\.1"),
        (ValueError, TARGETS, {"smoothing": 1.0}, r"at least 0 and below 1, got 1\.0"),
        (ValueError, TARGETS, {"smoothing": math.nan}, "at least 0 and below 1, got nan"),
    ],
)
def test_bad_arguments_are_refused(ours, error, targets, options, message):
    with pytest.raises(error, match=message):
        ours(HIDDEN, randn(V, 12), targets, **options)


@each_loss
def test_padding_may_lie_outside_the_vocabulary(ours):
    outside = TARGETS.masked_fill(TARGETS == 0, -100)
    expected = ours(HIDDEN, WEIGHT, TARGETS, smoothing=0.1)
    assert_same(ours(HIDDEN, WEIGHT, outside, pad_id=-100), expected)  # smoothing is 0.1


def test_padding_does_not_count_whatever_its_logits():
    logits = randn(2, 5, V)
    changed = logits.masked_fill(TARGETS[..., None] == 0, torch.nan)
    assert_same(label_smoothing_loss(changed, TARGETS), label_smoothing_loss(logits, TARGETS))


def test_loss_of_half_precision_logits_is_computed_in_full():
    logits = (10 * randn(2, 5, V)).bfloat16()
    loss = label_smoothing_loss(logits, TARGETS)
    assert loss.dtype == torch.float32
    assert_same(loss, label_smoothing_loss(logits.float(), TARGETS), 1e-6)


@pytest.mark.parametrize("pad_id", [0, 14])
def test_the_padding_id_is_the_configurations(pad_id):
    model = small_model(pad_id=pad_id)
    src, tgt, targets = (ids.masked_fill(ids == 0, pad_id) for ids in (SRC_IDS, TGT_IDS, TARGETS))
    expected = label_smoothing_loss(model(src, tgt), targets, smoothing=0.0, pad_id=pad_id)
    assert_same(next_token_loss(model, src, tgt, targets), expected)


def losses_of(*batch, model=small_model):
    return lambda: next_token_loss(model(), *batch)


test_batches_that_do_not_fit_are_named = refuses(
    (r"got \(2, 5\) and \(2, 4\)", losses_of(SRC_IDS, TGT_IDS, TARGETS[:, :4])),
    ("as many rows, got 1 and 2", losses_of(SRC_IDS[:1], TGT_IDS, TARGETS)),
    ("all 10 targets are padding", losses_of(SRC_IDS, TGT_IDS, 0 * TARGETS)),
    ("must be of type Tensor, got NoneType", losses_of(SRC_IDS, TGT_IDS, None), TypeError),
    (r"got \(2, 5\) and \(2, 4\)", losses_of(TGT_IDS, TARGETS[:, :4], model=decoder_only_model)),
    ("got 12 and 11", lambda: linear_cross_entropy(HIDDEN, randn(V, 11), TARGETS)),
)
