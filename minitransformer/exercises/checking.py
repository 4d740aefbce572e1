"""Checks of a reader's own code: what is wrong, in words, and for which smallest input.

An exercise calls the reader's function with its inputs, the smallest first, and compares each
result with the right one. If they differ, it looks for a known mistake that gives the same results
as the reader's function and names it; otherwise it says what both results have in common
(`explaining`). Nothing that it says shows a solution.

The reader's code runs in the reader's process, with their rights, for at most `SECONDS` a call.
"""

import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.exercises.comparing import Difference, both, brief, compare, copied
from minitransformer.exercises.explaining import Wrong, explain
from minitransformer.exercises.time_limit import TookTooLongError, time_limit

__all__ = ["Exercise", "check", "random_tensors"]

SOLVED = Path(".solved_exercises")
"""A folder in the one we are in, with an empty file for each solved exercise."""
SECONDS = 10.0
"""How long one call of the reader's function may take."""
LONGEST_MESSAGE = 200
"""Characters of an exception's message that are shown."""
NO_BOOLEANS = (
    "The cells are right, but they are numbers: a mask is boolean (dtype=torch.bool).",
    "Attention refuses this one.",
)
PACKAGE = Path(__file__).parents[1]
FRAMEWORK = {"checking", "comparing", "explaining", "time_limit"}
"""Modules of this folder that are not a chapter."""


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
            It may raise Difference for what cannot be called.
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
        inputs = self.arguments()
        for index, arguments in enumerate(inputs):
            call = self.shown(arguments)
            try:
                with time_limit(SECONDS):
                    found = self.use(mine, *copied(arguments))
            except Difference as difference:
                return Fault(f"{call} {difference}", difference.why)
            except TookTooLongError as error:
                why = f"Is there a loop that never ends? {line_of(error)}".strip()
                return Fault(f"{call} did not return within {SECONDS:g} seconds.", why)
            except (Exception, SystemExit) as error:
                return Fault(f"{call} raises {message_of(error)}", line_of(error))
            expected = self.right(*copied(arguments))
            try:
                compare(found, expected, self.tolerance)
            except Difference as difference:
                why = self.reason(mine, inputs, index)
                if not arguments:  # what is expected is the solution
                    seen = str(difference).split(", expected")[0].removesuffix(".")
                    return Fault(f"{call} {seen}.", why, self.compared)
                results = "\n".join(filter(None, (both(found, expected), self.compared)))
                return Fault(f"{call} {difference}", why, results)
            if isinstance(found, Tensor) and isinstance(expected, Tensor):
                numbers_for_booleans |= expected.dtype == torch.bool != found.dtype
        return Fault(*NO_BOOLEANS) if numbers_for_booleans else None

    def reason(self, mine: Any, inputs: Sequence[tuple[Any, ...]], failing: int) -> str:
        """A known mistake with the same results, or what both results have in common."""
        wrong = Wrong(
            mine=lambda *arguments: self.use(mine, *arguments),
            right=self.right,
            names=self.names(),
            inputs=inputs,
            failing=failing,
            tolerance=self.tolerance,
        )
        try:
            with time_limit(SECONDS):
                return self.mistake_in(mine, inputs, failing) or explain(wrong)
        except TookTooLongError:  # for another input the reader's function never returns
            return ""

    def mistake_in(self, mine: Any, inputs: Sequence[tuple[Any, ...]], failing: int) -> str:
        """What to say of the known mistake that gives the same for all inputs, if there is one."""
        try:
            found = [self.use(mine, *copied(arguments)) for arguments in inputs]
        except Exception:
            return ""
        for text, mistake in self.mistakes.items():
            try:
                for result, arguments in zip(found, inputs, strict=True):
                    answer = mistake if arguments else mistake()
                    compare(result, self.use(answer, *copied(arguments)), self.tolerance)
            except Exception:
                continue
            return text.format(**dict(zip(self.names(), inputs[failing], strict=False)))
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
            path.stem
            for path in Path(__file__).parent.glob("[!_]*.py")
            if path.stem not in FRAMEWORK
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


def random_tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Tensors of these shapes, the same at each call."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


# --- what is said ----------------------------------------------------------------------------


def message_of(error: BaseException) -> str:
    """An exception's type and message on one line."""
    if isinstance(error, RecursionError):
        return "RecursionError: it calls itself again and again without an end."
    text = str(error).strip().split("\n")[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return f"{type(error).__name__}: the result needs more memory than there is."
    short = text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
    return f"{type(error).__name__}: {short}"


def line_of(error: BaseException) -> str:
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
