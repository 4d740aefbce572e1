"""Unigram takes the most probable of all cuts, and normalizes as the map of characters says."""

import math
import random
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import trained
from tokenizers import Tokenizer as Library
from tokenizers import models

from minitransformer.tokenizers.pre_tokenization import normalizer
from minitransformer.tokenizers.subwords import subword_model
from minitransformer.tokenizers.unigram import all_starts, best_cut, clusters

thorough = settings(max_examples=300, deadline=None, derandomize=True, database=None)
VOCAB = [("<u>", 0.0), ("a", -2.5), ("b", -3.0), ("ab", -3.25), ("bab", -4.0), ("abba", -9.0)]
VOCAB += [("aa", -5.5), ("ba", -4.5)]


def all_cuts(text):
    """Every way to cut a text into parts."""
    for bits in range(2 ** max(len(text) - 1, 0)):
        ends = [place + 1 for place in range(len(text) - 1) if bits >> place & 1]
        yield [text[a:b] for a, b in pairwise([0, *ends, len(text)])]


def score(parts, scores, unknown):
    """The sum of the scores; an unknown part counts once for each character."""
    single = [part if part in scores else None for part in parts]
    return sum(
        unknown * len(part) if found is None else scores[part]
        for part, found in zip(parts, single, strict=True)
    )


@thorough
@given(st.text("abx", min_size=1, max_size=9))
def test_best_cut_is_the_best_of_all_cuts(text):
    scores, unknown = dict(VOCAB), -19.0
    found = best_cut(text, scores, all_starts(scores), unknown)
    assert "".join(found) == text
    assert all(part in scores or set(part) == {"x"} for part in found)
    possible = [
        cut for cut in all_cuts(text) if all(part in scores or len(part) == 1 for part in cut)
    ]
    best = max(score(cut, scores, unknown) for cut in possible)
    assert math.isclose(score(found, scores, unknown), best)


@thorough
@given(st.text("abx☃\n", max_size=40))
def test_the_library_cuts_the_same(text):
    theirs = Library(models.Unigram(VOCAB, 0, False))
    _, encode = subword_model({"type": "Unigram", "vocab": VOCAB, "unk_id": 0})
    assert encode(text) == theirs.encode(text).ids


@thorough
@given(st.text("abé☃", max_size=20))
def test_unknown_characters_may_become_bytes(text):
    vocab = [*VOCAB, *((f"<0x{byte:02X}>", -20.0) for byte in range(255))]
    theirs = Library(models.Unigram(vocab, 0, True))
    model = {"type": "Unigram", "vocab": vocab, "unk_id": 0, "byte_fallback": True}
    assert subword_model(model)[1](text) == theirs.encode(text).ids


def test_of_equally_good_cuts_the_last_token_is_longest():
    scores = {"a": -1.0, "aa": -2.0, "aaa": -3.0}
    assert best_cut("aaaa", scores, all_starts(scores), -9.0) == ["a", "aaa"]


def test_cut_by_hand():
    # ab + ba costs 3.25 + 4.5, less than the 9 of abba and the 10 of a + b + ba.
    scores = dict(VOCAB)
    assert best_cut("abba", scores, all_starts(scores), -19.0) == ["ab", "ba"]
    assert best_cut("", scores, all_starts(scores), -19.0) == []


def test_work_grows_with_the_text_and_not_with_its_square():
    class Counting(dict):
        looks = 0

        def get(self, *key):
            Counting.looks += 1
            return super().get(*key)

    scores = Counting(VOCAB)
    looks = []
    for length in (500, 5000):
        Counting.looks = 0
        best_cut("ab" * length, scores, all_starts(scores), -19.0)
        looks.append(Counting.looks)
    assert looks[1] < 11 * looks[0] <= 11 * 4 * 1000


# --- the map of characters


@pytest.fixture(scope="module")
def maps():
    theirs, state = trained("t5")
    return theirs.normalizer.normalize_str, normalizer(state["normalizer"])


def test_map_does_what_the_library_does(maps):
    theirs, ours = maps
    known = [chr(c) for c in range(0x11000) if unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"]
    known = [character for character in known if not "\ud800" <= character <= "\udfff"]
    marks = [character for character in known if unicodedata.category(character)[0] == "M"]
    mapped = [character for character in known if ours(character) != character]
    assert len(mapped) > 2000
    assert [ours(character) for character in known] == list(map(theirs, known))
    generator = random.Random(0)
    pools = [known, marks, mapped, list("aeiouAE\r\n \u200d\u0600\uff9e")]
    for _ in range(8000):
        text = "".join(generator.choice(generator.choice(pools)) for _ in range(5))
        assert ours(text) == theirs(text), ascii(text)


def test_map_takes_the_shortest_entry_of_a_short_cluster(maps):
    _, ours = maps
    assert ours("e\u0301") == "é"
    assert ours("²") == "2"
    assert ours("²\u0301") == "2"  # the accent is lost, as in the library
    assert ours("²\u0301\u0301\u0301") == "2\u0301\u0301\u0301"  # 8 bytes: one by one
    assert ours("a\r\nb\tc") == "a b c"
    assert ours("\ud800a") == "\ud800a"


def test_clusters():
    assert list(clusters("e\u0301\r\n\n\u0301a\u200db")) == [
        *("e\u0301", "\r\n", "\n", "\u0301", "a\u200d", "b")
    ]
    assert list(clusters("")) == []
