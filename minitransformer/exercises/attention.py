"""The exercises of chapter 4, attention."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors

KEYS = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
SCORES = KEYS @ torch.tensor([2.0, -2.0, 2.0, -2.0])
"""Of the query in the first exercise with the keys of *forty - two*."""


another_question = Exercise(
    function="my_weights",
    arguments=lambda: [()],
    use=lambda mine: mine,
    right=lambda: (SCORES / 2).softmax(0),
    tolerance=5e-3,
    mistakes={
        "These are the weights without the scale: divide the scores by the root of 4 first.": (
            lambda: SCORES.softmax(0)
        ),
        "These are the scores: divide them by the root of 4, then take the softmax.": (
            lambda: SCORES
        ),
        "The order is forty, the hyphen, two.": lambda: (SCORES / 2).softmax(0).flip(0),
        "Another order is asked for: forty, the hyphen, two.": (
            lambda: (SCORES / 2).softmax(0).roll(1)
        ),
        "These are the scaled scores. The softmax is still to come.": lambda: SCORES / 2,
        "The scores are divided by 4 here, the width; it takes its root.": (
            lambda: (SCORES / 4).softmax(0)
        ),
        "Do they add up to 1? These are the powers of e; divide them by their sum.": (
            lambda: (SCORES / 2).exp()
        ),
    },
    hints=(
        "Three dot products first: the query with forty, the hyphen and two.",
        "The scores are 4, 0 and 0. Divide by the root of the width, then take the softmax.",
        "The four steps stand in the section By hand: three tokens.",
    ),
)


def hard_or_soft(query: Tensor, key: Tensor, value: Tensor, c: float) -> Tensor:
    return (c * query @ key.mT / math.sqrt(key.size(-1))).softmax(-1) @ value


hard_to_average = Exercise(
    function="lookup",
    arguments=lambda: [
        (*random_tensors((1, 4), (1, 4), (1, 2)), 3.0),
        (*random_tensors((1, 4), (3, 4), (3, 2)), 1.0),
        (*random_tensors((2, 4), (3, 4), (3, 5)), 1e4),
        (*random_tensors((2, 9), (3, 9), (3, 5)), 1e-6),
    ],
    right=hard_or_soft,
    mistakes={
        "c = {c:g} changes nothing here. It belongs to the query, before the softmax.": (
            lambda query, key, value, c: hard_or_soft(query, key, value, 1.0)
        ),
        "c = {c:g} multiplies the weights, after the softmax: then they no longer add up to 1.": (
            lambda query, key, value, c: c * hard_or_soft(query, key, value, 1.0)
        ),
        "Without the scale: the scores are divided by the root of the width as ever.": (
            lambda query, key, value, c: (c * query @ key.mT).softmax(-1) @ value
        ),
        "The scores are divided by c; multiplied, they grow with it.": (
            lambda query, key, value, c: hard_or_soft(query, key, value, 1 / c)
        ),
        "The softmax runs over the queries: each query's weights, a row, add up to 1.": (
            lambda query, key, value, c: (
                (c * query @ key.mT / math.sqrt(key.size(-1))).softmax(0) @ value
            )
        ),
    },
    hints=(
        "It is attention with one factor more. Where can a factor act on the query?",
        "Multiply the query by c, and leave the rest as it is.",
        "What the softmax does with large and small scores: Why divide by the square root.",
    ),
)


def within(n: int, size: int, *, past: int = 0, future: int = 0) -> Tensor:
    """True where a key lies 0 to size - 1 before its query, with the bounds moved."""
    back = torch.arange(n)[:, None] - torch.arange(n)
    return (back >= -future) & (back < size + past)


sliding_window = Exercise(
    function="window_mask",
    arguments=lambda: [(1, 1), (2, 1), (3, 2), (4, 9), (6, 3)],
    right=within,
    mistakes={
        "With size={size} a query sees {size} of the keys, its own among them; here it is one too "
        "many.": lambda n, size: within(n, size, past=1),
        "With size={size} a query sees {size} of the keys, its own among them; one is missing.": (
            lambda n, size: within(n, size, past=-1)
        ),
        "Keys after the query are seen too: the window lies before it. Is the causal mask "
        "missing?": lambda n, size: within(n, size, future=size - 1),
        "Keys after the query are seen, however far they are. Is the causal mask missing?": (
            lambda n, size: within(n, size, future=n)
        ),
        "This is the causal mask: keys further back than size={size} have to go.": (
            lambda n, size: within(n, n)
        ),
        "True and False are exchanged: True means may be attended.": (
            lambda n, size: ~within(n, size)
        ),
        "Rows and columns are exchanged: queries are rows, keys columns.": (
            lambda n, size: within(n, size).T
        ),
    },
    hints=(
        "How far back does key j lie from query i? That is a number for each cell.",
        "i - j is at least 0 (no future) and at most size - 1. Or: two triangles, tril and triu.",
        "Masks are built in Masks: what a query may not see.",
    ),
)


def jacobian(s: Tensor) -> Tensor:
    return torch.autograd.functional.jacobian(lambda x: x.softmax(0), s)


derivative = Exercise(
    function="softmax_jacobian",
    arguments=lambda: [random_tensors((1,)), random_tensors((2,)), random_tensors((5,))],
    right=lambda s: jacobian(s),
    mistakes={
        "The diagonal is missing: where i = j there is w_i more.": (
            lambda s: -torch.outer(s.softmax(0), s.softmax(0))
        ),
        "This is the diagonal alone: the sum below the softmax depends on every score.": (
            lambda s: torch.diag(s.softmax(0) * (1 - s.softmax(0)))
        ),
        "The sign is wrong: raising one score lowers the other weights.": lambda s: -jacobian(s),
        "It is written with the scores; the formula has the weights, after the softmax.": (
            lambda s: torch.diag(s) - torch.outer(s, s)
        ),
        "This is w_j (delta_ij - w_j): the first factor has to go along the rows, as w_i.": (
            lambda s: s.softmax(0) * (torch.eye(len(s)) - s.softmax(0))
        ),
        "This is 1 - w_j for delta_ij - w_j: the 1 stands on the diagonal only.": (
            lambda s: s.softmax(0)[:, None] * (1 - s.softmax(0))
        ),
    },
    hints=(
        "First the weights, w. The result has a row for each weight, a column for each score.",
        "w_i times (delta_ij - w_j): a diagonal matrix less an outer product.",
        "Where the softmax saturates: Why divide by the square root of the width.",
    ),
)


def mixed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.softmax(key @ query / math.sqrt(len(query)), 0) @ value


def in_one_pass(query: Tensor, key: Tensor, value: Tensor, *, wrong: str) -> Tensor:
    """The running softmax with one thing done wrong."""
    scores = key @ query / math.sqrt(len(query))
    largest, total = torch.tensor(-math.inf), torch.tensor(0.0)
    if wrong == "start":
        largest = torch.tensor(0.0)
    elif wrong == "upside down from the first":
        largest = scores[0]
    mixture = torch.zeros(value.size(1))
    for score, v in zip(scores, value, strict=True):
        new = torch.maximum(largest, score)
        shrink = ((new - largest) if wrong.startswith("upside") else (largest - new)).exp()
        kept = torch.ones(()) if wrong == "neither" else shrink
        total = total * (torch.ones(()) if wrong == "total" else kept) + (score - new).exp()
        mixture = (
            mixture * (torch.ones(()) if wrong == "mixture" else kept) + (score - new).exp() * v
        )
        largest = new
    return mixture if wrong == "division" else mixture / total


one_key_at_a_time = Exercise(
    function="attention_in_one_pass",
    arguments=lambda: [
        random_tensors((4,), (1, 4), (1, 3)),
        random_tensors((4,), (2, 4), (2, 3)),
        random_tensors((5,), (9, 5), (9, 3)),
        (torch.full((4,), 200.0), *random_tensors((7, 4), (7, 2))),
        (torch.full((4,), 1000.0), -torch.ones(2, 4), *random_tensors((2, 3))),
    ],
    right=mixed,
    mistakes={
        "When a larger score comes, the sum of exponentials has to be scaled down.": (
            lambda query, key, value: in_one_pass(query, key, value, wrong="total")
        ),
        "When a larger score comes, the sum of values has to be scaled down too.": (
            lambda query, key, value: in_one_pass(query, key, value, wrong="mixture")
        ),
        "When a larger score comes, both sums have to be scaled down.": (
            lambda query, key, value: in_one_pass(query, key, value, wrong="neither")
        ),
        "Scores may all be far below 0: the largest so far starts at minus infinity, or at the "
        "first score, not at 0.": lambda *given: in_one_pass(*given, wrong="start"),
        "The factor is upside down: e to the power of (old - new) makes both sums smaller.": (
            lambda *given: in_one_pass(*given, wrong="upside down")
        ),
        "The factor is upside down: both sums become smaller by e to the power of (old - new).": (
            lambda *given: in_one_pass(*given, wrong="upside down from the first")
        ),
        "Divide at the end: the values' sum by the sum of exponentials.": (
            lambda query, key, value: in_one_pass(query, key, value, wrong="division")
        ),
        "Without the scale: scores are divided by the root of the width.": (
            lambda query, key, value: F.softmax(key @ query, 0) @ value
        ),
        "Large scores overflow here: exponentials are taken of the score less the largest so "
        "far.": lambda query, key, value: (
            (key @ query / math.sqrt(len(query))).exp()
            @ value
            / (key @ query / math.sqrt(len(query))).exp().sum()
        ),
    },
    hints=(
        "Keep three things: the largest score, the sum of exponentials, the sum of values times "
        "exponentials.",
        "A new largest score multiplies both sums by e to the power of (old - new).",
        "The same idea in blocks is chapter 15's first section.",
    ),
)
