"""Byte-pair encoding equals its naive definition and the library `tokenizers`; all texts return."""

import json
import random
import string
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
from helpers import real_texts, refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from minitransformer import BPETokenizer, Tokenizer
from minitransformer.tokenization.byte_pair_encoding import (
    BYTE_TOKENS,
    GPT2_PATTERN,
    merge_pairs,
    spell,
)

SPECIAL = Tokenizer.special_tokens
BYTES_ONLY = 5 + 256
GPT4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"gpt2": GPT2_PATTERN, "gpt4": GPT4_PATTERN, "letters": r"\p{L}{1,4}"}
each_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
GERMAN = [
    "dreihundertzweiundvierzig",
    "zweiundvierzig",
    "einundzwanzig",
    "zwei zwanzig zweiundzwanzig",
    "Fünf, dreißig; 5 + 30 = 35!",
]
TEXTS = {
    "german": GERMAN,
    "overlapping": ["aaaa aaa aa", "aaaaa", "abababa bababab"],
    "ties": ["ab", "cd", "ba", "dc", "abc abc", "bca bca", "cab cab"],
    "runs": ["a" * n for n in (1, 2, 3, 5, 9, 9, 17, 31)],
    "no pairs": ["a", "b", ""],
    "spaces and marks": ["a  b\t\tc\n\nd ...  !?!?", "__a_b__", "  ", "   \n   x"],
    "many bytes": ["😀😀😁 ☃☃ שלום שלום", "עולם", "x² ½½ ⅧⅧ"],
}
each_text = pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS.keys())
ODD = ["ab", " ", "  ", "שלום", "مرحبا", "😀", "👩‍👩‍👧‍👦", "e\u0301", "\u202e", "\n", "'r", "e"]
texts_of_any_kind = st.one_of(
    st.text(st.characters()),  # lone surrogates too
    st.text("abcdeinuvwz 0 \n\t\u00a0\u2028_-.'ß\u0308\ud83d\ude00\x00\x1c²½"),
    st.lists(st.sampled_from([*GERMAN, *SPECIAL, *ODD])).map("".join),
)
thorough = settings(max_examples=200, deadline=None, derandomize=True, database=None)
tokenizer_of_german = BPETokenizer.train(GERMAN, 320)
bytes_only = BPETokenizer.train([], BYTES_ONLY)


def hugging_face_bpe(texts, vocab_size, pattern=GPT2_PATTERN):
    """What the library `tokenizers` learns with the settings of our BPETokenizer."""
    tokenizer = HuggingFaceTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern != GPT2_PATTERN:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


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
    return [list(spell(piece)) for piece in bytes_only.split(text)]


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
def test_training_and_encoding_equal_the_definition(texts):
    for num_merges in (0, 1, 3, 40):
        tokenizer = BPETokenizer.train(reversed(texts), BYTES_ONLY + num_merges)
        assert tokenizer.merges == naive_merges(texts, num_merges)
        merged = (a + b for a, b in tokenizer.merges)
        assert tokenizer.tokens == (*SPECIAL, *BYTE_TOKENS, *merged)
        for text in [*texts, *GERMAN, "aaaaaaa abcabc zweiundzwanzigste"]:
            assert tokenizer.encode(text) == naive_encode(text, tokenizer)


def test_merges_by_hand():
    # " z" occurs 4 times. Then "ig" leads with 3; "ag" and " zag" tie, and "a" is the smaller id.
    tokenizer = BPETokenizer.train(["zig zig zig zag zag"], BYTES_ONLY + 4)
    assert tokenizer.merges == [("Ġ", "z"), ("i", "g"), ("a", "g"), ("Ġz", "ig")]
    # ids follow the spelling, in which the space, Ġ, comes after all letters
    assert BPETokenizer.train([" a", "zz"], 262).merges == [("z", "z")]
    for vocab_size in (400, None):  # no pair is left
        tokenizer = BPETokenizer.train(["aaaa"], vocab_size)
        assert tokenizer.merges == [("a", "a"), ("aa", "aa")]
        assert tokenizer.labels(tokenizer.encode("aaaaaaa")) == ["aaaa", "aa", "a"]


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


@each_pattern
@each_text
def test_tokenizers_learns_the_same(texts, pattern):
    for vocab_size in (261, 262, 270, 320):
        ours = BPETokenizer.train(texts, vocab_size, pattern=pattern)
        theirs = hugging_face_bpe(texts, vocab_size, pattern)
        assert ours.to_dict() == json.loads(theirs.to_str())


@pytest.mark.parametrize("letters", ["ACGT", "a", string.ascii_letters + string.digits])
def test_a_long_run_without_spaces_takes_no_square_of_its_length(letters):
    """DNA, or base64: one piece of 100,000 letters, which would take minutes."""
    text = "".join(random.Random(0).choices(letters, k=100_000))
    ours = BPETokenizer.train([text], 300)
    ids = ours.encode(text)
    assert ids == HuggingFaceTokenizer.from_str(json.dumps(ours.to_dict())).encode(text).ids
    assert ours.decode(ids) == text


@pytest.mark.slow
def test_tokenizers_learns_and_encodes_the_same_on_real_texts(tmp_path):
    texts = real_texts(1_000_000)
    ours, theirs = BPETokenizer.train(texts, 4096), hugging_face_bpe(texts, 4096)
    assert len(ours.merges) == 4096 - 261
    assert ours.to_dict() == json.loads(theirs.to_str())
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


@pytest.mark.parametrize("context", ["a{}b", "1{}2", "  {}x", "'{}{}s!"])
def test_tokenizers_cuts_the_same_pieces(context):
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for character in [*map(chr, range(0x3100)), *map(chr, range(0xFE00, 0x10000))]:
        if is_settled(character):
            text = context.replace("{}", character)
            theirs = [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
            assert list(map(spell, bytes_only.split(text))) == theirs, (text, hex(ord(character)))


def is_settled(character):
    """Whether the character has been in Unicode for so long that both sides know it."""
    old = unicodedata.ucd_3_2_0.category(character)
    return old == unicodedata.category(character) and old not in ("Cn", "Cs", "Co")


# --- round trip


@thorough
@given(texts_of_any_kind)
def test_every_text_comes_back(text):
    ids = tokenizer_of_german.encode(text)
    assert tokenizer_of_german.decode(ids) == text
    assert all(5 <= token < tokenizer_of_german.vocab_size for token in ids)
    assert "".join(tokenizer_of_german.split(text)) == text


def test_what_a_pattern_leaves_out_is_a_piece_and_half_a_character_a_mark():
    tokenizer = BPETokenizer.train([], 261, pattern=r"\d|[a-c]+")
    assert tokenizer.split("ab12 xyz\nc") == ["ab", "1", "2", " xyz\n", "c"]
    ids = bytes_only.encode("ß")
    assert bytes_only.labels(ids) == ["\ufffd", "\ufffd"]
    assert bytes_only.decode(ids[:1]) == "\ufffd"
    assert bytes_only.decode_after(ids[:1], ids[1:]) == bytes_only.decode(ids) == "ß"


test_what_makes_no_tokenizer_is_refused = refuses(
    (r"merge 'a' [+] '☃': '☃' is no token", lambda: BPETokenizer(BYTE_TOKENS, [("a", "☃")])),
    ("merge 'xy' [+] 'a': 'xy' is no token", lambda: BPETokenizer(BYTE_TOKENS, [("xy", "a")])),
    ("merge 'a' [+] 'b': 'ab' is no token", lambda: BPETokenizer(BYTE_TOKENS, [("a", "b")])),
    (
        "all 256 bytes must be tokens, 1 are missing: 10$",
        lambda: BPETokenizer([token for token in BYTE_TOKENS if token != spell("\n")]),
    ),
    ("must be tokens, 254 are missing: 0 to 255", lambda: BPETokenizer(["a", "b"], [])),
    ("pattern must", lambda: BPETokenizer.train(["a"], 300, pattern="(a)|b")),
    ("pattern must", lambda: BPETokenizer.train(["a"], 300, pattern=None), TypeError),
)


# --- what GPT-2 publishes


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The two files of a GPT-2: bytes first, merges, its only special token last."""
    folder, texts = tmp_path_factory.mktemp("gpt2"), real_texts(100_000)
    theirs = HuggingFaceTokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 1000, "initial_alphabet": alphabet, "show_progress": False}
    theirs.train_from_iterator(texts, trainers.BpeTrainer(**options))
    theirs.model.save(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    text = json.dumps(vocab | {"<|endoftext|>": len(vocab)})
    (folder / "vocab.json").write_text(text, encoding="utf-8")
    return folder


def test_published_files_give_their_ids(published, tmp_path):
    ours = BPETokenizer.from_files(published / "vocab.json", published / "merges.txt")
    theirs = HuggingFaceTokenizer(
        models.BPE.from_file(str(published / "vocab.json"), str(published / "merges.txt"))
    )
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens(["<|endoftext|>"])
    assert ours.ids == theirs.get_vocab()
    assert (ours.vocab_size, ours.eos_id, ours.bos_id, ours.pad_id) == (1001, 1000, 1000, None)
    for text in [*real_texts(200_000), "a<|endoftext|>b", "½ ☃\x00\n"]:
        ids = ours.encode(text, parse_special=True)
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    ours.save(tmp_path / "tokenizer.json")
    again = HuggingFaceTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert again.encode("a <|endoftext|> b").ids == theirs.encode("a <|endoftext|> b").ids
    assert Tokenizer.load(tmp_path / "tokenizer.json").to_dict() == ours.to_dict()
    files, names = (
        (published / "vocab.json", published / "merges.txt"),
        ["<|endoftext|>", "<|user|>"],
    )
    added = BPETokenizer.from_files(*files, special_tokens=names)
    assert added.encode("<|user|><|endoftext|>", parse_special=True) == [1001, 1000]


def test_damaged_published_files_are_refused(published, tmp_path):
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    with pytest.raises(FileNotFoundError, match=r"there is no file .*vocab.json"):
        BPETokenizer.from_files(vocab, merges)
    vocab.write_text('{"a": 0, "b": 2}')
    with pytest.raises(ValueError, match=r"vocab.json must give each of its n tokens one of"):
        BPETokenizer.from_files(vocab, merges)
    vocab.write_bytes((published / "vocab.json").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"there are no merges at .*merges.txt"):
        BPETokenizer.from_files(vocab, merges)
    merges.write_text("#version: 0.2\na b c\n")
    with pytest.raises(ValueError, match=r"must have two tokens in each line, got \['a', 'b', 'c'"):
        BPETokenizer.from_files(vocab, merges)


@each_pattern
@thorough
@given(st.lists(texts_of_any_kind | st.sampled_from(ODD), max_size=8), st.booleans())
def test_a_text_in_parts_has_the_ids_of_the_whole(pattern, parts, parse):
    names = ["<eos>", "<eos><eos>", "<pad>"]
    tokenizer = BPETokenizer(BYTE_TOKENS, special_tokens=names, pattern=pattern)
    for cut in (parts, "".join(parts)):
        ids = list(tokenizer.encode_iterable(iter(list(cut)), parse_special=parse))
        assert ids == tokenizer.encode("".join(parts), parse_special=parse)


def test_a_long_text_in_parts_takes_constant_memory():
    def lines():
        for number in range(20_000):
            yield f"line {number} of a text\n"
            alive.append(number)

    alive = []
    ids = bytes_only.encode_iterable(lines())
    first = [next(ids) for _ in range(100)]
    assert len(alive) < 10
    assert bytes_only.decode([*first, *ids]) == "".join(lines())
