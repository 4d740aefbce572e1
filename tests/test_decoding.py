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
from minitransformer.decoding import WholeTexts, padded_left

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


def test_cache_grows_by_what_it_is_given():
    cache, keys, values = KVCache(), randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
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


# --- whole texts


@each_model
@torch.no_grad()
def test_whole_texts_are_scored_as_each_alone(changes):
    model, new = decoder_only_model(**changes), torch.arange(5, 17).view(4, 3)
    step = WholeTexts(model, PROMPTS, 1, max_new_tokens=4)
    logits = [step(None), *(step(tokens) for tokens in new.T)]
    for row, prompt in enumerate(PROMPTS):
        alone = model(torch.cat([prompt[prompt != 0], new[row]])[None])[0, -4:]
        assert_same(torch.stack([scores[row] for scores in logits]), alone)


@torch.no_grad()
def test_rows_and_sources_of_whole_texts_can_leave():
    model = small_model()
    step = WholeTexts(model, SRC_IDS, 1, max_new_tokens=5)
    step(None)
    step.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    tokens = torch.tensor([5, 6, 7, 8, 9, 10])
    targets = torch.nn.functional.pad(tokens[:, None], (1, 0), value=1)
    assert_same(step(tokens), model(SRC_IDS.repeat_interleave(3, 0), targets)[:, -1])
    step.select(torch.tensor([5, 3]), torch.tensor([1]))
    expected = model(SRC_IDS[[1, 1]], torch.tensor([[1, 10, 11], [1, 8, 12]]))
    assert_same(step(torch.tensor([11, 12])), expected[:, -1])


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
