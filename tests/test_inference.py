"""Decoding with a cache equals decoding without one, row by row and token by token."""

import pytest
import torch
from helpers import SRC_IDS, TGT_IDS, assert_same, each_model, randn, small_model

from minitransformer import KVCache, greedy_decode, pad_rows, translate


@pytest.fixture
def copier(trained):
    """A model that has learned to write letters backwards, its tokenizers, and its sources."""
    src, tgt = trained.tokenizers.values()
    return trained.model, src, tgt, pad_rows([example.src for example in trained.examples])


# --- cached = full


@each_model
@pytest.mark.parametrize("first", [1, 3, 5], ids=["one by one", "three first", "all at once"])
@torch.no_grad()
def test_cached_decoding_equals_full_decoding(changes, first):
    model = small_model(**changes)
    memory, mask = model.encode(SRC_IDS)
    full = model.decode(TGT_IDS, memory, mask)
    caches = KVCache.for_decoder(model, memory, max_len=5)
    logits = [model.decode(TGT_IDS[:, :first], memory, mask, caches, start=0)]
    for position in range(first, 5):
        token = TGT_IDS[:, position : position + 1]
        logits.append(model.decode(token, memory, mask, caches, start=position))
    assert_same(torch.cat(logits, dim=1), full)


@torch.no_grad()
def test_chunk_after_the_first_sees_the_cache_and_itself():
    model = small_model()
    memory, mask = model.encode(SRC_IDS)
    caches = KVCache.for_decoder(model, memory, max_len=9)
    logits = [
        model.decode(TGT_IDS[:, start:end], memory, mask, caches, start=start)
        for start, end in ((0, 2), (2, 5))
    ]
    assert_same(torch.cat(logits, dim=1), model.decode(TGT_IDS, memory, mask))


def test_cache_grows_by_what_it_is_given():
    memory = randn(2, 3, 7, 4), randn(2, 3, 7, 4, seed=1)
    cache = KVCache(memory, max_len=5)
    keys, values = randn(2, 3, 5, 4, seed=2), randn(2, 3, 5, 4, seed=3)
    for start, end in ((0, 2), (2, 3), (3, 5)):
        all_keys, all_values = cache.extend(keys[:, :, start:end], values[:, :, start:end])
        assert torch.equal(all_keys, keys[:, :, :end])
        assert torch.equal(all_values, values[:, :, :end])
        assert cache.length == end
    assert cache.memory is memory


def test_full_cache_is_refused():
    memory = randn(2, 3, 7, 4)
    cache = KVCache((memory, memory), max_len=5)
    cache.extend(memory[:, :, :4], memory[:, :, :4])
    with pytest.raises(ValueError, match="the cache holds 5 positions, 6 are needed"):
        cache.extend(memory[:, :, :2], memory[:, :, :2])


def test_each_decoder_layer_gets_its_own_projection_of_the_memory():
    model, memory = small_model(), randn(2, 7, 12)
    caches = KVCache.for_decoder(model, memory, max_len=5)
    assert len(caches) == 3
    for cache, layer in zip(caches, model.decoder.layers, strict=True):
        keys, values = layer.cross_attention.keys_values(memory, memory)
        assert torch.equal(cache.memory[0], keys)
        assert torch.equal(cache.memory[1], values)


# --- greedy decoding


@torch.no_grad()
def argmax_loop(model, src_ids, max_new_tokens, eos_id=2):
    """Score the whole target anew for every token, one row at a time."""
    rows = []
    for src in src_ids:
        tgt = [1]
        while len(tgt) <= max_new_tokens and (eos_id not in tgt[1:]):
            tgt.append(model(src[None], torch.tensor([tgt]))[0, -1].argmax().item())
        rows.append(tgt[1:])
    return pad_rows(rows)


@each_model
@pytest.mark.parametrize("max_new_tokens", [1, 6, 16])
def test_greedy_decoding_equals_argmax_loop_without_cache(changes, max_new_tokens):
    model = small_model(**changes)
    expected = argmax_loop(model, SRC_IDS, max_new_tokens)
    assert torch.equal(greedy_decode(model, SRC_IDS, max_new_tokens=max_new_tokens), expected)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 9])
def test_greedy_decoding_equals_argmax_loop_when_rows_end_at_different_steps(
    copier, max_new_tokens
):
    model, _, _, src_ids = copier
    expected = argmax_loop(model.eval(), src_ids, max_new_tokens)
    decoded = greedy_decode(model, src_ids, max_new_tokens=max_new_tokens)
    assert torch.equal(decoded, expected)
    lengths = (expected != 0).sum(1).unique().tolist()
    assert lengths == sorted(range(min(2, max_new_tokens), min(5, max_new_tokens) + 1))


def test_row_that_has_ended_is_padded_and_changes_no_other(copier):
    model, _, tgt, src_ids = copier
    together = greedy_decode(model, src_ids, max_new_tokens=9)
    assert together.dtype == torch.int64
    for src, row in zip(src_ids, together.tolist(), strict=True):
        length = row.index(tgt.eos_id) + 1
        assert row[length:] == [tgt.pad_id] * (len(row) - length)
        alone = greedy_decode(model, src[None], max_new_tokens=9)
        assert alone.tolist() == [row[:length]]


@torch.no_grad()
def test_target_begins_as_told():
    model, first_tokens = small_model(), set()
    for bos_id in range(31):
        expected = model(SRC_IDS, torch.full((2, 1), bos_id)).argmax(-1)
        decoded = greedy_decode(model, SRC_IDS, max_new_tokens=1, bos_id=bos_id)
        assert torch.equal(decoded, expected)
        first_tokens.add(tuple(decoded.flatten().tolist()))
    assert len(first_tokens) > 1


def test_target_ends_as_told(copier):
    model, src, tgt, _ = copier
    src_ids = pad_rows([[*src.encode(text), src.eos_id] for text in ("c b a d", "a d")])
    (a,) = tgt.encode("a")
    decoded = greedy_decode(model, src_ids, max_new_tokens=9, eos_id=a)
    assert [tgt.decode(row) for row in decoded.tolist()] == ["d a", "d a"]
    (b,) = tgt.encode("b")
    decoded = greedy_decode(model, src_ids, max_new_tokens=3, eos_id=b)
    assert decoded.tolist()[0] == tgt.encode("d a b")


@pytest.mark.parametrize("training", [True, False])
def test_decoding_has_no_dropout_and_leaves_the_mode_as_it_was(training):
    model = small_model(dropout=0.5).train(training)
    expected = argmax_loop(small_model(), SRC_IDS, 6)
    assert torch.equal(greedy_decode(model, SRC_IDS, max_new_tokens=6), expected)
    assert model.training == training
    with pytest.raises(ValueError, match="outside the vocabulary"):
        greedy_decode(model, SRC_IDS + 2, max_new_tokens=6)
    assert model.training == training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("max_new_tokens", [0, -1, 17])
def test_impossible_lengths_are_refused(max_new_tokens):
    with pytest.raises(ValueError, match=f"between 1 and max_len=16, got {max_new_tokens}"):
        greedy_decode(small_model(), SRC_IDS, max_new_tokens=max_new_tokens)


@pytest.mark.parametrize(
    ("src_ids", "error", "message"),
    [
        (SRC_IDS[:0], ValueError, r"src_ids must have shape \(b, length\).* got \(0, 7\)"),
        (SRC_IDS[0], ValueError, r"src_ids must have shape \(b, length\).* got \(7,\)"),
        (SRC_IDS.repeat(1, 3), ValueError, "21 positions is longer than max_len=16"),
        (SRC_IDS.float(), TypeError, r"int32 or int64, got torch\.float32"),
    ],
)
def test_sources_that_do_not_fit_are_refused(src_ids, error, message):
    with pytest.raises(error, match=message):
        greedy_decode(small_model(), src_ids, max_new_tokens=6)


# --- translate


@pytest.mark.parametrize("batch_size", [1, 2, 3, 256])
def test_translations_keep_the_order_of_the_texts(copier, batch_size):
    model, src, tgt, _ = copier
    texts = ["c b a d", "a", "b c", "d c a", "c", "b a d c", "a"]
    translations = translate(model, texts, src, tgt, max_new_tokens=9, batch_size=batch_size)
    assert translations == [text[::-1] for text in texts]


def test_no_texts_have_no_translations(copier):
    model, src, tgt, _ = copier
    assert translate(model, [], src, tgt) == []


def test_translation_stops_at_the_limit(copier):
    model, src, tgt, _ = copier
    assert translate(model, ["c b a d", "a"], src, tgt, max_new_tokens=2) == ["d a", "a"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_text_without_tokens_is_refused(copier, text):
    model, src, tgt, _ = copier
    with pytest.raises(ValueError, match=rf"at least one token, got {text!r}".replace("\\", r"\\")):
        translate(model, ["a", text], src, tgt)


def test_text_too_long_for_the_model_is_refused(copier):
    model, src, tgt, _ = copier
    with pytest.raises(ValueError, match="65 positions is longer than max_len=64"):
        translate(model, ["a " * 64], src, tgt)


def test_word_never_seen_is_translated_as_unknown(copier):
    model, src, tgt, _ = copier
    assert len(translate(model, ["a zebra"], src, tgt, max_new_tokens=9)) == 1
