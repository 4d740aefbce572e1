"""Recorded attention weights are those the model computes with, by the name of their owner."""

from contextlib import nullcontext

import pytest
import torch
from helpers import (
    LAYER,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    small_model,
)

from minitransformer import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    ScaledDotProductAttention,
    Transformer,
    TransformerConfig,
    attention_weights,
    causal_mask,
    padding_mask,
    record_attention,
    trace,
)
from minitransformer.layers.positional_encoding import ALiBi

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


@pytest.mark.parametrize("scheme", ["rotary", "position_bias"])
def test_recorded_weights_know_positions_inside_attention(scheme):
    part = {"rotary": RotaryPositionalEncoding(2), "position_bias": ALiBi(6)}[scheme]
    attention = MultiHeadAttention(12, 6, num_kv_heads=2, scale=1.0, **{scheme: part})
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


# --- trace


SIZES = {"b": 2, "s": 7, "t": 5, "h": 3, "d": 12, "e": 4, "f": 20, "v": 31, "h'e": 4}


def has_named_axes(traced):
    """Each letter stands for its own size, and nothing is unnamed."""
    return all(row.shape == tuple(SIZES[axis] for axis in row.axes.split()) for row in traced)


@each_model
@pytest.mark.parametrize("share", [False, True], ids=["two vocabularies", "one"])
def test_trace_names_every_axis_and_counts_every_parameter(changes, share):
    if share:
        model = Transformer(
            TransformerConfig(
                src_vocab_size=31,
                tgt_vocab_size=31,
                share_embeddings=True,
                max_len=16,
                **(LAYER | changes),
            )
        )
    else:
        model = small_model(**changes)
    traced = trace(model, SRC_IDS, TGT_IDS)
    assert has_named_axes(traced)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(row.parameters for row in traced) == total
    assert f"{total:,}" in repr(traced).splitlines()[-1]


@each_model
def test_trace_of_a_decoder_only_model(changes):
    model = decoder_only_model(**changes)
    traced = trace(model, TGT_IDS)
    assert has_named_axes(traced)
    assert sum(row.parameters for row in traced) == sum(p.numel() for p in model.parameters())


def test_trace_of_parts():
    src, tgt = randn(2, 7, 12), randn(2, 5, 12)
    assert has_named_axes(trace(EncoderLayer(**LAYER), src))
    assert has_named_axes(trace(DecoderLayer(**LAYER), tgt, src))
    axes = [row.axes for row in trace(MultiHeadAttention(12, 3), tgt, src, src)]
    assert axes[:3] == ["b q d", "b k d", "b k d"]
    assert [row.axes for row in trace(torch.nn.Linear(12, 9), tgt)] == ["?"]


def test_trace_lists_what_happened_in_its_order():
    model = small_model()
    names = [row.module for row in trace(model, SRC_IDS, TGT_IDS)]
    order = ["src_embedding", "encoder.layers.1.residual_2", "tgt_embedding", "output_projection"]
    assert sorted(order, key=names.index) == order
    assert names[-1] == "output_projection"
    kinds = [
        row.kind
        for row in trace(model, SRC_IDS, TGT_IDS)
        if row.module == "decoder.layers.0.cross_attention.attention"
    ]
    assert kinds == ["queries", "keys", "values", "weights", "ScaledDotProductAttention"]


@pytest.mark.parametrize("training", [True, False])
def test_trace_leaves_the_model_as_it_was(training):
    model = small_model(dropout=0.5).train(training)
    trace(model, SRC_IDS, TGT_IDS)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        trace(model, SRC_IDS + 2, TGT_IDS)
    assert model.training == training
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("ids", [SRC_IDS, SRC_IDS + 2], ids=["fits", "fails"])
def test_trace_leaves_every_module_in_its_own_mode(ids):
    model = small_model(dropout=0.5).train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    with nullcontext() if ids is SRC_IDS else pytest.raises(ValueError, match="vocabulary"):
        trace(model, ids, TGT_IDS)
    assert [module.training for module in model.modules()] == modes
    assert len(set(modes)) == 2
