"""Strings and the same strings read backwards, as batches of ids."""

import random
from collections.abc import Iterator

import torch
from torch import Tensor

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcdefgh"
VOCAB_SIZE = 3 + len(LETTERS)

Pair = tuple[str, str]
Batch = tuple[Tensor, Tensor, Tensor]


def encode(text: str) -> list[int]:
    """The ids of the letters, without special tokens."""
    return [3 + LETTERS.index(letter) for letter in text]


def decode(ids: list[int]) -> str:
    """The letters up to the end, without special tokens."""
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    return "".join(LETTERS[i - 3] for i in ids if i > EOS)


def random_text(rng: random.Random) -> str:
    """Three to eight letters."""
    return "".join(rng.choices(LETTERS, k=rng.randint(3, 8)))


def make_splits(num_train: int, num_valid: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and pairs to validate on, which do not occur in training."""
    rng = random.Random(seed)
    texts = [random_text(rng) for _ in range(num_train + num_valid)]
    pairs = [(text, text[::-1]) for text in texts]
    return pairs[:num_train], pairs[num_train:]


def pad(rows: list[list[int]]) -> Tensor:
    """Rows of ids as one tensor, padded on the right."""
    length = max(map(len, rows))
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])  # (b, n)


def collate(pairs: list[Pair]) -> Batch:
    """Sources, inputs of the decoder, and what it should predict: the inputs, one to the left."""
    src = pad([encode(src) for src, _ in pairs])  # (b, s)
    tgt = pad([[BOS, *encode(tgt), EOS] for _, tgt in pairs])  # (b, t + 1)
    return src, tgt[:, :-1], tgt[:, 1:]


def batches(pairs: list[Pair], batch_size: int, rng: random.Random) -> Iterator[Batch]:
    """Batches without an end, the pairs in another order in each epoch."""
    while True:
        order = rng.sample(pairs, len(pairs))
        for start in range(0, len(order), batch_size):
            yield collate(order[start : start + batch_size])
