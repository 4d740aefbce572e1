"""WordPiece cuts words by longest match, and learns with the loop of byte-pair encoding."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from helpers import real_texts
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import trainers

from minitransformer import WordPieceTokenizer
from minitransformer.tokenization.words import split_words

GERMAN = ["zweiundvierzig zweiundzwanzig", "einundzwanzig zwanzig vierzig dreißig"]
tokenizer_of_german = WordPieceTokenizer.train(GERMAN, 60)
thorough = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def hugging_face(tokenizer):
    """The library's tokenizer made from our file."""
    return HuggingFaceTokenizer.from_str(json.dumps(tokenizer.to_dict()))


def test_words_are_cut_by_longest_match_by_hand():
    tokenizer = WordPieceTokenizer(["z", "zw", "zwei", "##ei", "##zig", "##zi", "##n", "##zigs"])
    assert tokenizer.labels(tokenizer.encode("zweizig zwein")) == ["zwei", "##zig", "zwei", "##n"]
    # The longest first piece wins, although a shorter one would let the rest be cut.
    cut = ["<unk>", "zwei", "##zigs", "##n", "<unk>"]
    assert tokenizer.labels(tokenizer.encode("zigs zweizigsn zweizigsx")) == cut
    assert WordPieceTokenizer(["a", "ab", "##bc", "##d"]).encode("abc") == [3]


def test_longest_word_has_100_characters():
    tokenizer = WordPieceTokenizer(["a", "##a"])
    assert tokenizer.encode("a" * 100) == [5] + [6] * 99
    assert tokenizer.encode("aa " + "a" * 101) == [5, 6, 3]


def naive_tokens(texts, vocab_size):
    """Count every pair anew at every step."""
    words = [[word[0], *(f"##{c}" for c in word[1:])] for t in texts for word in split_words(t)]
    tokens = sorted({part.removeprefix("##") for word in words for part in word})
    tokens += sorted({part for word in words for part in word[1:]})
    while len(tokens) < vocab_size - 5:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        a, b = min(counts, key=lambda p: (-counts[p], tokens.index(p[0]), tokens.index(p[1])))
        tokens.append(a + b.removeprefix("##"))
        for word in words:
            at = 0
            while at < len(word) - 1:
                if (word[at], word[at + 1]) == (a, b):
                    word[at : at + 2] = [tokens[-1]]
                at += 1
    return tokens


@thorough
@given(st.lists(st.text("abz -", max_size=20), max_size=4), st.integers(13, 40))
def test_training_equals_counting_anew(texts, vocab_size):
    tokens = WordPieceTokenizer.train(texts, vocab_size).tokens[5:]
    assert list(tokens) == naive_tokens(texts, vocab_size)
    assert WordPieceTokenizer.train(texts[::-1], vocab_size).tokens[5:] == tokens


@thorough
@given(st.lists(st.sampled_from([*"zweiundvrgßx -##", "zig", "und", "a" * 99])).map("".join))
def test_tokenizers_cuts_the_same(text):
    assert tokenizer_of_german.encode(text) == hugging_face(tokenizer_of_german).encode(text).ids


@pytest.mark.slow
def test_tokenizers_cuts_real_texts_the_same():
    texts = real_texts(600_000)
    ours = WordPieceTokenizer.train(texts[::2], 2000)
    theirs = hugging_face(ours)
    theirs.encode_special_tokens = True
    for text in texts:
        assert ours.encode(text) == theirs.encode(text).ids


def test_tokenizers_learns_the_same_tokens():
    # Its ids for the characters with ## are in no fixed order, and so is what it does with ties:
    # here there are none. Each word is the beginning of the next, and they differ in frequency.
    generator, texts = random.Random(0), []
    for word in ("zweiund", "fünftau", "hoch", "lklmpq"):
        for length in range(2, len(word) + 1):
            texts += [word[:length]] * generator.randrange(1000)
    for vocab_size in (42, 45, 48, 51):
        ours = WordPieceTokenizer.train(texts, vocab_size)
        theirs = hugging_face(ours)
        names = {"special_tokens": list(ours.special_tokens), "show_progress": False}
        theirs.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=vocab_size, **names))
        assert set(ours.tokens) == theirs.get_vocab().keys()
