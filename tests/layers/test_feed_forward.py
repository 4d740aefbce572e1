"""The feed-forward network is equation 2, at each position alone."""

import math

import pytest
import torch
from helpers import assert_same, randn, shaken

from minitransformer import FeedForward


def relu(x):
    return x.clamp(min=0)


def gelu(x):
    """x times the share of a normal distribution below x."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    """The approximation of Hendrycks & Gimpel, section 2."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x):
    """x σ(x)."""
    return x / (1 + torch.exp(-x))


PLAIN = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
GATES = {"reglu": relu, "geglu": gelu, "geglu_tanh": gelu_tanh, "swiglu": silu}


@pytest.mark.parametrize(("name", "activation"), (PLAIN | GATES).items())
@pytest.mark.parametrize("bias", [None, True, False])
def test_equals_the_formula_at_each_position(name, activation, bias):
    ffn, x = shaken(FeedForward(12, 20, activation=name, bias=bias)), randn(2, 5, 12)
    gated = name in GATES
    layers = [ffn.w_1, ffn.w_2] + ([ffn.w_3] if gated else [])
    has_bias = not gated if bias is None else bias
    assert [layer.bias is not None for layer in layers] == [has_bias] * len(layers)
    b_1, b_2, *b_3 = (layer.bias if has_bias else 0.0 for layer in layers)
    inner = activation(x @ ffn.w_1.weight.T + b_1)
    if gated:
        inner = inner * (x @ ffn.w_3.weight.T + b_3[0])
    assert_same(ffn(x), inner @ ffn.w_2.weight.T + b_2)
    assert_same(ffn(x)[1, 3], ffn(x[1, 3]))


def test_swiglu_with_two_thirds_of_the_width_has_as_many_weights():
    def weights(d_ff, activation):
        ffn = FeedForward(12, d_ff, activation=activation)
        return sum(p.numel() for p in ffn.parameters() if p.dim() == 2)

    assert weights(20, "swiglu") == weights(30, "relu")


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


def test_relu_is_the_default_and_others_are_known_by_name():
    ffn, x = FeedForward(12, 20), randn(5, 12)
    assert_same(ffn(x), ffn.w_2(relu(ffn.w_1(x))))
    with pytest.raises(ValueError, match=r"one of \['geglu', .*'swiglu'\], got 'swish'"):
        FeedForward(12, 20, activation="swish")
