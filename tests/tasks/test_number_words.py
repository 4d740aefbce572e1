"""The number-words task is what it says."""

import hashlib
from collections import Counter
from itertools import combinations

import pytest
from helpers import refuses

from minitransformer import number_in_words, number_words
from minitransformer.tasks.number_words import HELD_OUT_PAIRS

ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
VALUES = {word: value for value, word in enumerate(ONES.split())}
VALUES |= {word: 10 * tens for tens, word in enumerate(TENS.split(), 2)}


def parsed(words):
    """The number that English words name."""
    total = group = 0
    for word in words.replace("-", " ").split():
        if word == "hundred":
            group *= 100
        elif word in ("thousand", "million"):
            total += group * (1000 if word == "thousand" else 1_000_000)
            group = 0
        else:
            group += VALUES[word]
    return total + group


@pytest.fixture(scope="module")
def splits():
    return number_words(3, num_train=6000, num_held_out=400)


@pytest.fixture(scope="module")
def shown():
    """Splits whose training numbers have thousands after millions."""
    return number_words(3, num_train=4000, num_held_out=400, millions=0.15, with_thousands=True)


@pytest.fixture(scope="module")
def numbers(splits):
    """The numbers behind the English words of each split."""
    return {name: [parsed(pair.src) for pair in pairs] for name, pairs in splits.items()}


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (0, "zero", "null"),
        (17, "seventeen", "siebzehn"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (101, "one hundred one", "einhunderteins"),
        (342, "three hundred forty-two", "dreihundertzweiundvierzig"),
        (21_001, "twenty-one thousand one", "einundzwanzigtausendeins"),
        (2_001_015, "two million one thousand fifteen", "zwei Millionen eintausendfünfzehn"),
    ],
)
def test_numbers_have_the_words_we_know(number, english, german):
    assert number_in_words(number, "en") == english
    assert number_in_words(number, "de") == german


def test_both_sides_of_a_pair_name_one_number(splits, numbers, shown):
    for name, pairs in splits.items():
        for number, pair in list(zip(numbers[name], pairs, strict=True))[:200]:
            assert pair == (number_in_words(number, "en"), number_in_words(number, "de"))
    for pair in shown["train"][:200]:
        assert pair.tgt == number_in_words(parsed(pair.src), "de")


def test_sizes_are_those_asked_for_and_no_number_is_in_two_splits(numbers):
    sizes = {"train": 6000, "held_out": 400, "composition": 400, "longer": 400}
    assert {name: len(found) for name, found in numbers.items()} == sizes
    assert all(len(set(found)) == 400 for name, found in numbers.items() if name != "train")
    assert not any(set(one) & set(other) for one, other in combinations(numbers.values(), 2))


def test_only_compositions_hold_a_held_out_pair_and_no_word_is_new(splits):
    held_out = [number_in_words(number, "en") for number in HELD_OUT_PAIRS]
    seen = {word for pair in splits["train"] for word in pair.src.replace("-", " ").split()}
    assert len(held_out) == 8
    for name, pairs in splits.items():
        for pair in pairs:
            if name != "longer":
                assert any(word in pair.src for word in held_out) == (name == "composition")
            assert set(pair.src.replace("-", " ").split()) <= seen


def test_lengths_digits_and_millions_are_as_they_say(numbers):
    lengths = Counter(len(str(number)) for number in numbers["train"])
    assert sorted(lengths) == [1, 2, 3, 4, 5, 6, 7]
    assert lengths.pop(7) / 6000 == pytest.approx(0.05, abs=0.01)
    assert all(n / 6000 == pytest.approx(0.95 / 6, abs=0.03) for n in lengths.values())
    last = Counter(number % 10 for number in numbers["train"] if 10**3 <= number < 10**6)
    for digit in range(10):  # the held-out pairs take a little from every digit but 0 and 9
        assert last[digit] / last.total() == pytest.approx(0.1, abs=0.02)
    millions = [number for number in numbers["train"] if number >= 10**6]
    assert {number // 10**6 for number in millions} == set(range(1, 10))
    assert all(number % 10**6 < 1000 for number in millions)
    assert all(10**6 <= n < 10**7 and n % 10**6 >= 1000 for n in numbers["longer"])
    for name in ("held_out", "composition"):
        lengths = Counter(len(str(number)) for number in numbers[name])
        assert set(lengths) == {3, 4, 5, 6}
        assert 0 < lengths[3] < min(lengths[4], lengths[5], lengths[6]) / 2
    for share, options in ((0.0, {}), (0.4, {}), (0.4, {"with_thousands": True})):
        pairs = number_words(3, num_train=2000, num_held_out=9, millions=share, **options)["train"]
        found = sum("million" in pair.src for pair in pairs) / len(pairs)
        assert found == pytest.approx(share, abs=0.06)


def test_a_seed_gives_the_same_numbers_everywhere(splits, shown):
    """The chapters print them."""
    content = repr([[pair.src for pair in pairs] for pairs in (*splits.values(), *shown.values())])
    assert hashlib.sha256(content.encode()).hexdigest().startswith("9fac260d6b639eaf")
    first, other = (number_words(seed, num_train=30, num_held_out=5) for seed in (3, 4))
    assert first["held_out"] == splits["held_out"][:5]
    assert all(first[name] != other[name] for name in first)


def test_thousands_after_millions_make_no_text_longer(shown):
    both = [pair for pair in shown["train"] if "million" in pair.src and "thousand" in pair.src]
    assert len(both) > 0.08 * len(shown["train"])
    longest = len(number_in_words(777_777, "en").split())
    assert max(len(pair.src.split()) for pair in both) == longest == 7
    assert max(len(pair.tgt) for pair in both) <= 60 < len(number_in_words(777_777, "de"))


def test_thousands_after_millions_leave_what_is_tested(shown, splits):
    trained = {pair.src for pair in shown["train"]}
    for name in ("held_out", "composition", "longer"):
        assert shown[name] == splits[name]
        assert trained.isdisjoint(pair.src for pair in shown[name])
    for number in map(parsed, trained):
        assert HELD_OUT_PAIRS.isdisjoint({number % 100, number // 1000 % 100})


test_what_cannot_be_is_refused = refuses(
    ("number must be at least 0, got -7", lambda: number_in_words(-7, "en")),
    ("language must be 'en' or 'de', got 'fr'", lambda: number_in_words(7, "fr")),
    ("got 0 and 5", lambda: number_words(num_train=0, num_held_out=5)),
    ("got 10 and 2001", lambda: number_words(num_train=10, num_held_out=2001)),
    ("millions must be between 0 and 1, got -0.1", lambda: number_words(millions=-0.1)),
    ("millions must be between 0 and 1, got 1.5", lambda: number_words(millions=1.5)),
)
