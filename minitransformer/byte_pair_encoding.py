"""Byte-pair encoding: begin with single bytes, and merge again and again the most frequent pair.

Built in chapter 1. Papers: "Neural Machine Translation of Rare Words with Subword Units" (Sennrich
et al., 2016), on which section 5.1 of "Attention Is All You Need" rests; for bytes and pieces,
"Language Models are Unsupervised Multitask Learners" (Radford et al., 2019), section 2.2.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Self

from minitransformer.merging import learn_merges, merge_pairs
from minitransformer.tokenization import Tokenizer

__all__ = ["BPETokenizer", "split_pieces"]

# A file holds text, so each byte is spelled as a character: the printable ones of Latin-1 as
# themselves, the other 68 as the characters from 256 on. The space becomes "Ġ".
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
SPELLED = {byte: chr(byte) for byte in PRINTABLE} | {b: chr(256 + n) for n, b in enumerate(OTHERS)}
BYTE_OF = {ord(character): byte for byte, character in SPELLED.items()}
BYTE_TOKENS = tuple(sorted(SPELLED.values()))


class BPETokenizer(Tokenizer):
    """Byte-pair encoding as in GPT-2: every byte is a token, so that every text can be written.

    Merges stay inside the pieces that `split_pieces` cuts: words with the space before them,
    numbers, runs of punctuation.

    Args:
        tokens: the vocabulary after the special tokens, in order of id, each byte spelled as a
            character; all 256 bytes must be there.
        merges: pairs of tokens, the first learned first.

    Raises:
        ValueError: if a byte is missing, or a merge joins or makes what is not in the vocabulary.

    Example:
        >>> tokenizer = BPETokenizer.train(["zwanzig dreißig vierzig"], vocab_size=263)
        >>> tokenizer.labels(tokenizer.encode("vierzig"))
        ['v', 'i', 'e', 'r', 'zig']
        >>> tokenizer.decode(tokenizer.encode("fünfzig ☃"))
        'fünfzig ☃'
        >>> Tokenizer.from_dict(tokenizer.to_dict()).tokens == tokenizer.tokens  # as from a file
        True

    Built in chapter 1. Papers: Sennrich et al., section 3.2; Radford et al., section 2.2.
    """

    settings: ClassVar[dict[str, Any]] = {
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,  # in a decoder, this and the rest change nothing
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,  # not needed where every byte is a token anyway
            "ignore_merges": False,
            "merges": None,  # filled by `to_dict`
        },
    }

    def __init__(self, tokens: Iterable[str], merges: Iterable[Sequence[str]]) -> None:
        super().__init__(tokens)
        if missing := [byte for byte, token in SPELLED.items() if token not in self.ids]:
            raise ValueError(
                f"all 256 bytes must be tokens, {len(missing)} are missing: {min(missing)}"
                + (f" to {max(missing)}" if len(missing) > 1 else "")
            )
        self.merges = [(left, right) for left, right in merges]
        self.rules: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right) in enumerate(self.merges):
            for token in (left, right, left + right):
                if token not in self.ids:
                    raise ValueError(f"merge {left!r} + {right!r}: {token!r} is no token")
            self.rules[self.ids[left], self.ids[right]] = rank, self.ids[left + right]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Merge the most frequent pair of neighbours until there are `vocab_size` tokens.

        Of equally frequent pairs the one with the smaller ids is taken. Training ends early when
        no pair is left. The order of the texts does not matter.

        Raises:
            TypeError: if `texts` is a single str.
            ValueError: if `vocab_size` is below 261, for 5 special tokens and 256 bytes.
        """
        specials = len(cls.special_tokens)
        if vocab_size < (least := specials + len(BYTE_TOKENS)):
            raise ValueError(
                f"vocab_size must be at least {least}, for {specials} special tokens and "
                f"{len(BYTE_TOKENS)} bytes, got {vocab_size}"
            )
        letter = {byte: chr(specials + BYTE_TOKENS.index(SPELLED[byte])) for byte in range(256)}
        words = {
            to_bytes(piece).decode("latin-1").translate(letter): count
            for piece, count in cls.count_pieces(texts).items()
        }
        tokens, merges = learn_merges(words, [*cls.special_tokens, *BYTE_TOKENS], vocab_size)
        return cls(tokens[specials:], merges)

    @staticmethod
    def split(text: str) -> list[str]:
        return split_pieces(text)

    def encode_piece(self, piece: str) -> list[int]:
        """Merge a piece's bytes, always the pair whose merge was learned first."""
        return merge_pairs([self.ids[SPELLED[byte]] for byte in to_bytes(piece)], self.rules)

    def decode(self, ids: Iterable[int]) -> str:
        """Join tokens to text; bytes that are no UTF-8 show as U+FFFD.

        Raises:
            ValueError: if an id lies outside the vocabulary.
        """
        return to_text("".join(self.visible(ids)))

    def labels(self, ids: Iterable[int]) -> list[str]:
        """Each id's token as readable text, for figures; half a character shows as U+FFFD."""
        return [to_text(self.token(index)) for index in ids]

    def to_dict(self) -> dict[str, Any]:
        """The content of the tokenizer's file: everything needed to rebuild it."""
        state = super().to_dict()
        state["model"]["merges"] = [list(pair) for pair in self.merges]
        return state


def to_bytes(piece: str) -> bytes:
    """A text's UTF-8 bytes; lone surrogates, which UTF-8 forbids, pass too."""
    return piece.encode("utf-8", "surrogatepass")


def to_text(spelled: str) -> str:
    """The text whose bytes are spelled as characters."""
    joined = spelled.translate(BYTE_OF).encode("latin-1")
    try:
        return joined.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return joined.decode("utf-8", "replace")


def split_pieces(text: str) -> list[str]:
    """Cut text as GPT-2 does: letters, numbers or marks, with one space before them.

    Its pattern needs \\p{L} and \\p{N}, letters and numbers, which Python's patterns do not know:
    `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.

    Example:
        >>> split_pieces("It's  42 – or not?")
        ['It', "'s", ' ', ' 42', ' –', ' or', ' not', '?']

    Built in chapter 1.
    """
    plain = text.isascii() or rare_numerals().isdisjoint(text)
    return piece_pattern("" if plain else "".join(rare_numerals())).findall(text)


@cache
def piece_pattern(numerals: str) -> re.Pattern[str]:
    """The pattern of pieces. It is much slower with `numerals`, so they are left out if possible.

    Args:
        numerals: characters that \\w has, but that are neither letters nor \\d.
    """
    letter, number = rf"[^\W\d_{numerals}]", rf"[\d{numerals}]"
    mark = r"(?:[^\w\s]+|[_\x1c-\x1f]+)"  # four separators are space to Python alone
    space = r"[^\S\x1c-\x1f]"
    return re.compile(
        rf"'(?:[stmd]|re|ve|ll)| ?{letter}+| ?{number}+| ?{mark}+|{space}+(?={space}|\Z)|{space}+"
    )


@cache
def rare_numerals() -> frozenset[str]:
    """The numerals that are neither decimal digits nor letters, such as ², ½ and Ⅷ."""
    characters = map(chr, range(sys.maxunicode + 1))
    return frozenset(c for c in characters if c.isnumeric() and not (c.isdecimal() or c.isalpha()))
