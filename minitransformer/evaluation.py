"""Ending a training by a number that was measured on other texts.

Built in chapter 9.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minitransformer.checkpoint import MEASURED

__all__ = ["EarlyStopping"]


@dataclass(frozen=True)
class EarlyStopping:
    """When to end a training, and what of it to keep: by a number that `evaluate` returns.

    It counts nothing itself. All follows from the history, which is in every checkpoint; so a
    training that was stopped and resumed ends where it would have ended.

    Args:
        watch: the name of the number.
        patience: evaluations in a row that bring nothing better, after which the training ends;
            None lets it go on to its end.
        best: file to save to whenever the number is better than ever; None keeps nothing.
        higher_is_better: for scores; a loss is better when it is lower.

    Raises:
        ValueError: if `patience` is below 1, or `watch` is what every step has.

    Example:
        >>> history = [{"step": n, "held_out": x} for n, x in enumerate((3.0, 2.0, 2.5, 2.0), 1)]
        >>> stopping = EarlyStopping("held_out", patience=2)
        >>> stopping.best_row(history), stopping.ends(history), stopping.ends(history[:3])
        ({'step': 2, 'held_out': 2.0}, True, False)

    Built in chapter 9. Source: Prechelt (1998).
    """

    watch: str
    patience: int | None = None
    best: str | os.PathLike[str] | None = None
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if self.watch in MEASURED:
            raise ValueError(f"watch must be a number that evaluate returns, got {self.watch!r}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience}")

    def check(self, evaluate: object, checkpoint: str | os.PathLike[str] | None) -> None:
        """Raise an error unless there is something to watch, and a file for the best alone."""
        if evaluate is None:
            raise ValueError(f"stopping watches {self.watch!r}, but evaluate is None")
        same = self.best and checkpoint and Path(self.best).resolve() == Path(checkpoint).resolve()
        if same:
            raise ValueError(f"the best and the last checkpoint must be two files, got {self.best}")

    def best_row(self, history: Sequence[dict[str, float]]) -> dict[str, float] | None:
        """The row with the best number so far, of equal ones the first; None without any."""
        seen = [row for row in history if not math.isnan(row.get(self.watch, math.nan))]
        pick = max if self.higher_is_better else min
        return pick(seen, key=lambda row: row[self.watch], default=None)

    def ends(self, history: Sequence[dict[str, float]]) -> bool:
        """Whether the patience is at its end."""
        best = self.best_row(history)
        since = [row for row in history if best is None or row["step"] > best["step"]]
        waited = sum(self.watch in row for row in since)
        return self.patience is not None and waited >= self.patience
