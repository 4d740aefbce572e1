"""How far a training is: a bar in a terminal or a notebook, elsewhere a line now and then.

Built in chapter 9.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

SILENCE = 60.0
"""Seconds after which there is a line also within a tenth of the steps."""

Show = Callable[[int, Mapping[str, float]], None]


@contextmanager
def progress_of(first: int, last: int, *, shown: bool = True) -> Iterator[Show]:
    """A function that shows a step and its row of the history, for steps from `first` to `last`.

    Where stderr is no terminal, a file that is a log gets a line for every tenth of the steps.

    Example:
        >>> with progress_of(0, 3, shown=False) as show:
        ...     show(1, {"step": 1, "loss": 2.5})
    """
    if not shown:
        yield lambda step, row: None
    elif sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel"):
        from tqdm import tqdm

        with tqdm(initial=first, total=last, unit="step") as bar:

            def draw(step: int, row: Mapping[str, float]) -> None:
                bar.set_postfix(rounded(row), refresh=False)
                bar.update(step - bar.n)

            yield draw
    else:
        yield lines(first, last)


def lines(first: int, last: int) -> Show:
    """Write a line for every tenth of the steps, and one a minute if that takes longer."""
    tenth, written = 10 * first // last, time.monotonic()

    def write(step: int, row: Mapping[str, float]) -> None:
        nonlocal tenth, written
        now = time.monotonic()
        if not row or (10 * step // last == tenth and now - written < SILENCE):
            return
        tenth, written = 10 * step // last, now
        numbers = ", ".join(f"{name} {number}" for name, number in rounded(row).items())
        print(f"step {step} of {last}: {numbers}", file=sys.stderr, flush=True)

    return write


def rounded(row: Mapping[str, float]) -> dict[str, str]:
    """The numbers of a step as they are shown."""
    return {name: f"{number:.3g}" for name, number in row.items() if name != "step"}
