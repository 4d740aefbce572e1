"""Decoding around the modules, in reserved memory: the scores of the whole model."""

import pytest
import torch
from helpers import (
    SRC_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    small_model,
)

from minitransformer import pad_rows
from minitransformer.fast import Decoding
from minitransformer.fast.decoding import ReservedCache

PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 19, 12], [4]])


def test_cache_fills_what_it_has_reserved():
    cache, keys, values = ReservedCache(5), randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    for start, end in ((0, 2), (2, 3), (3, 5)):
        all_keys, all_values = cache.extend(keys[:, :, start:end], values[:, :, start:end])
        assert torch.equal(all_keys, keys[:, :, :end])
        assert torch.equal(all_values, values[:, :, :end])
        assert cache.length == end
        assert all_keys.data_ptr() == cache.keys.data_ptr()


def test_full_cache_is_refused():
    x = randn(2, 3, 4, 4)
    cache = ReservedCache(5)
    cache.extend(x, x)
    with pytest.raises(ValueError, match="the cache holds 5 positions, 6 are needed"):
        cache.extend(x[:, :, :2], x[:, :, :2])


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
    assert step.memories[0][0].size(0) == 2  # the source's keys are there once


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
    cache = ReservedCache(5)
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


def test_each_decoder_layer_gets_its_own_projection_of_the_memory():
    model = small_model()
    with torch.no_grad():
        memory, _ = model.encode(SRC_IDS)
        memories = Decoding(model, SRC_IDS, 1, max_new_tokens=5).memories
        assert len(memories) == 3
        for (keys, values), layer in zip(memories, model.decoder.layers, strict=True):
            attention = layer.cross_attention
            assert_same(keys, attention.split_heads(attention.w_k(memory)), 0)
            assert_same(values, attention.split_heads(attention.w_v(memory)), 0)
