"""Text to integers and back: what all tokenizers share, and the one whose tokens are characters.

A tokenizer cuts a text into *pieces* that no token crosses, and each piece into *tokens*, whose
numbers are the *ids* that a model reads. The other kinds have their own modules.

Built in chapter 1.
"""

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from minitransformer.checks import check_instance, texts_of
from minitransformer.tokenizer_file import (
    CHARACTERS,
    common_settings,
    read_json,
    read_model,
    write_json,
)

__all__ = ["CharacterTokenizer", "Tokenizer", "pad_rows"]

CACHE_SIZE = 2**17  # pieces


class Tokenizer(ABC):
    """What every tokenizer can do. The special tokens are ids 0 to 4 in all of them.

    `<pad>` fills short rows, `<bos>` and `<eos>` begin and end a sequence, `<unk>` stands for
    what has no token, `<mask>` for what a model is to guess.

    The file format is the `tokenizer.json` of the library `tokenizers`: it loads what `save`
    writes and finds the same ids, and `load` reads what it saves with the same settings.

    Args:
        tokens: the vocabulary after the special tokens, in order of id, as the file spells it.

    Raises:
        ValueError: if a token occurs twice, or has a lone surrogate, which no file can hold.

    Built in chapter 1.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
    pad_id, bos_id, eos_id, unk_id, mask_id = range(5)
    settings: ClassVar[dict[str, Any]]
    """What the file says about this kind of tokenizer: pre_tokenizer, decoder, model."""

    def __init_subclass__(cls) -> None:
        """With other special tokens, the ids are those of the same names, and None for the rest."""
        if "special_tokens" in cls.__dict__:
            for name in Tokenizer.special_tokens:
                found = cls.special_tokens.index(name) if name in cls.special_tokens else None
                setattr(cls, f"{name[1:-1]}_id", found)

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = (*self.special_tokens, *tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.cache: dict[str, list[int]] = {}
        for index, token in enumerate(self.tokens):
            if self.ids[token] != index:
                raise ValueError(f"token {token!r} occurs twice: {index} and {self.ids[token]}")
        if surrogate := re.search("[\ud800-\udfff]", "".join(self.tokens)):
            raise ValueError(f"a token has the lone surrogate {surrogate[0]!r}, which is no text")

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones included."""
        return len(self.tokens)

    @classmethod
    @abstractmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Choose up to `vocab_size` tokens, the special ones included, by their use in `texts`."""

    @staticmethod
    @abstractmethod
    def split(text: str) -> list[str]:
        """Cut a text into the pieces that no token crosses."""

    def encode_piece(self, piece: str) -> list[int]:
        """The ids of one piece; here, where nothing cuts it further, a single one."""
        return [self.ids.get(piece, self.unk_id)]

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens to text; <pad>, <bos> and <eos> leave no trace.

        Raises:
            TypeError: if `ids` cannot be iterated over.
            ValueError: if an id lies outside the vocabulary.
        """

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Cut text into tokens and return their ids; adds no special tokens.

        Args:
            text: any text.
            parse_special: whether "<eos>" in the text means the special token. Otherwise it is
                five characters like others, so that what a user types cannot end a sequence.
        """
        check_instance("text", text, str)
        ids: list[int] = []
        specials = "|".join(map(re.escape, self.special_tokens))
        parts = re.split(f"({specials})", text) if parse_special and specials else [text]
        for index, part in enumerate(parts):
            if index % 2:  # re.split puts what it splits at between the rest
                ids.append(self.ids[part])
                continue
            for piece in self.split(part):
                found = self.cache.get(piece)
                if found is None:
                    if len(self.cache) >= CACHE_SIZE:
                        self.cache.clear()
                    found = self.cache[piece] = self.encode_piece(piece)
                ids += found
        return ids

    @property
    def first_id(self) -> int:
        """The id that begins a text, `<bos>` or else `[CLS]` or what ends the text before."""
        if (index := self.special_id("bos", "cls", "eos")) is None:
            raise ValueError("the tokenizer has no token that begins a text: no bos, cls or eos")
        return index

    @property
    def last_id(self) -> int:
        """The id that ends a text, `<eos>`; without one, `[SEP]`."""
        if (index := self.special_id("eos", "sep")) is None:
            raise ValueError("the tokenizer has no token that ends a text: no eos or sep")
        return index

    def special_id(self, *roles: str) -> int | None:
        """The first of these special tokens that there is; published tokenizers lack some."""
        found = (getattr(self, f"{role}_id", None) for role in roles)
        return next((index for index in found if index is not None), None)

    def begin(self, text: str) -> list[int]:
        """The ids of a text that a model goes on with: <bos>, if any, then those of `encode`."""
        begin = [] if self.bos_id is None else [self.bos_id]
        return [*begin, *self.encode(text)] or [self.first_id]

    def stream_ids(self, text: str) -> list[int]:
        """The ids of a text as a language model reads it: with its begin and its end."""
        return [*self.begin(text), self.last_id]

    def sequence_ids(self, text: str) -> list[int]:
        """The ids of a text as an encoder reads it and a decoder writes it: with its end.

        What the decoder begins with is not written by it: see `encode_pairs`.
        """
        return [*self.encode(text), self.last_id]

    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """The text that `ids` add to what ends with `before`, a prompt for example.

        A tokenizer may decode a token otherwise at the beginning of a text, without its space for
        example. Half a character at the end is held back: it comes with the ids that complete it.

        Example:
            >>> from minitransformer.words import WordTokenizer
            >>> words = WordTokenizer(["two", "hundred"])
            >>> words.decode([6]), words.decode_after([5], [6])
            ('hundred', ' hundred')
        """
        before = list(before)
        # Bytes that are no whole character are decoded as "\ufffd".
        known, whole = (self.decode(x).rstrip("\ufffd") for x in (before, [*before, *ids]))
        return whole.removeprefix(known)

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures."""
        return [self.token(index) for index in ids]

    def token(self, index: int) -> str:
        """The token of an id; a ValueError if the id lies outside the vocabulary."""
        if not 0 <= index < self.vocab_size:
            raise ValueError(f"id {index} lies outside the vocabulary of {self.vocab_size} tokens")
        return self.tokens[index]

    def visible(self, ids: Iterable[int]) -> Iterator[str]:
        """The tokens that show in decoded text: all but <pad>, <bos> and <eos>."""
        check_instance("ids", ids, Iterable)
        return (self.token(i) for i in ids if i not in (self.pad_id, self.bos_id, self.eos_id))

    @classmethod
    def count_pieces(cls, texts: Iterable[str]) -> Counter[str]:
        """How often each piece occurs in `texts`."""
        return Counter(chain.from_iterable(map(cls.split, texts_of("texts", texts))))

    @classmethod
    def frequent_pieces(cls, texts: Iterable[str], vocab_size: int | None) -> list[str]:
        """The most frequent pieces, of equally frequent ones the smaller; None means all."""
        specials = len(cls.special_tokens)
        if vocab_size is not None and vocab_size < specials:
            raise ValueError(
                f"vocab_size must be at least {specials}, the special tokens, got {vocab_size}"
            )
        counts = cls.count_pieces(texts)
        pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
        return pieces if vocab_size is None else pieces[: vocab_size - specials]

    def to_dict(self) -> dict[str, Any]:
        """The content of the tokenizer's file: everything needed to rebuild it."""
        model = self.settings["model"] | {"vocab": self.ids}
        return common_settings(self.special_tokens) | self.settings | {"model": model}

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
        kinds = [kind for kind in (cls, *cls.__subclasses__()) if hasattr(kind, "settings")]
        types = dict.fromkeys(kind.settings["model"]["type"] for kind in kinds)
        found = (state.get("model") or {}).get("type")
        if found not in types:
            raise ValueError(f"model.type is {found!r}, expected {' or '.join(types)}")
        kinds = [kind for kind in kinds if kind.settings["model"]["type"] == found]
        split = state.get("pre_tokenizer")
        kind = next((k for k in kinds if k.settings["pre_tokenizer"] == split), kinds[0])
        return kind(*read_model(state, kind.settings, cls.special_tokens))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a tokenizer.json, in a single step; its folder must exist."""
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a tokenizer.json; a FileNotFoundError, or ValueErrors as in `from_dict`."""
        return cls.from_dict(read_json(path))


class CharacterTokenizer(Tokenizer):
    """One token a character; characters never seen become <unk>.

    Args:
        tokens: the characters, in order of id.

    Example:
        >>> tokenizer = CharacterTokenizer.train(["zwei zig"])
        >>> tokenizer.labels(tokenizer.encode("zu"))
        ['z', '<unk>']

    Built in chapter 1.
    """

    settings: ClassVar[dict[str, Any]] = {
        "pre_tokenizer": CHARACTERS,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "unk_token": "<unk>"},
    }

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Make tokens of the most frequent characters in `texts`; None means of all."""
        return cls(cls.frequent_pieces(texts, vocab_size))

    @staticmethod
    def split(text: str) -> list[str]:
        return list(text)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.visible(ids))


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int = Tokenizer.pad_id) -> Tensor:
    """Stack rows of ids, filling the short ones on the right.

    Args:
        rows: at least one row of ids.
        pad_id: what to fill with.

    Returns:
        (b, n) with n the longest row, int64.

    Raises:
        ValueError: if there are no rows.

    Example:
        >>> pad_rows([[5, 6, 7], [8]])
        tensor([[5, 6, 7],
                [8, 0, 0]])

    Built in chapter 1.
    """
    if not rows:
        raise ValueError("rows must hold at least one row, got 0")
    length = max(map(len, rows))
    padded = [[*row, *[pad_id] * (length - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64)
