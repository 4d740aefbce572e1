"""What all tokenizers share: special tokens, the file, errors; characters and words; padding."""

import copy
import json
import pickle
import random
import unicodedata

import pytest
import torch
from helpers import hugging_face, refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import trainers

from minitransformer import (
    BPETokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    pad_rows,
)

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
TEXTS = [
    "dreihundertzweiundvierzig",
    "zweiundvierzig, ein-und-zwanzig; fünfzig!",
    "two  hundred\tforty-two\n",
    "שלום ☃ 5² naïve_name",
]
TOKENIZERS = {
    "character": CharacterTokenizer.train(TEXTS),
    "word": WordTokenizer.train(TEXTS),
    "wordpiece": WordPieceTokenizer.train(TEXTS, 120),
    "bpe": BPETokenizer.train(TEXTS, 300),
    "bpe of another kind": BPETokenizer.train(
        TEXTS,
        300,
        special_tokens=["<eos>", "<|system|>", "<pad>", "<unk>"],
        pattern=r"\p{L}+|\p{N}| [^\s\p{L}]+",
    ),
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
KINDS = [type(tokenizer) for tokenizer in TOKENIZERS.values()][:4]
usual_tokenizers = pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values()][:4])
parts_of_texts = st.sampled_from([*TEXTS, *SPECIAL, "zig", "##", "-", " ", "\x1c", "\u0308", "½"])
texts_of_any_kind = st.one_of(st.text(), st.lists(parts_of_texts).map("".join))
thorough = settings(max_examples=200, deadline=None, derandomize=True, database=None)


# --- special tokens


@usual_tokenizers
def test_special_tokens_come_first_and_leave_no_trace(tokenizer):
    assert tokenizer.special_tokens == tokenizer.tokens[:5] == SPECIAL
    names = ("pad_id", "bos_id", "eos_id", "unk_id", "mask_id", "cls_id")
    assert [getattr(tokenizer, name) for name in names] == [0, 1, 2, 3, 4, None]
    assert tokenizer.labels(range(5)) == list(SPECIAL)
    ids = tokenizer.encode("zweiundvierzig")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "zweiundvierzig"
    assert tokenizer.decode([0, 1, 2]) == ""
    assert tokenizer.decode([1, *ids, 2], skip_special_tokens=False).endswith("<eos>")
    assert "<unk>" in tokenizer.decode([*ids, 3])
    assert "<mask>" in tokenizer.decode([4, *ids])
    assert tokenizer.begin("zweiundvierzig") == [1, *ids]
    assert tokenizer.stream_ids("zweiundvierzig") == [1, *ids, 2]
    assert tokenizer.sequence_ids("zweiundvierzig") == [*ids, 2]


@each_tokenizer
def test_special_tokens_in_a_text_are_text_unless_asked_for(tokenizer):
    z = tokenizer.encode("zwei")
    for name in tokenizer.special_tokens:
        index, text = tokenizer.ids[name], f"zwei{name}zwei <{name}>"
        usual = {tokenizer.ids[each] for each in tokenizer.special_tokens} - {tokenizer.unk_id}
        assert not usual & set(tokenizer.encode(text))
        parsed = tokenizer.encode(text, parse_special=True)
        assert parsed[: len(z) + 1] == [*z, index]
        assert parsed.count(index) >= 2
        assert tokenizer.encode(name, parse_special=True) == [index]
    assert tokenizer.encode("a", parse_special=True) == tokenizer.encode("a")


def test_special_tokens_in_training_texts_are_borders():
    for kind in KINDS:
        marked = kind.train(["ab<eos>ab <pad><mask>"] * 9, 300)
        assert marked.tokens == kind.train(["ab", "ab "] * 9, 300).tokens


def test_the_longest_special_token_is_found():
    tokenizer = BPETokenizer.train(["a"], 262, special_tokens=["<a>", "<a><a>", "<é☃ Ġ>", "a b"])
    assert tokenizer.encode("<a><a><a>a b", parse_special=True) == [1, 0, 3]
    assert tokenizer.decode([2, 3]) == "".join(tokenizer.labels([2, 3])) == "<é☃ Ġ>a b"


def test_a_tokenizer_may_lack_special_tokens():
    """As GPT-2's: the end of a text also begins the next."""
    tokenizer = BPETokenizer.train(TEXTS, 300, special_tokens=["<|endoftext|>"])
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.eos_id) == (None, None, 0)
    assert tokenizer.begin("") == [0]
    assert tokenizer.begin("a") == tokenizer.encode("a")
    assert tokenizer.stream_ids("a") == [*tokenizer.encode("a"), 0]
    without = BPETokenizer.train(TEXTS, 300, special_tokens=[])
    assert without.encode("<eos>a", parse_special=True) == without.encode("<eos>a")
    with pytest.raises(ValueError, match="no token that begins a text: no bos or cls or eos"):
        without.begin("")
    with pytest.raises(ValueError, match="no token that ends a text: no eos or sep"):
        without.sequence_ids("a")


# --- the library `tokenizers` finds the same


@pytest.mark.slow
@thorough
@given(texts_of_any_kind)
def test_tokenizers_finds_the_same_ids(text):
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))  # unknown here
    for tokenizer in TOKENIZERS.values():
        theirs = hugging_face(tokenizer)
        assert tokenizer.encode(text, parse_special=True) == theirs.encode(text).ids
        theirs.encode_special_tokens = True
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@each_tokenizer
def test_tokenizers_decodes_any_ids_the_same(tokenizer):
    theirs, generator = hugging_face(tokenizer), random.Random(0)
    for length in range(60):
        ids = [generator.randrange(5, tokenizer.vocab_size) for _ in range(length)]
        expected = theirs.decode(ids)
        assert tokenizer.decode(ids) == expected
        assert tokenizer.decode([tokenizer.eos_id, *ids, tokenizer.pad_id]) == expected


@pytest.mark.parametrize("name", ["character", "word"])
def test_tokenizers_trains_the_same_vocabulary(name):
    ours, options = TOKENIZERS[name], {"special_tokens": list(SPECIAL), "show_progress": False}
    theirs = hugging_face(ours)
    theirs.train_from_iterator(TEXTS, trainers.WordLevelTrainer(vocab_size=23, **options))
    assert type(ours).train(TEXTS, 23).to_dict() == json.loads(theirs.to_str())


@each_tokenizer
def test_file_brings_a_tokenizer_back(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    HuggingFaceTokenizer.from_file(str(path)).save(str(tmp_path / "theirs.json"))
    for again in (
        Tokenizer.load(path),
        type(tokenizer).load(str(path)),
        Tokenizer.load(tmp_path / "theirs.json"),
        copy.deepcopy(tokenizer),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert type(again) is type(tokenizer)
        assert again.tokens == tokenizer.tokens
        assert json.dumps(again.to_dict()) == json.dumps(tokenizer.to_dict())
        for text in [*TEXTS, "zwanzigste, ein!<eos>"]:
            for parse in (False, True):
                ids = tokenizer.encode(text, parse_special=parse)
                assert again.encode(text, parse_special=parse) == ids


# --- bad input


@each_tokenizer
def test_what_are_no_ids_of_the_vocabulary_and_what_is_no_text_is_refused(tokenizer):
    for bad in (tokenizer.vocab_size, -1):
        message = f"id {bad} lies outside the vocabulary of {tokenizer.vocab_size} tokens"
        for method in (tokenizer.decode, tokenizer.labels):
            with pytest.raises(ValueError, match=message):
                method([5, bad])
    with pytest.raises(TypeError, match="ids must be of type Iterable, got int"):
        tokenizer.decode(5)
    for text in (None, 5, ["a", "b"], b"a"):
        with pytest.raises(TypeError, match=f"text must be of type str, got {type(text).__name__}"):
            tokenizer.encode(text)


def test_what_makes_no_tokenizer_is_refused():
    for kind in KINDS:
        for argument, call in (
            ("texts", lambda kind: kind.train("a text", 300)),
            ("tokens", lambda kind: kind("abc")),
            ("special_tokens", lambda kind: kind(["a"], special_tokens="<eos>")),
        ):
            with pytest.raises(TypeError, match=rf"{argument} must .* got a single str"):
                call(kind)
        least = {"BPETokenizer": 261, "WordPieceTokenizer": 9}.get(kind.__name__, 5)
        message = rf"vocab_size must be at least {least}, .*, got {least - 1}"
        with pytest.raises(ValueError, match=message):
            kind.train(["aba"], least - 1)
        assert kind.train(["aba"], least).vocab_size == least
        if kind is not BPETokenizer:
            tokenizer = kind(["a"], special_tokens=[])
            assert tokenizer.encode("a") == [0]
            with pytest.raises(ValueError, match="has no token for the unknown 'b': no unk"):
                tokenizer.encode("b")


test_tokens_that_no_vocabulary_can_have_are_refused = refuses(
    ("token 'a' occurs twice: 5 and 7", lambda: WordTokenizer(["a", "b", "a"])),
    ("token 5 is empty", lambda: WordTokenizer([""])),
    (r"lone surrogate '\\ud800', which is no", lambda: CharacterTokenizer.train(["a \ud800"])),
    ("rows must hold at least one row, got 0", lambda: pad_rows([])),
)


# --- characters and words


def test_characters_come_back_and_the_most_frequent_come_first():
    tokenizer = CharacterTokenizer.train(["b a\na", "c"])
    assert tokenizer.tokens[5:] == ("a", "\n", " ", "b", "c")
    assert tokenizer.encode("ab\nd") == [5, 8, 6, 3]
    assert tokenizer.decode([5, 8, 6, 3]) == "ab\n<unk>"
    assert CharacterTokenizer.train(["b a\na", "c"], 7).tokens[5:] == ("a", "\n")
    ordered = WordTokenizer.train(["b c", "c a-a", "c"]).tokens[5:]
    assert ordered == ("c", "a", "-", "b")  # by frequency, then by alphabet


def test_words_come_back_in_normal_form_and_new_ones_are_unknown():
    for text, normal_form in [
        ("two  hundred\tforty - two\n", "two hundred forty-two"),
        ("one,two;  three : four !?", "one, two; three: four!?"),
    ]:
        for tokenizer in (WordTokenizer.train([text]), WordPieceTokenizer.train([text], 60)):
            assert tokenizer.decode(tokenizer.encode(text)) == normal_form
            assert tokenizer.encode(normal_form) == tokenizer.encode(text)
    assert TOKENIZERS["word"].encode("\ud800 zwei") == [3, 3]
    tokenizer = WordTokenizer.train(["one two"])
    assert tokenizer.encode("two Two three one") == [6, 3, 3, 5]
    assert tokenizer.decode([6, 3]) == "two <unk>"


def test_only_so_many_pieces_are_remembered():
    words = TOKENIZERS["word"]
    words.encode(" ".join(map(str, range(9))))
    assert 9 <= words.cached.cache_info().currsize <= words.cached.cache_info().maxsize == 2**17
    words.encode("zwei").append(7)
    assert words.encode("zwei") == [3]  # what is returned is a copy


def test_short_rows_are_filled_on_the_right():
    for pad_id in (0, 9):
        rows = pad_rows([[5, 6, 7], [], [8]], pad_id)
        assert rows.tolist() == [[5, 6, 7], [pad_id] * 3, [8, pad_id, pad_id]]
        assert rows.dtype == pad_rows([[], []]).dtype == torch.int64
