"""The exercises of chapter 3, positional encoding."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.layers.positional_encoding import rotary_frequencies, sinusoidal_positions


def when_pair_is_at(angle: float, pair: int, width: int) -> float:
    """The position where a pair's hand has turned so far, measured at the table's position 1."""
    sine, cosine = sinusoidal_positions(2, width)[1, 2 * pair : 2 * pair + 2].double().tolist()
    return angle / math.atan2(sine, cosine)


same_hand_later = Exercise(
    function="same_angle",
    arguments=lambda: [(0, 2), (0, 4), (1, 4), (2, 6), (1, 8), (3, 8)],
    right=lambda i, d: when_pair_is_at(1.0, i, d),
    tolerance=1e-5,
    mistakes={
        "The exponent is 2i/d: pair {i} is the components 2·{i} and 2·{i} + 1.": (
            lambda i, d: 10_000.0 ** (i / d)
        ),
        "This is how far the hand turns at each position. How many positions make an angle of 1?": (
            lambda i, d: 10_000.0 ** (-2 * i / d)
        ),
        "Pairs are counted from 0: pair 0 turns by 1.": lambda i, d: 10_000.0 ** (2 * (i + 1) / d),
        "This is the wavelength, after which the hand is where it began; the angle asked for is "
        "1, not 2π.": lambda i, d: 2 * math.pi * 10_000.0 ** (2 * i / d),
        "The last of the d/2 pairs does not reach the base: the exponent is 2i/d.": (
            lambda i, d: 10_000.0 ** (i / max(d / 2 - 1, 1))
        ),
    },
    hints=(
        "By which angle does pair i turn at each position? After p positions it is p times that.",
        "p / 10000^(2i/d) = 1. For width 4, pair 1 turns by 1/100.",
        "The formula is in the section Hands of a clock.",
    ),
)


def slowest_wavelength(base: float, width: int) -> float:
    return 2 * math.pi / rotary_frequencies(width, base)[-1].item()


def base_by_bisection(wavelength: float, e: int) -> float:
    """The base whose slowest pair has this wavelength, found by trying."""
    low, high = 1.0 + 1e-9, 1e12
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slowest_wavelength(middle, e) < wavelength else (low, middle)
    return low


million_positions = Exercise(
    function="base_for",
    arguments=lambda: [(628.0, 4), (54_410.0, 128), (4e6, 128), (1000.0, 6)],
    right=base_by_bisection,
    mistakes={
        "A full turn is 2π: divide the wavelength by it.": (
            lambda wavelength, e: wavelength ** (e / (e - 2))
        ),
        "The slowest pair is e/2 - 1, not e/2: its wavelength does not reach 2π times the base.": (
            lambda wavelength, e: wavelength / (2 * math.pi)
        ),
        "The exponent is upside down: base^((e - 2)/e) is the wavelength over 2π.": (
            lambda wavelength, e: (wavelength / (2 * math.pi)) ** ((e - 2) / e)
        ),
        "Component e - 1 belongs to pair e/2 - 1, so that 2i/e = (e - 2)/e, not (e - 1)/e.": (
            lambda wavelength, e: (wavelength / (2 * math.pi)) ** (e / (e - 1))
        ),
        "This is the wavelength for a base, not the base for a wavelength.": (
            lambda wavelength, e: 2 * math.pi * wavelength ** ((e - 2) / e)
        ),
    },
    hints=(
        "There are e/2 pairs. Which i has the slowest, and how far does it turn at each position?",
        "wavelength = 2π · base^((e - 2)/e). Solve this for the base.",
        "Wavelengths are in the section Hands of a clock.",
    ),
)


def directions_by(
    first: tuple[int, int] = (0, 99), second: tuple[int, int] = (-99, 0), *, inverted: bool = False
) -> Callable[[int, int], Tensor]:
    """Masks whose two halves of heads see keys that lie between two distances back."""

    def mask(num_heads: int, n: int) -> Tensor:
        back = torch.arange(n)[:, None] - torch.arange(n)
        halves = [(back >= low) & (back <= high) for low, high in (first, second)]
        both = torch.stack([half for half in halves for _ in range(num_heads // 2)])[None]
        return ~both if inverted else both  # (1, h, q, k)

    return mask


def seen_by_hand(num_heads: int, n: int) -> Tensor:
    """Each cell by the signs of two differences."""
    positions = torch.arange(n)
    distance = positions[:, None] - positions  # (q, k)
    sign = torch.tensor([1] * (num_heads // 2) + [-1] * (num_heads // 2))
    return (sign[:, None, None] * distance >= 0)[None]  # (1, h, q, k)


left_and_right = Exercise(
    function="directions",
    arguments=lambda: [(2, 1), (2, 3), (4, 5), (6, 2)],
    right=seen_by_hand,
    mistakes={
        "All heads look to the left. The second half of them looks to the right.": (
            directions_by(second=(0, 99))
        ),
        "The first half of the heads looks to the right here; it is to look to the left, at "
        "earlier positions.": directions_by((-99, 0), (0, 99)),
        "The second half of the heads sees everything: mask it, too.": (
            directions_by(second=(-99, 99))
        ),
        "The first half of the heads sees everything: mask it, too.": (
            directions_by(first=(-99, 99))
        ),
        "Each position sees itself, too: the diagonal is missing.": directions_by(
            (1, 99), (-99, -1)
        ),
        "Each position sees itself, too: in the first half of the heads the diagonal is missing.": (
            directions_by(first=(1, 99))
        ),
        "Each position sees itself, too: in the second half the diagonal is missing.": (
            directions_by(second=(-99, -1))
        ),
        "True and False are exchanged: True means may be attended.": directions_by(inverted=True),
        "The axis for the batch is missing: the shape is (1, h, q, k).": (
            lambda num_heads, n: seen_by_hand(num_heads, n)[0]
        ),
    },
    hints=(
        "A head that looks only to the left has the causal mask. What has one that looks right?",
        "Transposed, the causal mask looks to the right. Stack h masks, the first half plain.",
        "The bias that this mask goes with: ALiBi: forget with distance.",
    ),
)


def clipped(i: int, j: int, r: int) -> int:
    """Which vector belongs to query i and key j."""
    return max(-r, min(r, j - i)) + r


def scores_by_loops(
    query: Tensor, key: Tensor, vectors: Tensor, *, place: Callable[[int, int, int], int] = clipped
) -> Tensor:
    """Scores one by one, (q, k)."""
    r = len(vectors) // 2
    rows = [
        [q @ (k + vectors[place(i, j, r)]) for j, k in enumerate(key)] for i, q in enumerate(query)
    ]
    return torch.stack([torch.stack(row) for row in rows])  # (q, k)


def scores_with(
    place: Callable[[int, int, int], int],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What takes another vector for a query and a key."""
    return lambda query, key, vectors: scores_by_loops(query, key, vectors, place=place)


vector_for_each_distance = Exercise(
    function="relative_scores",
    arguments=lambda: [
        random_tensors((1, 4), (1, 4), (1, 4)),
        random_tensors((2, 4), (3, 4), (3, 4)),
        random_tensors((6, 4), (7, 4), (5, 4)),
        random_tensors((4, 3), (4, 3), (9, 3)),
    ],
    right=lambda query, key, vectors: scores_by_loops(query, key, vectors),
    mistakes={
        "The distance is j - i, key less query; here it is i - j.": (
            scores_with(lambda i, j, r: clipped(j, i, r))
        ),
        "The index c begins at -r, a row at 0: add r. Negative indices count from the end, without "
        "an error.": scores_with(lambda i, j, r: clipped(i, j, r) - r),
        "Distances beyond r begin again at the other end: clip them, no remainder.": (
            scores_with(lambda i, j, r: (j - i + r) % (2 * r + 1))
        ),
        "The distance has lost its sign: left and right have the same vector.": (
            scores_with(lambda i, j, r: clipped(0, abs(j - i), r))
        ),
        "The distance is a difference, j - i. Here the two are added.": (
            scores_with(lambda i, j, r: clipped(-i, j, r))
        ),
        "These are the scores without the vectors for distances.": (
            lambda query, key, vectors: query @ key.mT
        ),
        "The vectors are added to the queries here, and multiplied with the keys.": (
            lambda query, key, vectors: scores_by_loops(key, query, vectors.flip(0)).mT
        ),
        "Divided by the root of the width: it is not asked for here.": (
            lambda query, key, vectors: (
                scores_by_loops(query, key, vectors) / math.sqrt(query.size(-1))
            )
        ),
    },
    hints=(
        "Split the score in two products: query with key, and query with the distance's vector.",
        "All queries with all vectors is one product, (q, 2r + 1). Pick from it with gather, at "
        "the clipped distance + r.",
        "Distances of queries and keys as a table: the code of ALiBi: forget with distance.",
    ),
)


def from_first_to_last(e: int, factor: float, method: str) -> Tensor:
    """A geometric series between what is known of the first pair and of the last."""
    last = rotary_frequencies(e)[-1].item() / factor
    first = 1 / factor if method == "interpolated" else 1.0
    return torch.logspace(math.log10(first), math.log10(last), e // 2, dtype=torch.float64)


def frequencies_by(
    *,
    positions: Callable[[float], float] = lambda factor: factor,
    bases: Callable[[float, int], float] = lambda factor, e: factor ** (e / (e - 2)),
    power: float = 1.0,
) -> Callable[[int, float, str], Tensor]:
    """Frequencies by the formulas, with another divisor of positions or factor of the base."""

    def frequencies(e: int, factor: float, method: str) -> Tensor:
        if method == "interpolated":
            return rotary_frequencies(e) ** power / positions(factor)
        return rotary_frequencies(e, 10_000 * bases(factor, e)) ** power

    return frequencies


stretching = Exercise(
    function="stretched_frequencies",
    arguments=lambda: [
        (4, 1.0, "interpolated"),
        (4, 2.0, "interpolated"),
        (4, 2.0, "larger base"),
        (16, 1.0, "interpolated"),
        (16, 4.0, "interpolated"),
        (16, 4.0, "larger base"),
    ],
    right=from_first_to_last,
    tolerance=1e-6,
    mistakes={
        "Interpolation divides positions by {factor}, and with them the angles; here they are "
        "multiplied.": frequencies_by(positions=lambda factor: 1 / factor),
        "Multiplied by the factor alone, the base slows the slowest pair by less than {factor}: "
        "the exponent is missing.": frequencies_by(bases=lambda factor, e: factor),
        "The exponent is upside down: it is e/(e - 2).": (
            frequencies_by(bases=lambda factor, e: factor ** ((e - 2) / e))
        ),
        "With the larger base the fastest pair keeps its speed: do not divide positions as well.": (
            lambda e, factor, method: (
                from_first_to_last(e, factor, method) / (factor if method == "larger base" else 1)
            )
        ),
        "The two methods are exchanged.": lambda e, factor, method: from_first_to_last(
            e, factor, "larger base" if method == "interpolated" else "interpolated"
        ),
        "The exponent of the base is -2i/e, and here it is half of that.": (
            frequencies_by(power=0.5)
        ),
        "The exponent of the base is -2i/e: the sign is missing, and later pairs turn faster.": (
            lambda e, factor, method: from_first_to_last(e, 1 / factor, method).reciprocal()
        ),
        "There are as many frequencies as components here; one for each pair is asked for.": (
            lambda e, factor, method: from_first_to_last(e, factor, method).repeat_interleave(2)
        ),
    },
    hints=(
        "Begin with the frequencies as they are: base^(-2i/e) for i = 0, ..., e/2 - 1.",
        "(a) An angle is position times frequency: where can a divisor of positions go? (b) Only "
        "the base changes.",
        "rotary_frequencies, and what they are: Rotary encoding: turn, do not add.",
    ),
)
