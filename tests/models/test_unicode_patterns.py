"""Patterns for another engine match here what they match there, for all of Unicode 16."""

import re
import sys
import unicodedata
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import LLAMA3_PATTERN, QWEN2_PATTERN
from tokenizers import Regex, pre_tokenizers

from minitransformer.byte_pair_encoding import split_pieces
from minitransformer.tokenizer_file import JOINED_WORDS, WORDS
from minitransformer.tokenizers.pre_tokenization import GPT2_PATTERN, PUNCTUATION
from minitransformer.tokenizers.unicode_patterns import Pattern, category, newer, translate

SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": GPT2_PATTERN,
    "llama3": LLAMA3_PATTERN,
    "qwen2": QWEN2_PATTERN,
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "our words": WORDS["pattern"]["Regex"],
    "our spaces": JOINED_WORDS["decoders"][2]["pattern"]["Regex"],
    "punctuation": PUNCTUATION,
    "not a letter": r"\P{L}+",
}
each_pattern = pytest.mark.parametrize("name", PATTERNS)
thorough = settings(max_examples=200, deadline=None, derandomize=True, database=None)
sixteen = pytest.mark.skipif(
    tuple(map(int, unicodedata.unidata_version.split("."))) >= (17,),
    reason="Python's Unicode is newer than the library's",
)


def pieces(pattern):
    """What ours and the library's cut a text into."""
    spans = Pattern({"Regex": pattern}).spans
    theirs = pre_tokenizers.Split(Regex(pattern), "isolated")
    return (
        lambda text: [text[start:end] for start, end, _ in spans(text) if start < end],
        lambda text: [piece for piece, _ in theirs.pre_tokenize_str(text)],
    )


@each_pattern
def test_published_patterns_need_no_other_library(name):
    assert isinstance(Pattern({"Regex": PATTERNS[name]}).compiled, re.Pattern)


@sixteen
@each_pattern
def test_all_of_unicode_is_cut_as_by_the_library(name):
    ours, theirs = pieces(PATTERNS[name])
    codes = [*range(0x600), *range(0x600, 0x110000, 97), *list(newer())[::13]]
    for code in codes:
        if not 0xD800 <= code < 0xE000:
            text = "a{}b'{}1 {}{}! {}'S{}\n{}".replace("{}", chr(code))
            assert ours(text) == theirs(text), hex(code)


@each_pattern
@thorough
@given(
    text=st.lists(
        st.sampled_from(["'s", "'LL", "'ſ", "ſ", " ", "\n", "\r", "\x1c", "\x85", "\xa0", "\u2028"])
        | st.sampled_from(
            [*"aZ1²½_-!/.,:", "é", "ß", "Ж", "ж", "ǅ", "ʰ", "あ", "\u0301", "☃", "12345"]
        )
    ).map("".join)
)
def test_any_text_is_cut_as_by_the_library(name, text):
    ours, theirs = pieces(PATTERNS[name])
    assert ours(text) == (theirs(text) if text else [])


@thorough
@given(st.text(st.characters(exclude_categories=["Cn"])))
def test_pieces_are_those_of_chapter_1(text):
    spans = Pattern({"Regex": GPT2_PATTERN}).spans(text)
    assert [text[start:end] for start, end, _ in spans] == split_pieces(text)


def test_newer_letters_are_letters():
    assert len(newer()) == 10_294
    assert category("\U00031350") == "Lo"  # CJK, since Unicode 15
    assert category("\U00013460") == "Lo"  # an Egyptian hieroglyph, since Unicode 16
    assert category("\U000116d0") == "N"
    letters = sum(kind[0] in "LN" for kind in newer().values())
    assert letters == 9392


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\d", r"\w+", r"\bx", "a{2}+", "^a", "a$", "a.b", r"[\S]", r"[\P{L}]", "[a[b]]"),
        *("[a&&b]", "[一-龥]+", r"\p{Han}", r"\p{^L}", "(?>a)", "(?<n>a)", r"\h", "(?m:a)"),
    ],
)
def test_what_may_mean_something_else_is_not_translated(pattern, monkeypatch):
    assert translate(pattern) is None
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(ValueError, match="is not known here; with the library regex it is tried"):
        Pattern({"Regex": pattern})


@pytest.mark.skipif(not find_spec("regex"), reason="regex is not installed")
def test_other_patterns_are_tried_by_the_library_regex():
    spans = Pattern({"Regex": r"[一-龥]+|\d"}).spans
    assert list(spans("a漢字1")) == [(0, 1, False), (1, 3, True), (3, 4, True)]


def test_strings_mean_themselves():
    pattern = Pattern({"String": "a.[☃"})
    assert list(pattern.spans("xa.[☃")) == [(0, 1, False), (1, 5, True)]
    assert pattern.replace("a.[☃-a.[☃", "b\\1") == "b\\1-b\\1"
    for wrong in ({"Glob": "*"}, {"String": "a", "Regex": "b"}):
        with pytest.raises(ValueError, match="a pattern must be a String or a Regex, got "):
            Pattern(wrong)
    assert list(pattern.spans("")) == []
