"""Text to integers and back: what all tokenizers share, and the one whose tokens are characters.

A tokenizer cuts a text into *pieces* that no token crosses, and each piece into *tokens*, whose
numbers are the *ids* that a model reads. The other kinds have their own modules.

Built in chapter 1.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from minitransformer.checks import check_instance, check_vocab_size, texts_of
from minitransformer.tokenization.tokenizer_file import TokenizerFile

__all__ = ["CharacterTokenizer", "SpecialTokens", "Tokenizer", "ids_of", "pad_rows"]

PIECES_KEPT = 2**17  # the number of pieces whose ids `encode` remembers

ROLES = {
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<bos>", "<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}
"""The usual names of the special token of each role."""


class SpecialTokens(ABC):
    """The special tokens of a tokenizer, and where they go in what a model reads.

    `<pad>` fills short rows, `<bos>` and `<eos>` begin and end a sequence, `<unk>` replaces what
    has no token, `<mask>` hides what a model is to predict. `pad_id`, `bos_id`, `eos_id`, `unk_id`,
    `mask_id`, and BERT's `cls_id` and `sep_id`, are their ids by the usual names, or None.

    Args:
        special_tokens: their names.
        ids: the id of each token.
    """

    special_tokens: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
    pad_id, bos_id, eos_id, unk_id, mask_id = range(5)

    def __init__(self, special_tokens: Sequence[str], ids: Mapping[str, int]) -> None:
        self.special_tokens = tuple(special_tokens)
        longest_first = sorted(self.special_tokens, key=len, reverse=True)
        self.special_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        for role, names in ROLES.items():
            found = (ids[name] for name in names if name in self.special_tokens)
            setattr(self, f"{role}_id", next(found, None))

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""

    def special_id(self, *roles: str) -> int | None:
        """The id of the first of these roles that has a token."""
        found = (getattr(self, f"{role}_id", None) for role in roles)
        return next((index for index in found if index is not None), None)

    def needed_id(self, use: str, *roles: str) -> int:
        """The same, with a ValueError if none has."""
        if (index := self.special_id(*roles)) is None:
            raise ValueError(f"the tokenizer has no token {use}: no {' or '.join(roles)}")
        return index

    @property
    def first_id(self) -> int:
        """The id that begins a text, `<bos>` or `[CLS]`, or else what ends the text before."""
        return self.needed_id("that begins a text", "bos", "cls", "eos")

    @property
    def last_id(self) -> int:
        """The id that ends a text, `<eos>` or `[SEP]`."""
        return self.needed_id("that ends a text", "eos", "sep")

    def unknown_id(self, piece: str) -> int:
        """The id of what is no token, `<unk>`."""
        return self.needed_id(f"for the unknown {piece!r}", "unk")

    def begin(self, text: str) -> list[int]:
        """The ids of a text that a model continues: `<bos>`, if there is one, and the text's."""
        begin = [] if self.bos_id in (None, self.eos_id) else [self.bos_id]
        return [*begin, *self.encode(text)] or [self.first_id]

    def stream_ids(self, text: str) -> list[int]:
        """The ids of a text as a language model reads it: with its begin and its end."""
        return [*self.begin(text), self.last_id]

    def sequence_ids(self, text: str) -> list[int]:
        """The ids of a text as an encoder reads it and a decoder predicts it: with its end.

        `encode_pairs` adds what the decoder begins with.
        """
        return [*self.encode(text), self.last_id]

    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """The text that `ids` add to what ends with `before`, for example a prompt.

        Some tokenizers decode a token differently at the beginning of a text, for example without
        its space. Half a character at the end is left out until the ids that complete it follow.

        Example:
            >>> from minitransformer.tokenization.words import WordTokenizer
            >>> words = WordTokenizer(["two", "hundred"])
            >>> words.decode([6]), words.decode_after([5], [6])
            ('hundred', ' hundred')
        """
        before = list(before)
        # Bytes that are no whole character are decoded as "\ufffd".
        known, whole = (self.decode(x).rstrip("\ufffd") for x in (before, [*before, *ids]))
        # A byte that cannot follow the ones before it changes how those are decoded.
        return whole.removeprefix(known) if whole.startswith(known) else ""


class Tokenizer(SpecialTokens, TokenizerFile):
    """What every tokenizer can do. Each kind adds `split` and `join`.

    Its file is the `tokenizer.json` of the library `tokenizers`, which loads what `save` writes
    and finds the same ids; `load` reads what the library saves with the same settings.

    Args:
        tokens: the vocabulary, in order of id, as the file spells it. Special tokens that are not
            in it are put in front.
        special_tokens: tokens that are not found in a text unless `encode` is asked to parse them.

    Raises:
        TypeError: if `tokens` is a single str.
        ValueError: if a token occurs twice, is empty, or has a lone surrogate; in `encode`, if
            something is unknown and there is no <unk>.
    """

    def __init__(
        self, tokens: Iterable[str], special_tokens: Iterable[str] = SpecialTokens.special_tokens
    ) -> None:
        tokens = list(texts_of("tokens", tokens))
        known = set(tokens)
        specials = list(texts_of("special_tokens", special_tokens))
        self.tokens = (*(name for name in specials if name not in known), *tokens)
        self.ids = ids_of(self.tokens)
        self.vocab_size = len(self.tokens)
        self.cached = lru_cache(PIECES_KEPT)(self.encode_piece)
        super().__init__(specials, self.ids)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Make tokens of the most frequent pieces of `texts`; None keeps all.

        Of equally frequent pieces, the smaller comes first.
        """
        untrained = cls([])
        check_vocab_size(vocab_size, untrained.tokens)
        counts = untrained.count_pieces(texts)
        pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
        return cls(pieces if vocab_size is None else pieces[: vocab_size - untrained.vocab_size])

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """Cut a text into the pieces that no token crosses."""

    @abstractmethod
    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""

    def count_pieces(self, texts: Iterable[str]) -> Counter[str]:
        """How often each piece occurs in `texts`, which are also cut at special tokens."""
        parts = (self.special_pattern.split(text)[::2] for text in texts_of("texts", texts))
        return Counter(chain.from_iterable(map(self.split, chain.from_iterable(parts))))

    def encode_piece(self, piece: str) -> list[int]:
        """The ids of one piece; here a single one."""
        return [self.ids[piece] if piece in self.ids else self.unknown_id(piece)]

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Cut text into tokens and return their ids; adds no special tokens.

        Args:
            text: any text.
            parse_special: whether "<eos>" in the text means the special token. Otherwise it is
                text like any other, so that what a user types cannot end a sequence.
        """
        check_instance("text", text, str)
        ids: list[int] = []
        for index, part in enumerate(self.special_pattern.split(text) if parse_special else [text]):
            if index % 2:  # odd parts are special tokens
                ids.append(self.ids[part])
            else:
                ids += chain.from_iterable(map(self.cached, self.split(part)))
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Join tokens to text.

        Args:
            ids: token ids.
            skip_special_tokens: whether to leave out <pad>, <bos> and <eos>.

        Raises:
            TypeError: if `ids` cannot be iterated over.
            ValueError: if an id lies outside the vocabulary.
        """
        check_instance("ids", ids, Iterable)
        hidden = (self.pad_id, self.bos_id, self.eos_id) if skip_special_tokens else ()
        return self.join([self.token(index) for index in ids if index not in hidden])

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures."""
        return [self.token(index) for index in ids]

    def token(self, index: int) -> str:
        """The token of an id; a ValueError if the id lies outside the vocabulary."""
        if not 0 <= index < self.vocab_size:
            raise ValueError(f"id {index} lies outside the vocabulary of {self.vocab_size} tokens")
        return self.tokens[index]


class CharacterTokenizer(Tokenizer):
    """One token a character; characters never seen become <unk>.

    Args:
        tokens: the characters, in order of id.

    Example:
        >>> tokenizer = CharacterTokenizer.train(["zwei zig"])
        >>> tokenizer.labels(tokenizer.encode("zu"))
        ['z', '<unk>']
    """

    def split(self, text: str) -> list[str]:
        return list(text)

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)


def ids_of(tokens: Sequence[str]) -> dict[str, int]:
    """The id of each token; a ValueError if they cannot be a vocabulary."""
    ids = {token: index for index, token in enumerate(tokens)}
    for index, token in enumerate(tokens):
        if ids[token] != index:
            raise ValueError(f"token {token!r} occurs twice: {index} and {ids[token]}")
    if "" in ids:
        raise ValueError(f"token {ids['']} is empty")
    if surrogate := re.search("[\ud800-\udfff]", "".join(tokens)):
        raise ValueError(f"a token has the lone surrogate {surrogate[0]!r}, which is no text")
    return ids


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
    """
    if not rows:
        raise ValueError("rows must hold at least one row, got 0")
    length = max(map(len, rows))
    padded = [[*row, *[pad_id] * (length - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64)  # (b, n)
