"""Text cut into words and punctuation marks.

Built in chapter 1.
"""

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Self

from minitransformer.tokenization import Tokenizer
from minitransformer.tokenizer_file import JOINED_WORDS, WORDS

__all__ = ["WordTokenizer"]

WORD = re.compile(r"\w+|[^\w\s]")
NEEDLESS_SPACE = re.compile(r" ##| (?=[-.,;:!?])|(?<=-) ")


class WordTokenizer(Tokenizer):
    """One token a word or punctuation mark; words never seen become <unk>.

    White space is not kept: `decode` puts one space between words and none around hyphens or
    before punctuation.

    Args:
        tokens: the words, in order of id.

    Example:
        >>> tokenizer = WordTokenizer.train(["forty-two", "two hundred"])
        >>> tokenizer.labels(tokenizer.encode("two hundred forty-two"))
        ['two', 'hundred', 'forty', '-', 'two']
        >>> tokenizer.decode(tokenizer.encode("two hundred  forty-one"))
        'two hundred forty-<unk>'

    Built in chapter 1.
    """

    settings: ClassVar[dict[str, Any]] = {
        "pre_tokenizer": WORDS,
        "decoder": JOINED_WORDS,
        "model": {"type": "WordLevel", "unk_token": "<unk>"},
    }

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Make tokens of the most frequent words in `texts`; None means of all."""
        return cls(cls.frequent_pieces(texts, vocab_size))

    @staticmethod
    def split(text: str) -> list[str]:
        return split_words(text)

    def decode(self, ids: Iterable[int]) -> str:
        return join_words(self.visible(ids))


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks of a text, without its white space."""
    return WORD.findall(text)


def join_words(words: Iterable[str]) -> str:
    """Put spaces between words, except around hyphens and before punctuation and `##`."""
    return NEEDLESS_SPACE.sub("", " ".join(words))
