"""Spans are cut out as the paper says, and come back."""

import random
from collections import Counter
from itertools import groupby, product

import pytest
from helpers import refuses

from minitransformer.tasks.span_corruption import corrupt_spans, draw_spans, restore_spans

SENTINELS = list(range(99, 79, -1))


def runs(spans):
    """Lengths of what stays and of what is cut out, in turn."""
    return [len(list(group)) for _, group in groupby(spans)]


def test_published_setting():
    """512 tokens: 77 are cut out in 26 spans; the target holds both and is a fifth as long."""
    spans = draw_spans(512, random.Random(0))
    assert (sum(spans), len(runs(spans)) // 2) == (77, 26)
    source, target = corrupt_spans(range(512), spans, range(1000, 900, -1))
    assert (len(source), len(target)) == (512 - 77 + 26, 77 + 26)


@pytest.mark.parametrize(("rate", "mean_length"), [(0.15, 3), (0.5, 1), (0.5, 2.5), (0.9, 1)])
def test_numbers_follow_from_the_length(rate, mean_length):
    for seed, length in product(range(5), [2, 3, 7, 20, 40, 512]):
        spans = draw_spans(length, random.Random(seed), rate=rate, mean_length=mean_length)
        assert len(spans) == length
        assert sum(spans) == min(max(round(rate * length), 1), length - 1)
        num_spans = max(round(sum(spans) / mean_length), 1)
        assert len(runs(spans)) == 2 * min(num_spans, length - sum(spans))
        assert not spans[0]
        assert spans[-1]


def test_all_ways_are_alike():
    """Six tokens, three of them cut out in two spans: two ways on each side, four in all."""
    generator = random.Random(0)
    drawn = Counter(tuple(draw_spans(6, generator, rate=0.5, mean_length=1.5)) for _ in range(4000))
    assert len(drawn) == 4
    assert all(abs(count - 1000) < 120 for count in drawn.values())


def test_round_trip():
    generator = random.Random(0)
    for length in [2, 5, 17, 60] * 20:
        ids = [generator.randrange(70) for _ in range(length)]
        cut_out = [False, *(generator.random() < 0.4 for _ in ids[1:])]
        source, target = corrupt_spans(ids, cut_out, SENTINELS)
        assert restore_spans(source, target, SENTINELS) == ids
        found = Counter(token for token in source + target if token < 70)
        assert found == Counter(ids)  # each token is on one side, none on both


def test_what_a_model_writes_is_put_in_place_as_far_as_it_goes():
    source = [5, 99, 7, 98]
    assert restore_spans(source, [3, 99, 6], SENTINELS) == [5, 6, 7]
    assert restore_spans(source, [98, 1, 1, 99], SENTINELS) == [5, 7, 1, 1]
    assert restore_spans(source, [], SENTINELS) == [5, 7]


test_what_cannot_be_is_refused = refuses(
    ("length must be at least 2, got 1", lambda: draw_spans(1, random.Random())),
    ("rate must lie .* got 1.0 and 3.0", lambda: draw_spans(9, random.Random(), rate=1.0)),
    ("got 0.15 and 0.5", lambda: draw_spans(9, random.Random(), mean_length=0.5)),
    ("as long as ids, 3, got 1", lambda: corrupt_spans([1, 2, 3], [False], SENTINELS)),
    ("the first token must stay", lambda: corrupt_spans([1, 2], [True, False], SENTINELS)),
    ("must be more: 1 do not do", lambda: corrupt_spans([1, 2, 3, 4], [False, True] * 2, [9])),
)
