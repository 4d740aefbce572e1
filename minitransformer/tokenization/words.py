"""Text cut into words and punctuation marks.

Built in chapter 1.
"""

import re
from collections.abc import Iterable, Sequence

from minitransformer.tokenization.tokenizer import Tokenizer

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
    """

    def split(self, text: str) -> list[str]:
        return split_words(text)

    def join(self, tokens: Sequence[str]) -> str:
        return join_words(tokens)


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks of a text, without its white space."""
    return WORD.findall(text)


def join_words(words: Iterable[str]) -> str:
    """Put spaces between words, except around hyphens and before punctuation and `##`."""
    return NEEDLESS_SPACE.sub("", " ".join(words))
