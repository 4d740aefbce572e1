"""Published tokenizers give the ids of those who read them elsewhere, and travel as they are."""

import copy
import json
import pickle
import random
import sys
import warnings

import pytest
from tokenizer_kinds import (
    KINDS,
    OTHER_WORDS,
    llama_folder,
    marian_folder,
    sentencepiece,
    t5_folder,
    texts,
    trained,
    write,
)

from minitransformer import Tokenizer
from minitransformer.models import PublishedTokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
transformers.logging.set_verbosity_error()

ROLES = ("pad", "bos", "eos", "unk", "mask", "cls", "sep")
SIGNS = "'s 'LL don't 'ſ 1234567 ½ Ⅷ ① ㍿ … «a» é ệ ﬁ İ ß Σ ς 👩‍👩‍👧‍👦 😀"
TOKENS = "Ａ\u0301 e\u0323\u0302 ²\u0301 x² \u200d \x00 a\x00b \ufffd"
TOKENS += " ▁ ▁▁a <0x0A> ##a Ġ </ ▁</s> a</s>b [MASK] <unk>"
SPACES = "|  |\n|\n\n |\t|\r\n|   \n  |\u3000|\xa0| \x1c |\x85|\u200b| 12|[UNK] a|one <mask>."
LONG = ("ab" * 500, "a" * 1000, "the cat" * 150 + " " * 300, "<|endoftext|> <|im_end|>")
ODD = [*SIGNS.split(), *TOKENS.split(), *SPACES.split("|"), *LONG]
each_kind = pytest.mark.parametrize("kind", KINDS)


def mixed_texts(count, specials=("<mask>", "[MASK]", "</s>")):
    """Parts of real text, oddities, and special tokens, in any order."""
    generator = random.Random(1)
    lines = [line for line in texts() if line] + OTHER_WORDS
    for _ in range(count):
        parts = [generator.choice(generator.choice([ODD, specials, lines])) for _ in range(4)]
        yield "".join(part[: generator.randrange(1, 40)] for part in parts)


TEXTS = [*ODD, *OTHER_WORDS, *mixed_texts(100)]


def ids_of(tokenizer):
    """The special ids that are not None, by role."""
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    return {role: index for role, index in ids.items() if index is not None}


def assert_same(ours, theirs):
    """The same ids as a tokenizer of `transformers`, and the same texts from them."""
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == ids, text
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        assert ours.decode(ids) == theirs.decode(ids, **options)


# --- tokenizer.json


@each_kind
def test_ids_and_texts_are_those_of_the_library(kind):
    theirs, state = trained(kind)
    ours = PublishedTokenizer.from_dict(state)
    hidden = {ours.ids[token] for token in ours.special_tokens} - {ours.unk_id}
    for text in [*TEXTS, *ours.special_tokens[:4]]:
        theirs.encode_special_tokens = False
        ids = theirs.encode(text).ids
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == ids
        for skips in (True, False):
            joined = theirs.decode(ids, skip_special_tokens=skips)
            assert ours.decode(ids, skip_special_tokens=skips) == joined
        ids = ours.encode(text, parse_special=False)
        assert hidden.isdisjoint(ids)
        theirs.encode_special_tokens = True
        if not (kind == "t5" and ours.special_pattern.search(text)):  # it finds them
            assert ids == theirs.encode(text, add_special_tokens=False).ids
    for first, second in [("two hundred", "a  dog."), ("", "b"), ("a\n", ""), ("", "")]:
        found = theirs.encode(first, second)
        assert ours.encode_pair(first, second) == (found.ids, found.type_ids)


@pytest.mark.parametrize("kind", ["gpt2", "llama2"])
def test_every_text_comes_back(kind):
    ours = PublishedTokenizer.from_dict(trained(kind)[1])
    for text in {*TEXTS} - {"<0x0A>"}:  # which is a token of llama2
        spaced = text.replace("▁", " ") if kind == "llama2" else text
        assert ours.decode(ours.encode(text, parse_special=False)) == spaced


def test_what_transformers_saves_is_read_and_what_is_saved_it_reads(tmp_path):
    for kind in ("qwen2", "bert", "t5"):
        write(tmp_path, tokenizer_json=trained(kind)[1], chat_template_jinja="{{ messages }}")
        file = str(tmp_path / "tokenizer.json")
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=file)
        theirs.save_pretrained(tmp_path / kind)
        assert_same(PublishedTokenizer.from_pretrained(tmp_path / kind), theirs)
        new = write(tmp_path / "new" / kind, config_json={})  # of a model beside it
        PublishedTokenizer.from_pretrained(tmp_path).save_pretrained(new)
        assert (new / "config.json").read_text() == "{}"
        for file in tmp_path.glob("*.*"):
            assert (tmp_path / "new" / kind / file.name).read_bytes() == file.read_bytes()


# --- which tokens are special


SAID = {
    "tokenizer_config_json": {"bos_token": "<s>", "pad_token": None},
    "special_tokens_map_json": {"eos_token": {"content": "</s>", "lstrip": False}},
    "config_json": {"pad_token_id": 0},
}


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("gpt2", {}, {"bos": 0, "eos": 0}),
        ("gpt2", {"config_json": {"bos_token_id": 0, "eos_token_id": 5}}, {"bos": 0, "eos": 5}),
        ("gpt2", {"config_json": {"pad_token_id": -1, "eos_token_id": [0]}}, {"bos": 0, "eos": 0}),
        (
            "gpt2",
            {"config_json": {"pad_token_id": 0, "mask_token_id": 800}},
            {"bos": 0, "eos": 0, "pad": 0},
        ),
        ("bert", {}, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}),
        ("llama2", {}, {"unk": 0, "bos": 1, "eos": 2}),
        ("llama2", SAID, {"bos": 1, "eos": 2, "unk": 0}),
        ("t5", {}, {"pad": 0, "eos": 1, "unk": 2}),
        ("qwen2", {"tokenizer_config_json": {"eos_token": "<|im_end|>"}}, {"eos": 802}),
    ],
)
def test_special_ids_are_read_where_they_are(kind, files, expected, tmp_path):
    write(tmp_path, tokenizer_json=trained(kind)[1], **files)
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    assert ids_of(ours) == ids_of(copy.deepcopy(ours)) == expected


def test_a_prompt_with_special_tokens_says_whether_they_are_meant():
    ours = PublishedTokenizer.from_dict(trained("qwen2")[1])
    prompt = "<|im_start|>user\n"
    with pytest.warns(UserWarning, match="'<|im_start|>' is read as text; `begin` and `enc"):
        assert ours.begin(prompt) == ours.encode(prompt, parse_special=False)
    assert ours.begin(prompt, parse_special=True)[0] == ours.ids["<|im_start|>"]
    assert len(ours.encode(prompt, parse_special=True)) < len(
        ours.begin(prompt, parse_special=False)
    )
    assert ours.encode("<think>a")[0] == ours.ids["<think>"]  # added, and not special


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("bert", "BertTokenizer", {"do_lower_case": False}),
        ("bert", "DistilBertTokenizer", {"do_lower_case": True, "strip_accents": False}),
        ("bert", "BertTokenizer", {"tokenize_chinese_chars": False}),
        ("gpt2", "GPT2Tokenizer", {"add_prefix_space": True}),
        ("bert", "PreTrainedTokenizerFast", {"do_lower_case": False}),
    ],
)
def test_settings_have_the_last_word_where_their_class_reads_them(kind, name, settings, tmp_path):
    settings = {"tokenizer_class": name, "do_lower_case": True} | settings
    write(tmp_path, tokenizer_json=trained(kind)[1], tokenizer_config_json=settings)
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path))


# --- SentencePiece


@pytest.mark.parametrize("make", [t5_folder, llama_folder])
def test_ids_are_those_of_the_library_sentencepiece(make, tmp_path):
    (file,) = make(tmp_path).glob("*.model")
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert ours.vocab_size == theirs.get_piece_size() + 100 * (make is t5_folder)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text, parse_special=False) == ids
        known = [index for index in ids if index != ours.unk_id]
        assert ours.decode(known) == theirs.decode(known)
    for sides in (ours.encode("a", add_special_tokens=True), ours.encode_pair("a", "b")[0]):
        assert (sides[0] == ours.bos_id) == (make is llama_folder)
        assert (sides[-1] == ours.eos_id) == (make is t5_folder)
    assert ours.begin("two")[-1] == theirs.encode("two")[-1]
    assert "".join(ours.labels(ours.encode("two days"))) == " two days"


def test_t5_has_sentinels_and_what_was_added_later(tmp_path):
    t5_folder(tmp_path)
    decoder = {"800": {"__type": "AddedToken", "content": "<a>", "special": False}}
    decoder["801"] = {"content": "<b>", "special": True}
    write(tmp_path, tokenizer_config_json={"added_tokens_decoder": decoder})
    ours = PublishedTokenizer.from_pretrained(tmp_path)
    assert ids_of(ours) == {"pad": 0, "eos": 1, "unk": 2}
    assert (ours.vocab_size, ours.ids["<extra_id_0>"]) == (802, 799)
    fast = trained("t5")[0]
    fast.encode_special_tokens = False
    for text in ("two <extra_id_0> hundred <extra_id_1>", "a</s>"):
        found = ours.encode(text, parse_special=True, add_special_tokens=True)
        assert found == fast.encode(text).ids
    plain = ours.encode("<b>", parse_special=False)
    assert ours.encode("<a><b>", parse_special=True) == [800, 801] != plain
    assert {"<a>", "<b>"} & {*ours.special_tokens} == {"<b>"}


@pytest.mark.slow
def test_marian(tmp_path):
    folder = marian_folder(tmp_path)
    source = PublishedTokenizer.from_pretrained(folder)
    target = PublishedTokenizer.from_pretrained(folder, side="target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a library
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
    for text in [*TEXTS, ">>de<< two", ">>xx<< a", "a >>de<<"]:
        ids = theirs(text)["input_ids"]
        assert source.encode(text, parse_special=True, add_special_tokens=True) == ids
        assert source.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        ids = theirs(text_target=text)["input_ids"]
        assert target.encode(text, parse_special=True, add_special_tokens=True) == ids
    assert target.encode("two hundred") != source.encode("two hundred")
    assert ids_of(source) == {"pad": theirs.pad_token_id, "eos": 0, "unk": 1}


def test_libraries_are_asked_for_by_the_extra(tmp_path, monkeypatch):
    for name in ("sentencepiece", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"takes {name}: pip install 'minitransformer\[hub"):
            PublishedTokenizer.from_pretrained(t5_folder(tmp_path))
        monkeypatch.undo()


def every_tokenizer(folder):
    """One of each kind; our own are in test_tokenizer.py."""
    yield from (PublishedTokenizer.from_dict(trained(kind)[1]) for kind in ("gpt2", "t5"))
    for make in (t5_folder, llama_folder, marian_folder):
        yield PublishedTokenizer.from_pretrained(make(folder / make.__name__))
    yield PublishedTokenizer.from_pretrained(folder / "marian_folder", side="target")
    write(folder / "gpt2", tokenizer_json=trained("gpt2")[1], config_json={"eos_token_id": 7})
    yield PublishedTokenizer.from_pretrained(folder / "gpt2")


def test_every_tokenizer_travels(tmp_path):
    """By pickle, by copy, and by the state that checkpoints and folders of tokens hold."""
    for tokenizer in every_tokenizer(tmp_path):
        tokenizer.save(tmp_path / "tokenizer.json")
        copies = [
            pickle.loads(pickle.dumps(tokenizer)),
            copy.deepcopy(tokenizer),
            Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))),
            Tokenizer.load(tmp_path / "tokenizer.json"),
        ]
        for again in copies:
            assert type(again) is type(tokenizer)
            assert (again.tokens, again.to_dict()) == (tokenizer.tokens, tokenizer.to_dict())
            for role in ROLES:
                id_of = f"{role}_id"
                assert getattr(again, id_of, None) == getattr(tokenizer, id_of, None)
            for text in ("two  hundred", "Zwölf\n", ""):
                assert again.encode(text) == tokenizer.encode(text)
                assert again.begin(text) == tokenizer.begin(text)
    with pytest.raises(ValueError, match=r"type is 'Other', expected .* or PublishedTokenizer"):
        Tokenizer.from_dict({"type": "Other"})


def test_it_is_a_tokenizer():
    ours = PublishedTokenizer.from_dict(trained("gpt2")[1])
    ids = ours.encode(" return the 1st ü")
    assert "".join(ours.labels(ids)).replace("\ufffd\ufffd", "ü") == " return the 1st ü"
    assert ours.vocab_size == len(ours.tokens) == 800
    with pytest.raises(ValueError, match="id 800 lies outside the vocabulary of 800 tokens"):
        ours.decode([800])
    for call in (ours.decode, ours.encode):
        with pytest.raises(TypeError, match=r"must be of type \w+, got int"):
            call(5)
    with pytest.raises(ValueError, match=r"the lone surrogate '\\ud800', which is no text"):
        ours.encode("a\ud800")
    with pytest.raises(TypeError, match="it cannot be trained"):
        PublishedTokenizer.train(["a"], 300)


# --- what is refused


MODEL = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": None}, "damaged or no tokenizer's"),
        ({"model": MODEL | {"vocab": {"a": 0, "b": 2}}}, "must give each of its n tokens one of"),
        ({"added_tokens": [{"id": 5, "content": "c"}]}, "'c' has id 5, expected 2"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}}, "dropout is 0.1"),
    ],
)
def test_a_state_that_is_none_is_refused(state, message):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [flags | token for token in state.get("added_tokens", [])]
    with pytest.raises(ValueError, match=message):
        PublishedTokenizer.from_dict({"model": MODEL} | state | {"added_tokens": added})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"spiece_model": b"", "tokenizer_config_json": {"tokenizer_class": "XLNetTokenizer"}},
            "spiece.model is for 'XLNetTokenizer', expected t5 or mt5; `transformers` makes",
        ),
        ({"tokenizer_model": b"", "config_json": {"model_type": "gemma"}}, "is for 'gemma', expe"),
        ({"spiece_model": b"damaged"}, "damaged or no tokenizer's"),
        ({"tokenizer_json": b"{"}, "tokenizer.json is damaged or no JSON file"),
        ({"tokenizer_json": b"[]"}, "tokenizer.json holds a list, expected an object"),
        ({"vocab_txt": "[UNK]\na"}, "no tokenizer: .* makes a tokenizer.json of"),
        (
            {"spiece_model": b"", "added_tokens_json": {"<c>": 802}},
            "added_tokens.json adds tokens to spiece.model; .* makes a tokenizer.json",
        ),
    ],
)
def test_files_that_are_not_known_are_refused_by_name(files, message, tmp_path):
    write(tmp_path, **files)
    with pytest.raises((FileNotFoundError, ValueError), match=message) as caught:
        PublishedTokenizer.from_pretrained(tmp_path)
    assert len(str(caught.value)) < 600


def test_sides_are_for_marian(tmp_path):
    write(tmp_path, tokenizer_json=trained("gpt2")[1])
    with pytest.raises(ValueError, match="side is 'target', but there is one tokenizer for both"):
        PublishedTokenizer.from_pretrained(tmp_path, side="target")
    folder = marian_folder(tmp_path / "marian")
    with pytest.raises(ValueError, match="side is 'left'"):
        PublishedTokenizer.from_pretrained(folder, side="left")
    write(folder, target_vocab_json={"a": 0})
    with pytest.raises(ValueError, match="there is a vocabulary for each side, expected one"):
        PublishedTokenizer.from_pretrained(folder)
