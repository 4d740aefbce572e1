"""Tokenizers bring every text back; byte-pair encoding equals its naive definition."""

import json
import time
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer import BPETokenizer, Tokenizer, WordTokenizer, pad_rows
from minitransformer.tokenization import split_pieces

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
GERMAN = [
    "dreihundertzweiundvierzig",
    "zweiundvierzig",
    "einundzwanzig",
    "zwei zwanzig zweiundzwanzig",
    "Fünf, dreißig; 5 + 30 = 35!",
]
TEXTS = {
    "german": GERMAN,
    "one letter": ["aaaa"],
    "overlapping": ["aaaa aaa aa", "aaaaa", "abababa bababab"],
    "ties": ["ab", "cd", "ba", "dc"],
    "ties after merging": ["abc abc", "bca bca", "cab cab"],
    "periodic": ["abaabaaabaaaab" * 3],
    "no pairs": ["a", "b", ""],
    "nothing": [],
    "spaces and marks": ["a  b\t\tc\n\nd ...  !?!?", "__a_b__", "  "],
    "many bytes": ["😀😀😁 ☃☃ שלום שלום", "עולם"],
}
each_text = pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS.keys())
texts_of_any_kind = st.one_of(
    st.text(st.characters()),  # lone surrogates too
    st.text("abcdeinuvwz 0 \n\t\u00a0\u2028_-.ß\u0308\ud83d\ude00\x00\x1c"),
    st.lists(st.sampled_from([*GERMAN, *SPECIAL, "ab", " ", "  ", "שלום", "😀"])).map("".join),
)
thorough = settings(max_examples=300, deadline=None, derandomize=True, database=None)
tokenizer_of_german = BPETokenizer.train(GERMAN, 60)


# --- the definition, written as plainly as possible


def replace(ids, pair, new_id):
    """Occurrences of the pair, from the left, become the new id."""
    if len(ids) < 2:
        return ids
    if tuple(ids[:2]) == pair:
        return [new_id, *replace(ids[2:], pair, new_id)]
    return [ids[0], *replace(ids[1:], pair, new_id)]


def bytes_of_pieces(text):
    """The bytes of each piece as ids; the first four ids are the special tokens."""
    return [[4 + byte for byte in piece.encode()] for piece in split_pieces(text)]


def naive_merges(texts, num_merges):
    """Count every pair anew at every step."""
    words, merges = [word for text in texts for word in bytes_of_pieces(text)], []
    for new_id in range(260, 260 + num_merges):
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        merges.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        words = [replace(word, merges[-1], new_id) for word in words]
    return merges


def naive_encode(text, merges):
    """Apply every merge everywhere, in the order of training."""
    words = bytes_of_pieces(text)
    for new_id, pair in enumerate(merges, 260):
        words = [replace(word, pair, new_id) for word in words]
    return [token for word in words for token in word]


@each_text
@pytest.mark.parametrize("num_merges", [0, 1, 3, 40])
def test_training_equals_counting_anew_at_each_step(texts, num_merges):
    assert BPETokenizer.train(texts, num_merges).merges == naive_merges(texts, num_merges)


@settings(thorough, max_examples=150)
@given(st.lists(st.text("ab ", max_size=20), max_size=4), st.integers(0, 12))
def test_training_equals_counting_anew_on_any_text(texts, num_merges):
    assert BPETokenizer.train(texts, num_merges).merges == naive_merges(texts, num_merges)


@each_text
def test_encoding_replays_the_merges_in_order(texts):
    tokenizer = BPETokenizer.train(texts, 40)
    for text in [*texts, *GERMAN, "aaaaaaa abcabc zweiundzwanzigste"]:
        assert tokenizer.encode(text) == naive_encode(text, tokenizer.merges)


@thorough
@given(st.text("aeinuvwzß dr", max_size=40))
def test_encoding_replays_the_merges_on_any_text(text):
    assert tokenizer_of_german.encode(text) == naive_encode(text, tokenizer_of_german.merges)


def test_merges_of_a_small_text_by_hand():
    tokenizer = BPETokenizer.train(["aaaa"], 5)
    a = 4 + ord("a")
    assert tokenizer.merges == [(a, a), (260, 260)]
    assert tokenizer.tokens[-2:] == (b"aa", b"aaaa")
    assert tokenizer.encode("aaaaaaa") == [261, 260, a]


def test_of_equally_frequent_pairs_the_smaller_is_merged():
    assert BPETokenizer.train(["zy", "ba", "dc"], 1).merges == [(4 + ord("b"), 4 + ord("a"))]


def test_merges_stay_inside_pieces():
    assert split_pieces("zwei_12  !? d'accord\n") == [
        "zwei",
        "_",
        "12",
        " ",
        " !?",
        " d",
        "'",
        "accord",
        "\n",
    ]
    tokenizer = BPETokenizer.train(["ab1ab1ab1"] * 9, 50)
    assert tokenizer.labels(tokenizer.encode("ab1")) == ["ab", "1"]


def test_training_is_deterministic_and_stops_when_no_pair_is_left():
    assert BPETokenizer.train(iter(GERMAN), 60).merges == tokenizer_of_german.merges
    assert BPETokenizer.train(["ab"], 100).merges == [(101, 102)]


# --- round trip


@thorough
@given(texts_of_any_kind)
def test_every_text_comes_back(text):
    ids = tokenizer_of_german.encode(text)
    assert tokenizer_of_german.decode(ids) == text
    assert all(4 <= token < tokenizer_of_german.vocab_size for token in ids)


@thorough
@given(texts_of_any_kind)
def test_pieces_are_the_text(text):
    assert "".join(split_pieces(text)) == text


@pytest.mark.parametrize(
    "text", ["", "\x00", "\ud800", "\udc80\ud83d", "😀", "שלום", "e\u0301", *SPECIAL]
)
def test_odd_text_comes_back(text):
    for tokenizer in (tokenizer_of_german, BPETokenizer([]), BPETokenizer.train([text], 9)):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(range(4))


@pytest.mark.parametrize("line", ["zweiundvierzig ", "zweiundvierzig", "a", " ", "-"])
def test_long_line_is_encoded_in_reasonable_time(line):
    text = line * (1_000_000 // len(line))
    tokenizer = BPETokenizer.train([*GERMAN, "aaaaaaaa -------"], 40)
    started = time.perf_counter()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.perf_counter() - started < 30  # a second or two; with a quadratic loop, hours


def test_encoding_twice_is_the_same():
    ids = tokenizer_of_german.encode("zweiundvierzig")
    ids.append(0)
    assert tokenizer_of_german.encode("zweiundvierzig") == ids[:-1]


@pytest.mark.parametrize("tokenizer", [tokenizer_of_german, WordTokenizer.train(GERMAN)])
def test_json_brings_a_tokenizer_back(tokenizer):
    again = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert type(again) is type(tokenizer)
    assert again.tokens == tokenizer.tokens
    for text in [*GERMAN, "zwanzigste, ein!"]:
        assert again.encode(text) == tokenizer.encode(text)
    assert again.to_dict() == tokenizer.to_dict()


# --- special tokens, words


@pytest.mark.parametrize("tokenizer", [tokenizer_of_german, WordTokenizer(["ein"])])
def test_special_tokens_come_first_and_leave_no_trace(tokenizer):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.tokens[:4] == tuple(name.encode() for name in SPECIAL)
    assert tokenizer.labels(range(4)) == list(SPECIAL)
    ids = tokenizer.encode("ein")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "ein"
    assert tokenizer.decode([0, 1, 2]) == ""
    assert "<unk>" in tokenizer.decode([*ids, 3])


def test_half_a_character_shows_as_a_mark():
    ids = BPETokenizer([]).encode("ß")
    assert BPETokenizer([]).labels(ids) == ["\ufffd", "\ufffd"]
    assert BPETokenizer([]).decode(ids[:1]) == "\ufffd"


def test_vocabulary_has_all_bytes_and_a_token_a_merge():
    assert tokenizer_of_german.vocab_size == 4 + 256 + len(tokenizer_of_german.merges)
    assert tokenizer_of_german.tokens[4:260] == tuple(bytes([byte]) for byte in range(256))


@pytest.mark.parametrize(
    ("text", "normal_form"),
    [
        ("two  hundred\tforty - two\n", "two hundred forty-two"),
        ("forty-two", "forty-two"),
        ("one , two . three", "one, two. three"),
        ("one,two;  three : four !?", "one, two; three: four!?"),
        ("", ""),
    ],
)
def test_words_come_back_in_normal_form(text, normal_form):
    tokenizer = WordTokenizer.train([text])
    assert tokenizer.decode(tokenizer.encode(text)) == normal_form
    assert tokenizer.encode(normal_form) == tokenizer.encode(text)


def test_words_are_ordered_by_frequency_then_alphabet():
    assert WordTokenizer.train(["b c", "c a-a", "c"]).words == ["c", "a", "-", "b"]


def test_word_never_seen_becomes_unknown():
    tokenizer = WordTokenizer.train(["one two"])
    assert tokenizer.encode("two Two three one") == [5, 3, 3, 4]
    assert tokenizer.decode([5, 3]) == "two <unk>"
    for text in SPECIAL:
        assert set(tokenizer.encode(text)) == {3}  # "<", "bos" and ">" are words like others


# --- bad input


@pytest.mark.parametrize("tokenizer", [tokenizer_of_german, WordTokenizer(["ein"])])
@pytest.mark.parametrize("past", [False, True])
def test_id_outside_the_vocabulary_is_refused(tokenizer, past):
    bad = tokenizer.vocab_size if past else -1
    message = f"id {bad} lies outside the vocabulary of {tokenizer.vocab_size} tokens"
    for method in (tokenizer.decode, tokenizer.labels):
        with pytest.raises(ValueError, match=message):
            method([4, bad])


@pytest.mark.parametrize("bad", [(3, 101), (101, 3), (101, 260), (260, 101), (-1, 101)])
def test_merge_of_a_missing_token_is_refused(bad):
    message = rf"merge \({bad[0]}, {bad[1]}\) .* there are ids 4 to 259"
    with pytest.raises(ValueError, match=message):
        BPETokenizer([bad])
    with pytest.raises(ValueError, match=r"merge \(102, 261\) .* there are ids 4 to 260"):
        BPETokenizer([(101, 101), (102, 261)])


def test_negative_number_of_merges_is_refused():
    with pytest.raises(ValueError, match="num_merges must be at least 0, got -1"):
        BPETokenizer.train(GERMAN, -1)


@pytest.mark.parametrize("state", [{"kind": "sentencepiece"}, {}, {"kind": "bpe", "words": []}])
def test_unknown_kind_is_refused(state):
    message = f"kind must be 'word' or 'bpe', got {state.get('kind')!r}"
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_dict(state)


# --- padding


@pytest.mark.parametrize("pad_id", [0, 9])
def test_short_rows_are_filled_on_the_right(pad_id):
    rows = pad_rows([[5, 6, 7], [], [8]], pad_id)
    assert rows.tolist() == [[5, 6, 7], [pad_id] * 3, [8, pad_id, pad_id]]


@pytest.mark.parametrize("rows", [[[5], [6, 7]], [[], []]])
def test_padded_rows_are_integers(rows):
    assert pad_rows(rows).dtype == torch.int64


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="rows must hold at least one row, got 0"):
        pad_rows([])
