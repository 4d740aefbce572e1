"""A prepared model scores each next token as the model does, and refuses what it does not know."""

import pytest
import torch
from helpers import SRC_IDS, each_kind, each_model, model_and_ids, small_model
from torch import nn

from minitransformer import RMSNorm, Transformer, fast, generate

VARIANTS = [{"attention_bias": False}, {"tie_output": False}]
VARIANTS += [{"activation": "gelu_tanh"}, {"norm": "rms_norm"}]
LIMITS = {"max_new_tokens": 9, "min_new_tokens": 4, "stop_ids": list(range(2, 9))}


def assert_same_texts(model, ids):
    model = model.double()
    for options in ({}, {"num_beams": 3}, {"temperature": 1.0, "num_samples": 2}):
        ours, expected = (
            generate(m, ids, generator=torch.Generator().manual_seed(1), **LIMITS, **options)
            for m in (fast.prepare(model), model)
        )
        assert torch.equal(ours, expected)


@each_model
@each_kind
def test_texts_are_those_of_the_model(changes, kind):
    model, ids = model_and_ids(kind, **changes)
    assert_same_texts(model, ids)
    assert_same_texts(model, ids[:1])


def test_texts_of_other_models_too():
    for changes in VARIANTS:
        assert_same_texts(small_model(**changes), SRC_IDS)


def test_norms_of_heads_and_windows_are_known():
    model = small_model()
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            attention.norm_q, attention.norm_k = RMSNorm(4), RMSNorm(4)
        layer.self_attention.window = 2
    assert_same_texts(model, SRC_IDS)


def test_the_weights_are_those_of_the_moment():
    model = small_model()
    before, prepared = generate(model, SRC_IDS, **LIMITS), fast.prepare(model)
    with torch.no_grad():
        model.output_projection.weight.copy_(model.output_projection.weight.flip(0))
    assert torch.equal(
        generate(fast.prepare(model), SRC_IDS, **LIMITS), generate(model, SRC_IDS, **LIMITS)
    )
    assert not torch.equal(generate(model, SRC_IDS, **LIMITS), before)
    assert prepared.max_len == model.max_len


def test_what_is_not_known_is_refused():
    hooked, exchanged, own_forward, derived = (small_model() for _ in range(4))
    hooked.decoder.layers[0].register_forward_hook(lambda *_: None)
    exchanged.decoder.layers[0].feed_forward = nn.Sequential(nn.Linear(12, 12))
    own_forward.decoder.layers[0].feed_forward.forward = torch.tanh
    derived.__class__ = type("Mine", (Transformer,), {"decode": lambda self, *args: None})
    for model, message in (
        (hooked, "would not call the hooks, or the own forward, of 'decoder.layers.0'"),
        (exchanged, r"does not know Sequential, which is decoder.layers.0.feed_forward"),
        (own_forward, "or the own forward, of 'decoder.layers.0.feed_forward'"),
        (derived, "no Mine.decode but the package's own"),
    ):
        with pytest.raises(ValueError, match=message):
            fast.prepare(model)
    derived.__class__ = type("Mine", (Transformer,), {})  # which computes nothing else
    assert_same_texts(derived, SRC_IDS)
