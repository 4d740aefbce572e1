"""The exercises of the introduction, chapter 0."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors


def tokens_until(
    too_small: Callable[[float, float], bool] = float.__lt__, *, start: int = 1, power: int = -1
) -> Callable[[float, float], int]:
    """Count tokens until the first one's weight is small enough."""

    def count(a: float, share: float) -> int:
        n = start
        while not too_small(a ** (n + power), share) and n < 10_000:  # ends for a = 1 too
            n += 1
        return n

    return count


how_long = Exercise(
    function="tokens_remembered",
    arguments=lambda: [(0.5, 0.6), (0.5, 0.25), (0.5, 0.01), (0.9, 0.01), (0.99, 0.01), (0.1, 1.0)],
    right=lambda a, share: tokens_until()(a, share),
    mistakes={
        "This is one too few: with n tokens, the first one has the weight a^(n-1), not a^n.": (
            tokens_until(power=0, start=0)
        ),
        "The weight has to be below share={share:g}; equal is not enough.": (
            tokens_until(float.__le__)
        ),
        "One too many: the weight is below share={share:g} one token earlier.": (
            lambda a, share: tokens_until()(a, share) + 1
        ),
        "This is a fraction of a token: the next whole number is asked for.": (
            lambda a, share: 1 + math.log(share) / math.log(a)
        ),
        "These are steps, n - 1, and a fraction of one; a whole number of tokens is asked for.": (
            lambda a, share: math.log(share) / math.log(a)
        ),
    },
    hints=(
        "With two tokens, the weight of the first is a. With how many is it below share?",
        "a^(n-1) < share. Take logarithms; ln a is negative, so the sign turns round.",
        "The weights are in the section By hand: three numbers, two ways to read them.",
    ),
)

NUMBERS = torch.tensor([[1.0], [0.0], [2.0]])
SCORES = NUMBERS @ NUMBERS.T

other_two_tokens = Exercise(
    function="my_outputs",
    arguments=lambda: [()],
    use=lambda mine: mine,
    right=lambda: (SCORES.softmax(1) @ NUMBERS)[:2, 0],
    tolerance=5e-3,
    mistakes={
        "The weights do not add up to 1: divide by the sum of the exponentials.": (
            lambda: (SCORES.exp() @ NUMBERS)[:2, 0]
        ),
        "The second output comes first here.": lambda: (SCORES.softmax(1) @ NUMBERS)[:2, 0].flip(0),
        "These are the outputs for the first and the third token.": (
            lambda: (SCORES.softmax(1) @ NUMBERS)[[0, 2], 0]
        ),
        "Scores are no weights yet: raise e to each, and divide by the sum.": (
            lambda: (SCORES @ NUMBERS)[:2, 0]
        ),
        "A token is compared with every token, also with itself.": (
            lambda: (
                SCORES.masked_fill(torch.eye(3, dtype=torch.bool), -math.inf).softmax(1) @ NUMBERS
            )[:2, 0]
        ),
    },
    hints=(
        "The first token's scores are 1 · 1, 1 · 0 and 1 · 2. What are the second's?",
        "Three equal scores give three equal weights; e, 1 and e² have to be divided by their sum.",
        "The three steps are in the section A self-attention.",
    ),
)


def counted(n: int, d: int) -> tuple[int, int]:
    """The multiplications of all matrix products, each as (rows, inner, columns)."""
    attention = [(n, d, d)] * 4 + [(n, d, n), (n, n, d)]
    lstm = [(1, d, 4 * d), (1, d, 4 * d)] * n
    first, second = (sum(a * b * c for a, b, c in group) for group in (attention, lstm))
    return first, second


def costs(
    *, matrices: int = 4, squares: int = 2, gates: int = 8, power: int = 2
) -> Callable[[int, int], tuple[int, int]]:
    return lambda n, d: (matrices * n * d**2 + squares * n**power * d, gates * n * d**2)


where_the_square_hurts = Exercise(
    function="multiplications",
    arguments=lambda: [(1, 1), (1, 3), (5, 2), (6, 3), (48, 24), (96, 24)],
    right=counted,
    mistakes={
        "With heads there is a fourth matrix, which joins them.": costs(matrices=3),
        "Scores and weighted sums cost n² d each; here only one of them is counted.": (
            costs(squares=1)
        ),
        "Each of the four gates reads the token and the state: 8 products in all.": costs(gates=4),
        "Every token is compared with every token: n², not n.": costs(power=1),
        "The two numbers are exchanged: attention first.": lambda n, d: costs()(n, d)[::-1],
        "These are additions and multiplications together; multiplications are half of them.": (
            costs(matrices=8, squares=4, gates=16)
        ),
    },
    hints=(
        "A vector times a (d, d) matrix costs d² multiplications. How many of them are there?",
        "Attention: 4 matrices for each of n tokens, and two products of d for each of n² pairs.",
        "Both sums are in Measured: how many steps must wait for one another.",
    ),
)


def states_in_turn(a: Tensor, x: Tensor) -> tuple[Tensor, int]:
    """The states one after the other, and how many doublings reach the first token."""
    states, h, rounds = [], torch.zeros(()), 0
    for factor, number in zip(a, x, strict=True):
        h = factor * h + number
        states.append(h)
    while 2**rounds < len(x):
        rounds += 1
    return torch.stack(states), rounds


def doubling(
    *, factors: bool = True, multiplied: bool = True, once: bool = False, each: bool = False
) -> Callable[[Tensor, Tensor], tuple[Tensor, int]]:
    """The scan with one thing done in another way."""

    def scan(a: Tensor, x: Tensor) -> tuple[Tensor, int]:
        rounds, reach = 0, 1
        while reach < len(x):
            weight = a[reach:] if multiplied else torch.ones(len(x) - reach)
            x = torch.cat([x[:reach], weight * x[:-reach] + x[reach:]])
            if factors:
                a = torch.cat([a[:reach], a[reach:] * a[:-reach]])
            rounds, reach = rounds + 1, 2 * reach
            if once:
                break
        return x, len(x) if each else rounds

    return scan


def without_a_queue_for(n: int) -> tuple[Tensor, Tensor]:
    a, x = random_tensors((n,), (n,))
    return a.sigmoid(), x


no_queue = Exercise(
    function="scan_by_doubling",
    arguments=lambda: [*map(without_a_queue_for, (1, 2, 3, 4, 7, 100))],
    right=states_in_turn,
    mistakes={
        "The factors have to be combined too: two steps multiply by a' a.": doubling(factors=False),
        "The factors are missing: the sum of two steps is a' x + x'.": doubling(multiplied=False),
        "Only neighbours are combined here. The next round combines places 2 apart, then 4, …": (
            doubling(once=True)
        ),
        "These are right states, but in one round for each token, or so it is counted.": (
            doubling(each=True)
        ),
        "These are the states, right; the number of rounds is one too large.": (
            lambda a, x: (states_in_turn(a, x)[0], states_in_turn(a, x)[1] + 1)
        ),
    },
    hints=(
        "After the first round each place has combined itself and its neighbour on the left.",
        "Round r combines each place with the one 2^r to the left: x = a · x there + x here, "
        "a = a · a there. Places too far left stay as they are.",
        "The rule for two steps is in the exercise; the recurrence is in By hand.",
    ),
)


def read_from(
    state: Callable[[Tensor, Tensor], Tensor] = lambda keys, values: values.T @ keys,
    *, scale: float = 50.0, dim: int = 1, turned: bool = False,
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:  # fmt: skip
    """What is read with each key from a matrix, and by attention."""

    def read(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        memory = state(keys, values)
        by_attention = (scale * keys @ keys.T).softmax(dim) @ values
        return keys @ (memory if turned else memory.T), by_attention

    return read


def pairs(m: int, d: int, length: float = 1.0) -> tuple[Tensor, Tensor]:
    """Keys of one length, and values of ±1."""
    keys, values = random_tensors((m, d), (m, d + 1))
    return length * keys / keys.norm(dim=1, keepdim=True), values[:, :d].sign()


fixed_state = Exercise(
    function="read_back",
    arguments=lambda: [pairs(1, 2), pairs(2, 3), pairs(5, 4, 0.2), pairs(12, 32)],
    right=lambda keys, values: (
        torch.stack([sum((k @ q) * v for k, v in zip(keys, values, strict=True)) for q in keys]),
        torch.stack([torch.mv(values.T, torch.softmax(50 * keys @ q, 0)) for q in keys]),
    ),
    mistakes={
        "S is the sum of k vᵀ here; with v kᵀ, S times a key gives a value.": read_from(
            turned=True
        ),
        "Without the factor of 50 the softmax is too soft.": read_from(scale=1.0),
        "The softmax runs over the queries: each query's weights, a row, add up to 1.": (
            read_from(dim=0)
        ),
        "Only the last pair is in S: each pair has to be added to what is there.": (
            read_from(lambda keys, values: torch.outer(values[-1], keys[-1]))
        ),
        "The mean of the pairs is kept; S is their sum.": (
            read_from(lambda keys, values: values.T @ keys / len(keys))
        ),
        "These are signs. What is read is asked for, before its sign is taken.": (
            lambda keys, values: tuple(part.sign() for part in read_from()(keys, values))
        ),
    },
    hints=(
        "S starts at zeros, (d, d). Which matrix product is the sum of v kᵀ over all pairs?",
        "values.T @ keys is S. To read with all keys at once, multiply them by S transposed.",
        "Attention over pairs is the section A self-attention, with values of their own.",
    ),
)
