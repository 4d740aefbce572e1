"""Checks of a reader's own code: what is wrong, in words, and for which smallest input.

An exercise calls the reader's function with inputs from the smallest on and compares what it gives
with what a right one gives. Where both differ, it looks whether a known mistake would give the
same, and names it. Nothing that it says shows a solution.

The reader's code runs in the reader's process, with their rights.
"""

import inspect
import linecache
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["check"]

SOLVED = Path(".solved_exercises")
"""A folder in the one we are in, with an empty file for each solved exercise."""
MOST_NUMBERS = 40
"""Tensors with more are not shown whole."""
NO_BOOLEANS = (
    "The cells are right, but they are numbers: a mask is boolean (dtype=torch.bool).",
    "Attention refuses this one.",
)
PACKAGE = Path(__file__).parents[1]
SIMPLE = (-1.0, 0.25, 0.5, 2.0, 4.0, 10.0, 0.1, 100.0, 0.01)
"""How many times the right number a wrong one may be, to be explained by that."""


class Difference(Exception):  # noqa: N818, it is no error
    """The reader's result is not the expected one: why, in words."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer: what one sees, why perhaps, and both results."""

    seen: str
    why: str = ""
    results: str = ""

    def __str__(self) -> str:
        return "\n".join(part for part in (f"Not yet. {self.seen}", self.why, self.results) if part)


@dataclass(kw_only=True)
class Exercise:
    """A task, and all that tells a right answer from a wrong one.

    Args:
        function: what the reader's function or class is called in the chapter.
        arguments: makes the inputs, from the smallest on, each a tuple of arguments.
        right: what gives the right result for such arguments. It need not look like a solution.
        mistakes: answers that do wrong what readers do wrong, each with what to say. The name of
            an argument in braces stands for its value at the smallest input that fails. Where the
            answer is no function, they are functions without arguments that give it.
        hints: three, each saying more than the one before; the last names a section.
        use: how to call what the reader wrote, with the arguments; a class is made and called.
            It may raise `Difference` for what cannot be called.
        compared: what `use` gives, if that is not what the reader's function returns.
        tolerance: the largest difference between numbers, beside 1, that is put down to rounding.
    """

    function: str
    arguments: Callable[[], Sequence[tuple[Any, ...]]]
    right: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]]
    hints: tuple[str, str, str]
    use: Callable[..., Any] = lambda mine, *arguments: mine(*arguments)
    compared: str = ""
    tolerance: float = 1e-4
    name: str = ""
    hints_given: int = field(default=0, init=False)

    def __call__(self, mine: Any) -> None:
        """Print what is wrong with `mine`, or that it is right, which is remembered."""
        fault = self.fault_of(mine)
        if fault is None:
            remember(self.name)
        print(fault or self.praise())

    def hint(self) -> None:
        """Print the first hint, then the next one at each call."""
        self.hints_given = min(self.hints_given + 1, len(self.hints))
        print(f"Hint {self.hints_given} of {len(self.hints)}: {self.hints[self.hints_given - 1]}")

    def praise(self) -> str:
        """One line that says what was tried."""
        tried = [self.shown(arguments) for arguments in self.arguments()]
        if tried == [self.function]:
            return f"Right: {self.function} is what it should be."
        return f"Right: {len(tried)} inputs, from {tried[0]} to {tried[-1]}."

    def fault_of(self, mine: Any) -> Fault | None:
        """What is wrong; None if nothing is."""
        numbers_for_booleans = False
        for arguments in self.arguments():
            call = self.shown(arguments)
            try:
                found = self.use(mine, *copied(arguments))
            except Difference as difference:
                return Fault(f"{call} {difference}")
            except Exception as error:
                return Fault(f"{call} raises {type(error).__name__}: {error}", line_of(error))
            expected = self.right(*copied(arguments))
            try:
                compare(found, expected, self.tolerance)
            except Difference as difference:
                why = self.mistake_in(mine, arguments) or likeness(found, expected, self.tolerance)
                if not arguments:  # what is expected is the solution
                    seen = str(difference).split(", expected")[0].removesuffix(".")
                    return Fault(f"{call} {seen}.", why, self.compared)
                results = "\n".join(filter(None, (both(found, expected), self.compared)))
                return Fault(f"{call} {difference}", why, results)
            if isinstance(found, Tensor) and isinstance(expected, Tensor):
                numbers_for_booleans |= expected.dtype == torch.bool != found.dtype
        return Fault(*NO_BOOLEANS) if numbers_for_booleans else None

    def mistake_in(self, mine: Any, failing: tuple[Any, ...]) -> str:
        """What to say of the known mistake that gives the same for all inputs, if there is one."""
        for text, mistake in self.mistakes.items():
            try:
                for arguments in self.arguments():
                    answer = mistake if arguments else mistake()
                    wrong = self.use(answer, *copied(arguments))
                    compare(self.use(mine, *copied(arguments)), wrong, self.tolerance)
            except Exception:
                continue
            return text.format(**dict(zip(self.names(), failing, strict=False)))
        return ""

    def names(self) -> list[str]:
        """Of the arguments."""
        return list(inspect.signature(self.right).parameters)

    def shown(self, arguments: tuple[Any, ...]) -> str:
        """The call as one would write it, with shapes in place of tensors."""
        if not arguments:
            return self.function
        parts = (f"{n}={brief(value)}" for n, value in zip(self.names(), arguments, strict=False))
        return f"{self.function}({', '.join(parts)})"


class Chapter:
    """The exercises of a chapter, as attributes, in its order."""

    def __init__(self, name: str, exercises: Mapping[str, Any]) -> None:
        self.name = name
        self.exercises = {k: v for k, v in exercises.items() if isinstance(v, Exercise)}
        for key, exercise in self.exercises.items():
            exercise.name = f"{name}.{key}"

    def __getattr__(self, name: str) -> Exercise:
        if name in self.exercises:
            return self.exercises[name]
        raise AttributeError(f"{self.name} has no exercise {name}: {', '.join(self.exercises)}")

    def __dir__(self) -> list[str]:
        return list(self.exercises)


class Checks:
    """The chapters' exercises, as attributes named as the chapters are."""

    def __getattr__(self, name: str) -> Chapter:
        if name not in dir(self):
            raise AttributeError(f"no chapter {name}: {', '.join(dir(self))}")
        return Chapter(name, vars(import_module(f"minitransformer.exercises.{name}")))

    def __dir__(self) -> list[str]:
        return sorted(
            path.stem for path in Path(__file__).parent.glob("[!_]*.py") if path.stem != "checking"
        )

    def progress(self, *chapters: str) -> None:
        """Print how many exercises of some chapters, or of all, have been solved in this folder."""
        done = {*solved()}
        for chapter in chapters or dir(self):
            names = dir(getattr(self, chapter))
            mine = [name for name in names if f"{chapter}.{name}" in done]
            left = [name for name in names if name not in mine]
            text = f", left: {', '.join(left)}" if left else ""
            print(f"{chapter}: {len(mine)} of {len(names)}{text}")


# --- what is compared ------------------------------------------------------------------------


def random_tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Tensors of these shapes, the same at each call."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def copied(value: Any) -> Any:
    """The value with tensors of its own, so that code that works in place spoils nothing."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, nn.Module):
        return deepcopy(value)
    if isinstance(value, tuple | list):
        return type(value)(copied(part) for part in value)
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value


def compare(found: Any, expected: Any, tolerance: float) -> None:
    """Raise `Difference` if they differ by more than their containers, kinds and rounding."""
    if found is ... or (found is None and expected is not None):
        raise Difference("returns nothing yet.")
    if isinstance(expected, tuple) and not isinstance(found, Tensor):
        if not isinstance(found, tuple | list) or len(found) != len(expected):
            raise Difference(f"gives {brief(found)}, expected {len(expected)} results.")
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            try:
                compare(one, other, tolerance)
            except Difference as difference:
                raise Difference(f"({place + 1}. result) {difference}") from None
    elif isinstance(expected, Tensor):
        compare_tensors(found, expected, tolerance)
    elif isinstance(expected, float):
        if not is_number(found) or not math.isclose(
            found, expected, rel_tol=tolerance, abs_tol=tolerance
        ):
            raise Difference(f"gives {brief(found)}, expected {expected:.5g}.")
    elif (
        float(found) != expected
        if isinstance(expected, int) and is_number(found)
        else getattr(found, "shape", ()) or found != expected  # no tensor or array can be it
    ):
        raise Difference(f"gives {brief(found)}, expected {brief(expected)}.")


def compare_tensors(found: Any, expected: Tensor, tolerance: float) -> None:
    """The same for a tensor, or what can be made one: an array, a list of numbers."""
    try:
        found = torch.as_tensor(found).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise Difference(
            f"gives {brief(found)}, expected a tensor {tuple(expected.shape)}."
        ) from None
    if found.shape != expected.shape:
        shapes = f"{tuple(found.shape)}, expected {tuple(expected.shape)}"
        raise Difference(f"has the shape {shapes}.")
    ours, theirs = found.to(torch.float64), expected.to(torch.float64)
    alike = torch.isclose(ours, theirs, tolerance, tolerance, equal_nan=True)
    if not alike.all():
        place = tuple((~alike).nonzero()[0].tolist())
        numbers = f"{number(found, place)}, expected {number(expected, place)}"
        where = f" at {list(place)}" if place else ""
        raise Difference(f"gives{where} {numbers}.")


def is_number(value: Any) -> bool:
    """Whether it is one, perhaps in a tensor or an array."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


# --- what is said ----------------------------------------------------------------------------


def number(tensor: Tensor, place: tuple[int, ...]) -> str:
    """One entry, as the expected kind of number."""
    value = tensor[place].item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def brief(value: Any) -> str:
    """A value in few characters; of a tensor its shape, of a configuration what is set."""
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if inspect.isfunction(value):
        return value.__name__
    if isinstance(value, tuple | list) and any(isinstance(x, tuple | list | Tensor) for x in value):
        inner = ", ".join(map(brief, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if is_dataclass(value) and not isinstance(value, type):
        named = {part.name: getattr(value, part.name) for part in fields(value)}
        changed = [part.name for part in fields(value) if part.default != named[part.name]]
        return f"({', '.join(f'{name}={named[name]!r}' for name in changed)})"
    if isinstance(value, dict) and len(value) > 1:
        return f"{{{len(value)} entries}}"
    text = f"{value:.7g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def likeness(found: Any, expected: Any, tolerance: float) -> str:
    """How a wrong tensor is related to the right one, where that is plain; of several the first."""
    if isinstance(expected, tuple) and isinstance(found, tuple | list):
        for one, other in zip(found, expected, strict=False):
            try:
                compare(one, other, tolerance)
            except Difference:
                return likeness(one, other, tolerance)
    try:
        found = torch.as_tensor(found).detach().cpu().to(torch.float64)
        is_boolean = torch.as_tensor(expected).dtype == torch.bool
        expected = torch.as_tensor(expected).to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return ""
    if found.shape != expected.shape:
        if found.numel() == expected.numel():
            if expected.dim() == 0:
                return "These are brackets around one number; the number itself is asked for."
            return "As many numbers as expected: are axes exchanged, or one too many or too few?"
        return ""
    related = {
        "True and False are exchanged.": 1 - found if is_boolean else found,
        "All signs are the other way round.": -found,
        "Rows and columns are exchanged.": found.mT if found.dim() > 1 else found,
        "The last axis is turned round.": found.flip(-1) if found.dim() else found,
        "Everything lies one place too far.": found.roll(-1, -1) if found.dim() else found,
        "Everything lies one place too early.": found.roll(1, -1) if found.dim() else found,
    }
    for text, changed in related.items():
        if changed.shape == expected.shape and torch.allclose(
            changed, expected, tolerance, tolerance
        ):
            return text
    if found.isnan().any() and not expected.isnan().any():
        return "Some of yours are no numbers (NaN): is there a 0 / 0, or infinity less infinity?"
    factor = (found * expected).sum() / expected.square().sum()
    if found.numel() == 1 and round(factor.item(), 4) not in SIMPLE:
        return ""  # any number is some multiple of another
    if expected.any() and torch.allclose(found, factor * expected, tolerance, tolerance):
        return f"Yours is {factor.item():.4g} times that: is there a scale too many or too few?"
    shift = (found - expected).mean()
    if torch.allclose(found - shift, expected, tolerance, tolerance):
        return f"Yours is {shift.item():+.4g} off everywhere."
    return ""


def both(found: Any, expected: Any) -> str:
    """Both results whole, where they are small tensors."""
    if not isinstance(expected, Tensor) or not 1 < expected.numel() <= MOST_NUMBERS:
        return ""
    try:
        found = torch.as_tensor(found).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return ""
    if found.shape != expected.shape:
        return ""
    return f"yours:\n{rows(found)}\nexpected:\n{rows(expected)}"


def rows(tensor: Tensor) -> str:
    """A tensor's numbers, a line for each row."""
    text = str((tensor.int() if tensor.dtype == torch.bool else tensor).tolist())
    if tensor.is_floating_point():
        table = tensor.reshape(-1, tensor.size(-1)).tolist()
        text = str([[round(x, 3) for x in row] for row in table])
    return "  " + text.replace("], [", "],\n   [")


def line_of(error: Exception) -> str:
    """The line of the reader's code where an exception came up."""
    libraries = (PACKAGE, Path(torch.__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not {*libraries} & {*Path(frame.filename).parents}:
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"It comes up in line {frame.lineno}: {line}" if line else ""
    return ""


# --- what is remembered ----------------------------------------------------------------------


def solved() -> list[str]:
    """The names of the exercises solved in this folder."""
    return sorted(path.name for path in SOLVED.glob("[!.]*"))


def remember(name: str) -> None:
    """Add an exercise to those solved; several notebooks may do so at once."""
    SOLVED.mkdir(exist_ok=True)
    (SOLVED / name).touch()


check = Checks()
"""The exercises by chapter: `check.attention` has those of chapter 4."""
