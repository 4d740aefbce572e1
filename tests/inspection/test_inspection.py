"""Recorded attention weights and traced shapes are those that the model computes with."""

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
from torch import nn

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
from minitransformer.layers import ALiBi

B, H, Q, K, E = 2, 3, 5, 7, 4
PADDING = padding_mask(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 0, 0, 0]]))


def test_recording_a_model_names_every_attention_and_knows_its_masks():
    model = small_model()
    plain = model(SRC_IDS, TGT_IDS)
    with record_attention(model) as maps:
        model(SRC_IDS[:, :3], TGT_IDS[:, :2])  # the last call's stay
        assert torch.equal(model(SRC_IDS, TGT_IDS), plain)
    encoder = {f"encoder.layers.{i}.self_attention": (2, 3, 7, 7) for i in range(2)}
    decoder = {f"decoder.layers.{i}.self_attention": (2, 3, 5, 5) for i in range(3)}
    crossed = {f"decoder.layers.{i}.cross_attention": (2, 3, 5, 7) for i in range(3)}
    shapes = {name: tuple(weights.shape) for name, weights in maps.items()}
    assert shapes == encoder | decoder | crossed
    for name, weights in maps.items():
        assert not weights.requires_grad
        assert_same(weights.sum(-1), torch.ones(weights.shape[:-1]))
        mask = causal_mask(5) if name in decoder else padding_mask(SRC_IDS)
        assert torch.equal(weights > 0, mask.expand_as(weights))


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3},
        {"num_heads": 6, "num_kv_heads": 2, "scale": 1.0, "rotary": RotaryPositionalEncoding(2)},
        {"num_heads": 6, "num_kv_heads": 2, "scale": 1.0, "position_bias": ALiBi(6)},
    ],
)
def test_recorded_weights_are_those_of_the_output(options):
    attention = MultiHeadAttention(12, **options)
    query, memory = randn(B, Q, 12), randn(B, K, 12, seed=1)
    with record_attention(attention) as maps:
        output = attention(query, memory, memory, PADDING)
    values = attention.split_heads(attention.w_v(memory))
    values = values.repeat_interleave(attention.num_heads // values.size(1), 1)
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


def test_recording_ends_with_its_block_even_where_it_fails():
    model = small_model()
    with pytest.raises(KeyError), record_attention(model) as maps:  # noqa: PT012
        model(SRC_IDS, TGT_IDS)
        raise KeyError
    assert len(maps) == 8
    maps.clear()
    model(SRC_IDS, TGT_IDS)
    assert maps == {}


# --- trace


SIZES = {"b": 2, "s": 7, "t": 5, "h": 3, "d": 12, "e": 4, "f": 20, "v": 31, "h'e": 4}


def assert_complete(traced, model):
    """Each letter stands for its own size, nothing is unnamed, and every parameter is counted."""
    assert all(row.shape == tuple(SIZES[axis] for axis in row.axes.split()) for row in traced)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(row.parameters for row in traced) == total
    assert f"{total:,}" in repr(traced).splitlines()[-1]


@each_model
def test_trace_names_every_axis_and_counts_every_parameter(changes):
    sizes = {"src_vocab_size": 31, "tgt_vocab_size": 31, "max_len": 16}
    shared = TransformerConfig(**sizes, share_embeddings=True, **(LAYER | changes))
    for model in (small_model(**changes), Transformer(shared)):
        assert_complete(trace(model, SRC_IDS, TGT_IDS), model)
    model = decoder_only_model(**changes)
    assert_complete(trace(model, TGT_IDS), model)


def test_trace_of_parts():
    src, tgt = randn(2, 7, 12), randn(2, 5, 12)
    for layer, inputs in ((EncoderLayer(**LAYER), [src]), (DecoderLayer(**LAYER), [tgt, src])):
        assert_complete(trace(layer, *inputs), layer)
    axes = [row.axes for row in trace(MultiHeadAttention(12, 3), tgt, src, src)]
    assert axes[:3] == ["b q d", "b k d", "b k d"]
    assert [row.axes for row in trace(nn.Linear(12, 9), tgt)] == ["?"]


def test_trace_lists_what_happened_in_its_order():
    traced = trace(small_model(), SRC_IDS, TGT_IDS)
    names = [row.module for row in traced]
    order = ["src_embedding", "encoder.layers.1.residual_2", "tgt_embedding", "output_projection"]
    assert sorted(order, key=names.index) == order
    assert names[-1] == "output_projection"
    kinds = [r.kind for r in traced if r.module == "decoder.layers.0.cross_attention.attention"]
    assert kinds == ["queries", "keys", "values", "weights", "ScaledDotProductAttention"]


def test_trace_leaves_every_module_as_it_was():
    model = small_model(dropout=0.5).train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    trace(model, SRC_IDS, TGT_IDS)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        trace(model, SRC_IDS + 2, TGT_IDS)
    assert [module.training for module in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
