"""The main job: number words from English to German.

Built in chapter 9.
"""

import random

from minitransformer.checks import library
from minitransformer.training.data import TextPair

__all__ = ["HELD_OUT_PAIRS", "number_in_words", "number_words"]

MOST_WORDS = 7  # seven hundred seventy-seven thousand seven hundred seventy-seven
MOST_LETTERS = 60

HELD_OUT_PAIRS = frozenset({27, 35, 42, 58, 64, 73, 86, 91})
"""Tens-units pairs that the training numbers never hold; each digit occurs in other pairs."""


def number_in_words(number: int, language: str) -> str:
    """Write a number out in words.

    Args:
        number: 0 or more.
        language: "en" (American, without "and") or "de".

    Raises:
        ValueError: if the number is negative or the language is another.

    Example:
        >>> number_in_words(342, "en"), number_in_words(342, "de")
        ('three hundred forty-two', 'dreihundertzweiundvierzig')
    """
    if number < 0:
        raise ValueError(f"number must be at least 0, got {number}")
    if language not in ("en", "de"):
        raise ValueError(f"language must be 'en' or 'de', got {language!r}")
    words = library("num2words", "book").num2words(number, lang=language)
    return words.replace(" and ", " ").replace(",", "") if language == "en" else words


def number_words(
    seed: int = 0,
    *,
    num_train: int = 20_000,
    num_held_out: int = 2_000,
    millions: float = 0.05,
    with_thousands: bool = False,
) -> dict[str, list[TextPair]]:
    """Numbers in English words with their German, in four splits.

    - `train`: below 10⁶, the number of digits drawn uniformly from 1 to 6, with repetition;
      never a number of the other splits. One in twenty is a million or several with at most
      three digits after them, as in "three million forty", so that the word is known.
    - `held_out`: distinct numbers of 4 to 6 digits, and a few of 3 (short ones are scarce, and
      training needs them).
    - `composition`: numbers that hold a tens-units pair of `HELD_OUT_PAIRS`, as in 342 or 42,007.
    - `longer`: numbers of 7 digits with thousands. No word in them is new, but most are longer
      than any number of training, and none of those has both millions and thousands.

    Args:
        seed: the draw; the same seed gives the same splits everywhere.
        num_train: size of `train`.
        num_held_out: size of each of the other splits.
        millions: the share of `train` with millions.
        with_thousands: whether these may have thousands too, as in "two million four thousand".
            Then `longer` is new in its length alone: none of them has more than `MOST_WORDS` words
            or `MOST_LETTERS` German letters, which numbers below 10⁶ have as well.

    Raises:
        ValueError: if a size is below 1, there are not enough numbers to hold out, or `millions`
            is no share.

    Example:
        >>> splits = number_words(num_train=10, num_held_out=3)
        >>> {name: len(pairs) for name, pairs in splits.items()}
        {'train': 10, 'held_out': 3, 'composition': 3, 'longer': 3}
        >>> 42 in HELD_OUT_PAIRS
        True
    """
    if num_train < 1 or not 1 <= num_held_out <= 2_000:
        raise ValueError(
            "num_train must be at least 1 and num_held_out between 1 and 2000, "
            f"got {num_train} and {num_held_out}"
        )
    if not 0 <= millions <= 1:
        raise ValueError(f"millions must be between 0 and 1, got {millions}")
    generator = random.Random(f"number words {seed}")

    def draw(*digits: int) -> int:
        length = generator.choice(digits)
        return generator.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)

    def holds_out(number: int) -> bool:
        return not HELD_OUT_PAIRS.isdisjoint({number % 100, number // 1000 % 100})

    def group() -> int:
        """Three digits, or fewer, or none."""
        digits = generator.randint(0, 3)
        return generator.randrange(10 ** (digits - 1), 10**digits) if digits else 0

    def draw_with_thousands() -> int:
        while True:
            number = 10**6 * generator.randint(1, 9) + 1000 * group() + group()
            is_short = (
                len(number_in_words(number, "en").split()) <= MOST_WORDS
                and len(number_in_words(number, "de")) <= MOST_LETTERS
            )
            if is_short and number not in longer and not holds_out(number):
                return number

    held_out: dict[int, None] = {}  # a dict keeps the order of the draw, a set would not
    composition: dict[int, None] = {}
    longer: dict[int, None] = {}
    while len(held_out) < num_held_out or len(composition) < num_held_out:
        number = draw(3, *(4, 5, 6) * 4)
        split = composition if holds_out(number) else held_out
        if len(split) < num_held_out:
            split[number] = None
    while len(longer) < num_held_out:
        number = draw(7)
        if number % 10**6 >= 1000:
            longer[number] = None
    train: list[int] = []
    while len(train) < num_train:
        number = draw(1, 2, 3, 4, 5, 6)
        if generator.random() < millions:
            if with_thousands:
                number = draw_with_thousands()
            else:
                number = generator.randint(1, 9) * 10**6 + number % 1000
        if number not in held_out and not holds_out(number):
            train.append(number)
    splits = {"train": train, "held_out": held_out, "composition": composition, "longer": longer}
    return {
        name: [TextPair(number_in_words(n, "en"), number_in_words(n, "de")) for n in numbers]
        for name, numbers in splits.items()
    }
