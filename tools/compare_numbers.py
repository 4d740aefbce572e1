"""Compare outputs as readers do: words as words, numbers as numbers. A plugin of pytest.

Another processor rounds otherwise, and a training ends a little elsewhere. So where nbval compares
what a cell prints with what is stored, this compares the text exactly, and each number that was
measured with a tolerance: two units of its last printed digit, or 5 %, whichever is more. A number
was measured if it has a decimal point, an exponent or a percent sign; an integer is a count, a
size or an id, and must be the same. Signs count, and so does each line.

A cell says otherwise by a tag: in `exact-numbers` every digit counts; in `wide-numbers` the
tolerance is 25 %, for integers too. What must hold exactly is asserted in the cell.

pyproject.toml has pytest load this; it changes nothing where nbval does not run.
"""

import re
from collections.abc import Collection, Iterator
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from nbval.plugin import IPyNbCell

EXACT, WIDE = "exact-numbers", "wide-numbers"
UNITS = 2  # of the last printed digit
SHOWN = 10  # differences of one output

NUMBER = re.compile(
    r"""
    (?<![\w.])                           # no part of a word, or of a version such as 2.13.0
    (?:(?<![\])])[-−+])?                 # behind a bracket it is an operator
    (?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))
    (?:\.\d*)?
    (?:[eE][-−+]?\d+(?!\w))?
    (?!\.?\d)
    (?:[ ]?%)?
    """,
    re.VERBOSE,
)


def value(number: str) -> Decimal:
    """The number as it is printed: 1.50 has another last digit than 1.5."""
    return Decimal(number.rstrip(" %").replace(",", "").replace("−", "-"))


def is_measured(number: str) -> bool:
    """Whether a number can depend on the processor: `1.`, as NumPy prints a whole one, is 1."""
    return bool(re.search(r"\.\d|[eE%]", number))


def is_same(stored: str, now: str, tags: Collection[str] = ()) -> bool:
    """Whether two printed numbers are the same, as far as the cell's tags ask."""
    a, b = value(stored), value(now)
    measured = is_measured(stored) or is_measured(now)
    if stored == now or not (measured or WIDE in tags):
        return a == b
    if a * b < 0 or stored.endswith("%") != now.endswith("%"):
        return False
    # The finer digit of the two, or 1e-07 would agree with 1e-06.
    exponent = min(int(x.as_tuple().exponent) for x in (a, b))
    units = UNITS * Decimal(1).scaleb(exponent) if measured else Decimal(0)
    return abs(a - b) <= max(units, max(abs(a), abs(b)) * tolerance(tags))


def tolerance(tags: Collection[str]) -> Decimal:
    """How far apart numbers may be, as a share of the larger."""
    return Decimal("0.25") if WIDE in tags else Decimal("0.05")


def words(line: str) -> list[str]:
    """What is around the numbers, without the spaces that align them."""
    parts = NUMBER.split(line)
    for i in range(len(parts) - 1):
        parts[i] = parts[i].rstrip(" \t")
        parts[i + 1] = parts[i + 1].lstrip(" \t")
    return parts


def difference(stored: str, now: str, tags: Collection[str] = ()) -> str:
    """What is different about a line; empty if nothing is."""
    if stored == now:
        return ""
    if EXACT in tags or words(stored) != words(now):
        return "the text differs"
    for a, b in zip(NUMBER.findall(stored), NUMBER.findall(now), strict=True):
        if not is_same(a, b, tags):
            if not (is_measured(a) or is_measured(b) or WIDE in tags):
                return f"{b} is not {a}; integers must be the same"
            return f"{b} is not {a} within {tolerance(tags):.0%} or {UNITS} units of the last digit"
    return ""


def differences(stored: str, now: str, tags: Collection[str] = ()) -> Iterator[str]:
    """Yield what is different, each with both lines."""
    old, new = stored.split("\n"), now.split("\n")
    if len(old) != len(new):
        yield f"{len(new)} lines, {len(old)} are stored"
    for i, (a, b) in enumerate(zip_longest(old, new), start=1):
        if reason := "a line more or less" if None in (a, b) else difference(a, b, tags):
            yield f"line {i}: {reason}\n  stored: {a}\n  now:    {b}"
            if len(old) != len(new):
                return  # what follows has moved


class Printed(str):
    """An output's text, equal to another that says the same."""

    tags: Collection[str] = ()

    def __eq__(self, other: object) -> bool:
        """Whether nothing differs; called on the stored text."""
        return isinstance(other, str) and not any(differences(str(self), str(other), self.tags))

    def __ne__(self, other: object) -> bool:
        """What nbval asks."""
        return not self == other

    __hash__ = str.__hash__


def sanitize(cell: Any, s: Any) -> Any:
    """Have nbval compare a cell's texts in our way; what is no text stays as it is."""
    clean = nbvals_sanitize(cell, s)
    if isinstance(clean, str):
        clean = Printed(clean)
        clean.tags = cell.cell.metadata.get("tags", ())
    return clean


def report(cell: Any, key: str, left: Any, right: Any) -> None:
    """Say which lines of a cell's output differ, and why."""
    if not isinstance(left, Printed):
        nbvals_report(cell, key, left, right)
        return
    found = list(differences(str(left), str(right), left.tags))
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    cell.comparison_traceback += [f"{key} differs", *found[:SHOWN], *more]


# By assignment: the class makes itself by its own name, which no subclass can take.
nbvals_sanitize, nbvals_report = IPyNbCell.sanitize, IPyNbCell.format_output_compare
IPyNbCell.sanitize, IPyNbCell.format_output_compare = sanitize, report
