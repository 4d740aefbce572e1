"""The number-words task is what it says."""

from collections import Counter

import pytest

from minitransformer import number_in_words, number_words
from minitransformer.tasks.number_words import HELD_OUT_PAIRS

SIZES = {"train": 6000, "held_out": 400, "composition": 400, "longer": 400}


@pytest.fixture(scope="module")
def splits():
    return number_words(3, num_train=SIZES["train"], num_held_out=400)


@pytest.fixture(scope="module")
def numbers(splits):
    """The numbers behind the English words of each split."""
    return {name: [parsed(pair.src) for pair in pairs] for name, pairs in splits.items()}


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


# --- words


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (70, "seventy", "siebzig"),
        (101, "one hundred one", "einhunderteins"),
        (342, "three hundred forty-two", "dreihundertzweiundvierzig"),
        (1000, "one thousand", "eintausend"),
        (21_001, "twenty-one thousand one", "einundzwanzigtausendeins"),
        (42_007, "forty-two thousand seven", "zweiundvierzigtausendsieben"),
        (
            999_999,
            "nine hundred ninety-nine thousand nine hundred ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
        (
            2_001_015,
            "two million one thousand fifteen",
            "zwei Millionen eintausendfünfzehn",
        ),
    ],
)
def test_numbers_have_the_words_we_know(number, english, german):
    assert number_in_words(number, "en") == english
    assert number_in_words(number, "de") == german


def test_negative_number_is_refused():
    with pytest.raises(ValueError, match="number must be at least 0, got -7"):
        number_in_words(-7, "en")


def test_other_language_is_refused():
    with pytest.raises(ValueError, match="language must be 'en' or 'de', got 'fr'"):
        number_in_words(7, "fr")


# --- splits


def test_splits_have_the_sizes_asked_for(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES


def test_both_sides_of_a_pair_name_one_number(splits, numbers):
    for name, pairs in splits.items():
        for number, pair in list(zip(numbers[name], pairs, strict=True))[:200]:
            assert pair.src == number_in_words(number, "en")
            assert pair.tgt == number_in_words(number, "de")


def test_splits_share_no_number(numbers):
    names = list(numbers)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            assert not set(numbers[first]) & set(numbers[second])


@pytest.mark.parametrize("name", ["held_out", "composition", "longer"])
def test_numbers_to_test_on_are_distinct(numbers, name):
    assert len(set(numbers[name])) == 400


def test_every_composition_holds_a_held_out_pair_and_nothing_else_does(splits):
    words = [number_in_words(number, "en") for number in HELD_OUT_PAIRS]
    assert len(words) == 8
    for name in ("train", "held_out", "composition"):
        for pair in splits[name]:
            assert any(word in pair.src for word in words) == (name == "composition")


def test_each_digit_of_a_held_out_pair_occurs_in_training(splits):
    seen = {word for pair in splits["train"] for word in pair.src.replace("-", " ").split()}
    for pair in HELD_OUT_PAIRS:
        assert set(number_in_words(pair, "en").split("-")) <= seen


def test_lengths_in_training_are_uniform(numbers):
    lengths = Counter(len(str(number)) for number in numbers["train"])
    assert sorted(lengths) == [1, 2, 3, 4, 5, 6, 7]
    assert lengths.pop(7) / 6000 == pytest.approx(0.05, abs=0.01)
    for count in lengths.values():
        assert count / 6000 == pytest.approx(0.95 / 6, abs=0.03)


def test_training_never_has_millions_and_thousands_in_one_number(numbers):
    millions = [number for number in numbers["train"] if number >= 10**6]
    assert {number // 10**6 for number in millions} == set(range(1, 10))
    assert all(number % 10**6 < 1000 for number in millions)
    assert all(number % 10**6 >= 1000 for number in numbers["longer"])


def test_no_word_of_the_longer_numbers_is_new(splits):
    english = {word for pair in splits["train"] for word in pair.src.replace("-", " ").split()}
    for pair in splits["longer"]:
        assert set(pair.src.replace("-", " ").split()) <= english


def test_digits_in_training_are_uniform(numbers):
    last = Counter(number % 10 for number in numbers["train"] if 10**3 <= number < 10**6)
    total = sum(last.values())
    for digit in range(10):  # the held-out pairs take a little from every digit but 0 and 9
        assert last[digit] / total == pytest.approx(0.1, abs=0.02)


def test_numbers_to_test_on_are_as_long_as_they_say(numbers):
    assert {len(str(number)) for number in numbers["longer"]} == {7}
    for name in ("held_out", "composition"):
        lengths = Counter(len(str(number)) for number in numbers[name])
        assert set(lengths) == {3, 4, 5, 6}
        assert 0 < lengths[3] < min(lengths[4], lengths[5], lengths[6]) / 2


def test_seed_decides_the_splits():
    first, again, other = (number_words(seed, num_train=30, num_held_out=5) for seed in (0, 0, 1))
    assert first == again
    for name in first:
        assert first[name] != other[name]


@pytest.mark.parametrize(("num_train", "num_held_out"), [(0, 5), (10, 0), (10, 2001), (-1, 5)])
def test_impossible_sizes_are_refused(num_train, num_held_out):
    with pytest.raises(ValueError, match=f"got {num_train} and {num_held_out}"):
        number_words(num_train=num_train, num_held_out=num_held_out)


@pytest.fixture(scope="module")
def shown():
    """Splits whose training numbers have thousands after millions."""
    return number_words(3, num_train=4000, num_held_out=400, millions=0.15, with_thousands=True)


def test_thousands_after_millions_make_no_text_longer(shown):
    both = [pair for pair in shown["train"] if "million" in pair.src and "thousand" in pair.src]
    assert len(both) > 0.08 * len(shown["train"])
    longest = max((number_in_words(n, "en") for n in (777_777, 373_373)), key=len)
    assert max(len(pair.src.split()) for pair in both) == len(longest.split()) == 7
    assert max(len(pair.tgt) for pair in both) <= 60 < len(number_in_words(777_777, "de"))
    for pair in both:
        number = parsed(pair.src)
        assert number >= 10**6
        assert pair.tgt == number_in_words(number, "de")


def test_thousands_after_millions_leave_what_is_tested(shown, splits):
    for name in ("held_out", "composition", "longer"):
        assert shown[name] == splits[name]
    trained = {pair.src for pair in shown["train"]}
    for name in ("held_out", "composition", "longer"):
        assert trained.isdisjoint(pair.src for pair in shown[name])
    for pair in shown["train"]:
        number = parsed(pair.src)
        assert HELD_OUT_PAIRS.isdisjoint({number % 100, number // 1000 % 100})


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4])
def test_share_of_millions(share):
    for options in ({}, {"with_thousands": True}):
        pairs = number_words(3, num_train=2000, num_held_out=9, millions=share, **options)["train"]
        found = sum("million" in pair.src for pair in pairs) / len(pairs)
        assert found == pytest.approx(share, abs=0.06)


def test_no_share_is_refused():
    for share in (-0.1, 1.5):
        with pytest.raises(ValueError, match=rf"millions must be between 0 and 1, got {share}"):
            number_words(millions=share)
