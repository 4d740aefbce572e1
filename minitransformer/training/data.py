"""Pairs of texts become examples, and examples batches of similar length.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.1
(batching by length).
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitransformer.checks import texts_of
from minitransformer.tokenization.tokenizer import Tokenizer, pad_rows

__all__ = [
    "Batch",
    "Example",
    "TextPair",
    "collate",
    "encode_pairs",
    "epoch_batches",
    "in_parts",
    "token_batches",
    "token_stream",
]


class TextPair(NamedTuple):
    """A source text and its translation.

    Example:
        >>> TextPair("two hundred", "zweihundert").tgt
        'zweihundert'
    """

    src: str
    tgt: str


class Example(NamedTuple):
    """The ids of one pair: the source with its end, the target with its begin and end.

    Example:
        >>> Example(src=[5, 6, 2], tgt=[1, 9, 2]).src
        [5, 6, 2]
    """

    src: list[int]
    tgt: list[int]


class Batch(NamedTuple):
    """Padded ids of several examples, int64.

    `tgt_output[:, i]` is the token that the model must predict having read `tgt_input[:, : i+1]`.

    Example:
        >>> batch = collate([Example([4, 2], [1, 7, 8, 2])])
        >>> isinstance(batch, Batch), batch.tgt_output
        (True, tensor([[7, 8, 2]]))
    """

    src: Tensor
    """(b, s)."""
    tgt_input: Tensor
    """(b, t), from the begin on."""
    tgt_output: Tensor
    """(b, t), the same shifted by one: up to the end."""


def as_pairs(pairs: Iterable[Any]) -> list[TextPair]:
    """Any pairs of texts, a generator of lists for example; else a TypeError."""
    found = list(pairs)
    for index, pair in enumerate(found):
        if not isinstance(pair, tuple | list) or [type(text) for text in pair] != [str, str]:
            raise TypeError(f"pairs must be of two texts each, but number {index} is {pair!r}")
    return [TextPair(*pair) for pair in found]


def check_lengths(pairs: Sequence[TextPair], examples: Sequence[Example], max_len: float) -> None:
    """Raise an error, now and not in the middle of the training, if a text is too long."""
    for index, (pair, example) in enumerate(zip(pairs, examples, strict=True)):
        # The model reads a target without its end.
        for text, length in zip(pair, (len(example.src), len(example.tgt) - 1), strict=True):
            if length > max_len:
                raise ValueError(
                    f"pair {index}: a text of {length} positions is longer than "
                    f"max_len={max_len}: {text[:60]!r}"
                )


def encode_source(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a source with its end; a ValueError if it has no other token."""
    ids = tokenizer.sequence_ids(text)
    if len(ids) <= len(tokenizer.sequence_ids("")):
        raise ValueError(f"every text must have at least one token, got {text!r}")
    return ids


def target_start(config: object, tokenizer: Tokenizer) -> int:
    """The first id of targets: the configuration's if it has one, else that of any text."""
    start: int | None = getattr(config, "start_id", None)
    return tokenizer.first_id if start is None else start


def encode_pairs(
    pairs: Iterable[tuple[str, str]],
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    config: object = None,
) -> list[Example]:
    """Turn texts into ids and mark where they begin and end.

    The `config` of a published model says what its targets begin with.

    Raises:
        TypeError: if a pair is not two texts.
        ValueError: if a source has no token, or a tokenizer no token to begin or end with.

    Example:
        >>> from minitransformer.tokenization.words import WordTokenizer
        >>> words = WordTokenizer(["one", "two"])
        >>> encode_pairs([TextPair("one two", "two")], words, words)
        [Example(src=[5, 6, 2], tgt=[1, 6, 2])]
    """
    start = target_start(config, tgt_tokenizer)
    return [
        Example(encode_source(src, src_tokenizer), [start, *tgt_tokenizer.sequence_ids(tgt)])
        for src, tgt in as_pairs(pairs)
    ]


def collate(examples: Sequence[Example], pad_id: int = 0) -> Batch:
    """Pad examples to one batch, and shift the target by one.

    Raises:
        ValueError: if there are no examples.

    Example:
        >>> batch = collate([Example([4, 2], [1, 7, 8, 2]), Example([5, 6, 2], [1, 9, 2])])
        >>> batch.tgt_input.tolist(), batch.tgt_output.tolist()
        ([[1, 7, 8], [1, 9, 2]], [[7, 8, 2], [9, 2, 0]])
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
    batch need little padding while batches stay random; one of them may be smaller. The order is a
    function of (seed, epoch): a training that was stopped can continue.

    Raises:
        ValueError: if there are no examples or `batch_size` is below 1.

    Example:
        >>> examples = [Example([2], [1, *range(5, 5 + length), 2]) for length in (3, 1, 2, 4, 1)]
        >>> batches = epoch_batches(examples, 2, seed=0, epoch=0)
        >>> sorted([len(example.tgt) for example in batch] for batch in batches)
        [[3, 3], [4, 5], [6]]
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


def positions(example: Example) -> int:
    """The positions of an example's longer side."""
    return max(len(example.src), len(example.tgt) - 1)  # a target is read without its end


def token_batches(
    examples: Sequence[Example], max_tokens_per_batch: int, *, seed: int, epoch: int
) -> list[list[Example]]:
    """Deal the examples into batches of at most `max_tokens_per_batch` positions with padding.

    The positions of a batch are its rows times the longest row of both sides, which decides the
    memory. Examples are shuffled, then sorted by length; so only equal lengths are in random order,
    and a batch is filled until the next example would be too much. Then batches are shuffled.
    The order is a function of (seed, epoch), and how many batches there are of the lengths alone.

    Raises:
        ValueError: if there are no examples or one is longer than `max_tokens_per_batch`.

    Example:
        >>> examples = [Example([2], [1, *range(5, 5 + length), 2]) for length in (3, 1, 2, 4, 1)]
        >>> batches = token_batches(examples, 6, seed=0, epoch=0)
        >>> sorted([positions(example) for example in batch] for batch in batches)
        [[2, 2], [3], [4], [5]]

    Paper: section 5.1.
    """
    if not examples:
        raise ValueError("examples must be at least 1, got 0")
    generator = random.Random(f"batches {seed} {epoch}")
    order = list(examples)
    generator.shuffle(order)
    order.sort(key=lambda e: (positions(e), len(e.src), len(e.tgt)))
    if positions(order[-1]) > max_tokens_per_batch:
        raise ValueError(
            f"an example of {positions(order[-1])} positions is longer than "
            f"max_tokens_per_batch={max_tokens_per_batch}"
        )
    batches: list[list[Example]] = [[]]
    for example in order:  # the newest one is the longest
        if (len(batches[-1]) + 1) * positions(example) > max_tokens_per_batch:
            batches.append([])
        batches[-1].append(example)
    generator.shuffle(batches)
    return batches


def token_stream(texts: Iterable[str], tokenizer: Tokenizer) -> Tensor:
    """All texts one after another, each with its begin and end: ids, (n,), int64.

    Example:
        >>> from minitransformer.tokenization.words import WordTokenizer
        >>> token_stream(["one two", "two"], WordTokenizer(["one", "two"])).tolist()
        [1, 5, 6, 2, 1, 6, 2]

    Built in chapter 10.
    """
    rows = map(tokenizer.stream_ids, texts_of("texts", texts))
    return torch.tensor([index for row in rows for index in row], device="cpu")


def num_targets(rows: Any, pad_id: int) -> int:
    """The number of tokens to be predicted in some rows of a batch."""
    if isinstance(rows, Tensor):  # of a language model: (b, length + 1)
        return int((rows[:, 1:] != pad_id).sum())
    return sum(token != pad_id for example in rows for token in example.tgt[1:])


def in_parts(batch: Any, parts: int, pad_id: int = 0) -> list[tuple[Any, float]]:
    """Deal the rows of a batch in parts, each with its share of the targets.

    The loss of a batch is the mean over its targets, which the mean of the parts' means is not:

        loss = Σ over parts of (targets of the part / targets of the batch) · loss of the part.

    Args:
        batch: examples, or the rows of a language model, (b, n).
        parts: how many; row i goes to part i mod parts. Those without a row have share 0.
        pad_id: what is no target.

    Example:
        >>> short, long = Example([4, 2], [1, 2]), Example([5, 2], [1, 7, 8, 2])
        >>> [(len(rows), share) for rows, share in in_parts([short, long, short], 2)]
        [(2, 0.4), (1, 0.6)]
    """
    if parts == 1:
        return [(batch, 1.0)]
    dealt = [batch[part::parts] for part in range(parts)]
    counts = [num_targets(rows, pad_id) for rows in dealt]
    return [(rows, count / sum(counts)) for rows, count in zip(dealt, counts, strict=True)]
