"""Decoding with a cache equals decoding without one, row by row and token by token."""

import sys

import pytest
import torch
from helpers import (
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    shaken,
    small_model,
)
from torch import nn

from minitransformer import KVCache, MultiHeadAttention, RMSNorm, generate, pad_rows
from minitransformer.inference.decoding import padded_left

PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 19, 12], [4]])


def caches_for(model):
    """An empty cache for each decoder layer."""
    return [KVCache() for _ in model.decoder.layers]


# --- cached = full


@each_model
@pytest.mark.parametrize("first", [1, 3, 5], ids=["one by one", "three first", "all at once"])
@torch.no_grad()
def test_cached_decoding_equals_full_decoding(changes, first):
    model = small_model(**changes)
    memory, mask = model.encode(SRC_IDS)
    full, caches = model.decode(TGT_IDS, memory, mask), caches_for(model)
    logits = [model.decode(TGT_IDS[:, :first], memory, mask, caches)]
    for position in range(first, 5):
        token = TGT_IDS[:, position : position + 1]
        logits.append(model.decode(token, memory, mask, caches))
    assert_same(torch.cat(logits, dim=1), full)


@torch.no_grad()
def test_chunk_after_the_first_sees_the_cache_and_itself():
    model = small_model()
    memory, mask = model.encode(SRC_IDS)
    caches = caches_for(model)
    logits = [
        model.decode(TGT_IDS[:, start:end], memory, mask, caches) for start, end in ((0, 2), (2, 5))
    ]
    assert_same(torch.cat(logits, dim=1), model.decode(TGT_IDS, memory, mask))


@pytest.mark.parametrize("max_len", [None, 5, 9])
def test_cache_grows_by_what_it_is_given(max_len):
    cache, keys, values = KVCache(max_len), randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    for start, end in ((0, 2), (2, 3), (3, 5)):
        all_keys, all_values = cache.extend(keys[:, :, start:end], values[:, :, start:end])
        assert torch.equal(all_keys, keys[:, :, :end])
        assert torch.equal(all_values, values[:, :, :end])
        assert cache.length == end


def test_cached_decoding_passes_gradients_on():
    model, caches = decoder_only_model(), None
    expected = torch.autograd.grad(model(TGT_IDS).square().sum(), list(model.parameters()))
    caches = caches_for(model)
    logits = [model.decode(TGT_IDS[:, n : n + 1], caches) for n in range(5)]
    found = torch.autograd.grad(torch.cat(logits, 1).square().sum(), list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-4)


@each_model
@pytest.mark.parametrize("first", [1, 3, 5], ids=["one by one", "three first", "all at once"])
@torch.no_grad()
def test_cached_decoder_only_equals_full(changes, first):
    model = decoder_only_model(**changes)
    caches = caches_for(model)
    logits = [model.decode(TGT_IDS[:, :first], caches)]
    for position in range(first, 5):
        logits.append(model.decode(TGT_IDS[:, position : position + 1], caches))
    assert_same(torch.cat(logits, dim=1), model(TGT_IDS))


@pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "decoder-only"])
@torch.no_grad()
def test_caches_that_do_not_fit_are_refused(has_encoder):
    model = small_model() if has_encoder else decoder_only_model(num_layers=3)
    memory, caches = model.encode(SRC_IDS) if has_encoder else (), caches_for(model)
    for wrong in (caches[:2], [*caches, KVCache()]):
        with pytest.raises(ValueError, match=f"one for each of 3 layers, got {len(wrong)}"):
            model.decode(TGT_IDS, *memory, wrong)
    model.decode(TGT_IDS[:, :2], *memory, caches)
    caches[1].length = 1
    with pytest.raises(ValueError, match=r"the same number of positions, got \[2, 1, 2\]"):
        model.decode(TGT_IDS[:, 2:], *memory, caches)


# --- rows, positions


each_room = pytest.mark.parametrize("max_len", [None, 5], ids=["grows", "reserved"])


def filled(max_len, length=3):
    """A cache of two rows, and what it holds."""
    cache, keys, values = KVCache(max_len), randn(2, 3, length, 4), randn(2, 3, length, 4, seed=1)
    cache.extend(keys, values)
    return cache, keys, values


@each_room
def test_rows_are_selected_repeated_and_go_on(max_len):
    cache, keys, values = filled(max_len)
    for rows in ([1, 0], [1, 1, 0], [2, 0], [1]):
        cache.select(torch.tensor(rows))
        keys, values = keys[rows], values[rows]
        assert torch.equal(cache.keys, keys)
    cache.repeat(3)
    found = cache.extend(randn(3, 3, 1, 4, seed=2), randn(3, 3, 1, 4, seed=3))
    for whole, kept, seed in zip(found, (keys, values), (2, 3), strict=True):
        assert torch.equal(whole[:, :, :3], kept.repeat_interleave(3, 0))
        assert torch.equal(whole[:, :, 3:], randn(3, 3, 1, 4, seed=seed))
    assert cache.length == 4


@each_room
def test_what_is_cropped_is_forgotten(max_len):
    cache, keys, values = filled(max_len)
    with pytest.raises(ValueError, match="length must lie between 0 and 3, got 4"):
        cache.crop(4)
    cache.crop(2)
    new = randn(2, 3, 1, 4, seed=2)
    found, _ = cache.extend(new, new)
    assert torch.equal(found, torch.cat([keys[:, :, :2], new], dim=2))
    cache.reset()
    assert torch.equal(cache.extend(values[:1, :, :1], keys[:1, :, :1])[0], values[:1, :, :1])


def test_full_cache_is_refused():
    cache, keys, values = filled(5)
    with pytest.raises(ValueError, match="the cache holds 5 positions, 6 are needed"):
        cache.extend(keys, values)
    assert cache.length == 3
    with pytest.raises(ValueError, match="max_len must be at least 1, got 0"):
        KVCache(0)


@torch.no_grad()
def test_text_taken_back_is_decoded_as_if_never_written():
    model, prompt = decoder_only_model(), PROMPTS[:1]
    caches = [KVCache(9) for _ in model.decoder.layers]
    model.decode(torch.cat([prompt, TGT_IDS[:1, :3]], dim=1), caches)
    for cache in caches:
        cache.crop(5)
        cache.repeat(2)
    whole = torch.cat([prompt.expand(2, -1), TGT_IDS[:, 1:4]], dim=1)
    assert_same(model.decode(TGT_IDS[:, 1:4], caches), model(whole)[:, 5:])


# --- any model


class Wide(nn.Module):
    """A network of another kind."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x).tanh() + x


def last_layer(model):
    return model.decoder.layers[-1]


def another_network(model):
    last_layer(model).feed_forward = Wide(last_layer(model).feed_forward)


def another_projection(model):
    attention = getattr(last_layer(model), "cross_attention", last_layer(model).self_attention)
    attention.w_k = nn.Sequential(attention.w_k, nn.Tanh())


def another_output(model):
    model.output_projection = nn.Sequential(model.output_projection, nn.Tanh())


def mixed_norms(model):
    last_layer(model).residual_2.norm_first = not last_layer(model).residual_2.norm_first


def hook_on_layer(model):
    last_layer(model).register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))


def hook_on_part(model):
    last_layer(model).self_attention.w_o.register_forward_hook(lambda _, args, output: -output)


def hook_before_part(model):
    model.output_projection.register_forward_pre_hook(lambda _, args: (args[0].roll(1, -1),))


def function_of_part(model):
    last_layer(model).feed_forward.forward = torch.tanh


def norms_of_heads(model):
    for name in ("self_attention", "cross_attention"):
        if (attention := getattr(last_layer(model), name, None)) is not None:
            attention.norm_q, attention.norm_k = (shaken(RMSNorm(4), n).double() for n in (5, 6))


def window(model):
    last_layer(model).self_attention.window = 2


def derived(model):
    def decode(self, *args, **named):
        return super(type(self), self).decode(*args, **named).roll(1, dims=-1)

    model.__class__ = type("Derived", (type(model),), {"decode": decode})


CHANGES = [another_network, another_projection, another_output, mixed_norms, hook_on_layer]
CHANGES += [hook_on_part, hook_before_part, function_of_part, norms_of_heads, window, derived]
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
each_kind = pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "decoder-only"])
WAYS = ({}, {"num_beams": 2}, {"temperature": 1.5})


class WholeTexts:
    """What `CachedDecoding` does without caches: each row alone, all of it in every step."""

    def __init__(self, model, ids, bos_id, max_new_tokens):
        self.model = model
        self.has_source = model.config.num_encoder_layers > 0
        self.prompts = ids.new_full((len(ids), 1), bos_id) if self.has_source else ids
        self.rows = [(row[row != 0], []) for row in ids]

    def __call__(self, ids):
        if ids is not self.prompts:
            new = ids[:, 0].tolist()
            self.rows = [
                (r, [*text, token]) for (r, text), token in zip(self.rows, new, strict=True)
            ]
        return torch.cat([self.score(row, text)[:, -1].float() for row, text in self.rows])

    def score(self, row, text):
        if self.has_source:
            return self.model.decode(torch.tensor([[1, *text]]), *self.model.encode(row[None]))
        return self.model.decode(torch.tensor([[*row.tolist(), *text]]))

    def select(self, rows, sources=None):
        self.rows = [self.rows[row] for row in rows.tolist()]


def model_and_ids(has_encoder, **changes):
    """Numbers of 64 bits, so that no choice depends on the order of a sum."""
    if has_encoder:
        return small_model(**changes).double().eval(), SRC_IDS
    return decoder_only_model(**changes).double().eval(), PROMPTS


def written(model, ids):
    """Three tokens for each row: greedily, by beam search and at random."""
    limits = {"max_new_tokens": 3, "min_new_tokens": 3}
    return [
        generate(model, ids, generator=torch.Generator().manual_seed(3), **limits, **options)
        for options in WAYS
    ]


def assert_written_as_scored(model, ids, monkeypatch):
    found = written(model, ids)
    monkeypatch.setattr(
        sys.modules["minitransformer.inference.generate"], "CachedDecoding", WholeTexts
    )
    for ours, expected in zip(found, written(model, ids), strict=True):
        assert torch.equal(ours, expected)


@each_model
@each_kind
def test_generation_equals_the_model_on_whole_texts(changes, has_encoder, monkeypatch):
    assert_written_as_scored(*model_and_ids(has_encoder, **changes), monkeypatch)


@each_change
@each_kind
def test_changed_models_decode_what_they_compute(has_encoder, change, monkeypatch):
    model, ids = model_and_ids(has_encoder)
    texts = TGT_IDS[:, :4] if has_encoder else PROMPTS[:, :1].expand(-1, 4)
    read = (ids, texts) if has_encoder else (texts,)
    with torch.no_grad():
        before = model.decode(*(texts, *model.encode(ids)) if has_encoder else read)
        change(model)
        after = model.decode(*(texts, *model.encode(ids)) if has_encoder else read)
    assert (after - before).abs().max() > 1e-3
    assert_written_as_scored(model, ids, monkeypatch)


@each_kind
def test_hooks_hear_the_new_token_alone_and_the_source_once(has_encoder):
    model, ids = model_and_ids(has_encoder)
    layer, sizes, reads = last_layer(model), [], []
    layer.register_forward_hook(lambda _, args, output: sizes.append(output.size(1)))
    generate(model, ids, max_new_tokens=3, min_new_tokens=3)
    assert sizes == [1 if has_encoder else 5, 1, 1]
    if has_encoder:
        layer.cross_attention.w_k.register_forward_hook(lambda _, args, output: reads.append(1))
        generate(model, ids, max_new_tokens=3, min_new_tokens=3, num_beams=2)
        assert reads == [1]


class Uncached(MultiHeadAttention):
    """An attention that forgets to use its cache."""

    def forward(self, query, key, value, mask=None, cache=None):
        return super().forward(query, key, value, mask)


@each_kind
def test_attention_that_keeps_nothing_is_refused(has_encoder):
    model, ids = model_and_ids(has_encoder)
    last_layer(model).self_attention.__class__ = Uncached
    with pytest.raises(ValueError, match="Uncached cannot decode: its forward kept no keys"):
        generate(model, ids, max_new_tokens=3)


@each_kind
def test_forward_changed_alone_is_refused(has_encoder):
    model, ids = model_and_ids(has_encoder)
    kind = type(model)
    model.__class__ = type("Mine", (kind,), {"forward": lambda self, *ids: None})
    with pytest.raises(ValueError, match=rf"Mine.forward is not called .* {kind.__name__}.decode"):
        generate(model, ids, max_new_tokens=3)


# --- padding


def test_padding_moves_to_the_left():
    ids, padding = padded_left(PROMPTS, 0)
    assert ids.tolist() == [
        [8, 3, 28, 5, 11],
        [0, 0, 0, 9, 22],
        [0, 30, 6, 19, 12],
        [0, 0, 0, 0, 4],
    ]
    assert padding.tolist() == [0, 3, 1, 4]
    ids, padding = padded_left(torch.nn.functional.pad(PROMPTS[:1], (0, 2)), 0)
    assert torch.equal(ids, PROMPTS[:1])
    assert padding is None
