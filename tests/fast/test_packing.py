"""Packed = padded: the loss of a model without its padding is the loss with it, gradients too."""

import pytest
import torch
from helpers import (
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    small_model,
)

from minitransformer import Packing, label_smoothing_loss, next_token_loss

TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 2, 0, 0]])
REAL = torch.tensor([[True, True, True], [True, False, False]])
GAPS = {
    "padding at the end": TARGETS,
    "a target left out": TARGETS.masked_fill(TARGETS == 6, 0),
    "a row without targets": TARGETS * torch.tensor([[0], [1]]),
    "almost no padding": torch.tensor([[30, 6, 19, 12, 2], [7, 25, 4, 2, 0]]),
}
each_gap = pytest.mark.parametrize("targets", GAPS.values(), ids=GAPS.keys())


def test_pack_keeps_real_tokens_in_order_and_unpack_puts_them_back():
    x = randn(2, 3, 5)
    packed = Packing(REAL).pack(x)
    assert_same(packed, x[REAL], 0)
    assert_same(Packing(REAL).unpack(packed), x * REAL[..., None], 0)


def test_packing_passes_gradients_of_real_tokens_on():
    x, packing = randn(2, 3, 5, grad=True), Packing(REAL)
    weighting = randn(2, 3, 5, seed=1)
    (packing.unpack(packing.pack(x)) * weighting).sum().backward()
    assert_same(x.grad, weighting * REAL[..., None], 0)


@pytest.mark.parametrize(("num_padding", "num_kept"), [(0, 20), (2, 20), (3, 17)])
def test_little_padding_stays_where_it_is(num_padding, num_kept):
    real = torch.arange(20).view(2, 10) < 20 - num_padding
    x, packing = randn(2, 10, 3), Packing(real)
    assert packing.pack(x).shape == (num_kept, 3)
    expected = x if num_kept == 20 else x * real[..., None]
    assert_same(packing.unpack(packing.pack(x)), expected, 0)


@each_model
@each_gap
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_that_of_all_logits_with_gradients(changes, targets, smoothing):
    model = small_model(**changes)
    loss = next_token_loss(model, SRC_IDS, TGT_IDS, targets, smoothing=smoothing)
    expected = label_smoothing_loss(model(SRC_IDS, TGT_IDS), targets, smoothing=smoothing)
    assert_same(loss, expected)
    assert_same_gradients(model, loss, expected)


@each_model
@each_gap
def test_decoder_only_loss_equals_that_of_all_logits_with_gradients(changes, targets):
    model = decoder_only_model(**changes)
    loss = next_token_loss(model, TGT_IDS, targets, smoothing=0.1)
    expected = label_smoothing_loss(model(TGT_IDS), targets)
    assert_same(loss, expected)
    assert_same_gradients(model, loss, expected)


def assert_same_gradients(model, loss, expected):
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        assert_same(ours, theirs)


@pytest.mark.parametrize("pad_id", [0, 14])
def test_the_padding_id_is_the_configurations(pad_id):
    model = small_model(pad_id=pad_id)
    src, tgt, targets = (ids.masked_fill(ids == 0, pad_id) for ids in (SRC_IDS, TGT_IDS, TARGETS))
    expected = label_smoothing_loss(model(src, tgt), targets, pad_id=pad_id)
    assert_same(next_token_loss(model, src, tgt, targets, smoothing=0.1), expected)


def test_dropout_differs_from_step_to_step_while_training():
    model = small_model(dropout=0.5).train()
    losses = {
        next_token_loss(model, SRC_IDS, TGT_IDS, TARGETS, smoothing=0.1).item() for _ in range(5)
    }
    assert len(losses) == 5


def test_shapes_that_do_not_fit_are_named():
    model = small_model()
    with pytest.raises(ValueError, match=r"got \(2, 5\) and \(2, 4\)"):
        next_token_loss(model, SRC_IDS, TGT_IDS, TARGETS[:, :4], smoothing=0.1)
    with pytest.raises(ValueError, match="as many rows, got 1 and 2"):
        next_token_loss(model, SRC_IDS[:1], TGT_IDS, TARGETS, smoothing=0.1)
    with pytest.raises(ValueError, match="all 10 targets are padding"):
        next_token_loss(model, SRC_IDS, TGT_IDS, torch.zeros_like(TARGETS), smoothing=0.1)
    with pytest.raises(ValueError, match=r"got \(2, 5\) and \(2, 4\)"):
        next_token_loss(decoder_only_model(), TGT_IDS, TARGETS[:, :4], smoothing=0.1)
