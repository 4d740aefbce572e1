"""WordPiece cuts words by longest match, and learns with the loop of byte-pair encoding."""

import random

import pytest
from helpers import hugging_face, real_texts
from tokenizers import trainers

from minitransformer import WordPieceTokenizer


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
    for length in (99, 100, 101):
        word = "a" * length
        assert tokenizer.encode(word) == hugging_face(tokenizer).encode(word).ids


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
