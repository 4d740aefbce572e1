"""Recorded attention weights are those the model computes with, by the name of their owner."""

import pytest
import torch
from helpers import SRC_IDS, TGT_IDS, assert_same, randn, small_model

from minitransformer import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    record_attention,
)

B, H, Q, K, E = 2, 3, 5, 7, 4
PADDING = padding_mask(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]]))


def test_recording_a_model_names_every_attention():
    model = small_model()
    with record_attention(model) as maps:
        model(SRC_IDS, TGT_IDS)
    encoder = {f"encoder.layers.{i}.self_attention": (2, 3, 7, 7) for i in range(2)}
    decoder = {f"decoder.layers.{i}.self_attention": (2, 3, 5, 5) for i in range(3)}
    crossed = {f"decoder.layers.{i}.cross_attention": (2, 3, 5, 7) for i in range(3)}
    shapes = {name: tuple(weights.shape) for name, weights in maps.items()}
    assert shapes == encoder | decoder | crossed
    for weights in maps.values():
        assert_same(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert not weights.requires_grad


def test_recorded_weights_respect_the_masks():
    model = small_model()
    with record_attention(model) as maps:
        model(SRC_IDS, TGT_IDS)
    for name, weights in maps.items():
        if "decoder" in name and "self" in name:
            assert (weights[..., ~causal_mask(5)] == 0).all()
        else:
            assert (weights[1, ..., 4:] == 0).all()
            assert (weights[1, ..., :4] > 0).all()


def test_recorded_weights_are_those_of_the_formula():
    attention = MultiHeadAttention(12, 3)
    query, memory = randn(B, Q, 12), randn(B, K, 12, seed=1)
    with record_attention(attention) as maps:
        output = attention(query, memory, memory, PADDING)
    heads = [
        attention.w_q(query).unflatten(-1, (H, E)).transpose(1, 2),
        attention.w_k(memory).unflatten(-1, (H, E)).transpose(1, 2),
    ]
    assert_same(maps[""], attention_weights(*heads, PADDING))
    values = attention.w_v(memory).unflatten(-1, (H, E)).transpose(1, 2)
    assert_same(output, attention.w_o((maps[""] @ values).transpose(1, 2).flatten(-2)))


@pytest.mark.parametrize("unnamed", range(6))
def test_inputs_given_by_name_are_recorded_too(unnamed):
    names = ("query", "key", "value", "mask", "bias")
    query, key, value = randn(B, H, Q, E), randn(B, H, K, E, seed=1), randn(B, H, K, E, seed=2)
    tensors = [query, key, value, PADDING, randn(H, Q, K, seed=3)]
    named = dict(zip(names[unnamed:], tensors[unnamed:], strict=True))
    with record_attention(attention := ScaledDotProductAttention()) as maps:
        attention(*tensors[:unnamed], **named)
    assert_same(maps[""], attention_weights(query, key, *tensors[3:]))


@pytest.mark.parametrize("scheme", ["rotary", "alibi"])
def test_recorded_weights_know_positions_inside_attention(scheme):
    attention = MultiHeadAttention(12, 6, num_kv_heads=2, positional_encoding=scheme)
    x = randn(B, K, 12)
    with record_attention(attention) as maps:
        output = attention(x, x, x, causal_mask(K))
    values = attention.split_heads(attention.w_v(x)).repeat_interleave(3, 1)
    assert_same(output, attention.w_o((maps[""] @ values).transpose(1, 2).flatten(-2)))


def test_recording_changes_no_output_and_keeps_the_last_call():
    model = small_model()
    plain = model(SRC_IDS, TGT_IDS)
    with record_attention(model) as maps:
        model(SRC_IDS[:, :3], TGT_IDS[:, :2])
        recorded = model(SRC_IDS, TGT_IDS)
    assert torch.equal(recorded, plain)
    assert maps["decoder.layers.0.cross_attention"].shape == (2, 3, 5, 7)


def record_and_fail(model):
    with record_attention(model) as maps:
        model(SRC_IDS, TGT_IDS)
        raise KeyError(maps)


@pytest.mark.parametrize("fails", [False, True])
def test_recording_ends_with_its_block(fails):
    model = small_model()
    if fails:
        with pytest.raises(KeyError) as caught:
            record_and_fail(model)
        maps = caught.value.args[0]
    else:
        with record_attention(model) as maps:
            model(SRC_IDS, TGT_IDS)
    assert len(maps) == 8
    maps.clear()
    model(SRC_IDS, TGT_IDS)
    assert maps == {}
