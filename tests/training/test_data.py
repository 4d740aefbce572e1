"""Batches lose and repeat nothing, and decide their order by seed and epoch."""

import random
from collections import Counter

import pytest
import torch
from helpers import each_model, small_model

from minitransformer import (
    Example,
    TextPair,
    WordTokenizer,
    collate,
    encode_pairs,
    epoch_batches,
)
from minitransformer.training.data import (
    as_pairs,
    check_lengths,
    in_parts,
    num_targets,
    positions,
    token_batches,
)

# --- batches

EXAMPLES = [
    Example([4 + i % 7] * (1 + i % 13) + [2], [1] + [4 + i % 5] * (1 + i % 11) + [2])
    for i in range(330)
]


def test_pairs_get_their_begin_and_end():
    src, tgt = WordTokenizer(["one", "two"]), WordTokenizer(["zwei", "eins"])
    pairs = [TextPair("one two", "eins zwei"), TextPair("two", "")]
    assert encode_pairs(pairs, src, tgt) == [
        Example([5, 6, 2], [1, 6, 5, 2]),
        Example([6, 2], [1, 2]),
    ]


@pytest.mark.parametrize("source", ["", "  \n"])
def test_source_without_tokens_is_refused_before_the_training(source):
    words = WordTokenizer(["one"])
    with pytest.raises(ValueError, match="every text must have at least one token"):
        encode_pairs([("one", "one"), (source, "one")], words, words)


@pytest.mark.parametrize("pad_id", [0, 9])
def test_target_is_shifted_by_one(pad_id):
    examples = [Example([5, 6, 7, 2], [1, 8, 2]), Example([5, 2], [1, 7, 8, 10, 2])]
    batch = collate(examples, pad_id)
    p = pad_id
    assert batch.src.tolist() == [[5, 6, 7, 2], [5, 2, p, p]]
    assert batch.tgt_input.tolist() == [[1, 8, 2, p], [1, 7, 8, 10]]
    assert batch.tgt_output.tolist() == [[8, 2, p, p], [7, 8, 10, 2]]
    assert {part.dtype for part in batch} == {torch.int64}


def test_empty_batch_is_refused():
    with pytest.raises(ValueError, match="a batch needs at least 1 example, got 0"):
        collate([])


def as_multiset(examples):
    return Counter((tuple(example.src), tuple(example.tgt)) for example in examples)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 330, 1000])
def test_epoch_deals_every_example_exactly_once(batch_size):
    batches = list(epoch_batches(EXAMPLES, batch_size, seed=0, epoch=0))
    assert as_multiset(e for batch in batches for e in batch) == as_multiset(EXAMPLES)
    assert len(batches) == -(-330 // batch_size)
    sizes = sorted(map(len, batches))
    assert sizes[1:] == [batch_size] * (len(sizes) - 1) if len(sizes) > 1 else sizes == [330]


def test_rows_of_a_batch_have_similar_lengths():
    batches = list(epoch_batches(EXAMPLES[:320], 10, seed=0, epoch=0))
    spreads = [max(lengths) - min(lengths) for b in batches if (lengths := [len(e.tgt) for e in b])]
    assert max(spreads) <= 2  # at random, about 9


def test_short_batches_do_not_come_first():
    lengths = [len(batch[0].tgt) for batch in epoch_batches(EXAMPLES[:320], 10, seed=0, epoch=0)]
    assert lengths != sorted(lengths)


def test_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        return list(epoch_batches(EXAMPLES, 10, seed=seed, epoch=epoch))

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)
    assert order(1, 0) != order(0, 1)


def test_batches_are_made_up_anew_each_epoch():
    def members(epoch):
        batches = epoch_batches(EXAMPLES, 10, seed=0, epoch=epoch)
        return {frozenset(map(id, batch)) for batch in batches}

    assert len(members(0) & members(1)) < 15  # of 33


def test_examples_stay_as_they_were():
    before = list(EXAMPLES)
    list(epoch_batches(EXAMPLES, 10, seed=0, epoch=0))
    assert before == EXAMPLES


@pytest.mark.parametrize(
    ("examples", "batch_size", "message"),
    [
        ([], 4, "got 0 examples and batch_size=4"),
        (EXAMPLES, 0, "got 330 examples and batch_size=0"),
    ],
)
def test_empty_epochs_are_refused(examples, batch_size, message):
    with pytest.raises(ValueError, match=message):
        next(epoch_batches(examples, batch_size, seed=0, epoch=0))


# --- whatever pairs are


def test_pairs_are_pairs_of_texts_whatever_they_were():
    pairs = [("one", "eins"), ["two", "zwei"], TextPair("ten", "zehn")]
    found = as_pairs(iter(pairs))
    assert found == [tuple(pair) for pair in pairs]
    assert {type(pair) for pair in found} == {TextPair}
    assert encode_pairs(pairs, *[WordTokenizer(["two"])] * 2)[1] == Example([5, 2], [1, 3, 2])


@each_model
def test_lengths_have_a_limit_where_positions_have(changes):
    max_len = small_model(**changes).max_len
    pairs = [TextPair("short", "short"), TextPair("long", "short")]
    fits = [Example([5] * 16, [1, *[5] * 15, 2])] * 2
    check_lengths(pairs, fits, max_len)
    too_long = [fits[0], Example([5] * 17, [1, 2])]
    if changes.get("positional_encoding") in ("alibi", "none"):
        check_lengths(pairs, too_long, max_len)
    else:
        message = "pair 1: a text of 17 positions is longer than max_len=16: 'long'"
        with pytest.raises(ValueError, match=message):
            check_lengths(pairs, too_long, max_len)


# --- batches by tokens


def exponential(n, mean=30, seed=0):
    """Examples whose lengths are of exponential kind, the sides within a tenth of each other."""
    generator, examples = random.Random(seed), []
    for i in range(n):
        tgt = 1 + int(generator.expovariate(1 / mean))
        src = max(1, round(tgt * generator.uniform(0.9, 1.1)))
        examples.append(Example([5 + i] * src, [1, *[5 + i] * (tgt - 1), 2]))
    return examples


def padding(batches, pad_id=0):
    """The share of padding among positions, on each side."""
    sides = [[collate(batch, pad_id)[side] for batch in batches] for side in (0, 2)]
    return [sum((ids == 0).sum().item() for ids in s) / sum(i.numel() for i in s) for s in sides]


@pytest.mark.parametrize("max_tokens_per_batch", [14, 29, 100, 9999])
def test_batches_by_tokens_deal_every_example_exactly_once(max_tokens_per_batch):
    for epoch in range(3):
        batches = token_batches(EXAMPLES, max_tokens_per_batch, seed=3, epoch=epoch)
        dealt = Counter(map(repr, (example for batch in batches for example in batch)))
        assert dealt == Counter(map(repr, EXAMPLES))
        for batch in batches:
            src, tgt_input, tgt_output = collate(batch)
            assert max(src.numel(), tgt_input.numel(), tgt_output.numel()) <= max_tokens_per_batch


def test_a_batch_is_filled():
    batches = token_batches(EXAMPLES, 100, seed=3, epoch=0)
    sizes = sorted(len(batch) * max(map(positions, batch)) for batch in batches)
    assert sizes[1] > 100 - 2 * 14  # all but the last one dealt, to within the longest example
    assert len(token_batches(EXAMPLES, 200, seed=3, epoch=0)) < 0.6 * len(batches)


@pytest.mark.parametrize("seed", range(5))
def test_lengths_of_exponential_kind_need_less_than_5_percent_of_padding(seed):
    examples = exponential(5000, seed=seed)
    batches = token_batches(examples, 1024, seed=seed, epoch=0)
    assert max(padding(batches)) < 0.05
    by_rows = epoch_batches(examples, 1024 // 30, seed=seed, epoch=0)  # as many in the mean
    assert max(padding(by_rows)) > 0.1


def test_order_by_tokens_is_a_function_of_seed_and_epoch():
    orders = [
        token_batches(EXAMPLES, 60, seed=seed, epoch=epoch)
        for seed, epoch in ((3, 1), (3, 1), (3, 2), (4, 1))
    ]
    assert orders[0] == orders[1]
    assert orders[2] != orders[0] != orders[3] != orders[2]
    # Equal lengths meet others each time, not only the batches come in another order.
    assert sorted(map(repr, orders[0])) != sorted(map(repr, orders[2]))


def test_each_pass_has_as_many_batches_by_tokens():
    examples = exponential(700)
    counts = {len(token_batches(examples, 400, seed=s, epoch=e)) for s in (0, 1) for e in range(5)}
    assert len(counts) == 1


def test_short_batches_by_tokens_do_not_come_first():
    lengths = [max(map(positions, b)) for b in token_batches(EXAMPLES, 60, seed=3, epoch=0)]
    assert lengths != sorted(lengths) != lengths[::-1]


def test_example_longer_than_a_batch_is_refused():
    with pytest.raises(
        ValueError, match="an example of 14 positions is longer than max_tokens_per_batch=13"
    ):
        token_batches(EXAMPLES, 13, seed=0, epoch=0)
    with pytest.raises(ValueError, match="examples must be at least 1, got 0"):
        token_batches([], 13, seed=0, epoch=0)


# --- a batch in parts


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("pad_id", [0, 5])
def test_parts_have_every_row_once_and_shares_of_the_targets(parts, pad_id):
    batch = EXAMPLES[:9]
    dealt = in_parts(batch, parts, pad_id)
    assert len(dealt) == parts
    rows = sorted((e for part, _ in dealt for e in part), key=repr)
    assert rows == sorted(batch, key=repr)
    assert sum(share for _, share in dealt) == pytest.approx(1.0)
    for part, share in dealt:
        assert share == num_targets(part, pad_id) / num_targets(batch, pad_id)


def test_rows_of_text_are_dealt_too():
    ids = torch.tensor([[1, 7, 8, 2], [5, 6, 2, 0], [1, 0, 0, 0]])
    (first, share), (second, other) = in_parts(ids, 2)
    assert torch.equal(first, ids[[0, 2]])
    assert torch.equal(second, ids[[1]])
    assert (share, other) == (3 / 5, 2 / 5)
