"""Layers and stacks equal torch's, given the same weights."""

import pytest
import torch
from helpers import LAYER, SRC_IDS, assert_same, randn, shaken, torch_layer
from torch import nn

from minitransformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    causal_mask,
    padding_mask,
)

B, S, T, D = 2, 7, 5, 12
SRC_MASK = padding_mask(SRC_IDS)  # the second row is 4 tokens long
HIDDEN = ~SRC_MASK[:, 0, 0]  # the same, as torch wants it
each_order = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
each_kind = pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])


def inputs():
    """Targets and what the encoder makes of the source."""
    return [randn(B, T, D, grad=True), randn(B, S, D, seed=3, grad=True)]


def gradients(output, tensors):
    weighting = randn(*output.shape, seed=7)
    return torch.autograd.grad((output * weighting).sum(), tensors)


@each_kind
@each_order
@pytest.mark.parametrize("masked", [True, False], ids=["masks", "no masks"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_layer_equals_torch(kind, norm_first, masked, activation, bias):
    names = ["self_attention", "cross_attention"][: 1 + (kind is DecoderLayer)]
    parts = {name: MultiHeadAttention(D, 3, bias=bias) for name in names}
    parts["feed_forward"] = FeedForward(D, 20, activation=activation)
    layer = shaken(kind(**LAYER, **parts, norm_first=norm_first))
    if kind is EncoderLayer:
        tensors, masks, theirs = inputs()[1:], [SRC_MASK], {"src_key_padding_mask": HIDDEN}
        twin = torch_layer(layer, nn.TransformerEncoderLayer, activation)
    else:
        tensors, masks = inputs(), [causal_mask(T), SRC_MASK]
        theirs = {"tgt_mask": ~causal_mask(T), "memory_key_padding_mask": HIDDEN}
        twin = torch_layer(layer, nn.TransformerDecoderLayer, activation)
    output = layer(*tensors, *masks) if masked else layer(*tensors)
    expected = twin(*tensors, **theirs) if masked else twin(*tensors)
    assert_same(output, expected)
    for ours, torchs in zip(gradients(output, tensors), gradients(expected, tensors), strict=True):
        assert_same(ours, torchs)


@each_kind
@each_order
def test_stack_is_its_layers_in_order_and_the_last_norm(kind, norm_first):
    stack_of = Encoder if kind is EncoderLayer else Decoder
    norm = LayerNorm(D) if norm_first else None
    stack = shaken(stack_of([kind(**LAYER, norm_first=norm_first) for _ in range(3)], norm))
    tgt, memory = inputs()
    x, *others = [tgt, SRC_MASK[..., :T]] if kind is EncoderLayer else [tgt, memory, "causal"]
    others += [] if kind is EncoderLayer else [SRC_MASK]
    output = stack(x, *others)
    for layer in stack.layers:
        x = layer(x, *others)
    if norm_first:
        x = nn.functional.layer_norm(x, (D,), norm.weight, norm.bias)
    assert_same(output, x)
    assert len(stack.layers) == 3
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        stack_of([])


@each_order
def test_encoder_does_not_know_the_order_of_its_input(norm_first):
    encoder = shaken(Encoder([EncoderLayer(**LAYER, norm_first=norm_first) for _ in range(2)]))
    x, order = randn(B, S, D), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert_same(encoder(x[:, order], SRC_MASK[..., order]), encoder(x, SRC_MASK)[:, order])


@pytest.mark.parametrize(("kind", "count"), [(EncoderLayer, 2), (DecoderLayer, 3)])
def test_dropout_is_where_the_paper_has_it(kind, count):
    """On the output of each sub-layer, neither on attention weights nor inside the network."""
    layer = kind(**LAYER | {"dropout": 0.3})
    rates = {name: m.p for name, m in layer.named_modules() if isinstance(m, nn.Dropout)}
    residuals = {f"residual_{i}.dropout": 0.3 for i in range(1, count + 1)}
    assert rates == residuals | {"feed_forward.dropout": 0.0}
    assert layer.self_attention.attention.dropout == 0.0


@each_kind
def test_bad_sizes_are_refused_by_the_part_they_concern(kind):
    with pytest.raises(ValueError, match="num_heads must divide d_model, got 5 and 12"):
        kind(**LAYER | {"num_heads": 5})
    with pytest.raises(ValueError, match=r"norm must be one of .* got 'batch_norm'"):
        kind(**LAYER, norm="batch_norm")


def test_parts_of_ones_own_are_what_the_layer_computes_with():
    class Doubled(nn.Module):
        def forward(self, query, key, value, mask=None, cache=None, times=2):
            return times * query

    layer = DecoderLayer(
        D,
        self_attention=Doubled(),
        cross_attention=Doubled(),
        feed_forward=nn.Identity(),
        norm=lambda d: RMSNorm(d, eps=0.25),
    ).eval()
    assert {name.rpartition(".")[2] for name, _ in layer.named_parameters()} == {"weight"}
    x, norm = randn(B, T, D), RMSNorm(D, eps=0.25)
    for options in ({}, {"times": 4}):
        expected = x
        for factor in (1 + options.get("times", 2), 3, 2):
            expected = norm(factor * expected)
        assert_same(Decoder([layer])(x, x, **options), expected)
