"""From text to pieces as published tokenizers do it: the steps `normalizer` and `pre_tokenizer`.

A `tokenizer.json` names each step by its type, with options. Here each type is a function that
takes these options and returns the step. Whatever has no function is refused by its name.

The tables of `tokenizers` are of several years, so not all characters come out as there. With
Python 3.11, of all code points 386 are accents for BERT here and not there, where the table ends
with Unicode 8, and so are 142 punctuation and 13 controls; 72 have a compatibility form only here,
and 27 capitals have a small letter only there.

Source: the library `tokenizers`, whose file it is; BERT's steps are those of Devlin et al. (2019).
"""

import inspect
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from minitransformer.byte_pair_encoding import SPELLED, to_bytes
from minitransformer.tokenizer_file import abbreviated
from minitransformer.tokenizers.unicode_patterns import SPACE, Pattern
from minitransformer.tokenizers.unigram import precompiled

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUNCTUATION = r"[\p{P}$+<=>\^`|~]"  # Unicode's, and of ASCII all that is no letter or digit
CHINESE = re.compile(  # as BERT has it, with its gap
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
    "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)
WHITE = SPACE + "\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
KEPT_CONTROLS = "\t\n\r"

Normalizer = Callable[[str], str]
Piece = tuple[str, bool]
"""A part of a text, and whether the text begins with it."""
PreTokenizer = Callable[[Iterable[Piece]], Iterator[Piece]]


def step(place: str, found: Mapping[str, Any], known: Mapping[str, Callable[..., Any]]) -> Any:
    """What `known` has for the type of a step, made with the step's options.

    Raises:
        ValueError: if the type is not known, or has other options.
    """
    options = dict(found)
    name = options.pop("type", None)
    if name not in known:
        raise ValueError(f"{place} is {abbreviated(name)}, expected one of {', '.join(known)}")
    try:
        inspect.signature(known[name]).bind(**options)
    except TypeError as error:
        raise ValueError(f"{place} {name}: {error}") from error
    return known[name](**options)


# --- normalizers: from text to text


def normalizer(found: Mapping[str, Any] | None) -> Normalizer:
    """The step that a file's `normalizer` names.

    Example:
        >>> normalizer({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})("Zwölf")
        'zwölf'
    """
    return step("normalizer", found, NORMALIZERS) if found else str


def normalizer_sequence(normalizers: Sequence[Mapping[str, Any]]) -> Normalizer:
    steps = [normalizer(found) for found in normalizers]

    def normalize(text: str) -> str:
        for each in steps:
            text = each(text)
        return text

    return normalize


def lowercase() -> Normalizer:
    # Each character by itself: Python would know that a sigma ends a word.
    return lambda text: "".join(map(str.lower, text))


def strip(strip_left: bool = True, strip_right: bool = True) -> Normalizer:
    def normalize(text: str) -> str:
        text = text.lstrip(WHITE) if strip_left else text
        return text.rstrip(WHITE) if strip_right else text

    return normalize


def strip_accents() -> Normalizer:
    return lambda text: "".join(c for c in text if unicodedata.category(c)[0] != "M")


def prepend(prepend: str) -> Normalizer:
    return lambda text: text and prepend + text


def replace(pattern: Mapping[str, str], content: str) -> Normalizer:
    return partial(Pattern(pattern).replace, content=content)


def bert_normalizer(
    clean_text: bool = True,
    handle_chinese_chars: bool = True,
    strip_accents: bool | None = None,
    lowercase: bool = True,
) -> Normalizer:
    """Controls are removed, Chinese signs are words; accents go where capitals do."""

    def clean(character: str) -> str:
        if character not in KEPT_CONTROLS and (
            character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")
        ):
            return ""
        return " " if character in WHITE else character

    def normalize(text: str) -> str:
        if clean_text:
            text = "".join(map(clean, text))
        if handle_chinese_chars:
            text = CHINESE.sub(r" \g<0> ", text)
        if lowercase if strip_accents is None else strip_accents:
            text = unicodedata.normalize("NFD", text)
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        return "".join(map(str.lower, text)) if lowercase else text

    return normalize


NORMALIZERS: dict[str, Callable[..., Normalizer]] = {
    "BertNormalizer": bert_normalizer,
    "Lowercase": lowercase,
    "NFC": lambda: partial(unicodedata.normalize, "NFC"),
    "NFD": lambda: partial(unicodedata.normalize, "NFD"),
    "NFKC": lambda: partial(unicodedata.normalize, "NFKC"),
    "NFKD": lambda: partial(unicodedata.normalize, "NFKD"),
    "Precompiled": precompiled,
    "Prepend": prepend,
    "Replace": replace,
    "Sequence": normalizer_sequence,
    "Strip": strip,
    "StripAccents": strip_accents,
}


# --- pre_tokenizers: from pieces to smaller pieces


def pre_tokenizer(found: Mapping[str, Any] | None) -> PreTokenizer:
    """The step that a file's `pre_tokenizer` names.

    Example:
        >>> cut = pre_tokenizer({"type": "Metaspace", "replacement": "▁"})
        >>> [piece for piece, _ in cut([("two hundred", True)])]
        ['▁two', '▁hundred']
    """
    return step("pre_tokenizer", found, PRE_TOKENIZERS) if found else iter


def pre_tokenizer_sequence(pretokenizers: Sequence[Mapping[str, Any]]) -> PreTokenizer:
    steps = [pre_tokenizer(found) for found in pretokenizers]

    def cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
        for each in steps:
            pieces = each(pieces)
        return iter(pieces)

    return cut


def split(pattern: Mapping[str, str], behavior: str, invert: bool = False) -> PreTokenizer:
    """Cut at the matches of a pattern, or (`invert`) at what lies between them."""
    if behavior not in BEHAVIORS:
        raise ValueError(f"behavior is {behavior!r}, expected one of {', '.join(BEHAVIORS)}")
    spans = Pattern(pattern).spans

    def cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
        for text, begins in pieces:
            found = [(start, end, match != invert) for start, end, match in spans(text)]
            for start, end in kept_spans(found, behavior):
                if start < end:
                    yield text[start:end], begins and start == 0

    return cut


BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def kept_spans(spans: list[tuple[int, int, bool]], behavior: str) -> list[tuple[int, int]]:
    """Which spans of a text become pieces; the bool says whether it is one to cut at.

    A span that is merged with its neighbour is not merged with one that is merged too: of three
    spaces before a word, the last goes with the word, and two stay alone.

    Example:
        >>> kept_spans([(0, 1, True), (1, 2, True), (2, 5, False)], "MergedWithNext")
        [(0, 1), (1, 5)]
    """
    if behavior == "Removed":
        return [(start, end) for start, end, cut in spans if not cut]
    backwards = behavior == "MergedWithNext"
    kept: list[tuple[int, int]] = []
    previous = False
    for start, end, cut in reversed(spans) if backwards else spans:
        joins = {"Isolated": False, "Contiguous": cut == previous}.get(behavior, cut > previous)
        if joins and kept:
            first, last = kept.pop()
            start, end = min(first, start), max(last, end)
        kept.append((start, end))
        previous = cut
    return kept[::-1] if backwards else kept


def bert_pre_tokenizer() -> PreTokenizer:
    words, marks = whitespace_split(), punctuation()
    return lambda pieces: marks(words(pieces))


def whitespace_split() -> PreTokenizer:
    return split({"Regex": r"\s"}, "Removed")


def punctuation(behavior: str = "Isolated") -> PreTokenizer:
    return split({"Regex": PUNCTUATION}, behavior)


def digits(individual_digits: bool = False) -> PreTokenizer:
    return split({"Regex": r"\p{N}"}, "Isolated" if individual_digits else "Contiguous")


def byte_level(
    add_prefix_space: bool = True, trim_offsets: bool = True, use_regex: bool = True
) -> PreTokenizer:
    """Cut as GPT-2 does, and spell each byte as a character; offsets are not kept here."""
    cut = split({"Regex": GPT2_PATTERN}, "Isolated") if use_regex else iter

    def spell(pieces: Iterable[Piece]) -> Iterator[Piece]:
        prefixed = (
            (text if text.startswith(" ") or not add_prefix_space else " " + text, begins)
            for text, begins in pieces
        )
        for text, begins in cut(prefixed):
            yield "".join(map(SPELLED.__getitem__, to_bytes(text))), begins

    return spell


def metaspace(
    replacement: str,
    prepend_scheme: str = "always",
    split: bool = True,
    add_prefix_space: bool = True,
    str_rep: str | None = None,
) -> PreTokenizer:
    """Make spaces visible, begin with one, and cut before each, as SentencePiece does.

    (What comes first is the first of the normalized text; in the library it is none if a normalizer
    took something away before it. No tokenizer that is known here has both.)

    Args:
        replacement: what a space becomes.
        prepend_scheme: whether a piece begins with one "always", "never", or only the "first".
        split: whether to cut at all.
        add_prefix_space: False, in files before 2024, for "never".
        str_rep: the same as `replacement`, in files before 2024.
    """
    if prepend_scheme not in ("always", "first", "never"):
        raise ValueError(f"prepend_scheme is {prepend_scheme!r}, expected always, first or never")
    scheme = prepend_scheme if add_prefix_space else "never"
    cut = SPLIT_BEFORE({"String": replacement}) if split else iter

    def spell(pieces: Iterable[Piece]) -> Iterator[Piece]:
        for text, begins in pieces:
            text = text.replace(" ", replacement)
            wanted = scheme == "always" or (scheme == "first" and begins)
            if wanted and not text.startswith(replacement):
                text = replacement + text
            yield from cut([(text, begins)])

    return spell


SPLIT_BEFORE = partial(split, behavior="MergedWithNext")  # `metaspace` has a `split` of its own
PRE_TOKENIZERS: dict[str, Callable[..., PreTokenizer]] = {
    "BertPreTokenizer": bert_pre_tokenizer,
    "ByteLevel": byte_level,
    "Digits": digits,
    "Metaspace": metaspace,
    "Punctuation": punctuation,
    "Sequence": pre_tokenizer_sequence,
    "Split": split,
    "WhitespaceSplit": whitespace_split,
}
