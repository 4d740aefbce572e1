"""The file of a tokenizer: the `tokenizer.json` of the library `tokenizers`.

The file names every step from text to ids, so that another program can take the same ones. Steps
that this package's tokenizers leave out are null: truncation, padding, normalizer.

Built in chapter 1.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from minitransformer.files import read_json, write_json

__all__ = ["GPT2_PATTERN", "TokenizerFile"]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What cuts a text into pieces where a file has `use_regex`."""

# Patterns are for Oniguruma, whose \w has combining marks, which Python's lacks, and whose \s
# lacks the four separators \x1c to \x1f, which Python's has. In words.py: \w+|[^\w\s]
CHARACTER = r"[\s\S]"
WORD = r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s\x1c-\x1f]"


def split_at(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    """The pre_tokenizer that cuts a text by a regular expression."""
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": behavior, "invert": invert}


WORDS = split_at(WORD, "Removed", invert=True)  # what is removed is the rest
JOINED_WORDS = {
    "type": "Sequence",
    "decoders": [
        {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"Regex": r" (?=[-.,;:!?])|(?<=-) "}, "content": ""},
    ],
}
WORD_LEVEL = {"type": "WordLevel", "unk_token": "<unk>"}
SUBWORDS = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
BYTES = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
NULL = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
BPE = {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
KINDS: dict[str, tuple[dict[str, Any], ...]] = {
    "CharacterTokenizer": (split_at(CHARACTER), {"type": "Fuse"}, WORD_LEVEL),
    "WordTokenizer": (WORDS, JOINED_WORDS, WORD_LEVEL),
    "WordPieceTokenizer": (WORDS, JOINED_WORDS, WORD_LEVEL | SUBWORDS | {"type": "WordPiece"}),
    # In a decoder, add_prefix_space changes nothing.
    "BPETokenizer": (
        BYTES | {"add_prefix_space": False},
        BYTES | {"add_prefix_space": True},
        BPE | dict.fromkeys(NULL),
    ),
}
"""For each kind of tokenizer, the file's pre_tokenizer, decoder and model."""

NOTHING_ADDED = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
"""The post_processor that adds no token: what the library `transformers` 5 writes for null."""


class TokenizerFile:
    """The tokenizer as a file, and back."""

    special_tokens: tuple[str, ...]
    ids: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The content of the tokenizer's file: everything needed to rebuild it."""
        kind = kind_of(type(self))
        if kind is None:
            raise TypeError(f"only tokenizers of these kinds have a file: {', '.join(KINDS)}")
        cut, join, model = KINDS[kind]
        pattern = getattr(self, "pattern", GPT2_PATTERN)
        if pattern != GPT2_PATTERN:
            steps = [split_at(pattern), cut | {"use_regex": False}]
            cut = {"type": "Sequence", "pretokenizers": steps}
        learned: dict[str, Any] = {"vocab": self.ids}
        if model["type"] == "BPE":
            learned["merges"] = [list(pair) for pair in getattr(self, "merges", ())]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": self.ids[token], "content": token, **flags, "special": True}
                for token in sorted(self.special_tokens, key=self.ids.__getitem__)
            ],
            "normalizer": None,
            "pre_tokenizer": cut,
            "post_processor": None,
            "decoder": join,
            "model": model | learned,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild what `to_dict` returned.

        Raises:
            ValueError: if a setting is not what this package does, or the vocabulary is broken.
        """
        if (name := state.get("type")) is not None:  # no tokenizer.json: a published tokenizer
            named = {kind.__name__: kind for kind in cls.__subclasses__()}
            if name not in named:
                raise ValueError(f"type is {name!r}, expected {' or '.join(named) or 'none'}")
            return named[name].from_dict(state)
        kinds = [kind for kind in (cls, *cls.__subclasses__()) if kind_of(kind)]
        parts = {kind: KINDS[kind_of(kind) or ""] for kind in kinds}
        model = dict(state.get("model") or {})
        same = [kind for kind in kinds if parts[kind][2]["type"] == model.get("type")]
        if not same:
            types = dict.fromkeys(parts[kind][2]["type"] for kind in kinds)
            raise ValueError(f"model.type is {model.get('type')!r}, expected {' or '.join(types)}")
        cut = state.get("pre_tokenizer")
        kind = next((kind for kind in same if parts[kind][0] == cut), same[0])
        return rebuilt(kind, {**state, "model": model})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a tokenizer.json, in a single step; its folder must exist."""
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tokenizer.json; a FileNotFoundError, or ValueErrors as in `from_dict`."""
        return cls.from_dict(read_json(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)


def kind_of(kind: type) -> str | None:
    """The name in KINDS of a class or of the class that it extends."""
    return next((base.__name__ for base in kind.__mro__ if base.__name__ in KINDS), None)


def rebuilt(kind: Any, state: dict[str, Any]) -> Any:
    """The tokenizer whose file has this content, and says nothing else."""
    model = state["model"]
    specials: dict[str, Any] = {}
    if model["type"] == "BPE":  # its special tokens need not be in the vocabulary
        for token in state.get("added_tokens") or []:
            if token.get("special"):
                specials[str(token.get("content"))] = token.get("id")
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {**specials, **model["vocab"]}
    learned: list[Any] = [in_order(model.get("vocab"), "model.vocab")]
    if model["type"] == "BPE":
        # Until 2024, files had "a b" for what is now ["a", "b"].
        pairs = model.get("merges") or []
        model["merges"] = [pair.split() if isinstance(pair, str) else pair for pair in pairs]
        learned += [model["merges"], specials]
        match state.get("pre_tokenizer"):
            case {"pretokenizers": [{"pattern": {"Regex": str(pattern)}}, *_]}:
                learned.append(pattern)
    if state.get("post_processor") == NOTHING_ADDED:
        state["post_processor"] = None
    tokenizer = kind(*learned)
    check_same(state, tokenizer.to_dict())
    return tokenizer


def in_order(vocab: Any, name: str) -> list[str]:
    """The tokens of a vocabulary by id; a ValueError if the ids are not 0, 1, 2, ..."""
    if not vocab or set(map(str, vocab.values())) != set(map(str, range(len(vocab)))):
        raise ValueError(f"{name} must give each of its n tokens one of the ids 0 to n-1")
    return sorted(vocab, key=lambda token: int(vocab[token]))


def read_vocab_and_merges(
    vocab: str | os.PathLike[str], merges: str | os.PathLike[str]
) -> tuple[list[str], list[list[str]]]:
    """The tokens, in order of id, and the merges of the two files of a byte-level BPE."""
    tokens = in_order(read_json(vocab), str(vocab))
    if not Path(merges).is_file():
        raise FileNotFoundError(f"there are no merges at {merges}")
    lines = Path(merges).read_text(encoding="utf-8").split("\n")
    pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise ValueError(f"{merges} must have two tokens in each line, got {wrong[0]}")
    return tokens, pairs


def check_same(found: Any, expected: Any, name: str = "") -> None:
    """Compare what a file says with what it must say; a missing entry counts as null.

    Example:
        >>> check_same({"type": "BPE", "dropout": 0.1}, {"type": "BPE"}, "model")
        Traceback (most recent call last):
        ValueError: model.dropout is 0.1, expected None
    """
    if found == expected:
        return
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in {**expected, **found}:
            check_same(found.get(key), expected.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            check_same(*pair, f"{name}[{index}]")
    else:
        raise ValueError(f"{name} is {abbreviated(found)}, expected {abbreviated(expected)}")


def abbreviated(value: Any) -> str:
    """A value as an error shows it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}… ({len(text):,} characters)"
