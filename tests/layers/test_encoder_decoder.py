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
each_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])
each_bias = pytest.mark.parametrize("attention_bias", [True, False], ids=["bias", "no bias"])


def parts(activation, bias):
    feed_forward = FeedForward(D, 20, activation=activation)
    return {"self_attention": MultiHeadAttention(D, 3, bias=bias), "feed_forward": feed_forward}


def stack_of(num_layers, kind, norm_first):
    layers = [kind(**LAYER, norm_first=norm_first) for _ in range(num_layers)]
    stack = Encoder if kind is EncoderLayer else Decoder
    return shaken(stack(layers, LayerNorm(D) if norm_first else None))


def assert_same_gradients(output, expected, inputs, twin_inputs):
    weighting = randn(*output.shape, seed=7)
    ours = torch.autograd.grad((output * weighting).sum(), inputs)
    torchs = torch.autograd.grad((expected * weighting).sum(), twin_inputs)
    for gradient, twin_gradient in zip(ours, torchs, strict=True):
        assert_same(gradient, twin_gradient)


@each_order
@each_activation
@each_bias
def test_encoder_layer_equals_torch(norm_first, activation, attention_bias):
    layer = shaken(
        EncoderLayer(**LAYER, **parts(activation, attention_bias), norm_first=norm_first)
    )
    twin = torch_layer(layer, nn.TransformerEncoderLayer, activation)
    x, y = (randn(B, S, D, grad=True) for _ in range(2))
    output, expected = layer(x, SRC_MASK), twin(y, src_key_padding_mask=HIDDEN)
    assert_same(output, expected)
    assert_same_gradients(output, expected, [x], [y])


@each_order
@each_activation
@each_bias
def test_decoder_layer_equals_torch(norm_first, activation, attention_bias):
    cross = MultiHeadAttention(D, 3, bias=attention_bias)
    options = parts(activation, attention_bias) | {"cross_attention": cross}
    layer = shaken(DecoderLayer(**LAYER, **options, norm_first=norm_first))
    twin = torch_layer(layer, nn.TransformerDecoderLayer, activation)
    x, y = ([randn(B, T, D, grad=True), randn(B, S, D, seed=3, grad=True)] for _ in range(2))
    output = layer(*x, causal_mask(T), SRC_MASK)
    expected = twin(*y, tgt_mask=~causal_mask(T), memory_key_padding_mask=HIDDEN)
    assert_same(output, expected)
    assert_same_gradients(output, expected, x, y)


@each_order
def test_layers_without_masks_see_everything(norm_first):
    encoder = shaken(EncoderLayer(**LAYER, norm_first=norm_first))
    decoder = shaken(DecoderLayer(**LAYER, norm_first=norm_first))
    src, tgt = randn(B, S, D), randn(B, T, D, seed=3)
    twin = torch_layer(encoder, nn.TransformerEncoderLayer, "relu")
    assert_same(encoder(src), twin(src))
    twin = torch_layer(decoder, nn.TransformerDecoderLayer, "relu")
    assert_same(decoder(tgt, src), twin(tgt, src))


@each_order
def test_encoder_is_its_layers_in_order_and_the_last_norm(norm_first):
    encoder = stack_of(3, EncoderLayer, norm_first)
    x = src = randn(B, S, D)
    for layer in encoder.layers:
        x = layer(x, SRC_MASK)
    if norm_first:
        x = nn.functional.layer_norm(x, (D,), encoder.norm.weight, encoder.norm.bias)
    assert_same(encoder(src, SRC_MASK), x)
    assert len(encoder.layers) == 3


@each_order
def test_decoder_is_its_layers_in_order_and_the_last_norm(norm_first):
    decoder = stack_of(3, DecoderLayer, norm_first)
    memory = randn(B, S, D)
    x = tgt = randn(B, T, D, seed=3)
    for layer in decoder.layers:
        x = layer(x, memory, causal_mask(T), SRC_MASK)
    if norm_first:
        x = nn.functional.layer_norm(x, (D,), decoder.norm.weight, decoder.norm.bias)
    assert_same(decoder(tgt, memory, causal_mask(T), SRC_MASK), x)
    assert len(decoder.layers) == 3


@each_order
def test_encoder_does_not_know_the_order_of_its_input(norm_first):
    encoder = stack_of(2, EncoderLayer, norm_first)
    x, order = randn(B, S, D), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert_same(encoder(x[:, order], SRC_MASK[..., order]), encoder(x, SRC_MASK)[:, order])


@pytest.mark.parametrize(("kind", "count"), [(EncoderLayer, 2), (DecoderLayer, 3)])
def test_dropout_stands_where_the_paper_has_it(kind, count):
    """On the output of each sub-layer, neither on attention weights nor inside the network."""
    layer = kind(**LAYER | {"dropout": 0.3})
    rates = {name: m.p for name, m in layer.named_modules() if isinstance(m, nn.Dropout)}
    residuals = {f"residual_{i}.dropout": 0.3 for i in range(1, count + 1)}
    assert rates == residuals | {"feed_forward.dropout": 0.0}
    assert layer.self_attention.attention.dropout == 0.0


def test_dropout_acts_only_while_training():
    layer, x = EncoderLayer(**LAYER | {"dropout": 0.3}), randn(B, S, D)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_bad_sizes_are_refused_by_the_part_they_concern(kind):
    with pytest.raises(ValueError, match="num_heads must divide d_model, got 5 and 12"):
        kind(**LAYER | {"num_heads": 5})
    with pytest.raises(ValueError, match=r"norm must be one of .* got 'batch_norm'"):
        kind(**LAYER, norm="batch_norm")


def test_parts_of_ones_own_are_what_the_layer_computes_with():
    class Doubled(nn.Module):
        def forward(self, query, key, value, mask=None, cache=None):
            return 2 * query

    layer = DecoderLayer(
        D,
        self_attention=Doubled(),
        cross_attention=Doubled(),
        feed_forward=nn.Identity(),
        norm=lambda d: RMSNorm(d, eps=0.25),
    ).eval()
    assert {name.rpartition(".")[2] for name, _ in layer.named_parameters()} == {"weight"}
    x = randn(B, T, D)
    norm, expected = RMSNorm(D, eps=0.25), x
    for factor in (3, 3, 2):
        expected = norm(factor * expected)
    assert_same(layer(x, x), expected)


def test_a_stack_without_layers_is_refused():
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        Encoder([])
