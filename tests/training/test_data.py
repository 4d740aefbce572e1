"""Batches lose and repeat nothing, and decide their order by seed and epoch."""

import random
from collections import Counter

import pytest
import torch
from helpers import each_model, refuses, small_model

import minitransformer as mt
from minitransformer.training import data

EXAMPLES = [
    mt.Example([4 + i % 7] * (1 + i % 13) + [2], [1] + [4 + i % 5] * (1 + i % 11) + [2])
    for i in range(330)
]
TWO = mt.WordTokenizer(["two"])


def test_pairs_get_their_begin_and_end():
    src, tgt = mt.WordTokenizer(["one", "two"]), mt.WordTokenizer(["zwei", "eins"])
    pairs = [mt.TextPair("one two", "eins zwei"), mt.TextPair("two", "")]
    assert mt.encode_pairs(pairs, src, tgt) == [
        mt.Example([5, 6, 2], [1, 6, 5, 2]),
        mt.Example([6, 2], [1, 2]),
    ]


@pytest.mark.parametrize("pad_id", [0, 9])
def test_target_is_shifted_by_one(pad_id):
    examples = [mt.Example([5, 6, 7, 2], [1, 8, 2]), mt.Example([5, 2], [1, 7, 8, 10, 2])]
    batch = mt.collate(examples, pad_id)
    p = pad_id
    assert batch.src.tolist() == [[5, 6, 7, 2], [5, 2, p, p]]
    assert batch.tgt_input.tolist() == [[1, 8, 2, p], [1, 7, 8, 10]]
    assert batch.tgt_output.tolist() == [[8, 2, p, p], [7, 8, 10, 2]]
    assert {part.dtype for part in batch} == {torch.int64}


def multiset(examples):
    return Counter((tuple(example.src), tuple(example.tgt)) for example in examples)


DEALERS = {
    "rows": lambda epoch, seed=3: mt.epoch_batches(EXAMPLES, 10, seed=seed, epoch=epoch),
    "tokens": lambda epoch, seed=3: data.token_batches(EXAMPLES, 60, seed=seed, epoch=epoch),
}
each_dealer = pytest.mark.parametrize("deal", DEALERS.values(), ids=DEALERS)


@each_dealer
def test_order_is_a_function_of_seed_and_epoch(deal):
    before = list(EXAMPLES)
    assert deal(1) == deal(1)
    assert deal(2) != deal(1) != deal(1, seed=4) != deal(2)
    assert before == EXAMPLES
    assert len({len(deal(epoch)) for epoch in range(5)}) == 1
    # Batches hold other examples each time; it is not only their order that changes.
    members = [{frozenset(map(id, batch)) for batch in deal(epoch)} for epoch in (0, 1)]
    assert len(members[0] & members[1]) < 0.5 * len(members[0])
    lengths = [max(map(data.positions, batch)) for batch in deal(0)]
    assert lengths != sorted(lengths) != lengths[::-1]


@pytest.mark.parametrize("batch_size", [1, 4, 7, 330, 1000])
def test_batches_of_rows_deal_every_example_exactly_once(batch_size):
    batches = mt.epoch_batches(EXAMPLES, batch_size, seed=0, epoch=0)
    assert multiset(e for batch in batches for e in batch) == multiset(EXAMPLES)
    whole, rest = divmod(330, batch_size)
    assert sorted(map(len, batches)) == [rest] * (rest > 0) + [batch_size] * whole


@pytest.mark.parametrize("most", [14, 29, 100, 9999])
def test_batches_of_tokens_deal_every_example_exactly_once_and_are_filled(most):
    batches = data.token_batches(EXAMPLES, most, seed=3, epoch=0)
    assert multiset(e for batch in batches for e in batch) == multiset(EXAMPLES)
    sizes = sorted(max(part.numel() for part in mt.collate(batch)) for batch in batches)
    assert sizes[-1] <= most
    # All but the last one dealt are full, to within the longest example.
    assert most > 100 or len([size for size in sizes if size <= most - 2 * 14]) <= 1


def padding(batches):
    """The share of padding among positions, on the worse side."""
    sides = [[mt.collate(batch)[side] for batch in batches] for side in (0, 2)]
    return max(sum(int((x == 0).sum()) for x in s) / sum(x.numel() for x in s) for s in sides)


@pytest.mark.parametrize("seed", range(3))
def test_lengths_of_exponential_kind_need_less_than_5_percent_of_padding(seed):
    """The two sides of an example are within a tenth of each other."""
    generator, examples = random.Random(seed), []
    for _ in range(5000):
        tgt = 1 + int(generator.expovariate(1 / 30))
        src = max(1, round(tgt * generator.uniform(0.9, 1.1)))
        examples.append(mt.Example([5] * src, [1, *[5] * (tgt - 1), 2]))
    assert padding(data.token_batches(examples, 1024, seed=seed, epoch=0)) < 0.05
    by_rows = mt.epoch_batches(examples, 1024 // 30, seed=seed, epoch=0)  # as many in the mean
    at_random = [examples[first : first + 34] for first in range(0, 5000, 34)]
    assert 0.1 < padding(by_rows) < 0.5 * padding(at_random)


def dealt(deal, *arguments):
    """A call that deals batches."""
    return lambda: deal(*arguments, seed=0, epoch=0)


test_what_makes_no_batch_is_refused = refuses(
    ("a batch needs at least 1 example, got 0", lambda: mt.collate([])),
    ("got 0 examples and batch_size=4", dealt(mt.epoch_batches, [], 4)),
    ("got 330 examples and batch_size=0", dealt(mt.epoch_batches, EXAMPLES, 0)),
    ("examples must be at least 1, got 0", dealt(data.token_batches, [], 13)),
    ("14 positions is longer than max_tokens.*=13", dealt(data.token_batches, EXAMPLES, 13)),
    (
        "every text must have at least one token, got ' '",
        lambda: mt.encode_pairs([("two", "two"), (" ", "two")], TWO, TWO),
    ),
)


def test_pairs_are_pairs_of_texts_whatever_they_were():
    pairs = [("one", "eins"), ["two", "zwei"], mt.TextPair("ten", "zehn")]
    found = data.as_pairs(iter(pairs))
    assert found == [tuple(pair) for pair in pairs]
    assert {type(pair) for pair in found} == {mt.TextPair}
    assert mt.encode_pairs(pairs, TWO, TWO)[1] == mt.Example([5, 2], [1, 3, 2])


@each_model
def test_lengths_have_a_limit_where_positions_have(changes):
    max_len = small_model(**changes).max_len
    pairs = [mt.TextPair("short", "short"), mt.TextPair("long", "short")]
    fits = [mt.Example([5] * 16, [1, *[5] * 15, 2])] * 2
    data.check_lengths(pairs, fits, max_len)
    too_long = [fits[0], mt.Example([5] * 17, [1, 2])]
    if changes.get("positional_encoding") in ("alibi", "none"):
        data.check_lengths(pairs, too_long, max_len)
    else:
        message = "pair 1: a text of 17 positions is longer than max_len=16: 'long'"
        with pytest.raises(ValueError, match=message):
            data.check_lengths(pairs, too_long, max_len)


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
@pytest.mark.parametrize("pad_id", [0, 5])
def test_parts_have_every_row_once_and_shares_of_the_targets(parts, pad_id):
    batch = EXAMPLES[:9]
    dealt = data.in_parts(batch, parts, pad_id)
    assert len(dealt) == parts
    rows = sorted((e for part, _ in dealt for e in part), key=repr)
    assert rows == sorted(batch, key=repr)
    assert sum(share for _, share in dealt) == pytest.approx(1.0)
    for part, share in dealt:
        assert share == data.num_targets(part, pad_id) / data.num_targets(batch, pad_id)


def test_rows_of_text_are_dealt_too():
    ids = torch.tensor([[1, 7, 8, 2], [5, 6, 2, 0], [1, 0, 0, 0]])
    (first, share), (second, other) = data.in_parts(ids, 2)
    assert torch.equal(first, ids[[0, 2]])
    assert torch.equal(second, ids[[1]])
    assert (share, other) == (3 / 5, 2 / 5)
