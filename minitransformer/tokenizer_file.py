"""The file of a tokenizer: the tokenizer.json of the library `tokenizers`.

The file names every step from text to ids, so that another program can take the same ones. What
this package's tokenizers leave out is there too, as null: truncation, padding, normalizer.

Built in chapter 1.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minitransformer.files import replacing

__all__ = [
    "CHARACTERS",
    "JOINED_WORDS",
    "WORDS",
    "common_settings",
    "read_json",
    "read_model",
    "write_json",
]

CHARACTERS: dict[str, Any] = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}
"""The pre_tokenizer that cuts a text into characters."""

# Patterns are for Oniguruma, whose \w has combining marks, which Python's lacks, and whose \s
# lacks the four separators \x1c to \x1f, which Python's has. In words.py: \w+|[^\w\s]
WORDS: dict[str, Any] = {
    "type": "Split",
    "pattern": {"Regex": r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s\x1c-\x1f]"},
    "behavior": "Removed",
    "invert": True,  # what is removed is the rest
}
"""The pre_tokenizer that cuts a text into words and punctuation marks."""

JOINED_WORDS: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"Regex": r" (?=[-.,;:!?])|(?<=-) "}, "content": ""},
    ],
}
"""The decoder that puts words together again."""


NOTHING_ADDED: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
"""The post_processor that adds no token: what the library `transformers` 5 writes for null."""

LONGEST_IN_AN_ERROR = 100  # characters


def common_settings(special_tokens: Sequence[str]) -> dict[str, Any]:
    """What the files of all tokenizers say: special tokens come first and are matched as they are.

    Example:
        >>> common_settings(["<pad>", "<bos>"])["added_tokens"][1]["content"]
        '<bos>'
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": True}
            for index, token in enumerate(special_tokens)
        ],
        "normalizer": None,
        "post_processor": None,
    }


def abbreviated(value: Any) -> str:
    """A value as an error shows it: its beginning, if it is long.

    Example:
        >>> abbreviated([0.5, None]), len(abbreviated("a" * 40_000))
        ('[0.5, None]', 121)
    """
    text = repr(value)
    if len(text) <= LONGEST_IN_AN_ERROR:
        return text
    return f"{text[:LONGEST_IN_AN_ERROR]}… ({len(text):,} characters)"


def check_same(found: Any, expected: Any, name: str = "") -> None:
    """Compare what a file says with what it must say; a missing entry is as good as null.

    Raises:
        ValueError: at the first difference, with its place and both values.

    Example:
        >>> check_same({"type": "BPE"}, {"type": "BPE", "dropout": None}, "model")
        >>> check_same({"type": "BPE", "dropout": 0.1}, {"type": "BPE"}, "model")
        Traceback (most recent call last):
        ValueError: model.dropout is 0.1, expected None
    """
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in {**expected, **found}:
            check_same(found.get(key), expected.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            check_same(*pair, f"{name}[{index}]")
    elif found != expected:
        raise ValueError(f"{name} is {abbreviated(found)}, expected {abbreviated(expected)}")


def read_model(
    state: Mapping[str, Any], settings: Mapping[str, Any], special_tokens: Sequence[str]
) -> tuple[Any, ...]:
    """Take out of a file what its tokenizer has learned, after a look at all the rest.

    Args:
        state: the content of the file.
        settings: the pre_tokenizer, decoder and model that it must have.
        special_tokens: the tokens that its vocabulary must begin with.

    Returns:
        The tokens after the special ones, in order of id; and the merges, if the settings have
        an entry for them.

    Raises:
        ValueError: if a setting is another, or the vocabulary is broken.
    """
    model = dict(state["model"])
    vocab = model.pop("vocab", None)
    learned = [model.pop("merges", None) or []] if "merges" in settings["model"] else []
    state = {**state, "model": model}
    if state.get("post_processor") == NOTHING_ADDED:
        state["post_processor"] = None
    check_same(state, {**common_settings(special_tokens), **settings})
    if not isinstance(vocab, dict) or set(vocab.values()) != set(range(len(vocab))):
        raise ValueError("model.vocab must give each of its n tokens one of the ids 0 to n-1")
    tokens, first = sorted(vocab, key=lambda token: vocab[token]), len(special_tokens)
    check_same(tokens[:first], list(special_tokens), "the beginning of model.vocab")
    pairs = [[pair.split() if isinstance(pair, str) else pair for pair in part] for part in learned]
    return tokens[first:], *pairs  # until 2024, files had "a b" for what is now ["a", "b"]


def write_json(content: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write JSON in a single step: whoever stops it finds the old file or the new one, whole.

    Raises:
        FileNotFoundError: if the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the tokenizer does not exist: {path.parent}")
    with replacing(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=2)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds something else, or is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer at {path}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected an object")
    return content
