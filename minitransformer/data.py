"""The main job, number words from English to German, and batches of any sequence pairs.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.1
(batching by length).
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from minitransformer.tokenization import Tokenizer, pad_rows

__all__ = [
    "HELD_OUT_PAIRS",
    "Batch",
    "Example",
    "TextPair",
    "collate",
    "encode_pairs",
    "epoch_batches",
    "number_in_words",
    "number_words",
]

HELD_OUT_PAIRS = frozenset({27, 35, 42, 58, 64, 73, 86, 91})
"""Tens-units pairs that the training numbers never hold; each digit occurs in other pairs."""


class TextPair(NamedTuple):
    """A source text and its translation."""

    src: str
    tgt: str


class Example(NamedTuple):
    """The ids of one pair: the source with its end, the target with its begin and end."""

    src: list[int]
    tgt: list[int]


class Batch(NamedTuple):
    """Padded ids of several examples, int64.

    `tgt_output[:, i]` is the token that the model must predict having read `tgt_input[:, : i+1]`.
    """

    src: Tensor
    """(b, s)."""
    tgt_input: Tensor
    """(b, t), from the begin on."""
    tgt_output: Tensor
    """(b, t), the same shifted by one: up to the end."""


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

    Built in chapter 9.
    """
    from num2words import num2words

    if number < 0:
        raise ValueError(f"number must be at least 0, got {number}")
    if language not in ("en", "de"):
        raise ValueError(f"language must be 'en' or 'de', got {language!r}")
    words = num2words(number, lang=language)
    return words.replace(" and ", " ").replace(",", "") if language == "en" else words


def number_words(
    seed: int = 0, *, num_train: int = 20_000, num_held_out: int = 2_000
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

    Raises:
        ValueError: if a size is below 1, or there are not enough numbers to hold out.

    Example:
        >>> splits = number_words(num_train=10, num_held_out=3)
        >>> {name: len(pairs) for name, pairs in splits.items()}
        {'train': 10, 'held_out': 3, 'composition': 3, 'longer': 3}

    Built in chapter 9.
    """
    if num_train < 1 or not 1 <= num_held_out <= 2_000:
        raise ValueError(
            "num_train must be at least 1 and num_held_out between 1 and 2000, "
            f"got {num_train} and {num_held_out}"
        )
    generator = random.Random(f"number words {seed}")

    def draw(*digits: int) -> int:
        length = generator.choice(digits)
        return generator.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)

    def holds_out(number: int) -> bool:
        return not HELD_OUT_PAIRS.isdisjoint({number % 100, number // 1000 % 100})

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
        if generator.random() < 0.05:
            number = generator.randint(1, 9) * 10**6 + number % 1000
        if number not in held_out and not holds_out(number):
            train.append(number)
    splits = {"train": train, "held_out": held_out, "composition": composition, "longer": longer}
    return {
        name: [TextPair(number_in_words(n, "en"), number_in_words(n, "de")) for n in numbers]
        for name, numbers in splits.items()
    }


def encode_pairs(
    pairs: Sequence[TextPair], src_tokenizer: Tokenizer, tgt_tokenizer: Tokenizer
) -> list[Example]:
    """Turn texts into ids and mark where they begin and end.

    Example:
        >>> from minitransformer.tokenization import WordTokenizer
        >>> words = WordTokenizer(["one", "two"])
        >>> encode_pairs([TextPair("one two", "two")], words, words)
        [Example(src=[5, 6, 2], tgt=[1, 6, 2])]

    Built in chapter 9.
    """
    return [
        Example(
            [*src_tokenizer.encode(pair.src), src_tokenizer.eos_id],
            [tgt_tokenizer.bos_id, *tgt_tokenizer.encode(pair.tgt), tgt_tokenizer.eos_id],
        )
        for pair in pairs
    ]


def collate(examples: Sequence[Example], pad_id: int = 0) -> Batch:
    """Pad examples to one batch, and shift the target by one.

    Raises:
        ValueError: if there are no examples.

    Example:
        >>> batch = collate([Example([4, 2], [1, 7, 8, 2]), Example([5, 6, 2], [1, 9, 2])])
        >>> batch.tgt_input.tolist(), batch.tgt_output.tolist()
        ([[1, 7, 8], [1, 9, 2]], [[7, 8, 2], [9, 2, 0]])

    Built in chapter 9.
    """
    if not examples:
        raise ValueError("a batch needs at least 1 example, got 0")
    tgt = pad_rows([example.tgt for example in examples], pad_id)
    return Batch(pad_rows([e.src for e in examples], pad_id), tgt[:, :-1], tgt[:, 1:])


def epoch_batches(
    examples: Sequence[Example], batch_size: int, *, seed: int, epoch: int
) -> list[list[Example]]:
    """Deal the examples into batches of similar lengths, in a new order each epoch.

    Examples are shuffled, then sorted by length within pools of 32 batches, so that rows of a
    batch need little padding while batches stay random. The order is a function of
    (seed, epoch): training that stops can go on where it was.

    Args:
        examples: the training examples.
        batch_size: examples in a batch; the last one may be smaller.
        seed: the seed of the training run.
        epoch: which pass over the data.

    Returns:
        The batches, in the order in which to train on them.

    Raises:
        ValueError: if there are no examples or `batch_size` is below 1.

    Built in chapter 9.
    """
    if not examples or batch_size < 1:
        raise ValueError(
            "examples and batch_size must be at least 1, "
            f"got {len(examples)} examples and batch_size={batch_size}"
        )
    generator = random.Random(f"batches {seed} {epoch}")
    order = list(examples)
    generator.shuffle(order)
    pool_size = 32 * batch_size
    pools = [order[first : first + pool_size] for first in range(0, len(order), pool_size)]
    batches = [
        pool[first : first + batch_size]
        for pool in (sorted(pool, key=lambda e: (len(e.tgt), len(e.src))) for pool in pools)
        for first in range(0, len(pool), batch_size)
    ]
    generator.shuffle(batches)
    return batches
