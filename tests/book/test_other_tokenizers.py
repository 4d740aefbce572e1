"""What chapter 1 says of the library `tokenizers`, run with the library itself."""

import json

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import minitransformer as mt

BYTES = {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}


@pytest.fixture(scope="module")
def ours():
    numbers = (mt.number_in_words(number, "de") for number in range(0, 1_000_000, 977))
    return mt.BPETokenizer.train(numbers, 321)


@pytest.fixture
def theirs(ours):
    return Tokenizer.from_str(json.dumps(ours.to_dict()))


def trained(model, text, split=True, **settings):
    """The library's tokenizer with this model, trained on a text."""
    tokenizer = Tokenizer(model)
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(show_progress=False, **settings)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


# --- how many tokens


@pytest.mark.parametrize(("settings", "size"), [({}, 301), ({"limit_alphabet": 50}, 100)])
def test_alphabet_may_exceed_the_size_asked_for(settings, size):
    chinese = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    settings |= {"vocab_size": 100, "special_tokens": ["<unk>"]}
    assert trained(models.BPE(unk_token="<unk>"), chinese, **settings).get_vocab_size() == size


@pytest.mark.parametrize(("least", "learned"), [(2, {"ba", "baba"}), (3, {"ba"})])
def test_min_frequency_counts_pairs_when_they_are_merged(least, learned):
    vocabulary = trained(models.BPE(), "bababa bac", min_frequency=least).get_vocab()
    assert set(vocabulary) == {"a", "b", "c"} | learned


def test_a_token_may_be_made_in_two_ways():
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    assert Tokenizer(models.BPE(vocabulary, merges)).encode("abc").tokens == ["abc"]


def test_added_tokens_count_apart(theirs):
    before = theirs.get_vocab_size()
    theirs.add_tokens(["☃"])
    assert theirs.get_vocab_size(with_added_tokens=False) == before
    assert theirs.get_vocab_size() == before + 1


# --- what is unknown


@pytest.mark.parametrize(("unknown", "tokens"), [(None, ["ug"]), ("[UNK]", ["[UNK]", "ug"])])
def test_unknown_characters_vanish_without_an_unknown_token(unknown, tokens):
    settings = {"vocab_size": 14, "special_tokens": ["[UNK]"]}
    tokenizer = trained(models.BPE(unk_token=unknown), "hug pug pun bun hugs", **settings)
    assert tokenizer.encode("mug").tokens == tokens


def test_wordpiece_looks_up_its_unknown_token_by_name():
    with pytest.raises(Exception, match=r"Missing \[UNK\] token from the vocabulary"):
        Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]")).encode("b")


@pytest.mark.parametrize(
    ("more", "tokens"), [(BYTES, ["a", "<0xC3>", "<0xBC>"]), ({}, ["a", "<unk>"])]
)
def test_byte_fallback_needs_the_byte_tokens(more, tokens):
    vocabulary = {"a": 0, "<unk>": 1, **more}
    model = models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>")
    assert Tokenizer(model).encode("aü").tokens == tokens


def test_ids_without_a_token_decode_to_nothing(ours, theirs):
    assert theirs.decode([99_999]) == ""
    with pytest.raises(ValueError, match="id 99999 lies outside"):
        ours.decode([99_999])


# --- spaces and normal forms


@pytest.mark.parametrize(("prefix", "first"), [(False, "hello"), (True, "Ġhello")])
def test_add_prefix_space(prefix, first):
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=prefix).pre_tokenize_str("hello world")
    assert [piece for piece, _ in pieces] == [first, "Ġworld"]


def test_bars_lose_a_space_in_front():
    tokenizer = Tokenizer(models.WordLevel({"▁": 0, "▁a": 1}, unk_token="▁"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert tokenizer.encode("  a").tokens == ["▁", "▁a"]
    assert tokenizer.decode(tokenizer.encode("  a").ids) == " a"
    assert tokenizer.decode([1]) + tokenizer.decode([1]) == "aa"  # one by one


def test_normal_forms():
    assert normalizers.BertNormalizer(lowercase=True).normalize_str("Café ÜBER") == "cafe uber"
    assert normalizers.NFKC().normalize_str("５² ŉ ︰") == "52 ʼn .."


# --- special and added tokens


def test_templates_add_special_tokens_and_text_may_hold_them(theirs):
    assert theirs.encode("a <eos>", add_special_tokens=False).tokens[-1] == "<eos>"
    assert "<bos>" not in theirs.encode("zwei").tokens
    theirs.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    assert theirs.encode("a").tokens == ["<bos>", "a", "<eos>"]
    assert theirs.encode("a", add_special_tokens=False).tokens == ["a"]


@pytest.mark.parametrize("direction", ["right", "left"])
def test_truncation_drops_one_side(theirs, direction):
    whole = theirs.encode("eins zwei drei vier").tokens
    theirs.enable_truncation(3, direction=direction)
    kept = whole[:3] if direction == "right" else whole[-3:]
    assert len(whole) > 3
    assert theirs.encode("eins zwei drei vier").tokens == kept


@pytest.mark.parametrize("single_word", [False, True])
def test_added_tokens_are_looked_for_first(theirs, single_word):
    before = theirs.encode("hundert").tokens
    theirs.add_tokens([AddedToken("und", single_word=single_word)])
    after = theirs.encode("hundert").tokens
    assert (after == before) == single_word
    assert ("und" in after) != single_word


# --- cuts


def test_unigram_takes_the_most_probable_cut():
    scores = {"<unk>": 0.0, "a": -3.0, "b": -3.0, "c": -3.0, "ab": -4.0, "bc": -1.0}
    assert Tokenizer(models.Unigram(list(scores.items()), 0)).encode("abc").tokens == ["a", "bc"]


def test_dropout_stays_on_and_the_text_returns(ours):
    state = ours.to_dict()
    state["model"]["dropout"] = 0.5
    tokenizer = Tokenizer.from_str(json.dumps(state))
    cuts = {tuple(tokenizer.encode("hundert").ids) for _ in range(50)}
    assert len(cuts) > 1
    assert {tokenizer.decode(list(cut)) for cut in cuts} == {"hundert"}


def test_offsets_and_words(theirs):
    text = "hundert zweihundert"
    encoded = theirs.encode(text)
    covered = "".join(text[start:end] for start, end in encoded.offsets)
    assert covered.replace(" ", "") == text.replace(" ", "")
    assert encoded.word_ids[0] == 0
    assert encoded.word_ids[-1] == 1


# --- words in a list, names, marks, pairs


@pytest.fixture
def cut_finely():
    """WordPiece that knows few words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=30, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["fun games", "fun, played"], trainer)
    return tokenizer


def test_words_in_a_list_are_still_cut(cut_finely):
    as_words = cut_finely.encode(["games,", "fun"], is_pretokenized=True)
    assert len(as_words) > 2
    assert set(as_words.word_ids) == {0, 1}
    assert set(cut_finely.encode("games, fun").word_ids) == {0, 1, 2}  # the comma is a "word"
    again = cut_finely.encode(as_words.tokens, is_pretokenized=True)
    assert again.tokens != as_words.tokens


def test_names_are_looked_up_and_not_cut(theirs, ours):
    assert theirs.token_to_id("fünf") is None
    assert theirs.token_to_id("fÃ¼nf") == theirs.encode("fünf").ids[0] == ours.encode("fünf")[0]


def test_decoding_drops_what_is_marked(cut_finely):
    cut_finely.add_tokens(["plain"])
    cut_finely.add_special_tokens(["marked"])
    ids = [cut_finely.token_to_id(token) for token in ("[UNK]", "plain", "marked")]
    assert cut_finely.decode(ids) == "plain"
    assert cut_finely.decode(ids, skip_special_tokens=False) == "[UNK] plain marked"


@pytest.mark.parametrize(("lengths", "kept"), [((4, 20), [4, 9]), ((20, 4), [9, 4])])
def test_longest_first(cut_finely, lengths, kept):
    cut_finely.post_processor = processors.TemplateProcessing(
        single="$A [SEP]",
        pair="$A [SEP] $B [SEP] [SEP]",
        special_tokens=[("[SEP]", cut_finely.token_to_id("[SEP]"))],
    )
    cut_finely.enable_truncation(16)
    encoded = cut_finely.encode(*(" ".join("," * length) for length in lengths))
    assert len(encoded) == 16
    by_sequence = [encoded.sequence_ids.count(side) for side in (0, 1)]
    assert by_sequence == kept


@pytest.mark.parametrize("no_text", [None, float("nan"), 7, "\ud800"])
def test_what_is_no_text_is_refused(cut_finely, no_text):
    with pytest.raises(TypeError, match="Text"):
        cut_finely.encode_batch([no_text])
