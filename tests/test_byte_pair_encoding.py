"""Byte-pair encoding equals its naive definition and the library `tokenizers`; all texts return."""

import json
import random
import string
import time
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
from helpers import hugging_face_bpe, real_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import pre_tokenizers

from minitransformer import BPETokenizer, Tokenizer
from minitransformer.byte_pair_encoding import BYTE_TOKENS, SPELLED, rare_numerals, split_pieces
from minitransformer.merging import learn_merges, merge_pairs

SPECIAL = Tokenizer.special_tokens
BYTES_ONLY = 5 + 256
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
    "runs": ["a" * n for n in (1, 2, 3, 5, 9, 9, 17, 31)],
    "no pairs": ["a", "b", ""],
    "nothing": [],
    "spaces and marks": ["a  b\t\tc\n\nd ...  !?!?", "__a_b__", "  ", "   \n   x"],
    "many bytes": ["😀😀😁 ☃☃ שלום שלום", "עולם", "x² ½½ ⅧⅧ"],
    "special": ["<eos><eos> <pad>", "<mask>"],
}
each_text = pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS.keys())
texts_of_any_kind = st.one_of(
    st.text(st.characters()),  # lone surrogates too
    st.text("abcdeinuvwz 0 \n\t\u00a0\u2028_-.'ß\u0308\ud83d\ude00\x00\x1c²½"),
    st.lists(
        st.sampled_from(
            [
                *GERMAN,
                *SPECIAL,
                "ab",
                " ",
                "  ",
                "שלום",
                "مرحبا",
                "😀",
                "👩‍👩‍👧‍👦",
                "e\u0301",
                "\u202e",
            ]
        )
    ).map("".join),
)
thorough = settings(max_examples=300, deadline=None, derandomize=True, database=None)
tokenizer_of_german = BPETokenizer.train(GERMAN, 320)
bytes_only = BPETokenizer.train([], BYTES_ONLY)


def as_json(tokenizer):
    """The content of the file, as it comes out of it."""
    return json.loads(json.dumps(tokenizer.to_dict()))


# --- the definition, written as plainly as possible


def replace(parts, pair):
    """Occurrences of the pair, from the left, become one part."""
    if len(parts) < 2:
        return parts
    if tuple(parts[:2]) == pair:
        return [pair[0] + pair[1], *replace(parts[2:], pair)]
    return [parts[0], *replace(parts[1:], pair)]


def spelled_pieces(text):
    """The bytes of each piece as the characters that spell them."""
    return [[SPELLED[byte] for byte in piece.encode()] for piece in split_pieces(text)]


def naive_merges(texts, num_merges):
    """Count every pair anew at every step."""
    words = [word for text in texts for word in spelled_pieces(text)]
    tokens, merges = [*SPECIAL, *BYTE_TOKENS], []
    while len(merges) < num_merges:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break

        def order(pair, counts=counts):
            return -counts[pair], tokens.index(pair[0]), tokens.index(pair[1])

        merges.append(min(counts, key=order))
        tokens.append("".join(merges[-1]))
        words = [replace(word, merges[-1]) for word in words]
    return merges


def naive_encode(text, tokenizer):
    """Apply every merge everywhere, in the order of training."""
    words = spelled_pieces(text)
    for pair in tokenizer.merges:
        words = [replace(word, pair) for word in words]
    return [tokenizer.ids[token] for word in words for token in word]


@each_text
@pytest.mark.parametrize("num_merges", [0, 1, 3, 40])
def test_training_equals_counting_anew_at_each_step(texts, num_merges):
    tokenizer = BPETokenizer.train(texts, BYTES_ONLY + num_merges)
    assert tokenizer.merges == naive_merges(texts, num_merges)
    assert tokenizer.tokens == (*SPECIAL, *BYTE_TOKENS, *(a + b for a, b in tokenizer.merges))


@settings(thorough, max_examples=150)
@given(st.lists(st.text("ab ", max_size=20), max_size=4), st.integers(0, 12))
def test_training_equals_counting_anew_on_any_text(texts, num_merges):
    merges = BPETokenizer.train(texts, BYTES_ONLY + num_merges).merges
    assert merges == naive_merges(texts, num_merges)


@each_text
def test_encoding_replays_the_merges_in_order(texts):
    tokenizer = BPETokenizer.train(texts, 300)
    for text in [*texts, *GERMAN, "aaaaaaa abcabc zweiundzwanzigste"]:
        assert tokenizer.encode(text) == naive_encode(text, tokenizer)


@thorough
@given(st.text("aeinuvwzß dr", max_size=40))
def test_encoding_replays_the_merges_on_any_text(text):
    assert tokenizer_of_german.encode(text) == naive_encode(text, tokenizer_of_german)


def test_merges_of_five_words_by_hand():
    # " z" occurs 4 times. Then "ig" leads with 3; "ag" and " zag" tie, and "a" is the smaller id.
    tokenizer = BPETokenizer.train(["zig zig zig zag zag"], BYTES_ONLY + 4)
    assert tokenizer.merges == [("Ġ", "z"), ("i", "g"), ("a", "g"), ("Ġz", "ig")]


def test_merges_of_a_small_text_by_hand():
    tokenizer = BPETokenizer.train(["aaaa"], 400)
    assert tokenizer.merges == [("a", "a"), ("aa", "aa")]
    assert tokenizer.labels(tokenizer.encode("aaaaaaa")) == ["aaaa", "aa", "a"]


def test_of_equally_frequent_pairs_the_smaller_is_merged():
    assert BPETokenizer.train(["zy", "ba", "dc"], 262).merges == [("b", "a")]
    # ids follow the spelling, in which the space, Ġ, comes after all letters
    assert BPETokenizer.train([" a", "zz"], 262).merges == [("z", "z")]


def test_order_of_texts_does_not_matter():
    again = BPETokenizer.train(reversed(GERMAN), 320)
    assert again.tokens == tokenizer_of_german.tokens
    assert again.merges == tokenizer_of_german.merges
    assert BPETokenizer.train(iter(GERMAN), 320).merges == again.merges


def test_training_stops_when_no_pair_is_left():
    tokenizer = BPETokenizer.train(["ab"], 999)
    assert tokenizer.merges == [("a", "b")]
    assert tokenizer.vocab_size == 262


def test_merges_stay_inside_pieces():
    tokenizer = BPETokenizer.train(["ab1ab1ab1"] * 9, 300)
    assert tokenizer.labels(tokenizer.encode("ab1")) == ["ab", "1"]


# --- the two loops by themselves


def test_prefix_is_lost_where_tokens_are_joined():
    words = {"\x00\x01\x02": 2, "\x01\x02": 1}
    tokens, merges = learn_merges(words, ["a", "##b", "##c"], 5, prefix="##")
    assert tokens == ["a", "##b", "##c", "##bc", "abc"]
    assert merges == [("##b", "##c"), ("a", "##bc")]


def test_more_tokens_than_there_are_characters_in_latin():
    words = {chr(index) + chr(index + 1): index for index in range(0, 400, 2)}
    tokens, _ = learn_merges(words, [f"<{index}>" for index in range(400)], 500)
    assert tokens[400:402] == ["<398><399>", "<396><397>"]


@thorough
@given(st.lists(st.integers(0, 2), max_size=14), st.permutations(range(9)))
def test_pairs_are_merged_one_at_a_time_the_lowest_rank_first(ids, ranks):
    # Here two rules may give the same token, as files from elsewhere can have it.
    pairs = [(a, b) for a in range(3) for b in range(3)]
    rules = {pair: (rank, 3 + rank // 2) for pair, rank in zip(pairs, ranks, strict=True)}
    rules |= {(3, 0): (20, 1), (4, 4): (-1, 5), (5, 1): (5.5, 6)}
    expected = list(ids)
    while found := [
        (rules[pair][0], at) for at, pair in enumerate(pairwise(expected)) if pair in rules
    ]:
        at = min(found)[1]
        expected[at : at + 2] = [rules[expected[at], expected[at + 1]][1]]
    assert merge_pairs(ids, rules) == expected


# --- the library `tokenizers` finds the same


@each_text
def test_tokenizers_learns_the_same(texts):
    for vocab_size in (261, 262, 270, 320):
        ours = BPETokenizer.train(texts, vocab_size)
        theirs = hugging_face_bpe(texts, vocab_size)
        assert as_json(ours) == json.loads(theirs.to_str())


@settings(thorough, max_examples=150)
@given(st.lists(st.text("ab \n", max_size=40), max_size=6), st.integers(261, 300))
def test_tokenizers_learns_the_same_from_any_text(texts, vocab_size):
    theirs = hugging_face_bpe(texts, vocab_size)
    assert as_json(BPETokenizer.train(texts, vocab_size)) == json.loads(theirs.to_str())


@pytest.mark.parametrize("letters", ["ACGT", "a", string.ascii_letters + string.digits])
def test_a_long_run_without_spaces_takes_no_square_of_its_length(letters):
    """DNA, or base64: one piece of 100,000 letters, which would take minutes."""
    text = "".join(random.Random(0).choices(letters, k=100_000))
    short = text[:5000]
    theirs = hugging_face_bpe([short], 300)
    merges = [tuple(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    assert merges == BPETokenizer.train([short], 300).merges
    ours = BPETokenizer.train([text], 400)
    ids = ours.encode(text)
    assert ids == HuggingFaceTokenizer.from_str(json.dumps(ours.to_dict())).encode(text).ids
    assert ours.decode(ids) == text


@pytest.mark.slow
def test_tokenizers_learns_and_encodes_the_same_on_real_texts():
    texts = real_texts(1_500_000)
    ours, theirs = BPETokenizer.train(texts, 4096), hugging_face_bpe(texts, 4096)
    assert len(ours.merges) == 4096 - 261
    assert as_json(ours) == json.loads(theirs.to_str())
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids) == text


@thorough
@given(texts_of_any_kind)
def test_tokenizers_encodes_and_decodes_any_text_the_same(text):
    text = text.encode("utf-8", "ignore").decode()  # it does not take surrogates
    theirs = HuggingFaceTokenizer.from_str(json.dumps(tokenizer_of_german.to_dict()))
    assert tokenizer_of_german.encode(text, parse_special=True) == theirs.encode(text).ids
    theirs.encode_special_tokens = True
    ids = tokenizer_of_german.encode(text)
    assert ids == theirs.encode(text).ids
    assert theirs.decode(ids) == text


def test_bytes_are_spelled_as_in_tokenizers():
    assert sorted(pre_tokenizers.ByteLevel.alphabet()) == list(BYTE_TOKENS)
    spelled = "".join(SPELLED[byte] for byte in "aß ☃\n".encode())
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("aß ☃\n")
    assert spelled == "".join(piece for piece, _ in pieces)


# Categories and not characters: a newer Unicode than Python's may have more of them.
CONTEXTS = ["a{}b", "1{}2", " {} ", "{}{}", "  {}x", "'{}s", "_{}!"]


@pytest.mark.parametrize("context", CONTEXTS)
def test_tokenizers_cuts_the_same_pieces(context):
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    characters = [*map(chr, range(0x3100)), *map(chr, range(0xFE00, 0x10000)), *rare_numerals()]
    for character in characters:
        if not is_settled(character):
            continue
        text = context.replace("{}", character)
        theirs = [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
        ours = ["".join(SPELLED[byte] for byte in p.encode()) for p in split_pieces(text)]
        assert ours == theirs, (text, hex(ord(character)))


def is_settled(character):
    """Whether the character has been in Unicode for so long that both sides know it."""
    old = unicodedata.ucd_3_2_0.category(character)
    return old == unicodedata.category(character) and old not in ("Cn", "Cs", "Co")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("zwei_12  !?", ["zwei", "_", "12", " ", " !?"]),
        (" d'accord, it's\n", [" d", "'", "accord", ",", " it", "'s", "\n"]),
        ("we'll you're I'VE", ["we", "'ll", " you", "'re", " I", "'", "VE"]),
        ("a  b", ["a", " ", " b"]),
        ("a\n\n  b  ", ["a", "\n\n ", " b", "  "]),
        ("x²y 3½ Ⅷ三", ["x", "²", "y", " 3½", " Ⅷ", "三"]),
        ("e\u0301", ["e", "\u0301"]),
        ("a\x1c\x1d b\x85c", ["a", "\x1c\x1d", " b", "\x85", "c"]),
        ("", []),
    ],
)
def test_pieces(text, pieces):
    assert split_pieces(text) == pieces


@thorough
@given(texts_of_any_kind)
def test_pieces_are_the_text(text):
    assert "".join(split_pieces(text)) == text


# --- round trip


@thorough
@given(texts_of_any_kind)
def test_every_text_comes_back(text):
    ids = tokenizer_of_german.encode(text)
    assert tokenizer_of_german.decode(ids) == text
    assert all(5 <= token < tokenizer_of_german.vocab_size for token in ids)


@pytest.mark.parametrize(
    "text", ["", "\x00", "\ud800", "\udc80\ud83d", "😀", "שלום", "e\u0301", *SPECIAL]
)
def test_odd_text_comes_back(text):
    for tokenizer in (tokenizer_of_german, bytes_only, BPETokenizer.train([text] * 9, 300)):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(range(5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "size"), [("a", 10**6), ("zweiundvierzig", 10**5), (" ", 10**5), ("½", 10**5)]
)
def test_long_line_is_encoded_in_reasonable_time(line, size):
    text = line * (size // len(line))
    tokenizer = BPETokenizer.train([*GERMAN, "aaaaaaaa -------"], 300)
    started = time.perf_counter()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.perf_counter() - started < 60  # a few seconds; with a quadratic loop, days


def test_encoding_twice_is_the_same():
    ids = tokenizer_of_german.encode("zweiundvierzig")
    ids.append(0)
    assert tokenizer_of_german.encode("zweiundvierzig") == ids[:-1]


def test_half_a_character_shows_as_a_mark():
    ids = bytes_only.encode("ß")
    assert bytes_only.labels(ids) == ["\ufffd", "\ufffd"]
    assert bytes_only.decode(ids[:1]) == "\ufffd"
    assert "".join(bytes_only.decode([index]) for index in ids) != bytes_only.decode(ids) == "ß"


# --- bad input


def test_vocabulary_too_small_is_refused():
    message = "vocab_size must be at least 261, for 5 special tokens and 256 bytes, got 260"
    with pytest.raises(ValueError, match=message):
        BPETokenizer.train(GERMAN, 260)
    assert BPETokenizer.train(GERMAN, 261).merges == []


@pytest.mark.parametrize(
    ("merge", "missing"), [(("a", "☃"), "☃"), (("xy", "a"), "xy"), (("a", "b"), "ab")]
)
def test_merge_of_or_to_a_missing_token_is_refused(merge, missing):
    message = f"merge {merge[0]!r} [+] {merge[1]!r}: {missing!r} is no token"
    with pytest.raises(ValueError, match=message):
        BPETokenizer(BYTE_TOKENS, [merge])


def test_missing_bytes_are_refused():
    with pytest.raises(ValueError, match=r"all 256 bytes must be tokens, 1 are missing: 10$"):
        BPETokenizer([token for token in BYTE_TOKENS if token != SPELLED[10]], [])
    with pytest.raises(ValueError, match="all 256 bytes must be tokens, 254 are missing: 0 to 255"):
        BPETokenizer(["a", "b"], [])


def test_two_merges_may_give_the_same_token():
    tokens = [*BYTE_TOKENS, "aa", "aaa"]
    tokenizer = BPETokenizer(tokens, [("a", "a"), ("aa", "a"), ("a", "aa")])
    theirs = HuggingFaceTokenizer.from_str(json.dumps(tokenizer.to_dict()))
    for length in range(1, 40):
        assert tokenizer.encode("a" * length) == theirs.encode("a" * length).ids
