"""Text to integers and back: words, and byte-pair encoding.

Built in chapter 1. Paper: "Neural Machine Translation of Rare Words with Subword Units"
(Sennrich et al., 2016), on which section 5.1 of "Attention Is All You Need" rests.
"""

import heapq
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

__all__ = ["BPETokenizer", "Tokenizer", "WordTokenizer", "pad_rows"]


class Tokenizer(ABC):
    """What every tokenizer can do. The special tokens come first and are the same in all.

    Args:
        tokens: the vocabulary after the special tokens, each token's bytes, in order of id.

    Built in chapter 1.
    """

    special_tokens: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    pad_id, bos_id, eos_id, unk_id = range(4)

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = (*(name.encode() for name in self.special_tokens), *tokens)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones included."""
        return len(self.tokens)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Cut text into tokens and return their ids; adds no special tokens."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens to text; special tokens other than <unk> leave no trace."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything needed to rebuild the tokenizer, as JSON can hold it."""

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures; half a character shows as "\\ufffd"."""
        return [self.token(token_id).decode(errors="replace") for token_id in ids]

    def token(self, token_id: int) -> bytes:
        """The bytes of one token; a ValueError if the id lies outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(
                f"id {token_id} lies outside the vocabulary of {self.vocab_size} tokens"
            )
        return self.tokens[token_id]

    def visible(self, ids: Iterable[int]) -> list[bytes]:
        """The tokens that show in decoded text: all but <pad>, <bos> and <eos>."""
        return [self.token(i) for i in ids if i not in (self.pad_id, self.bos_id, self.eos_id)]

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "Tokenizer":
        """Rebuild what `to_dict` wrote.

        Raises:
            ValueError: if the kind of tokenizer is unknown.
        """
        match state:
            case {"kind": "word", "words": words}:
                return WordTokenizer(words)
            case {"kind": "bpe", "merges": merges}:
                return BPETokenizer(merges)
        raise ValueError(f"kind must be 'word' or 'bpe', got {state.get('kind')!r}")


class WordTokenizer(Tokenizer):
    """One token a word or punctuation mark; words never seen become <unk>.

    White space is not kept: `decode` puts one space between words and none around hyphens or
    before punctuation.

    Args:
        words: the vocabulary, in order of id.

    Example:
        >>> tokenizer = WordTokenizer.train(["forty-two", "two hundred"])
        >>> tokenizer.labels(tokenizer.encode("two hundred forty-two"))
        ['two', 'hundred', 'forty', '-', 'two']
        >>> tokenizer.decode(tokenizer.encode("two hundred  forty-one"))
        'two hundred forty-<unk>'

    Built in chapter 1.
    """

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__([word.encode() for word in words])
        self.words = list(words)
        self.ids = {word: index for index, word in enumerate(words, len(self.special_tokens))}

    @classmethod
    def train(cls, texts: Iterable[str]) -> "WordTokenizer":
        """Make a token of every word in `texts`, the frequent ones first."""
        counts = Counter(word for text in texts for word in split_words(text))
        return cls(sorted(counts, key=lambda word: (-counts[word], word)))

    def encode(self, text: str) -> list[int]:
        return [self.ids.get(word, self.unk_id) for word in split_words(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Join words to text; a ValueError if an id lies outside the vocabulary."""
        text = b" ".join(self.visible(ids)).decode()
        return re.sub(r" ?(-) ?| ([.,;:!?])", r"\1\2", text)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "word", "words": self.words}


class BPETokenizer(Tokenizer):
    """Byte-pair encoding: start from single bytes, then merge pairs that are often neighbours.

    Every byte is a token, so that every string can be written and comes back exactly. Merges
    stay inside the pieces that `split_pieces` cuts: words with the space before them, numbers,
    runs of punctuation.

    Args:
        merges: pairs of token ids in the order they were learned; the n-th makes id 260 + n.

    Raises:
        ValueError: if a merge uses a token that does not exist yet.

    Example:
        >>> tokenizer = BPETokenizer.train(["zwanzig dreißig vierzig"], num_merges=2)
        >>> tokenizer.labels(tokenizer.encode("vierzig"))
        ['v', 'i', 'e', 'r', 'zig']
        >>> tokenizer.decode(tokenizer.encode("fünfzig ☃"))
        'fünfzig ☃'

    Built in chapter 1. Paper: Sennrich et al., section 3.2; on bytes: Radford et al. (2019).
    """

    def __init__(self, merges: Sequence[Sequence[int]]) -> None:
        first = len(self.special_tokens)
        tokens = [bytes([byte]) for byte in range(256)]
        for left, right in merges:
            if not first <= min(left, right) <= max(left, right) < first + len(tokens):
                raise ValueError(
                    f"merge ({left}, {right}) uses a token that does not exist yet; "
                    f"there are ids {first} to {first + len(tokens) - 1}"
                )
            tokens.append(tokens[left - first] + tokens[right - first])
        super().__init__(tokens)
        self.merges = [(left, right) for left, right in merges]
        self.ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self.cache: dict[str, list[int]] = {}

    @classmethod
    def train(cls, texts: Iterable[str], num_merges: int) -> "BPETokenizer":
        """Learn merges from `texts`: at each step the most frequent pair of neighbours.

        Of equally frequent pairs the one with the smaller ids is taken. Training ends early
        when no pair is left.

        Raises:
            ValueError: if `num_merges` is negative.
        """
        if num_merges < 0:
            raise ValueError(f"num_merges must be at least 0, got {num_merges}")
        counts = Counter(piece for text in texts for piece in split_pieces(text))
        words = [to_byte_ids(piece) for piece in counts]
        weights = list(counts.values())
        pair_counts: Counter[tuple[int, int]] = Counter()
        where: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for index, word in enumerate(words):
            for pair in pairwise(word):
                pair_counts[pair] += weights[index]
                where[pair].add(index)
        heap = [(-count, pair) for pair, count in pair_counts.items()]
        heapq.heapify(heap)
        merges: list[tuple[int, int]] = []
        while heap and len(merges) < num_merges:
            negative_count, best = heapq.heappop(heap)
            if -negative_count != pair_counts[best]:
                continue  # an outdated entry: the true count was pushed when it changed
            new_id = len(cls.special_tokens) + 256 + len(merges)
            merges.append(best)
            changed = set()
            for index in where.pop(best):
                old = words[index]
                words[index] = new = merge(old, best, new_id)
                for word, sign in ((old, -weights[index]), (new, weights[index])):
                    for pair in pairwise(word):
                        pair_counts[pair] += sign
                        changed.add(pair)
                for pair in pairwise(new):
                    where[pair].add(index)
            for pair in changed:
                if pair_counts[pair] > 0:
                    heapq.heappush(heap, (-pair_counts[pair], pair))
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        """Cut text into pieces and merge each one's bytes in the order of training."""
        ids: list[int] = []
        for piece in split_pieces(text):
            if piece not in self.cache:
                self.cache[piece] = self.encode_piece(piece)
            ids += self.cache[piece]
        return ids

    def encode_piece(self, piece: str) -> list[int]:
        """Apply to one piece, again and again, the earliest merge that fits anywhere in it."""
        ids, never = to_byte_ids(piece), len(self.ranks)
        while len(ids) > 1:
            rank, pair = min((self.ranks.get(pair, never), pair) for pair in pairwise(ids))
            if rank == never:
                break
            ids = merge(ids, pair, len(self.special_tokens) + 256 + rank)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens to text; bytes that are no UTF-8 show as "\\ufffd".

        Raises:
            ValueError: if an id lies outside the vocabulary.
        """
        joined = b"".join(self.visible(ids))
        try:
            return joined.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return joined.decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "bpe", "merges": self.merges}


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks of a text, without its white space."""
    return re.findall(r"\w+|[^\w\s]", text)


def split_pieces(text: str) -> list[str]:
    """Pieces that merges stay inside: letters, digits or marks, with one space before them."""
    return re.findall(r" ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+", text)


def to_byte_ids(piece: str) -> list[int]:
    """The ids of a piece's UTF-8 bytes; lone surrogates, which UTF-8 forbids, pass too."""
    first = len(Tokenizer.special_tokens)
    return [first + byte for byte in piece.encode("utf-8", "surrogatepass")]


def merge(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """Replace each occurrence of `pair` in `ids`, from the left, by `new_id`."""
    merged: list[int] = []
    i = 0
    while i < len(ids):
        if ids[i] == pair[0] and i + 1 < len(ids) and ids[i + 1] == pair[1]:
            merged.append(new_id)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


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
