"""Multi-head attention equals torch's, and is nothing but heads side by side."""

import pytest
import torch
from helpers import assert_same, randn, shaken, torch_attention

from minitransformer import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

B, Q, K, H, D, E = 2, 5, 7, 3, 12, 4
PADDING = padding_mask(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]]))
CAUSAL = causal_mask(Q, K)
each_backend = pytest.mark.parametrize("backend", ["reference", "sdpa"])


def inputs(grad=False):
    return (
        randn(B, Q, D, seed=1, grad=grad),
        randn(B, K, D, seed=2, grad=grad),
        randn(B, K, D, seed=3, grad=grad),
    )


@each_backend
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
def test_equals_torch_with_gradients(backend, bias, causal, padded):
    ours = shaken(MultiHeadAttention(D, H, bias=bias, backend=backend))
    torchs = torch_attention(ours)
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask = mask & CAUSAL if causal else mask
    mask = mask & PADDING if padded else mask

    x, y = inputs(grad=True), inputs(grad=True)
    output = ours(*x, mask)
    expected, _ = torchs(  # torch's masks say where not to look
        *y,
        attn_mask=~CAUSAL if causal else None,
        key_padding_mask=~PADDING[:, 0, 0] if padded else None,
    )
    assert_same(output, expected)
    weighting = randn(B, Q, D, seed=4)
    (output * weighting).sum().backward()
    (expected * weighting).sum().backward()
    for ours_x, torchs_x in zip(x, y, strict=True):
        assert_same(ours_x.grad, torchs_x.grad)
    assert_same(ours.w_o.weight.grad, torchs.out_proj.weight.grad)
    assert_same(
        torch.cat([ours.w_q.weight.grad, ours.w_k.weight.grad, ours.w_v.weight.grad]),
        torchs.in_proj_weight.grad,
    )


@each_backend
def test_each_head_attends_with_its_own_slice(backend):
    attention = shaken(MultiHeadAttention(D, H, backend=backend))
    query, key, value = inputs()
    heads = []
    for h in range(H):
        rows = slice(h * E, (h + 1) * E)
        projected = [
            x @ linear.weight[rows].T + linear.bias[rows]
            for x, linear in (
                (query, attention.w_q),
                (key, attention.w_k),
                (value, attention.w_v),
            )
        ]
        heads.append(scaled_dot_product_attention(*projected, PADDING[:, 0], backend="reference"))
    expected = torch.cat(heads, dim=-1) @ attention.w_o.weight.T + attention.w_o.bias
    assert_same(attention(query, key, value, PADDING), expected)


def test_order_of_keys_does_not_matter():
    attention = MultiHeadAttention(D, H)
    query, key, value = inputs()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    shuffled = attention(query, key[:, order], value[:, order], PADDING[..., order])
    assert_same(shuffled, attention(query, key, value, PADDING))


def test_projected_once_is_the_same_as_projected_inside():
    attention = shaken(MultiHeadAttention(D, H))
    query, key, value = inputs()
    keys, values = attention.keys_values(key, value)
    assert keys.shape == values.shape == (B, H, K, E)
    assert_same(attention.attend(query, keys, values, PADDING), attention(*inputs(), PADDING))


@each_backend
def test_drops_weights_only_while_training(backend):
    attention = MultiHeadAttention(D, H, dropout=0.5, backend=backend)
    plain = attention.eval()(*inputs())
    assert torch.equal(attention(*inputs()), plain)
    assert not torch.allclose(attention.train()(*inputs()), plain)


@pytest.mark.parametrize(("bias", "count"), [(True, 4 * D * D + 4 * D), (False, 4 * D * D)])
def test_parameters_are_four_projections(bias, count):
    attention = MultiHeadAttention(D, H, bias=bias)
    assert sum(parameter.numel() for parameter in attention.parameters()) == count


@pytest.mark.parametrize(("num_heads", "d_model"), [(5, 12), (0, 12), (24, 12), (-3, 12)])
def test_heads_that_do_not_divide_the_width_are_refused(num_heads, d_model):
    with pytest.raises(ValueError, match=f"got {num_heads} and {d_model}"):
        MultiHeadAttention(d_model, num_heads)


@pytest.mark.parametrize(("index", "name"), [(0, "query"), (1, "key"), (2, "value")])
def test_wrong_width_is_refused_by_name(index, name):
    tensors = list(inputs())
    tensors[index] = tensors[index][..., :10]
    with pytest.raises(ValueError, match=f"{name} must have width d_model=12, got 10"):
        MultiHeadAttention(D, H)(*tensors)


def test_backend_reaches_the_attention():
    attention = MultiHeadAttention(D, H, backend="flash")
    with pytest.raises(ValueError, match="'reference' or 'sdpa', got 'flash'"):
        attention(*inputs())


def test_mask_of_the_other_kind_is_refused():
    additive = torch.zeros(Q, K).masked_fill(~CAUSAL, -torch.inf)
    with pytest.raises(TypeError, match=r"got torch\.float32"):
        MultiHeadAttention(D, H)(*inputs(), additive)
