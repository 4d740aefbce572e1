"""Published tokenizers find the ids of the library `tokenizers`, text for text, and go back."""

import json
import random
import unicodedata
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, OTHER_WORDS, texts, trained

from minitransformer import BPETokenizer, Tokenizer
from minitransformer.tokenizers.published_tokenizer import PublishedTokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)
thorough = settings(max_examples=50, deadline=None, derandomize=True, database=None)
ODD = [
    *("  ", "\n", "\n\n ", "\t", "\r\n", "   \n  ", "\u3000", "\xa0", " \x1c ", "\x85", "\u200b"),
    *("'s", "'S", "'LL", "don't", "'ſ", " 12", "1234567", "x²", "½", "Ⅷ", "①", "㍿", "…", "«a»"),
    *("e\u0301", "é", "ệ", "e\u0323\u0302", "²\u0301", "ﬁ", "İ", "ß", "Σ", "ς", "Ａ\u0301"),
    *(
        "👩‍👩‍👧‍👦",
        "\u200d",
        "😀",
        "\x00",
        "\ufffd",
        "▁",
        "▁▁a",
        "<0x0A>",
        "##a",
        "Ġ",
        "</",
        "▁</s>",
    ),
]


@pytest.fixture(scope="module")
def both():
    """Of each kind the library's tokenizer and ours, which is made of its file."""
    made = {}

    def get(kind):
        if kind not in made:
            theirs, state = trained(kind)
            made[kind] = theirs, PublishedTokenizer(state)
        return made[kind]

    return get


def is_settled(character):
    """Whether the character has been in Unicode for so long that all tables agree on it."""
    old = unicodedata.ucd_3_2_0.category(character)
    return old == unicodedata.category(character) and old not in ("Cn", "Cs", "Co")


SETTLED = [chr(code) for code in range(0x20000) if is_settled(chr(code))]
settled_text = st.text(st.sampled_from(SETTLED), max_size=30)


def mixed_text(generator, specials):
    """Parts of real text, oddities, white space, and added tokens, in any order."""
    parts = []
    for _ in range(generator.randrange(9)):
        kind = generator.randrange(8)
        if kind == 0:
            parts.append(generator.choice(specials))
        elif kind == 1:
            parts.append("".join(generator.choices(SETTLED, k=generator.randrange(1, 4))))
        elif kind in (2, 3):
            parts.append(generator.choice(ODD))
        else:
            text = generator.choice(texts() if kind > 4 else OTHER_WORDS)
            start = generator.randrange(len(text) + 1)
            parts.append(text[start : start + generator.randrange(40)])
    return "".join(parts)


def added_tokens(tokenizer):
    return [token["content"] for token in tokenizer.to_dict()["added_tokens"]]


# --- ids and texts


@each_kind
def test_ids_and_texts_are_those_of_the_library(kind, both):
    theirs, ours = both(kind)
    generator = random.Random(0)
    specials = added_tokens(ours)[:8]
    mixed = [*ODD, "", *(mixed_text(generator, specials) for _ in range(2000))]
    theirs.encode_special_tokens = False
    found = [each.ids for each in theirs.encode_batch(mixed)]
    for text, ids in zip(mixed, found, strict=True):
        assert ours.encode(text, parse_special=True, add_special_tokens=True) == ids, text
    for skips in (True, False):
        joined = theirs.decode_batch(found, skip_special_tokens=skips)
        assert [ours.decode(ids, skip_special_tokens=skips) for ids in found] == joined


@each_kind
def test_special_tokens_are_text_unless_parsed(kind, both):
    theirs, ours = both(kind)
    special = frozenset(ours.ids[token] for token in ours.special_tokens) - {ours.unk_id}
    for token in added_tokens(ours)[:8]:
        text = f"two {token} hundred"
        ids = ours.encode(text)
        assert special.isdisjoint(ids)
        if not kind.startswith("t5"):  # there, the library's model finds them all the same
            theirs.encode_special_tokens = True
            assert ids == theirs.encode(text, add_special_tokens=False).ids
        if token in ours.special_tokens:
            assert ours.ids[token] in ours.encode(text, parse_special=True)


@each_kind
@thorough
@given(text=settled_text)
def test_any_text_has_the_ids_of_the_library(kind, both, text):
    theirs, ours = both(kind)
    theirs.encode_special_tokens = False
    ids = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text, parse_special=True) == ids
    assert ours.decode(ids) == theirs.decode(ids)


@each_kind
def test_pairs_have_ids_and_types_of_the_library(kind, both):
    theirs, ours = both(kind)
    theirs.encode_special_tokens = True
    for first, second in [("two hundred", "a  dog."), ("", "b"), ("a\n", ""), ("", "")]:
        found = theirs.encode(first, second)
        assert ours.encode_pair(first, second) == (found.ids, found.type_ids)


@each_kind
def test_a_long_line_is_cut_as_by_the_library(kind, both):
    theirs, ours = both(kind)
    for text in ("ab" * 5000, "a" * 10_000, "the cat" * 1500 + " " * 3000):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "smollm2", "llama2"])
def test_every_text_comes_back(kind, both):
    _, ours = both(kind)
    for text in [*ODD, *OTHER_WORDS, "".join(SETTLED)]:
        spaced = text.replace("▁", " ") if kind == "llama2" else text
        if spaced != "<0x0A>":  # which is a token of llama2
            assert ours.decode(ours.encode(text)) == spaced


# --- in the place of a Tokenizer


def test_it_is_a_tokenizer(both):
    _, ours = both("gpt2")
    assert isinstance(ours, Tokenizer)
    ids = ours.encode(" return the 1st")
    assert "".join(ours.labels(ids)) == " return the 1st"
    assert ours.vocab_size == len(ours.tokens) == 800
    assert [ours.ids[ours.token(index)] for index in range(800)] == list(range(800))
    assert "".join(map(ours.decode, [[index] for index in ids])) == " return the 1st"
    with pytest.raises(ValueError, match="id 800 lies outside the vocabulary of 800 tokens"):
        ours.decode([800])
    with pytest.raises(TypeError, match="ids must be of type Iterable, got int"):
        ours.decode(5)
    with pytest.raises(TypeError, match="text must be of type str, got bytes"):
        ours.encode(b"a")
    with pytest.raises(TypeError, match="it cannot be trained"):
        PublishedTokenizer.train(["a"], 300)


@pytest.mark.parametrize(
    ("kind", "text"), [("gpt2", " ü a"), ("llama2", " two a"), ("t5", " two a"), ("bert", "a")]
)
def test_labels_show_spaces_and_bytes_as_text(kind, text, both):
    _, ours = both(kind)
    labels = ours.labels(ours.encode(text if kind == "gpt2" else text.strip()))
    assert "".join(labels).replace("\ufffd\ufffd", "ü") == text
    assert ours.token(ours.encode(" a")[-1]) in ("Ġa", "▁a", "a")


def test_the_pieces_of_a_text(both):
    assert both("gpt2")[1].split("It's  42") == ["It", "'s", "Ġ", "Ġ42"]
    assert both("smollm2")[1].split("a 42") == ["a", "Ġ", "4", "2"]
    assert both("bert")[1].split("Été, 東京") == ["ete", ",", "東", "京"]
    assert both("llama2")[1].split("a b") == ["▁a▁b"]
    assert both("t5")[1].split(" a  ①") == ["▁a", "▁1"]


def test_our_own_tokenizers_are_read_as_well():
    own = BPETokenizer.train(["zwanzig dreißig vierzig"], 270)
    ours = PublishedTokenizer.from_dict(own.to_dict())
    for text in (*ODD, "dreißig  vierzig"):
        assert ours.encode(text) == own.encode(text)
        assert ours.decode(own.encode(text)) == text
    assert [ours.pad_id, ours.bos_id, ours.eos_id, ours.unk_id, ours.mask_id] == [0, 1, 2, 3, 4]


def test_saved_equals_never_saved(tmp_path, both):
    _, ours = both("qwen2")
    ours.save(tmp_path / "tokenizer.json")
    again = PublishedTokenizer.load(tmp_path / "tokenizer.json")
    assert again.to_dict() == ours.to_dict()
    assert again.encode("<think>a") == ours.encode("<think>a")


# --- steps that are published now and then


def with_steps(**steps):
    """The tokenizer of a few words with other steps, and the library's."""
    from tokenizers import Tokenizer as Library

    words = {"<u>": 0, "a": 1, "b": 2, "▁a": 3, "▁b": 4, "ab": 5, "1": 6, ",": 7, "a.": 8, "▁": 9}
    state = {"model": {"type": "WordLevel", "vocab": words, "unk_token": "<u>"}} | steps
    common = {"version": "1.0", "added_tokens": []} | dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return PublishedTokenizer(state), Library.from_str(json.dumps(common | state))


NORMALIZERS = [
    {"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")
] + [
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Replace", "pattern": {"String": "."}, "content": "!"},
    {"type": "Prepend", "prepend": "▁"},
    *(
        {
            "type": "BertNormalizer",
            "clean_text": clean,
            "handle_chinese_chars": chinese,
            "strip_accents": accents,
            "lowercase": lower,
        }
        for clean, chinese, accents, lower in [
            (True, False, None, True),
            (False, True, False, True),
            (False, False, True, False),
        ]
    ),
]


@pytest.mark.parametrize("step", NORMALIZERS, ids=str)
@thorough
@given(text=st.lists(st.sampled_from(SETTLED + ODD), max_size=12).map("".join))
def test_each_normalizer_does_what_the_library_does(step, text):
    ours, theirs = with_steps(normalizer=step)
    expected = theirs.normalizer.normalize_str(text) if text else ""
    assert ours.normalize(text) == expected


BPE = {"<u>": 0, "a": 1, "b": 2, "é": 3, "ab": 4, "aba": 5, "<0xC3>": 6, "<0xA9>": 7, "<0x78>": 8}
BPE |= {"<0xE2>": 9, "abx": 10}
MERGES = [["a", "b"], ["ab", "a"]]
SUFFIXED = {
    "<u>": 0,
    "a": 1,
    "##b": 2,
    "b</w>": 3,
    "##b</w>": 4,
    "ab": 5,
    "abb</w>": 6,
    "ab</w>": 7,
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("unknown", ["<u>", None])
@pytest.mark.parametrize("ignore", [True, False])
@thorough
@given(text=st.text("abé☃x", max_size=9))
def test_each_option_of_bpe_does_what_the_library_does(fuse, fallback, unknown, ignore, text):
    model = {"type": "BPE", "vocab": BPE, "merges": MERGES, "unk_token": unknown}
    model |= {"fuse_unk": fuse, "byte_fallback": fallback, "ignore_merges": ignore}
    ours, theirs = with_steps(model=model)
    assert ours.encode(text) == theirs.encode(text).ids


@thorough
@given(text=st.text("abx", max_size=9))
def test_bpe_may_mark_where_words_begin_and_end(text):
    merges = [["a", "##b"], ["ab", "##b</w>"], ["a", "##b</w>"]]
    model = {"type": "BPE", "vocab": SUFFIXED, "merges": merges, "unk_token": "<u>"}
    model |= {"continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}
    ours, theirs = with_steps(model=model)
    assert ours.encode(text) == theirs.encode(text).ids


def test_the_oldest_files_do_not_say_of_which_type_a_model_is():
    for kind in ("gpt2", "bert", "t5"):
        _, state = trained(kind)
        model = {key: value for key, value in state["model"].items() if key != "type"}
        ours = PublishedTokenizer(state | {"model": model})
        assert ours.encode("two hundred") == PublishedTokenizer(state).encode("two hundred")
    model = {"vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    assert PublishedTokenizer({"model": model}).encode("a") == [0]


BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
PRE_TOKENIZERS = [
    *({"type": kind} for kind in ("BertPreTokenizer", "WhitespaceSplit")),
    *({"type": "Punctuation", "behavior": behavior} for behavior in BEHAVIORS),
    *({"type": "Digits", "individual_digits": each} for each in (True, False)),
    *(
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
        for pattern in ({"Regex": r"\s"}, {"String": "a."})
        for behavior in BEHAVIORS
        for invert in (True, False)
    ),
    *(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        for scheme in ("always", "first", "never")
        for split in (True, False)
    ),
    {"type": "Metaspace", "replacement": "▁", "str_rep": "▁"}
    | {"add_prefix_space": False, "prepend_scheme": "never"},
    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        ],
    },
    {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        ],
    },
]


@pytest.mark.parametrize("step", PRE_TOKENIZERS, ids=str)
@thorough
@given(text=st.lists(st.sampled_from(["a.", " ", "  ", "1", "a", "▁", *ODD]), max_size=9))
def test_each_pre_tokenizer_does_what_the_library_does(step, text):
    ours, theirs = with_steps(pre_tokenizer=step)
    text = "".join(text)
    expected = [piece for piece, _ in theirs.pre_tokenizer.pre_tokenize_str(text)] if text else []
    assert ours.split(text) == expected


DECODERS = [
    None,
    {"type": "Fuse"},
    {"type": "ByteFallback"},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": False},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
    {"type": "Strip", "content": "▁", "start": 2, "stop": 0},
    {"type": "Replace", "pattern": {"Regex": "[.,]"}, "content": ""},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
]
PARTS = ["a", "##b", "▁", "▁a▁▁", "<0xC3>", "<0xA9>", "<0xFF>", "Ġ", "Ã", "©", "n't", "'", ".", ","]
PARTS += ["do", "not", "don't", "'s", "☃", "", "<0x0a>"]


@pytest.mark.parametrize("step", DECODERS, ids=str)
@thorough
@given(tokens=st.lists(st.sampled_from(PARTS), max_size=9))
def test_each_decoder_does_what_the_library_does(step, tokens):
    ours, theirs = with_steps(decoder=step)
    if step is None:
        assert ours.join(tokens) == " ".join(tokens)
    else:
        assert ours.join(tokens) == theirs.decoder.decode(tokens)


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "Q", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 2}},
    ],
    "pair": [
        {"Sequence": {"id": "B", "type_id": 3}},
        {"SpecialToken": {"id": "Q", "type_id": 2}},
        {"Sequence": {"id": "A", "type_id": 5}},
    ],
    "special_tokens": {"Q": {"id": "Q", "ids": [7, 8], "tokens": [",", "a."]}},
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
BERT = {"type": "BertProcessing", "sep": ["a.", 8], "cls": [",", 7]}
ROBERTA = BERT | {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}


@pytest.mark.parametrize(
    "step",
    [
        *(None, BYTE_LEVEL, BERT, ROBERTA, TEMPLATE),
        {"type": "Sequence", "processors": [BYTE_LEVEL, ROBERTA]},
        {"type": "Sequence", "processors": []},
    ],
    ids=str,
)
def test_each_post_processor_does_what_the_library_does(step):
    ours, theirs = with_steps(post_processor=step)
    found = theirs.encode("a", "b")
    assert ours.encode_pair("a", "b") == (found.ids, found.type_ids)
    assert ours.encode("a", add_special_tokens=True) == theirs.encode("a").ids
    assert ours.encode("a") == theirs.encode("a", add_special_tokens=False).ids


FLAGS = [
    dict(zip(("lstrip", "rstrip", "single_word"), flags, strict=True))
    for flags in product((True, False), repeat=3)
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("normalized", [True, False])
@thorough
@given(
    text=st.lists(st.sampled_from([" ", "X", "x", "Xy", "é", "1", "_", "²", "\n", "a"]), max_size=9)
)
def test_added_tokens_are_found_as_by_the_library(flags, normalized, text):
    added = [
        {"id": 10, "content": "X", "special": True, "normalized": normalized} | flags,
        {"id": 11, "content": "Xy", "special": False, "normalized": normalized},
        {"id": 12, "content": "é", "special": False, "normalized": False},
    ]
    added = [{"lstrip": False, "rstrip": False, "single_word": False} | token for token in added]
    ours, theirs = with_steps(
        added_tokens=added,
        normalizer={"type": "Lowercase"},
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
    )
    text = "".join(text)
    for parses in (True, False):
        theirs.encode_special_tokens = not parses
        assert ours.encode(text, parse_special=parses) == theirs.encode(text).ids


# --- what is refused


MODEL = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
MANY = [{"id": n, "content": f"<{n}>", "special": True} for n in range(3, 300)]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"normalizer": {"type": "Nmt"}}, "normalizer is 'Nmt', expected one of BertNormalizer, "),
        ({"pre_tokenizer": {"type": "Nope"}}, "pre_tokenizer is 'Nope', expected one of Bert"),
        ({"decoder": {"type": "CTC"}}, "decoder is 'CTC', expected one of ByteFallback, "),
        ({"post_processor": {"type": "X"}}, "post_processor is 'X', expected one of BertPro"),
        ({"model": {"type": "X", "vocab": {}}}, "model is 'X', expected one of BPE, "),
        ({"model": MODEL | {"new": 1}}, "model WordLevel: got an unexpected keyword .*'new'"),
        ({"decoder": {"type": "Strip"}}, "decoder Strip: missing a required argument: 'content'"),
        ({"version": "2.0"}, "version is '2.0', expected '1.0'"),
        ({"steps": 1}, r"tokenizer.json has \['steps'\], which is not known here"),
        ({"model": MODEL | {"vocab": {"a": 0, "b": 2}}}, "each of its n tokens one of the ids"),
        ({"model": MODEL | {"unk_token": "!"}}, "model.unk_token is '!', which is no token"),
        ({"added_tokens": [{"id": 5, "content": "c"}]}, "added token 'c' has id 5, expected 2"),
        ({"added_tokens": [{"id": 2, "content": "a"}]}, "added token 'a' has id 2, expected 0"),
        ({"added_tokens": [{"id": 2, "contents": "a"}]}, "added token .*'contents'"),
        ({"added_tokens": MANY}, "added token '<3>' has id 3, expected 2"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}},
            "model.dropout is 0.1, expected 0",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}},
            "merge 'a' [+] 'b': 'b' is no token",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}},
            "a merge joins 2 tokens, got 'a b c'",
        ),
        (
            {"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}},
            "model.unk_id is None, expected one of the ids 0 to 0",
        ),
        (
            {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "last"}},
            "prepend_scheme is 'last', expected always, first or never",
        ),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Kept"}},
            "behavior is 'Kept', expected one of Removed, ",
        ),
        (
            {"post_processor": {"type": "Sequence", "processors": [BERT, BERT]}},
            "2 post_processors add tokens, expected at most 1",
        ),
        (
            {"post_processor": TEMPLATE | {"special_tokens": {}}},
            "the template's 'Q' is none of its special_tokens",
        ),
        ({"normalizer": {"type": "x" * 40_000}}, "normalizer is 'xxx.*40,002 characters"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_what_is_not_known_is_refused_by_name_and_briefly(state, message):
    with pytest.raises(ValueError, match=message) as caught:
        PublishedTokenizer({"model": MODEL} | state)
    assert len(str(caught.value)) < 400


def test_a_file_without_a_model_is_refused():
    with pytest.raises(TypeError, match="model must be of type dict, got NoneType"):
        PublishedTokenizer({})
