"""The feed-forward network is equation 2, at each position alone."""

import math

import pytest
import torch
from helpers import assert_same, randn, shaken

from minitransformer import FeedForward
from minitransformer.layers.feed_forward import ACTIVATIONS


def gelu(x):
    """x times the share of a normal distribution below x."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    """The approximation of Hendrycks & Gimpel, section 2."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x):
    """x σ(x)."""
    return x / (1 + torch.exp(-x))


GATES = {
    "reglu": lambda x: x.clamp(min=0),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": silu,
}


@pytest.mark.parametrize(
    ("name", "activation"),
    [("relu", lambda x: x.clamp(min=0)), ("gelu", gelu), ("gelu_tanh", gelu_tanh), ("silu", silu)],
)
def test_equals_the_formula(name, activation):
    ffn, x = shaken(FeedForward(12, 20, activation=name)), randn(2, 5, 12)
    inner = activation(x @ ffn.w_1.weight.T + ffn.w_1.bias)
    assert_same(ffn(x), inner @ ffn.w_2.weight.T + ffn.w_2.bias)


@pytest.mark.parametrize(("name", "activation"), GATES.items())
@pytest.mark.parametrize("bias", [None, True])
def test_gates_equal_the_formula(name, activation, bias):
    ffn, x = shaken(FeedForward(12, 20, activation=name, bias=bias)), randn(2, 5, 12)
    b_1, b_2, b_3 = (layer.bias for layer in (ffn.w_1, ffn.w_2, ffn.w_3))
    assert (b_1 is None) == (b_2 is None) == (b_3 is None) == (bias is None)
    if bias is None:
        b_1 = b_2 = b_3 = 0.0
    gated = activation(x @ ffn.w_1.weight.T + b_1) * (x @ ffn.w_3.weight.T + b_3)
    assert_same(ffn(x), gated @ ffn.w_2.weight.T + b_2)


def test_biases_can_be_left_out():
    ffn, x = FeedForward(12, 20, bias=False), randn(2, 5, 12)
    assert [name for name, _ in ffn.named_parameters()] == ["w_1.weight", "w_2.weight"]
    assert_same(ffn(x), (x @ ffn.w_1.weight.T).clamp(min=0) @ ffn.w_2.weight.T)


def test_swiglu_with_two_thirds_of_the_width_has_as_many_weights():
    def weights(d_ff, activation):
        ffn = FeedForward(12, d_ff, activation=activation)
        return sum(p.numel() for p in ffn.parameters() if p.dim() == 2)

    assert weights(20, "swiglu") == weights(30, "relu")


def test_relu_is_the_default():
    ffn, relu = FeedForward(12, 20), FeedForward(12, 20, activation="relu")
    relu.load_state_dict(ffn.state_dict())
    assert torch.equal(ffn(randn(5, 12)), relu(randn(5, 12)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_position_is_on_its_own(activation):
    ffn, x = FeedForward(12, 20, activation=activation), randn(2, 5, 12)
    for b in range(2):
        for q in range(5):
            assert_same(ffn(x)[b, q], ffn(x[b, q]))


def test_drops_inner_units_only_while_training():
    ffn, x = FeedForward(12, 20, dropout=0.5), randn(2, 5, 12)
    with torch.no_grad():
        ffn.w_1.weight.zero_()
        ffn.w_1.bias.fill_(1.0)  # every inner unit is 1, dropped 0 or kept 2
        ffn.w_2.weight.zero_()
        ffn.w_2.weight[0] = 1.0
        ffn.w_2.bias.zero_()
    assert (ffn.eval()(x)[..., 0] == 20).all()
    counts = ffn.train()(x)[..., 0]
    assert set(counts.flatten().tolist()) <= set(range(0, 41, 2))
    assert len(counts.unique()) > 1


def test_parameters_are_two_matrices_and_their_biases():
    count = sum(parameter.numel() for parameter in FeedForward(12, 20).parameters())
    assert count == 2 * 12 * 20 + 20 + 12


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"one of \['geglu', .*'swiglu'\], got 'swish'"):
        FeedForward(12, 20, activation="swish")
