"""Rules draw the patterns of their papers, and blocks leave out nothing that can be seen."""

import itertools

import pytest
import torch
from helpers import refuses

from minitransformer import causal_mask
from minitransformer.efficient_attention import (
    BlockMask,
    all_of,
    any_of,
    causal_rule,
    dilated_rule,
    global_rule,
    random_rule,
    strided_rule,
    window_rule,
)
from minitransformer.efficient_attention.block_mask import blocks


@pytest.mark.parametrize(
    ("rule", "picture"),
    [
        (causal_rule, ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
        (window_rule(2), ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
        (dilated_rule(2, 2), ["x.x..", ".x.x.", "x.x.x", ".x.x.", "..x.x"]),
        (strided_rule(2), ["xx.x.", "xx.x.", ".xxx.", ".xxx.", ".x.xx"]),
        (global_rule(1), ["xxxxx", "x....", "x....", "x....", "x...."]),
        (any_of(global_rule(1), window_rule(1)), ["xxxxx", "xx...", "x.x..", "x..x.", "x...x"]),
        (all_of(causal_rule, window_rule(2)), ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
    ],
)
def test_rule_draws_its_pattern(rule, picture):
    rows = BlockMask(rule, 5, 5, 3).dense()
    assert ["".join(".x"[int(x)] for x in row) for row in rows] == picture


def test_random_blocks_are_as_many_as_asked_for_and_repeat():
    rules = [random_rule(11, 2, 3, torch.Generator().manual_seed(1)) for _ in range(2)]
    one, other = (BlockMask(rule, 11, 11, 3) for rule in rules)
    assert torch.equal(one.dense(), other.dense())
    assert all(len(row) == 2 and all(whole for _, whole in row) for row in one.visible)


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(("q", "k"), [(5, 5), (3, 8), (1, 7), (11, 11)])
def test_blocks_that_are_visited_hold_all_that_can_be_seen(q, k, block_size):
    for rule in (causal_rule, window_rule(2), strided_rule(3), lambda a, b: (a < 0) & (b < 0)):
        mask = BlockMask(rule, q, k, block_size)
        dense, covered = mask.dense(), 0
        rest = dense.clone()
        for (queries, seen), row in zip(mask.visits(), mask.visible, strict=True):
            for (keys, allowed), (number, whole) in zip(seen, row, strict=True):
                assert keys == blocks(k, block_size)[number]
                block = dense[queries, keys]
                assert block.any()
                assert bool(block.all()) == whole == (allowed is None)
                assert whole or torch.equal(allowed, block)
                rest[queries, keys], covered = False, covered + block.numel()
        assert not rest.any()
        assert mask.share_computed == pytest.approx(covered / (q * k))
    assert torch.equal(BlockMask(causal_rule, q, k, block_size).dense(), causal_mask(q, k))


@pytest.mark.parametrize(("q", "k"), [(5, 5), (3, 8), (1, 7), (11, 11), (40, 40)])
def test_nothing_is_missed_within_reach_and_the_rule_is_not_asked_beyond(q, k):
    for block_size, size in itertools.product((1, 3, 4, 100), (1, 2, 5, 60)):
        rule = window_rule(size)
        whole, near = (BlockMask(rule, q, k, block_size, reach) for reach in (None, size))
        assert whole.visible == near.visible
    asked = []

    def rule(query, key):
        asked.append(int((query - key).abs().max()))
        return (query - key).abs() < 4

    BlockMask(rule, 64, block_size=4, reach=4)
    assert max(asked) < 12  # the block of the furthest may begin a little before


def test_cost_of_a_window_grows_with_the_length():
    costs = [BlockMask(window_rule(8), n, n, 8).share_computed * n * n for n in (64, 128, 256)]
    assert costs[1] / costs[0] == pytest.approx(2, rel=0.1)
    assert costs[2] / costs[1] == pytest.approx(2, rel=0.1)


test_bad_numbers_are_refused = refuses(
    ("got 5 queries, 4 keys", lambda: BlockMask(causal_rule, 5, 4)),
    ("block_size must be at least 1, got 0", lambda: BlockMask(causal_rule, 4, 4, 0)),
    ("size must be at least 1, got 0", lambda: BlockMask(window_rule(0), 4, 4)),
    ("step must be at least 1, got 0", lambda: dilated_rule(2, 0)),
    ("stride must be at least 1, got 0", lambda: strided_rule(0)),
    ("between 0 and the 4 there are, got 5", lambda: random_rule(11, 5, 3)),
)
