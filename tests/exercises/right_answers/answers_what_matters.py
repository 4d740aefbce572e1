"""Right answers to the exercises of chapter 16, written differently from the solutions."""

import math
import statistics

import numpy as np

# Changes of these answers that change nothing.
SAME = {
    "bars_that_overlap_1: line ends[0] <= ends[3]",
    "bars_that_overlap_1: line ends[2] <= ends[1]",
    "bars_that_overlap_2: line low[:2].max() <= high[:2].min()",
    "best_size_2: line 1.000000001",
    "best_size_2: line 301",
    "best_size_2: line 299",
    "best_size_2: line alpha * a / n ** alpha >= beta * b / tokens ** beta",
    "how_many_seeds_1: line max(math.ceil((t * scatter / half) ** 2), 2)",
    "how_many_seeds_2: line 1001",
    "how_many_seeds_2: line 999",
    "how_many_seeds_2: line t * scatter / np.sqrt(numbers) <= half",
}


interval_by_hand_1 = [-4.25, 0.25, -3.76, -0.24]
interval_by_hand_2 = np.array([-4.25, 0.25, -3.756, -0.244])


def bars_that_overlap_1(first, second):
    ends = []
    for values in (first, second, [b - a for a, b in zip(first, second, strict=True)]):
        half = 2.776 * statistics.stdev(values) / math.sqrt(5)
        ends += [statistics.mean(values) - half, statistics.mean(values) + half]
    return ends[0] < ends[3] and ends[2] < ends[1], ends[4], ends[5]


def bars_that_overlap_2(first, second):
    rows = np.array([first, second, np.subtract(second, first)])
    error = 2.776 * rows.std(axis=1, ddof=1) / 5**0.5
    low, high = rows.mean(axis=1) - error, rows.mean(axis=1) + error
    return low[:2].max() < high[:2].min(), low[2], high[2]


def how_many_seeds_1(scatter, half, t):
    return max(2, math.ceil((t * scatter / half) ** 2))


def how_many_seeds_2(scatter, half, t):
    numbers = np.arange(2, 1000)
    return numbers[t * scatter / np.sqrt(numbers) < half][0]


def fifty_comparisons_1(m, outside):
    return m * outside, 1 - (1 - outside) ** m, outside / m


def fifty_comparisons_2(m, outside):
    none = 1.0
    for _ in range(m):
        none *= 1 - outside
    return [sum([outside] * m), 1 - none, np.divide(outside, m)]


def best_size_1(law, operations):
    _, a, b, alpha, beta = law
    logarithm = math.log(alpha * a) - math.log(beta * b) + beta * math.log(operations / 6)
    return math.exp(logarithm / (alpha + beta))


def best_size_2(law, operations):
    _, a, b, alpha, beta = law
    low, high = 1e-9, operations
    for _ in range(300):
        n = (low * high) ** 0.5
        tokens = operations / 6 / n
        if alpha * a / n**alpha > beta * b / tokens**beta:
            low = n
        else:
            high = n
    return low
