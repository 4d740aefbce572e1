"""What a wrong answer has in common with the right one, for mistakes that have no name.

Each sentence states what was computed from both answers: on the first input that fails, or, where
it says so, on every input of the exercise.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from minitransformer.exercises.comparing import Difference, compare, copied, is_number

FAILED = object()
"""In place of a result: the call raised an exception."""
CONSTANTS = {
    "ln 2": math.log(2),
    "1 / ln 2": 1 / math.log(2),
    "ln 10": math.log(10),
    "1 / ln 10": 1 / math.log(10),
    "π": math.pi,
    "2π": 2 * math.pi,
    "1 / 2π": 1 / (2 * math.pi),
    "√2": math.sqrt(2),
    "1 / √2": math.sqrt(0.5),
}
POWERS = {0.5: "√{}", 1: "{}", 2: "{}²", -0.5: "√{}", -1: "{}", -2: "{}²"}


@dataclass(frozen=True)
class Wrong:
    """A wrong answer and the right one, on all inputs of an exercise.

    Args:
        mine: computes the reader's result, which is compared, from the arguments.
        right: computes the right result from them.
        names: the names of the arguments.
        inputs: the arguments of each call, from the smallest on.
        failing: the number of the first input with a wrong result.
        tolerance: as in the exercise.
    """

    mine: Callable[..., Any]
    right: Callable[..., Any]
    names: Sequence[str]
    inputs: Sequence[tuple[Any, ...]]
    failing: int
    tolerance: float

    def attempt(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """What the call gives; of several results, the one that is explained."""
        try:
            result = function(*copied(arguments))
        except Exception:
            return FAILED
        if self.part is not None:
            if not isinstance(result, tuple | list) or len(result) <= self.part:
                return FAILED
            result = result[self.part]
        return as_tensor(result) if hasattr(result, "__array__") else result

    @cached_property
    def part(self) -> int | None:
        """Which of several results is the first wrong one; None if there is one result."""
        arguments = self.inputs[self.failing]
        found, expected = (f(*copied(arguments)) for f in (self.mine, self.right))
        if not isinstance(expected, tuple) or not isinstance(found, tuple | list):
            return None
        if len(found) != len(expected):
            return None
        pairs = enumerate(zip(found, expected, strict=False))
        return next((i for i, pair in pairs if not self.same(*pair)), None)

    @cached_property
    def found(self) -> list[Any]:
        """The reader's results, as tensors where the right ones are."""
        results = [self.attempt(self.mine, arguments) for arguments in self.inputs]
        return [
            as_tensor(mine) if isinstance(right, Tensor) else mine
            for mine, right in zip(results, self.expected, strict=True)
        ]

    @cached_property
    def expected(self) -> list[Any]:
        """The right results."""
        return [self.attempt(self.right, arguments) for arguments in self.inputs]

    @property
    def pair(self) -> tuple[Any, Any]:
        """Both results for the first input that fails."""
        return self.found[self.failing], self.expected[self.failing]

    def same(self, one: Any, other: Any) -> bool:
        """Whether two results count as equal."""
        if one is FAILED or other is FAILED:
            return False
        try:
            compare(one, other, self.tolerance)
        except Difference:
            return False
        return True

    @cached_property
    def numbers(self) -> tuple[list[float], list[float]] | None:
        """Both answers' results, if all are finite numbers."""
        if not all(map(is_number, [*self.found, *self.expected])):
            return None
        found, expected = ([float(x) for x in xs] for xs in (self.found, self.expected))
        return (found, expected) if all(map(math.isfinite, found + expected)) else None

    @cached_property
    def variables(self) -> dict[str, list[float]]:
        """Numbers that an input has: arguments, lengths, and fields of a configuration."""
        each = [dict(numbers_in(self.names, arguments)) for arguments in self.inputs]
        return {name: [x[name] for x in each] for name in each[0] if all(name in x for x in each)}


def as_tensor(value: Any) -> Any:
    """The value as a tensor on the CPU without gradients, if it can be one."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return value


def explain(wrong: Wrong) -> str:
    """The first sentence that holds; empty if none does."""
    found, expected = wrong.pair
    if found is None or found is ... or isinstance(expected, tuple):
        return ""  # nothing is written yet, or it is not the number of results
    ways = [likeness, one_function_of_the_other, changed_argument]
    ways += [term_or_factor, unused_argument, boundary, wrong_places, response]
    return next(filter(None, (way(wrong) for way in ways)), "")


def numbers_in(names: Sequence[str], arguments: Sequence[Any]) -> Iterator[tuple[str, float]]:
    for name, value in zip(names, arguments, strict=False):
        if isinstance(value, int | float):
            yield name, value
        elif isinstance(value, Tensor):
            for axis, size in enumerate(value.shape):
                yield (f"{name}.size({axis})" if value.dim() > 1 else f"len({name})"), size
        elif isinstance(value, tuple | list):
            yield f"len({name})", len(value)
        elif is_dataclass(value) and not isinstance(value, type):
            of_fields = {part.name: getattr(value, part.name) for part in fields(value)}
            yield from numbers_in([*of_fields], [*of_fields.values()])


# --- from one result -------------------------------------------------------------------------


def likeness(wrong: Wrong) -> str:
    """How wrong results are related to right ones, by most numbers: small tensors may mislead."""
    first: dict[str, str] = {}
    weights: Counter[str] = Counter()
    for found, expected in zip(wrong.found, wrong.expected, strict=True):
        if found is not FAILED and not wrong.same(found, expected):
            text = likeness_of(wrong, found, expected)
            kind = text.translate(WITHOUT_NUMBERS)
            first.setdefault(kind, text)
            weights[kind] += found.numel() if isinstance(found, Tensor) else 1
    return first[max(weights, key=weights.__getitem__)] if weights else ""


WITHOUT_NUMBERS = {ord(character): None for character in "0123456789.+-"}


def likeness_of(wrong: Wrong, found: Any, expected: Any) -> str:
    """How one wrong result is related to the right one."""
    if isinstance(expected, list | str) and isinstance(found, type(expected)):
        return likeness_of_sequences(found, expected)
    try:
        ours, theirs = (torch.as_tensor(x, dtype=torch.float64).cpu() for x in (found, expected))
        ours, is_boolean = ours.detach(), torch.as_tensor(expected).dtype == torch.bool
    except (TypeError, ValueError, RuntimeError):
        return ""
    if ours.shape != theirs.shape:
        return likeness_of_shapes(ours, theirs, wrong.tolerance)
    if ours.isnan().any() and not theirs.isnan().any():
        return "Some of yours are no numbers (NaN): is there a 0 / 0, or infinity less infinity?"
    if is_boolean and ours.isinf().any():
        return "A mask to be added has 0 and -inf; here True and False are asked for."
    if ours.isinf().any() and not theirs.isinf().any():
        return "Some of yours are infinite: is there a division by 0, or an exponential too large?"
    if is_boolean and all(map(wrong.same, map(opposite, wrong.found), wrong.expected)):
        return "True and False are exchanged."
    return likeness_of_tensors(ours, theirs, wrong.tolerance) if ours.numel() > 1 else ""


def opposite(value: Any) -> Any:
    """The other truth value, for each place of a tensor."""
    if isinstance(value, Tensor):
        return value == 0
    return FAILED if value is FAILED else not value


def likeness_of_sequences(found: Any, expected: Any) -> str:
    if found == expected[::-1]:
        return "The order is reversed."
    if len(found) != len(expected):
        short, long = sorted((found, expected), key=len)
        rest = "then some are missing" if len(found) < len(expected) else "then there are more"
        if short and short == long[: len(short)]:
            return f"The first {len(short)} are right; {rest}."
        return ""
    if sorted(map(str, found)) == sorted(map(str, expected)):
        return "These are the right ones in another order."
    return ""


def likeness_of_shapes(found: Tensor, expected: Tensor, tolerance: float) -> str:
    def alike(one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and torch.allclose(one, other, tolerance, tolerance)

    if not found.numel() or not expected.numel():
        return ""
    if found.numel() == expected.numel():
        if expected.dim() == 0:
            return "These are brackets around one number; the number itself is asked for."
        if alike(found.flatten(), expected.flatten()):
            return "The numbers and their order are right; only the shape is not."
        if alike(found.mT.flatten() if found.dim() > 1 else found, expected.flatten()):
            return "The numbers are right, with the last two axes exchanged."
        return "As many numbers as expected: are axes exchanged, or one too many or too few?"
    longer, shorter = (found, expected) if found.dim() > expected.dim() else (expected, found)
    if longer.dim() == shorter.dim() + 1:
        of_yours = longer is found
        for axis in range(longer.dim()):
            if longer.shape[:axis] + longer.shape[axis + 1 :] != shorter.shape:
                continue
            for reduced, name in (
                (longer.sum(axis), "sum"), (longer.mean(axis), "mean"),
                (longer.select(axis, 0), "first entry"), (longer.select(axis, -1), "last entry"),
            ):  # fmt: skip
                if alike(reduced, shorter):
                    one = f"The {name} of yours over axis {axis} is right."
                    other = f"Yours is the {name} of the right result over its axis {axis}."
                    return one if of_yours else other
            size = longer.size(axis)
            if of_yours:
                return f"Axis {axis}, of length {size}, is too many: is a sum or a choice missing?"
            return f"An axis of length {size} is missing: is a sum or a choice too many?"
    apart = [i for i, (m, k) in enumerate(zip(found.shape, expected.shape, strict=False)) if m != k]
    if found.dim() == expected.dim() and len(apart) == 1:
        axis = apart[0]
        ours, theirs = found.size(axis), expected.size(axis)
        common, apart_by = min(ours, theirs), abs(ours - theirs)
        where = f" along axis {axis}" if found.dim() > 1 else ""
        for start, kept, rest in ((0, "first", "last"), (1, "last", "first")):
            from_ours, from_theirs = start * (ours - common), start * (theirs - common)
            if common and alike(
                found.narrow(axis, from_ours, common), expected.narrow(axis, from_theirs, common)
            ):
                if ours > theirs:
                    return f"The {kept} {common}{where} are right; {apart_by} are too many."
                return f"What there is, is right; the {rest} {apart_by}{where} are missing."
        if alike(found.sum(axis), expected.sum(axis)):
            return f"The sum{where} is right, in another number of parts."
    return ""


def likeness_of_tensors(found: Tensor, expected: Tensor, tolerance: float) -> str:
    def alike(one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and torch.allclose(one, other, tolerance, tolerance)

    if not found.any():
        return "Yours is 0 everywhere."
    if alike(-found, expected):
        return "All signs are the other way round."
    for one, other in itertools.combinations(range(found.dim()), 2):
        if alike(found.transpose(one, other), expected):
            which = "Rows and columns" if found.dim() == 2 else f"Axes {one} and {other}"
            return f"{which} are exchanged."
    for axis in reversed(range(found.dim())):
        which = "The last axis" if axis == found.dim() - 1 else f"Axis {axis}"
        if alike(found.flip(axis), expected):
            return f"{which} is reversed."
        for shift, how in ((-1, "far"), (1, "early")):
            if alike(found.roll(shift, axis), expected):
                where = "" if axis == found.dim() - 1 else f" along axis {axis}"
                return f"Everything lies one place too {how}{where}."
    for text, function in FUNCTIONS.items() if len(found.unique()) > 2 else ():
        for given, wanted, sentence in (
            (found, expected, f"The right result is {text} of yours."),
            (expected, found, f"Yours is {text} of the right result."),
        ):
            if alike(function(given), wanted):
                return sentence
    finite = found.isfinite() & expected.isfinite()
    if not torch.equal(found[~finite], expected[~finite]):
        return ""
    if expected[finite].any():
        factor = (found[finite] @ expected[finite]) / expected[finite].square().sum()
        if alike(found[finite], factor * expected[finite]):
            return f"Yours is {factor.item():.4g} times that: is there a scale too many or too few?"
    offset = (found - expected)[finite].mean()
    if alike(found[finite] - offset, expected[finite]):
        return f"Yours is {offset.item():+.4g} off everywhere."
    if finite.all() and found.dim() > 1:
        return likeness_of_rows(found, expected, tolerance)
    return ""


def likeness_of_rows(found: Tensor, expected: Tensor, tolerance: float) -> str:
    """What holds in each row, or each column, of its own."""
    ones = torch.ones(())
    for axis, lines in ((-1, "row"), (-2, "column")):
        if found.size(axis) < 2 or found.size(-3 - axis) < 2:
            continue
        sums, right_sums = found.sum(axis), expected.sum(axis)
        if torch.allclose(right_sums, ones.expand_as(sums).double(), atol=tolerance):
            if not torch.allclose(sums, right_sums, atol=tolerance):
                return f"Each {lines} has to add up to 1; yours add up to {sums.flatten()[0]:.4g} …"
            if (found > 0).all() and (expected > 0).all():
                logs, right_logs = (
                    x.log() - x.log().mean(axis, keepdim=True) for x in (found, expected)
                )
                factor = (logs * right_logs).sum() / right_logs.square().sum()
                if torch.allclose(logs, factor * right_logs, tolerance, tolerance):
                    return (
                        f"These are the weights for scores {factor:.4g} times as large: is there "
                        "a scale too many or too few?"
                    )
        squares = expected.square().sum(axis, keepdim=True)
        factors = (found * expected).sum(axis, keepdim=True) / squares
        if torch.allclose(found, factors * expected, tolerance, tolerance):
            few = ", ".join(f"{x:.3g}" for x in factors.flatten()[:2].tolist())
            return f"Each {lines} is right but for a factor ({few} …): is it normalised otherwise?"
        shifts = (found - expected).mean(axis, keepdim=True)
        if torch.allclose(found - shifts, expected, tolerance, tolerance):
            few = ", ".join(f"{x:+.3g}" for x in shifts.flatten()[:2].tolist())
            return (
                f"Each {lines} is off by one number ({few} …): is something added once too often?"
            )
    return ""


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the square": torch.square,
    "the square root": torch.sqrt,
    "the reciprocal": torch.reciprocal,
    "the absolute value": torch.abs,
    "e to the power": torch.exp,
    "the part that is not negative (ReLU)": torch.relu,
    "the floor": torch.floor,
    "the ceiling": torch.ceil,
    "the nearest whole number": torch.round,
    "the whole part": torch.trunc,
    "the softmax over the last axis": lambda x: x.softmax(-1) if x.dim() else x,
    "the running sum over the last axis": lambda x: x.cumsum(-1) if x.dim() else x,
}
"""For a sentence such as "Yours is the square of the right result"."""


def wrong_places(wrong: Wrong) -> str:
    """Where the wrong numbers of a tensor are, if that has a short name."""
    try:
        found, expected = (torch.as_tensor(x).detach().cpu() for x in wrong.pair)
    except (TypeError, ValueError, RuntimeError):
        return ""
    if found.shape != expected.shape or found.numel() < 3:
        return ""
    ours, theirs = found.to(torch.float64), expected.to(torch.float64)
    off = ~torch.isclose(ours, theirs, wrong.tolerance, wrong.tolerance, equal_nan=True)
    count = f"{int(off.sum())} of {off.numel()}"
    if torch.allclose(ours.abs(), theirs.abs(), wrong.tolerance, wrong.tolerance):
        return f"Only signs are wrong, those of {count} numbers."
    if expected.dtype == torch.bool:
        if (ours >= theirs)[off].all():
            return f"All that should be True is; {count} are True that should be False."
        if (ours <= theirs)[off].all():
            return f"All that should be False is; {count} are False that should be True."
    if off.dim() > 1 and min(off.shape[-2:]) > 1:
        rows, columns = torch.meshgrid(*map(torch.arange, off.shape[-2:]), indexing="ij")
        regions = {
            "the diagonal is": rows == columns,
            "numbers above the diagonal are": rows < columns,
            "numbers below the diagonal are": rows > columns,
            "numbers on and above the diagonal are": rows <= columns,
            "numbers on and below the diagonal are": rows >= columns,
            "numbers off the diagonal are": rows != columns,
        }
        for name, region in regions.items():
            if not off[region.expand_as(off).logical_not()].any():
                return f"Only {name} wrong."
    for axis in range(off.dim()):
        bad = off.movedim(axis, 0).flatten(1).any(1) if off.dim() > 1 else off
        size = len(bad)
        if off.dim() == 2:
            of = "row" if axis == 0 else "column"
        else:
            of = "number" if off.dim() == 1 else f"part along axis {axis}"
        names = {0: f"first {of}", size - 1: f"last {of}"}
        for place, name in names.items():
            if size > 1 and bad.sum() == 1 and bad[place]:
                return f"Only the {name} is wrong."
            if size > 2 and bad.sum() == size - 1 and not bad[place]:
                return f"Only the {name} is right."
    if not off[theirs.isfinite()].any():
        return "Only the infinite numbers are wrong."
    if not off[theirs != 0].any():
        return "All numbers are right but those that should be 0."
    if not off[ours != 0].any():
        return "All numbers are right but those that are 0 in yours."
    if torch.allclose(ours.flatten().sort()[0], theirs.flatten().sort()[0], wrong.tolerance):
        return "These are the right numbers in another order."
    return ""


# --- from the results for all inputs ---------------------------------------------------------


def one_function_of_the_other(wrong: Wrong) -> str:
    """Whether a function takes each wrong number to the right one, or each right to the wrong."""
    if wrong.numbers is None or len({*wrong.numbers[1]}) < 3:
        return ""
    found, expected = (torch.tensor(x, dtype=torch.float64) for x in wrong.numbers)
    for text, function in FUNCTIONS.items():
        if "axis" in text:
            continue
        if torch.allclose(function(found), expected, wrong.tolerance, wrong.tolerance):
            return f"For every input the right result is {text} of yours."
        if torch.allclose(function(expected), found, wrong.tolerance, wrong.tolerance):
            return f"For every input yours is {text} of the right result."
    return ""


def term_or_factor(wrong: Wrong) -> str:
    """What yours has too much or too little, as a product of the arguments."""
    if wrong.numbers is not None and len(wrong.inputs) > 2:
        found, expected = wrong.numbers
        differences = [f - e for f, e in zip(found, expected, strict=True)]
        if all(differences):
            sign = -1 if differences[0] < 0 else 1
            term = product_for([sign * x for x in differences], wrong, (1, 2, -1))
            if term:
                how = "more" if sign > 0 else "less"
                return f"For every input yours is {term} {how} than right."
        if all(expected) and all(found):
            factors = [f / e for f, e in zip(found, expected, strict=True)]
            factor = product_for(factors, wrong, tuple(POWERS))
            if factor:
                return f"For every input yours is {factor} times the right result."
    if len(wrong.inputs) > 2 and all(isinstance(x, Tensor) for x in wrong.expected):
        scales = [
            scale(f, e, wrong.tolerance) for f, e in zip(wrong.found, wrong.expected, strict=True)
        ]
        if None not in scales:
            factor = product_for([s for s in scales if s is not None], wrong, tuple(POWERS))
            return f"For every input yours is {factor} times the right result." if factor else ""
    return ""


def scale(found: Any, expected: Tensor, tolerance: float) -> float | None:
    """How many times the right tensor the wrong one is."""
    if not isinstance(found, Tensor) or found.shape != expected.shape or not expected.any():
        return None
    factor = float((found * expected).sum() / expected.square().sum())
    alike = torch.allclose(found.double(), factor * expected.double(), tolerance, tolerance)
    return factor if alike and factor else None


def product_for(values: Sequence[float], wrong: Wrong, powers: Sequence[float]) -> str:
    """The simplest product of a plain number and up to three arguments that has these values."""
    usable = {
        name: numbers
        for name, numbers in wrong.variables.items()
        if len({*numbers}) > 1 and all(isinstance(x, int | float) and x > 0 for x in numbers)
    }
    for exponents in exponents_for([*usable], powers, min(3, len(wrong.inputs) - 2)):
        products = [
            math.prod(usable[name][i] ** p for name, p in exponents.items())
            for i in range(len(values))
        ]
        coefficient = values[0] / products[0]
        if all(
            math.isclose(value, coefficient * product, rel_tol=1e-6)
            for value, product in zip(values, products, strict=True)
        ) and (number := plain(coefficient)):
            return written(number, exponents)
    return ""


@cache
def simplest_first(powers: Sequence[float], count: int) -> list[tuple[float, ...]]:
    """Exponents for `count` factors: those with few squares, roots and fractions first."""
    return sorted(itertools.product(powers, repeat=count), key=lambda p: sum(map(cost, p)))


def cost(power: float) -> float:
    return abs(power) if abs(power) >= 1 else 1.5


def exponents_for(
    names: Sequence[str], powers: Sequence[float], most: int
) -> Iterator[dict[str, float]]:
    """Which arguments a product has, and with which exponents, the simplest product first."""
    for count in range(min(most, len(names)) + 1):
        for exponents in simplest_first(powers, count):
            for chosen in itertools.combinations(names, count):
                yield dict(zip(chosen, exponents, strict=True))


def plain(number: float) -> str:
    """A whole number, a fraction with a small denominator, or a known constant, as text."""
    for text, constant in CONSTANTS.items():
        if math.isclose(number, constant, rel_tol=1e-6):
            return text
    for denominator in (1, 2, 3, 4, 6, 8, 12, 16):
        top = round(number * denominator)
        if (
            top
            and abs(top) <= 64 * denominator
            and math.isclose(number * denominator, top, rel_tol=1e-6)
        ):
            return f"{top}" if denominator == 1 else f"{top}/{denominator}"
    whole = round(1 / number)
    return f"1/{whole}" if abs(whole) <= 64 and math.isclose(whole, 1 / number) else ""


def written(number: str, exponents: dict[str, float]) -> str:
    above = [POWERS[p].format(name) for name, p in exponents.items() if p > 0]
    below = [POWERS[p].format(name) for name, p in exponents.items() if p < 0]
    if number != "1" or not above:
        above = [number, *above]
    bottom = f"({' · '.join(below)})" if len(below) > 1 else "".join(below)
    return " · ".join(above) + (f" / {bottom}" if below else "")


def changed_argument(wrong: Wrong) -> str:
    """Whether yours is what is right for another value of one argument, or two exchanged."""
    order = sorted(range(len(wrong.inputs)), key=lambda index: index != wrong.failing)
    for text, change in changes(wrong):
        try:
            if all(
                wrong.same(wrong.found[i], wrong.attempt(wrong.right, change(wrong.inputs[i])))
                for i in order
            ):
                return text
        except Exception:  # this change is not for these inputs
            continue
    return ""


def changes(
    wrong: Wrong,
) -> Iterator[tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]]:
    failing = wrong.inputs[wrong.failing]
    for place, value in enumerate(failing):
        name = wrong.names[place]
        for expression, function in variants(value):
            text = expression.format(name)
            yield f"This is the right result for {text}, not for {name}.", at(place, function)
    for one, other in itertools.combinations(range(len(failing)), 2):
        if type(failing[one]) is type(failing[other]):
            names = f"{wrong.names[one]} and {wrong.names[other]}"
            yield f"This is the right result with {names} exchanged.", exchanged(one, other)


def at(place: int, function: Callable[[Any], Any]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What changes one of the arguments."""
    return lambda given: (*given[:place], function(given[place]), *given[place + 1 :])


def exchanged(one: int, other: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def change(given: tuple[Any, ...]) -> tuple[Any, ...]:
        changed = list(given)
        changed[one], changed[other] = given[other], given[one]
        return tuple(changed)

    return change


Variants = list[tuple[str, Callable[[Any], Any]]]
NUMBERS: Variants = [
    ("{} + 1", lambda x: x + 1),
    ("{} - 1", lambda x: positive(x - 1)),
    ("2 · {}", lambda x: 2 * x),
    ("1", lambda x: type(x)(1)),
]
FRACTIONS: Variants = [
    ("-{}", lambda x: -x),
    ("{} / 2", lambda x: x / 2),
    ("{}²", lambda x: x**2),
    ("1 / {}", lambda x: 1 / x),
    ("√{}", lambda x: x**0.5),
    ("1 - {}", lambda x: 1 - x),
]
TENSORS: Variants = [
    ("-{}", lambda x: -x),
    ("{} times the root of its width", lambda x: x * math.sqrt(x.size(-1))),
    ("{} divided by the root of its width", lambda x: x / math.sqrt(x.size(-1))),
    ("{} times its width", lambda x: x * x.size(-1)),
    ("{} divided by its width", lambda x: x / x.size(-1)),
    ("2 · {}", lambda x: 2 * x),
    ("{} / 2", lambda x: x / 2),
    ("0 · {}", lambda x: 0 * x),
    ("{} + 1", lambda x: x + 1),
    ("{}²", lambda x: x.square()),
    ("e to the power of {}", lambda x: x.exp()),
    ("softmax({})", lambda x: x.softmax(-1)),
    ("{}.mT", lambda x: x.mT),
    ("{} with its last axis reversed", lambda x: x.flip(-1)),
    ("{} with its first axis reversed", lambda x: x.flip(0)),
]
WHOLE: Variants = [
    ("{} + 1", lambda x: x + 1),
    ("{} - 1", lambda x: x - 1),
    ("{} with its last axis reversed", lambda x: x.flip(-1)),
    ("{} moved by one place", lambda x: x.roll(1, -1)),
]
MASKS: Variants = [
    ("~{}", lambda x: ~x),
    ("a mask without False", lambda x: torch.ones_like(x)),
    ("{}.mT", lambda x: x.mT),
]
LISTS: Variants = [
    ("{} reversed", lambda x: x[::-1]),
    ("{} without its first entry", lambda x: x[1:]),
    ("{} without its last entry", lambda x: x[:-1]),
]


def positive(x: float) -> float:
    """The number itself; a size or a count has to stay above 0."""
    if x <= 0:
        raise ValueError(f"{x} is not positive")
    return x


def variants(value: Any) -> Variants:
    """Other values for an argument of this kind, with expressions for them."""
    if isinstance(value, bool):
        return [("the opposite of {}", lambda x: not x)]
    if isinstance(value, int | float):
        return NUMBERS + FRACTIONS * isinstance(value, float)
    if isinstance(value, Tensor):
        if value.dtype == torch.bool:
            return MASKS
        return TENSORS if value.is_floating_point() else WHOLE
    return LISTS if isinstance(value, list | str) else []


def unused_argument(wrong: Wrong) -> str:
    """Which argument changes only one of the two results."""
    for place, name in enumerate(wrong.names[: len(wrong.inputs[0])]):
        mine: list[bool] = []
        right: list[bool] = []
        for index, given in enumerate(wrong.inputs):
            if (other := another(given[place])) is None or wrong.found[index] is FAILED:
                continue
            changed = (*given[:place], other, *given[place + 1 :])
            mine_now, right_now = (wrong.attempt(f, changed) for f in (wrong.mine, wrong.right))
            if mine_now is FAILED or right_now is FAILED:
                continue
            mine.append(not equal(mine_now, wrong.found[index], wrong.tolerance))
            right.append(not equal(right_now, wrong.expected[index], wrong.tolerance))
        if mine and not any(mine) and any(right):
            return f"Yours stays the same when {name} changes; the right result does not."
        if any(mine) and not any(right) and len(right) == len(wrong.inputs):
            value = wrong.inputs[0][place]
            order = isinstance(value, list) or getattr(value, "dtype", None) == torch.int64
            how = f"the order of {name}" if order else name
            return f"Yours changes with {how}; the right result does not."
    return ""


def equal(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two results of the same function are equal, but for rounding."""
    one, other = as_tensor(one), as_tensor(other)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            return False
        one, other = one.double(), other.double()
        return torch.allclose(one, other, tolerance, tolerance, equal_nan=True)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        alike = (equal(*pair, tolerance) for pair in zip(one, other, strict=False))
        return len(one) == len(other) and all(alike)
    return bool(type(one) is type(other) and one == other)


def another(value: Any) -> Any:
    """Another value of the same kind and size; None if none is known."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value or 1  # an even number of heads remains even
    if isinstance(value, float):
        if 0 <= value <= 1:  # a probability or a share remains one
            return value / 2 or 0.5
        return 1.5 * value + 0.1
    if isinstance(value, Tensor) and value.is_floating_point():
        return 1.5 * value.flip(0) + 0.1
    if isinstance(value, Tensor):
        return ~value if value.dtype == torch.bool else value.flip(-1)
    return value[::-1] if isinstance(value, list) else None


def boundary(wrong: Wrong) -> str:
    """Which property of the inputs separates right from wrong results."""
    is_right = [wrong.same(f, e) for f, e in zip(wrong.found, wrong.expected, strict=True)]
    if not any(is_right):
        return ""
    texts = []
    for name, numbers in wrong.variables.items():
        good, bad = (
            [x for x, right in zip(numbers, is_right, strict=True) if right is wanted]
            for wanted in (True, False)
        )
        if max(good) < min(bad):
            texts.append(f"where {name} ≤ {max(good):g} and wrong where {name} ≥ {min(bad):g}")
        elif max(bad) < min(good):
            texts.append(f"where {name} ≥ {min(good):g} and wrong where {name} ≤ {max(bad):g}")
        elif len({*good}) == 1 and not {*good} & {*bad}:
            texts.append(f"where {name} = {good[0]:g} and wrong elsewhere")
        elif len({*bad}) == 1 and not {*good} & {*bad}:
            texts.append(f"except where {name} = {bad[0]:g}")
    arguments = {k: v for k, v in wrong.variables.items() if "(" not in k}
    for (one, left), (other, right) in itertools.combinations(arguments.items(), 2):
        for sign, holds in (("<", float.__lt__), (">", float.__gt__), ("=", float.__eq__)):
            states = [holds(float(a), float(b)) for a, b in zip(left, right, strict=True)]
            if states == is_right:
                texts.append(f"where {one} {sign} {other} and wrong elsewhere")
                break
            if [not state for state in states] == is_right:
                texts.append(f"except where {one} {sign} {other}")
                break
    return f"It is right {'; also '.join(texts)}." if 1 <= len(texts) <= 2 else ""


def response(wrong: Wrong) -> str:
    """To which arguments yours reacts as the right result does, and to which it does not."""
    found, expected = wrong.pair
    as_right: list[str] = []
    others: list[str] = []
    numbers = ""
    for name, old, new, changed in steps(wrong.names, wrong.inputs[wrong.failing]):
        results = [wrong.attempt(function, changed) for function in (wrong.mine, wrong.right)]
        if not all(map(is_number, [found, expected, *results])):
            continue
        mine, right = float(results[0]) - float(found), float(results[1]) - float(expected)
        if not wrong.same(mine, right):
            by = f"by {mine:+.5g}, the right result by {right:+.5g}"
            numbers = numbers or f"from {name}={old:g} to {new:g} yours changes {by}"
            others.append(name)
        elif right:
            as_right.append(name)
    if not as_right or not others:
        return ""
    first, second = ", ".join(as_right), ", ".join(others)
    return f"It changes as it should with {first}, but not with {second}: {numbers}."


def steps(
    names: Sequence[str], given: tuple[Any, ...]
) -> Iterator[tuple[str, float, float, tuple[Any, ...]]]:
    """The arguments with another value for one number, also one in a configuration."""
    for place, value in enumerate(given):
        rest = given[:place], given[place + 1 :]
        if isinstance(value, int | float):
            yield names[place], value, another(value), (*rest[0], another(value), *rest[1])
        elif is_dataclass(value) and not isinstance(value, type):
            for name in (part.name for part in fields(value)):
                old = getattr(value, name)
                with suppress(ValueError):  # not every configuration is one
                    if isinstance(old, int):
                        config = replace(value, **{name: another(old)})
                        yield name, old, another(old), (*rest[0], config, *rest[1])
