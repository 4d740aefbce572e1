"""WordPiece: subwords that know whether they begin a word, found by longest match.

Built in chapter 1. Papers: "Japanese and Korean Voice Search" (Schuster and Nakajima, 2012); in
the form used here, "BERT" (Devlin et al., 2019), section 3.
"""

from collections.abc import Iterable, Sequence
from typing import Self

from minitransformer.checks import check_vocab_size
from minitransformer.tokenization.byte_pair_encoding import learn_merges
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.tokenization.words import join_words, split_words

__all__ = ["WordPieceTokenizer"]


class WordPieceTokenizer(Tokenizer):
    """Subwords; those that continue a word begin with `##`.

    A word is cut from the left, each time at the longest token that fits. A word that cannot be
    cut, because of a character never seen, becomes a single <unk>, and so does one of more than
    100 characters. White space is not kept: `decode` joins words as `WordTokenizer` does.

    Args:
        tokens: the vocabulary after the special tokens, in order of id.

    Example:
        >>> tokenizer = WordPieceTokenizer.train(["zwanzig dreißig vierzig"], vocab_size=27)
        >>> tokenizer.labels(tokenizer.encode("vierzig fünfzig"))
        ['v', '##i', '##e', '##r', '##zig', '<unk>']
    """

    max_characters = 100

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int | None = None) -> Self:
        """Begin with all characters; merge the most frequent pair until the vocabulary is full.

        Each character is a token, and so is its form with `##` if it continues a word anywhere.
        The original criterion, whose code was never published, was the largest
        count(ab) / (count(a) · count(b)). `tokenizers` uses frequency, as here.

        Raises:
            TypeError: if `texts` is a single str.
            ValueError: if `vocab_size` is too small for the characters.
        """
        words = cls([]).count_pieces(texts)
        first = [*cls.special_tokens, *sorted({c for word in words for c in word})]
        first += sorted({f"##{c}" for word in words for c in word[1:]})
        check_vocab_size(vocab_size, first)
        letter = {token: chr(index) for index, token in enumerate(first)}
        counts = {
            letter[word[0]] + "".join(letter[f"##{c}"] for c in word[1:]): count
            for word, count in words.items()
        }
        tokens, _ = learn_merges(counts, first, vocab_size, prefix="##")
        return cls(tokens)

    def split(self, text: str) -> list[str]:
        return split_words(text)

    def encode_piece(self, piece: str) -> list[int]:
        """Cut a word from the left, each time at the longest token that fits."""
        if len(piece) > self.max_characters:
            return [self.unknown_id(piece)]
        ids: list[int] = []
        start = 0
        prefix = ""
        while start < len(piece):
            for end in range(len(piece), start, -1):
                if (found := self.ids.get(prefix + piece[start:end])) is not None:
                    break
            else:
                return [self.unknown_id(piece)]
            ids.append(found)
            start = end
            prefix = "##"
        return ids

    def join(self, tokens: Sequence[str]) -> str:
        return join_words(tokens)
