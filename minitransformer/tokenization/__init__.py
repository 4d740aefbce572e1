"""Text to integers and back (chapter 1): characters, words, byte-pair encoding, WordPiece."""

from minitransformer.tokenization.byte_pair_encoding import (
    BPETokenizer,
    learn_merges,
    merge_pairs,
)
from minitransformer.tokenization.published import PublishedTokenizer
from minitransformer.tokenization.tokenizer import (
    CharacterTokenizer,
    SpecialTokens,
    Tokenizer,
    pad_rows,
)
from minitransformer.tokenization.tokenizer_file import (
    GPT2_PATTERN,
    TokenizerFile,
)
from minitransformer.tokenization.wordpiece import WordPieceTokenizer
from minitransformer.tokenization.words import WordTokenizer

__all__ = [
    "GPT2_PATTERN",
    "BPETokenizer",
    "CharacterTokenizer",
    "PublishedTokenizer",
    "SpecialTokens",
    "Tokenizer",
    "TokenizerFile",
    "WordPieceTokenizer",
    "WordTokenizer",
    "learn_merges",
    "merge_pairs",
    "pad_rows",
]
