"""Decoding with a cache equals decoding without one, row by row and token by token."""

import sys

import pytest
import torch
from helpers import (
    PROMPTS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_kind,
    each_model,
    model_and_ids,
    randn,
    shaken,
    small_model,
)
from torch import nn

from minitransformer import KVCache, MultiHeadAttention, RMSNorm, generate


def caches_for(model):
    """An empty cache for each decoder layer."""
    return [KVCache() for _ in model.decoder.layers]


def memory_of(model, kind):
    """What `decode` reads besides the targets: the encoder's output and its mask, if it has one."""
    return model.encode(SRC_IDS) if kind == "pairs" else ()


# --- cached = full


@each_model
@each_kind
@torch.no_grad()
def test_cached_decoding_equals_full_decoding(changes, kind):
    model, _ = model_and_ids(kind, **changes)
    memory = memory_of(model, kind)
    full = model.decode(TGT_IDS, *memory)
    for sizes in ([1, 1, 1, 1, 1], [3, 1, 1], [2, 3], [5]):
        caches = caches_for(model)
        parts = TGT_IDS.split(sizes, dim=1)
        logits = [model.decode(part, *memory, caches=caches) for part in parts]
        assert_same(torch.cat(logits, dim=1), full)


def test_cached_decoding_passes_gradients_on():
    model = decoder_only_model()
    caches, parameters = caches_for(model), list(model.parameters())
    expected = torch.autograd.grad(model(TGT_IDS).square().sum(), parameters)
    logits = [model.decode(part, caches) for part in TGT_IDS.split(1, dim=1)]
    found = torch.autograd.grad(torch.cat(logits, 1).square().sum(), parameters)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-4)


@each_kind
@torch.no_grad()
def test_caches_that_do_not_fit_are_refused(kind):
    model = small_model() if kind == "pairs" else decoder_only_model(num_layers=3)
    memory, caches = memory_of(model, kind), caches_for(model)
    for wrong in (caches[:2], [*caches, KVCache()]):
        with pytest.raises(ValueError, match=f"one for each of 3 layers, got {len(wrong)}"):
            model.decode(TGT_IDS, *memory, wrong)
    model.decode(TGT_IDS[:, :2], *memory, caches)
    caches[1].length = 1
    with pytest.raises(ValueError, match=r"the same number of positions, got \[2, 1, 2\]"):
        model.decode(TGT_IDS[:, 2:], *memory, caches)


def test_full_cache_is_refused():
    cache, keys = KVCache(5), randn(2, 3, 3, 4)
    cache.extend(keys, keys)
    with pytest.raises(ValueError, match="the cache holds 5 positions, 6 are needed"):
        cache.extend(keys, keys)
    with pytest.raises(ValueError, match="length must lie between 0 and 3, got 4"):
        cache.crop(4)
    assert cache.length == 3
    with pytest.raises(ValueError, match="max_len must be at least 1, got 0"):
        KVCache(0)


# --- generation = the model on whole texts, whatever the model is made of


class WholeTexts:
    """What `CachedDecoding` does without caches: each row alone, all of it in every step."""

    def __init__(self, model, ids, bos_id, max_new_tokens):
        self.model = model
        self.has_source = model.config.num_encoder_layers > 0
        self.prompts = ids.new_full((len(ids), 1), bos_id) if self.has_source else ids
        self.rows = [(row[row != 0], []) for row in ids]

    def __call__(self, ids):
        if ids is not self.prompts:
            new = zip(self.rows, ids[:, 0].tolist(), strict=True)
            self.rows = [(row, [*text, token]) for (row, text), token in new]
        return torch.cat([self.score(row, text)[:, -1].float() for row, text in self.rows])

    def score(self, row, text):
        if self.has_source:
            return self.model.decode(torch.tensor([[1, *text]]), *self.model.encode(row[None]))
        return self.model.decode(torch.tensor([[*row.tolist(), *text]]))

    def select(self, rows, sources=None):
        self.rows = [self.rows[row] for row in rows.tolist()]


def generated(model, ids):
    """Three tokens for each row: greedily, by beam search and at random."""
    limits = {"max_new_tokens": 3, "min_new_tokens": 3}
    return [
        generate(model, ids, generator=torch.Generator().manual_seed(3), **limits, **options)
        for options in ({}, {"num_beams": 2}, {"temperature": 1.5})
    ]


def assert_generated_as_scored(model, ids, monkeypatch):
    found = generated(model, ids)
    module = sys.modules["minitransformer.inference.generate"]
    monkeypatch.setattr(module, "CachedDecoding", WholeTexts)
    for ours, expected in zip(found, generated(model, ids), strict=True):
        assert torch.equal(ours, expected)


@each_model
@each_kind
def test_generation_equals_the_model_on_whole_texts(changes, kind, monkeypatch):
    model, ids = model_and_ids(kind, **changes)
    # With 64 bits no choice depends on the order of a sum.
    assert_generated_as_scored(model.double(), ids, monkeypatch)


def last_layer(model):
    return model.decoder.layers[-1]


def another_projection(model):
    attention = getattr(last_layer(model), "cross_attention", last_layer(model).self_attention)
    attention.w_k = nn.Sequential(attention.w_k, nn.Tanh())


def hook(model):
    last_layer(model).register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))


def norms_of_heads(model):
    for name in ("self_attention", "cross_attention"):
        if (attention := getattr(last_layer(model), name, None)) is not None:
            attention.norm_q, attention.norm_k = (shaken(RMSNorm(4), n).double() for n in (5, 6))


def window(model):
    last_layer(model).self_attention.window = 2


def subclass(model):
    def decode(self, *args, **named):
        return super(type(self), self).decode(*args, **named).roll(1, dims=-1)

    model.__class__ = type("Derived", (type(model),), {"decode": decode})


@pytest.mark.parametrize("change", [another_projection, hook, norms_of_heads, window, subclass])
@each_kind
def test_changed_models_decode_what_they_compute(kind, change, monkeypatch):
    model, ids = model_and_ids(kind)
    model.double()
    texts = TGT_IDS[:, :4] if kind == "pairs" else PROMPTS[:, :1].expand(-1, 4)
    with torch.no_grad():
        before = model.decode(texts, *memory_of(model, kind))
        change(model)
        after = model.decode(texts, *memory_of(model, kind))
    assert (after - before).abs().max() > 1e-3
    assert_generated_as_scored(model, ids, monkeypatch)


@each_kind
def test_a_step_computes_the_new_token_alone_and_the_source_once(kind):
    model, ids = model_and_ids(kind)
    layer, sizes, reads = last_layer(model), [], []
    layer.register_forward_hook(lambda _, args, output: sizes.append(output.size(1)))
    generate(model, ids, max_new_tokens=3, min_new_tokens=3)
    assert sizes == [1 if kind == "pairs" else 5, 1, 1]
    if kind == "pairs":
        layer.cross_attention.w_k.register_forward_hook(lambda _, args, output: reads.append(1))
        generate(model, ids, max_new_tokens=3, min_new_tokens=3, num_beams=2)
        assert reads == [1]


class Uncached(MultiHeadAttention):
    """An attention that forgets to use its cache."""

    def forward(self, query, key, value, mask=None, cache=None):
        return super().forward(query, key, value, mask)


@each_kind
def test_models_that_cannot_decode_are_refused(kind):
    model, ids = model_and_ids(kind)
    last_layer(model).self_attention.__class__ = Uncached
    with pytest.raises(ValueError, match="Uncached cannot decode: its forward kept no keys"):
        generate(model, ids, max_new_tokens=3)
    model, ids = model_and_ids(kind)
    own = type(model)
    model.__class__ = type("Mine", (own,), {"forward": lambda self, *ids: None})
    with pytest.raises(ValueError, match=rf"Mine.forward is not called .* {own.__name__}.decode"):
        generate(model, ids, max_new_tokens=3)
