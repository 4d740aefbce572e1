"""What all tokenizers share: special tokens, the file, errors; characters and words; padding."""

import json
import random

import pytest
import torch
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
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
each_kind = pytest.mark.parametrize("kind", [type(t) for t in TOKENIZERS.values()])
texts_of_any_kind = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*TEXTS, *SPECIAL, "zig", "##", "-", " ", "\x1c", "\u0308"])).map(
        "".join
    ),
)
thorough = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def as_json(tokenizer):
    """The content of the file, as it comes out of it."""
    return json.loads(json.dumps(tokenizer.to_dict()))


def hugging_face(tokenizer):
    """The library's tokenizer made from our file."""
    return HuggingFaceTokenizer.from_str(json.dumps(tokenizer.to_dict()))


# --- special tokens


class OneEnd(BPETokenizer):
    """As GPT-2 has it: a single special token."""

    special_tokens = ("<|end of text|>",)


class OtherOrder(BPETokenizer):
    """Three of the five, in another order, and one more."""

    special_tokens = ("<eos>", "<|system|>", "<pad>", "<unk>")


@pytest.mark.parametrize(
    ("kind", "ids"),
    [(OneEnd, (None, None, None, None, None)), (OtherOrder, (2, None, 0, 3, None))],
)
def test_a_subclass_may_have_other_special_tokens(kind, ids, tmp_path):
    """Every byte comes back, whichever ids it has; a special token is found and shown by name."""
    tokenizer = kind.train(TEXTS, 300)
    roles = ("pad", "bos", "eos", "unk", "mask")
    assert tuple(getattr(tokenizer, f"{role}_id") for role in roles) == ids
    for text in (*TEXTS, "".join(map(chr, range(0x300))), ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        if text:
            assert tokenizer.begin(text) == tokenizer.encode(text)
    if tokenizer.eos_id is None:
        with pytest.raises(ValueError, match="no token that begins a text: no bos, cls or eos"):
            tokenizer.begin("")
    else:  # the end of the text before begins the next
        assert tokenizer.begin("") == [tokenizer.eos_id]
    name = kind.special_tokens[0]
    marked = tokenizer.encode(f"a{name}b", parse_special=True)
    assert marked[1] == 0 != tokenizer.encode(f"a{name}b")[1]
    assert tokenizer.decode(marked) == ("ab" if name == "<eos>" else f"a{name}b")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert kind.load(tmp_path / "tokenizer.json").tokens == tokenizer.tokens
    assert hugging_face(tokenizer).encode(f"a{name}b").ids == marked


@each_tokenizer
def test_special_tokens_come_first_and_leave_no_trace(tokenizer):
    assert tokenizer.special_tokens == tokenizer.tokens[:5] == SPECIAL
    ids = ("pad_id", "bos_id", "eos_id", "unk_id", "mask_id")
    assert [getattr(tokenizer, name) for name in ids] == [0, 1, 2, 3, 4]
    assert tokenizer.labels(range(5)) == list(SPECIAL)
    ids = tokenizer.encode("zweiundvierzig")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "zweiundvierzig"
    assert tokenizer.decode([0, 1, 2]) == ""
    assert "<unk>" in tokenizer.decode([*ids, 3])
    assert "<mask>" in tokenizer.decode([4, *ids])


@each_tokenizer
def test_special_tokens_in_a_text_are_text_unless_asked_for(tokenizer):
    for name, index in zip(SPECIAL, range(5), strict=True):
        text = f"zwei{name}zwei <{name}>"
        without = tokenizer.encode(text)
        assert not set(without) & {0, 1, 2, 4}
        z = tokenizer.encode("zwei")
        parsed = tokenizer.encode(text, parse_special=True)
        assert parsed[: len(z) + 1] == [*z, index]
        assert parsed.count(index) >= 2
        assert tokenizer.encode(name, parse_special=True) == [index]
        assert tokenizer.encode("a", parse_special=True) == tokenizer.encode("a")


@each_kind
def test_training_on_special_tokens_does_not_merge_them(kind):
    tokenizer = kind.train(["<eos><eos> <pad> <mask>"] * 99, 300)
    assert not set(tokenizer.encode("<eos><eos> <pad> <mask>")) & set(range(5))
    assert tokenizer.tokens.count("<eos>") == 1


# --- the library `tokenizers` finds the same


@pytest.mark.slow
@thorough
@given(texts_of_any_kind)
def test_tokenizers_finds_the_same_ids(text):
    text = text.encode("utf-8", "ignore").decode()
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
        assert tokenizer.decode([1, *ids, 2, 0]) == expected


@pytest.mark.parametrize("name", ["character", "word"])
def test_tokenizers_trains_the_same_vocabulary(name):
    ours = TOKENIZERS[name]
    theirs = hugging_face(ours)
    trainer = trainers.WordLevelTrainer(
        vocab_size=23, special_tokens=list(SPECIAL), show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    assert as_json(type(ours).train(TEXTS, 23)) == json.loads(theirs.to_str())


# --- the file


@each_tokenizer
def test_file_brings_a_tokenizer_back(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    for again in (
        Tokenizer.load(path),
        type(tokenizer).load(str(path)),
        Tokenizer.from_dict(as_json(tokenizer)),
    ):
        assert type(again) is type(tokenizer)
        assert again.tokens == tokenizer.tokens
        assert again.to_dict() == tokenizer.to_dict()
        for text in [*TEXTS, "zwanzigste, ein!"]:
            assert again.encode(text) == tokenizer.encode(text)


@each_tokenizer
def test_files_go_both_ways(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "ours.json")
    theirs = HuggingFaceTokenizer.from_file(str(tmp_path / "ours.json"))
    theirs.save(str(tmp_path / "theirs.json"))
    again = Tokenizer.load(tmp_path / "theirs.json")
    assert as_json(again) == as_json(tokenizer) == json.loads(theirs.to_str())


def test_file_of_another_kind_is_refused(tmp_path):
    TOKENIZERS["bpe"].save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"model.type is 'BPE', expected WordLevel"):
        WordTokenizer.load(tmp_path / "tokenizer.json")
    TOKENIZERS["character"].save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"pre_tokenizer.pattern.Regex is "):
        WordTokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("state", "found"), [({}, None), ({"model": {"type": "Unigram"}}, "Unigram")]
)
def test_unknown_model_is_refused(state, found):
    message = f"model.type is {found!r}, expected (WordLevel|BPE|WordPiece| or )+$"
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_dict(state)


# --- bad input


@each_tokenizer
@pytest.mark.parametrize("past", [False, True])
def test_id_outside_the_vocabulary_is_refused(tokenizer, past):
    bad = tokenizer.vocab_size if past else -1
    message = f"id {bad} lies outside the vocabulary of {tokenizer.vocab_size} tokens"
    for method in (tokenizer.decode, tokenizer.labels):
        with pytest.raises(ValueError, match=message):
            method([5, bad])


@each_tokenizer
@pytest.mark.parametrize("text", [None, 5, ["a", "b"], b"a"], ids=str)
def test_what_is_no_text_is_refused(tokenizer, text):
    with pytest.raises(TypeError, match=f"text must be of type str, got {type(text).__name__}"):
        tokenizer.encode(text)


@each_tokenizer
@pytest.mark.parametrize("ids", [None, 5])
def test_what_are_no_ids_is_refused(tokenizer, ids):
    with pytest.raises(TypeError, match=f"ids must be of type Iterable, got {type(ids).__name__}"):
        tokenizer.decode(ids)


@each_kind
def test_a_single_text_is_refused(kind):
    with pytest.raises(TypeError, match="texts must be an iterable of texts, got a single str"):
        kind.train("a text", 300)


@pytest.mark.parametrize("kind", [CharacterTokenizer, WordTokenizer])
def test_vocabulary_too_small_is_refused(kind):
    with pytest.raises(ValueError, match=r"vocab_size must be at least 5, .* tokens, got 4"):
        kind.train(["a b"], 4)
    assert kind.train(["a b"], 5).tokens == SPECIAL


def test_tokens_that_no_vocabulary_can_have_are_refused():
    with pytest.raises(ValueError, match="token 'a' occurs twice: 5 and 7"):
        WordTokenizer(["a", "b", "a"])
    with pytest.raises(ValueError, match="token '<eos>' occurs twice: 2 and 5"):
        WordTokenizer(["<eos>"])
    for kind in (CharacterTokenizer, WordTokenizer):
        with pytest.raises(ValueError, match=r"lone surrogate '\\ud800', which is no text"):
            kind.train(["a \ud800"])
    assert TOKENIZERS["word"].encode("\ud800 zwei") == [3, 3]


# --- characters and words


def test_characters_come_back():
    tokenizer = CharacterTokenizer.train(["b a\na", "c"])
    assert tokenizer.tokens[5:] == ("a", "\n", " ", "b", "c")
    assert tokenizer.encode("ab\nd") == [5, 8, 6, 3]
    assert tokenizer.decode([5, 8, 6, 3]) == "ab\n<unk>"
    assert CharacterTokenizer.train(["b a\na", "c"], 7).tokens[5:] == ("a", "\n")


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
    for tokenizer in (WordTokenizer.train([text]), WordPieceTokenizer.train([text], 60)):
        assert tokenizer.decode(tokenizer.encode(text)) == normal_form
        assert tokenizer.encode(normal_form) == tokenizer.encode(text)


def test_words_are_ordered_by_frequency_then_alphabet():
    assert WordTokenizer.train(["b c", "c a-a", "c"]).tokens[5:] == ("c", "a", "-", "b")
    assert WordTokenizer.train(["b c", "c a-a", "c"], 7).tokens[5:] == ("c", "a")


def test_word_never_seen_becomes_unknown():
    tokenizer = WordTokenizer.train(["one two"])
    assert tokenizer.encode("two Two three one") == [6, 3, 3, 5]
    assert tokenizer.decode([6, 3]) == "two <unk>"
    for text in SPECIAL:
        assert set(tokenizer.encode(text)) == {3}  # "<", "bos" and ">" are words like others


def test_cache_does_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr("minitransformer.tokenization.CACHE_SIZE", 3)
    tokenizer = WordTokenizer.train(["a b c d e f"])
    assert tokenizer.encode("a b c d e f e") == [5, 6, 7, 8, 9, 10, 9]
    assert len(tokenizer.cache) <= 3


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
