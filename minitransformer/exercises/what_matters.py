"""The exercises of chapter 16, what matters."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitransformer.exercises.checking import Exercise

STUDENT = 2.776
"""Student's t for five differences."""


def two_intervals(t4: float = 3.182, t5: float = STUDENT, s: float = 2**0.5) -> Tensor:
    """Both intervals' ends, from Student's t and the scatter."""
    half4, half5 = t4 * s / 4**0.5, t5 * s / 5**0.5
    return torch.tensor([-2 - half4, -2 + half4, -2 - half5, -2 + half5])  # (4)


interval_by_hand = Exercise(
    function="my_ends",
    arguments=lambda: [()],
    right=two_intervals,
    use=lambda mine: mine,
    mistakes={
        "Here t is 1.96, the normal distribution's. For so few seeds take Student's.": (
            lambda: two_intervals(1.96, 1.96)
        ),
        "t belongs to a number of seeds: four have another one than five.": (
            lambda: two_intervals(STUDENT)
        ),
        "A fifth seed changes t, too, not the root alone.": lambda: two_intervals(t5=3.182),
        "The root of the number of seeds is missing: a mean scatters less than one seed.": (
            lambda: two_intervals(2 * 3.182, 5**0.5 * STUDENT)
        ),
        "The squares are divided by n here. They are divided by n - 1.": (
            lambda: two_intervals(s=1.5**0.5)
        ),
        "This is s². Its root is still to be taken.": lambda: two_intervals(s=2.0),
    },
    hints=(
        "The mean first, then the four deviations from it, and their squares.",
        "s² is the sum of the squares over n - 1; half of the interval is t · s / √n.",
        "The same is done for five seeds in By hand: five differences.",
    ),
    tolerance=5e-3,
)


def half_of(values: Tensor, t: float = STUDENT) -> Tensor:
    """Half of the interval of a mean."""
    return t * values.std() / len(values) ** 0.5


def ends(middle: Tensor, half: Tensor, overlap: bool) -> tuple[bool, float, float]:
    return overlap, (middle - half).item(), (middle + half).item()


Halves = Callable[[Tensor, Tensor], Tensor]


def compared_pairs(
    own: Halves = lambda a, b: half_of(b - a),
    apart: Halves = lambda a, b: half_of(a) + half_of(b),
    sign: int = 1,
    absolute: bool = True,
) -> Callable[[Sequence[float], Sequence[float]], tuple[bool, float, float]]:
    """An answer: half of the difference's interval, how far apart means may be, and the order."""

    def answer(first: Sequence[float], second: Sequence[float]) -> tuple[bool, float, float]:
        a, b = torch.tensor(first).double(), torch.tensor(second).double()
        distance = b.mean() - a.mean()
        far = distance.abs() if absolute else distance
        return ends(sign * distance, own(a, b), bool(far < apart(a, b)))

    return answer


def unpaired(a: Tensor, b: Tensor) -> Tensor:
    return (half_of(a) ** 2 + half_of(b) ** 2).sqrt()


FIVES = (
    ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 6.0]),
    ([-8.4, -5.5, -7.6, -3.4, -6.6], [-9.0, -6.0, -8.0, -4.0, -7.0]),
    ([-0.2, 0.2, -0.2, 0.2, 0.0], [0.2, 0.2, 0.6, 0.6, 0.4]),
    ([0.1, 0.3, 0.2, 0.1, 0.4], [5.2, 5.1, 5.4, 5.2, 5.3]),
    ([7.0, 7.5, 7.2, 7.1, 7.9], [3.0, 2.5, 2.0, 2.2, 3.3]),
    ([-2.0, 2.0, -2.0, 2.0, 0.0], [2.0, 2.0, 6.0, 6.0, 4.0]),
)
"""Of the last two lists the intervals overlap, and none includes the other's mean."""


bars_that_overlap = Exercise(
    function="compare_settings",
    arguments=lambda: FIVES,
    right=compared_pairs(),
    mistakes={
        "The two lists are paired: take the differences first, then their scatter.": (
            compared_pairs(unpaired)
        ),
        "Halves of intervals do not add up: take the interval of the differences.": (
            compared_pairs(lambda a, b: half_of(a) + half_of(b))
        ),
        "The difference is second - first; yours is the other way round.": compared_pairs(sign=-1),
        "The first list may lie above the second, too: then they need not overlap.": (
            compared_pairs(absolute=False)
        ),
        "Intervals can overlap though neither has the other's mean in it.": compared_pairs(
            apart=lambda a, b: torch.maximum(half_of(a), half_of(b))
        ),
        "This is the normal distribution's 1.96. Five differences have Student's t, 2.776.": (
            compared_pairs(
                lambda a, b: half_of(b - a, 1.96),
                lambda a, b: half_of(a, 1.96) + half_of(b, 1.96),
            )
        ),
    },
    hints=(
        "Three intervals: the first list's, the second's, and that of five differences.",
        "Two intervals overlap if each begins before the other ends.",
        "Why runs of one seed make a pair is said in By hand: five differences.",
    ),
)


def tried_seeds(scatter: float, half: float, t: float) -> int:
    """By trying one number after the other, from a little below the solution on."""
    n = max(2, int((t * scatter / half) ** 2) - 1)
    while half > 0 and t * scatter / n**0.5 > half:
        n += 1
    return n


how_many_seeds = Exercise(
    function="seeds_needed",
    arguments=lambda: [
        (0.1, 0.3, 1.96),
        (0.1, 0.1, 1.96),
        (0.15, 0.05, 1.96),
        (0.15, 0.05, 2.03),
        (0.3, 0.17, 2.5),
    ],
    right=tried_seeds,
    mistakes={
        "Rounded down: with so many seeds the half is still larger than half={half}.": (
            lambda scatter, half, t: max(2, int((t * scatter / half) ** 2))
        ),
        "Rounded to the nearest; a seed too few does not reach half={half}.": (
            lambda scatter, half, t: max(2, round((t * scatter / half) ** 2))
        ),
        "The half falls with the root of n, so the ratio has to be squared.": (
            lambda scatter, half, t: max(2, math.ceil(t * scatter / half))
        ),
        "t={t} is missing.": lambda scatter, half, t: tried_seeds(scatter, half, 1.0),
        "half={half} is half of the interval, not all of it.": lambda scatter, half, t: tried_seeds(
            scatter, half / 2, t
        ),
        "A whole number of seeds is asked for.": lambda scatter, half, t: max(
            2.0, (t * scatter / half) ** 2
        ),
        "One seed has no scatter: at least two are needed.": lambda scatter, half, t: math.ceil(
            (t * scatter / half) ** 2
        ),
    },
    hints=(
        "Half of the interval is t · s / √n. Which n makes it small enough?",
        "Solve for n, and round up; or try n = 2, 3, 4, ...",
        "The formula of the half is in By hand: five differences.",
    ),
)


def chance_of(number: int, m: int, outside: float) -> float:
    """That exactly so many of m independent intervals exclude the truth."""
    return math.comb(m, number) * outside**number * (1 - outside) ** (m - number)


def counted_cases(m: int, outside: float) -> tuple[float, float, float]:
    """A sum over all numbers of intervals that miss."""
    chances = [chance_of(number, m, outside) for number in range(m + 1)]
    mean = sum(number * chance for number, chance in enumerate(chances))
    return float(mean), float(sum(chances[1:])), outside / m


Cases = Callable[[int, float], tuple[float, float, float]]


def with_chance(chance: Callable[[int, float], float]) -> Cases:
    """A wrong answer: with this chance of at least one."""
    return lambda m, outside: (m * outside, chance(m, outside), outside / m)


fifty_comparisons = Exercise(
    function="by_chance",
    arguments=lambda: [(1, 0.25), (2, 0.25), (3, 0.5), (50, 0.05), (20, 0.01)],
    right=counted_cases,
    mistakes={
        "Chances of {m} events do not add up: that would exceed 1 soon. How likely is none?": (
            with_chance(lambda m, outside: m * outside)
        ),
        "This is the chance that none excludes zero. At least one is the opposite.": with_chance(
            lambda m, outside: (1 - outside) ** m
        ),
        "This is the chance that all {m} do.": with_chance(lambda m, outside: outside**m),
        "This is the chance of exactly one. More than one count, too.": with_chance(
            lambda m, outside: chance_of(1, m, outside)
        ),
        "The third holds only if intervals are independent. Bonferroni's is a bound"
        " that always holds.": (
            lambda m, outside: (*counted_cases(m, outside)[:2], 1 - (1 - outside) ** (1 / m))
        ),
        "The mean counts intervals that exclude zero, not those that include it.": (
            lambda m, outside: (m * (1 - outside), *counted_cases(m, outside)[1:])
        ),
        "The third is how often *one* interval may miss; here it is how often it may not.": (
            lambda m, outside: (*counted_cases(m, outside)[:2], 1 - outside / m)
        ),
    },
    hints=(
        "Each interval excludes zero by chance in a share `outside` of cases. On average, of m?",
        "None of m does so with the chance (1 - outside) to the power of m.",
        "Many intervals at once are the subject in What matters: the table, and in the recap.",
    ),
    tolerance=1e-5,
)


Law = tuple[float, float, float, float, float]


def searched_size(law: Law, operations: float) -> float:
    """By a search in thirds over the logarithm of the size, without the formula."""
    _, A, B, alpha, beta = law
    low, high = 0.0, math.log(operations)
    for _ in range(120):
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        losses = [
            A / math.exp(n) ** alpha + B / (operations / (6 * math.exp(n))) ** beta
            for n in (left, right)
        ]
        if losses[0] < losses[1]:
            high = right
        else:
            low = left
    return math.exp(low)


def ratio_of(law: Law) -> float:
    """What α A / (β B) is."""
    _, A, B, alpha, beta = law
    return alpha * A / (beta * B)


def size_by(law: Law, ratio: float, sixth: float, power: float | None = None) -> float:
    """The formula, with what a mistake puts into it: a ratio, a budget and its power."""
    _, _, _, alpha, beta = law
    return float((ratio * sixth ** (power or beta)) ** (1 / (alpha + beta)))


best_size = Exercise(
    function="best_size",
    arguments=lambda: [
        ((0.0, 2.0, 1.0, 0.5, 0.25), 600.0),
        ((1.7, 400.0, 410.0, 0.34, 0.28), 1e12),
        ((1.7, 400.0, 410.0, 0.34, 0.28), 1e18),
        ((0.5, 9.0, 30.0, 0.3, 0.4), 1e9),
    ],
    right=searched_size,
    mistakes={
        "The 6 is missing: tokens are D = C/(6 N).": lambda law, c: size_by(law, ratio_of(law), c),
        "α and β are missing as factors: the condition is α A/N^α = β B/D^β.": (
            lambda law, c: size_by(law, law[1] / law[2], c / 6)
        ),
        "A and B have changed places: a larger A, what a small model misses, needs more N.": (
            lambda law, c: size_by(law, 1 / ratio_of(law), c / 6)
        ),
        "The budget has the power α here. It comes from D^β.": (
            lambda law, c: size_by(law, ratio_of(law), c / 6, law[3])
        ),
        "The tokens are C divided by 6 N: the budget is multiplied by 6 here.": (
            lambda law, c: size_by(law, ratio_of(law), c * 6)
        ),
        "N^α and N^β come together as N^(α+β), whose root has to be taken: 1/(α+β), not α+β.": (
            lambda law, c: (ratio_of(law) * (c / 6) ** law[4]) ** (law[3] + law[4])
        ),
        "β B is multiplied here. It divides: N is smaller where more tokens help more.": (
            lambda law, c: size_by(law, law[3] * law[1] * law[4] * law[2], c / 6)
        ),
        "Only one of the two factors is missing: it is β B as it is α A.": (
            lambda law, c: size_by(law, law[3] * law[1] / law[2], c / 6)
        ),
        "The loss grows as N^-α: its derivative has the factor α, not 1/α.": (
            lambda law, c: size_by(law, law[1] / law[3] / (law[2] / law[4]), c / 6)
        ),
        "This is N to the power α + β. The root is still to be taken.": (
            lambda law, c: ratio_of(law) * (c / 6) ** law[4]
        ),
        "These are the tokens D. The size N is asked for.": lambda law, c: (
            c / (6 * searched_size(law, c))
        ),
    },
    hints=(
        "Put D = C/(6 N) into α A/N^α = β B/D^β: N is the only unknown then.",
        "Collect the powers of N on one side: N^α times N^β.",
        "The law and its five numbers are explained in A scaling law on a laptop.",
    ),
)
