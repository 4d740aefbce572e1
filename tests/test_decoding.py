"""Decoding with a cache equals decoding without one, row by row and token by token."""

import pytest
import torch
from helpers import (
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    small_model,
)

from minitransformer import KVCache, pad_rows
from minitransformer.decoding import Decoding, padded_left

PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 19, 12], [4]])


# --- cached = full


@each_model
@pytest.mark.parametrize("first", [1, 3, 5], ids=["one by one", "three first", "all at once"])
@torch.no_grad()
def test_cached_decoding_equals_full_decoding(changes, first):
    model = small_model(**changes)
    memory, mask = model.encode(SRC_IDS)
    full = model.decode(TGT_IDS, memory, mask)
    caches = KVCache.for_decoder(model, memory, 5)
    logits = [model.decode(TGT_IDS[:, :first], memory, mask, caches)]
    for position in range(first, 5):
        token = TGT_IDS[:, position : position + 1]
        logits.append(model.decode(token, memory, mask, caches))
    assert_same(torch.cat(logits, dim=1), full)


@torch.no_grad()
def test_chunk_after_the_first_sees_the_cache_and_itself():
    model = small_model()
    memory, mask = model.encode(SRC_IDS)
    caches = KVCache.for_decoder(model, memory, 9)
    logits = [
        model.decode(TGT_IDS[:, start:end], memory, mask, caches) for start, end in ((0, 2), (2, 5))
    ]
    assert_same(torch.cat(logits, dim=1), model.decode(TGT_IDS, memory, mask))


def test_cache_grows_by_what_it_is_given():
    memory = randn(2, 3, 7, 4), randn(2, 3, 7, 4, seed=1)
    cache = KVCache(5, memory)
    keys, values = randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    for start, end in ((0, 2), (2, 3), (3, 5)):
        all_keys, all_values = cache.extend(keys[:, :, start:end], values[:, :, start:end])
        assert torch.equal(all_keys, keys[:, :, :end])
        assert torch.equal(all_values, values[:, :, :end])
        assert cache.length == end
    assert cache.memory is memory


def test_full_cache_is_refused():
    memory = randn(2, 3, 7, 4)
    cache = KVCache(5, (memory, memory))
    cache.extend(memory[:, :, :4], memory[:, :, :4])
    with pytest.raises(ValueError, match="the cache holds 5 positions, 6 are needed"):
        cache.extend(memory[:, :, :2], memory[:, :, :2])


@each_model
@pytest.mark.parametrize("first", [1, 3, 5], ids=["one by one", "three first", "all at once"])
@torch.no_grad()
def test_cached_decoder_only_equals_full(changes, first):
    model = decoder_only_model(**changes)
    caches = [KVCache(5) for _ in model.decoder.layers]
    logits = [model.decode(TGT_IDS[:, :first], caches)]
    for position in range(first, 5):
        logits.append(model.decode(TGT_IDS[:, position : position + 1], caches))
    assert_same(torch.cat(logits, dim=1), model(TGT_IDS))


@pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "decoder-only"])
@torch.no_grad()
def test_caches_that_do_not_fit_are_refused(has_encoder):
    if has_encoder:
        model = small_model()
        memory = model.encode(SRC_IDS)
        caches = KVCache.for_decoder(model, memory[0], 5)
    else:
        model, memory, caches = decoder_only_model(num_layers=3), (), [KVCache(5) for _ in range(3)]
    for wrong in (caches[:2], [*caches, KVCache(5)]):
        with pytest.raises(ValueError, match=f"one for each of 3 layers, got {len(wrong)}"):
            model.decode(TGT_IDS, *memory, wrong)
    model.decode(TGT_IDS[:, :2], *memory, caches)
    caches[1].length = 1
    with pytest.raises(ValueError, match=r"the same number of positions, got \[2, 1, 2\]"):
        model.decode(TGT_IDS[:, 2:], *memory, caches)


@each_model
@torch.no_grad()
def test_rows_of_unequal_length_decode_as_each_alone(changes):
    model, new = decoder_only_model(**changes), torch.arange(5, 17).view(4, 3)
    step = Decoding(model, PROMPTS, 1, max_new_tokens=4)
    logits = [step(None), *(step(tokens) for tokens in new.T)]
    for row, prompt in enumerate(PROMPTS):
        alone = model(torch.cat([prompt[prompt != 0], new[row]])[None])[0, -4:]
        assert_same(torch.stack([scores[row] for scores in logits]), alone)


@each_model
@torch.no_grad()
def test_rows_can_leave_and_be_taken_twice(changes):
    model = decoder_only_model(**changes)
    step = Decoding(model, PROMPTS, 1, max_new_tokens=5)
    step(None)
    step(torch.tensor([5, 6, 7, 8]))
    rows = [1, 0, 1]
    step.select(torch.tensor(rows))
    scores = step(torch.tensor([10, 11, 12]))
    for scored, row, new in zip(scores, rows, ([6, 10], [5, 11], [6, 12]), strict=True):
        prompt = PROMPTS[row][PROMPTS[row] != 0]
        assert_same(scored, model(torch.cat([prompt, torch.tensor(new)])[None])[0, -1])


@torch.no_grad()
def test_several_rows_of_one_source_decode_as_if_each_had_its_own():
    model = small_model()
    step = Decoding(model, SRC_IDS, 1, max_new_tokens=5)
    step(None)
    step.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    tokens = torch.tensor([5, 6, 7, 8, 9, 10])
    targets = torch.nn.functional.pad(tokens[:, None], (1, 0), value=1)
    assert_same(step(tokens), model(SRC_IDS.repeat_interleave(3, 0), targets)[:, -1])
    assert step.caches[0].memory[0].size(0) == 2  # the source's keys are there once


def test_sources_that_leave_take_their_memory_with_them():
    model = small_model()
    with torch.no_grad():
        step = Decoding(model, SRC_IDS, 1, max_new_tokens=5)
        step(None)
        kept = torch.tensor([1])
        step.select(kept, kept)
        scores = step(torch.tensor([9]))
    assert_same(scores, model(SRC_IDS[1:], torch.tensor([[1, 9]]))[:, -1])


def test_cache_selects_rows_within_the_memory_it_has():
    cache = KVCache(5)
    keys, values = randn(3, 2, 2, 4), randn(3, 2, 2, 4, seed=1)
    cache.extend(keys, values)
    stores = {cache.keys.data_ptr()}
    for rows in ([2, 0, 1], [2, 2, 0], [1, 1], [0]):
        rows = torch.tensor(rows)
        cache.select(rows)
        keys, values = keys[rows], values[rows]
        stores.add(cache.keys.data_ptr())
        assert len(stores) == 2
        assert torch.equal(cache.keys[:, :, :2], keys)
        assert torch.equal(cache.values[:, :, :2], values)
    cache.select(torch.tensor([0, 0, 0]))
    extended, _ = cache.extend(randn(3, 2, 1, 4, seed=2), randn(3, 2, 1, 4, seed=3))
    assert torch.equal(extended[:, :, :2], keys.expand(3, -1, -1, -1))
    assert cache.length == 3


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


def test_each_decoder_layer_gets_its_own_projection_of_the_memory():
    model = small_model()
    with torch.no_grad():
        memory, _ = model.encode(SRC_IDS)
        caches = Decoding(model, SRC_IDS, 1, max_new_tokens=5).caches
        assert len(caches) == 3
        for cache, layer in zip(caches, model.decoder.layers, strict=True):
            keys, values = layer.cross_attention.keys_values(memory, memory)
            assert torch.equal(cache.memory[0], keys)
            assert torch.equal(cache.memory[1], values)
