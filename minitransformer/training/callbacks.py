"""What happens between the steps of a training: evaluation, early stopping, checkpoints, progress.

Built in chapter 9.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minitransformer.checks import check_at_least_1

__all__ = ["BalanceExperts", "Callback", "Checkpoint", "EarlyStopping", "Evaluate"]

MEASURED = {"step", "loss", "learning_rate", "gradient_norm"}
"""What the history of a training has of every step."""
SILENCE = 60.0
"""Seconds after which a log gets a line also within a tenth of the steps."""


class Callback:
    """Something that happens while a trainer trains: derive from it, and override what you need.

    Callbacks are called in the order in which `fit` gets them: evaluations first, then what reads
    them. All a callback needs is in the trainer: `step`, `history` (the last row is the last
    step's), `model`, `until`. Setting `should_stop` ends the training after this step.

    Example:
        >>> class Threshold(Callback):
        ...     def after_step(self, trainer):
        ...         trainer.should_stop |= trainer.history[-1]["loss"] < 0.5
        >>> trainer = type("T", (), {"history": [{"step": 1, "loss": 0.4}], "should_stop": False})
        >>> Threshold().after_step(trainer)
        >>> trainer.should_stop
        True
    """

    def begin(self, trainer: Any) -> None:
        """Called by `fit` before its first step."""

    def after_step(self, trainer: Any) -> None:
        """Called after each step; and first for the step that a resumed training stopped at."""

    def end(self, trainer: Any) -> None:
        """Called after the last step, but not after an error."""


class BalanceExperts(Callback):
    """Move the bias of every `MixtureOfExperts` that has one, see `move_bias`, after each step.

    Args:
        rate: γ, by how much.

    Raises:
        ValueError: if `rate` is not above 0; from `begin`, if several processes train the model,
            since each one counts its own tokens only.

    Example:
        >>> callbacks = [BalanceExperts(rate=1e-2)]

    Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy" (2024).
    """

    def __init__(self, rate: float = 1e-3) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be above 0, got {rate}")
        self.rate = rate

    def begin(self, trainer: Any) -> None:
        count = getattr(getattr(trainer, "processes", None), "count", 1)
        if count > 1:
            raise ValueError(f"BalanceExperts counts the tokens of 1 process, got {count}")

    def after_step(self, trainer: Any) -> None:
        for part in trainer.model.modules():
            if getattr(part, "load_bias", None) is not None:
                part.move_bias(self.rate)


class Evaluate(Callback):
    """Evaluate at regular steps and at the end; the numbers go into the history.

    Args:
        function: returns numbers by name.
        every: steps between two calls.

    Example:
        >>> evaluate = Evaluate(lambda: {"held_out": 0.5}, every=2)
    """

    def __init__(self, function: Callable[[], Mapping[str, Any]], every: int = 100) -> None:
        check_at_least_1(every=every)
        self.function = function
        self.every = every

    def begin(self, trainer: Any) -> None:
        # A resumed training may have evaluated its last step already.
        was_evaluated = trainer.history and trainer.history[-1].keys() > MEASURED
        self.last = trainer.step if was_evaluated else 0

    def after_step(self, trainer: Any) -> None:
        step = trainer.step
        if step != self.last and (step % self.every == 0 or step == trainer.until):
            trainer.seed(step)
            trainer.history[-1].update(as_scores(self.function()))
            self.last = step


def as_scores(scores: Any) -> dict[str, float]:
    """What an evaluation returned, if a checkpoint's history can hold it."""
    try:
        scores = {name: float(score) for name, score in scores.items()}
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"an evaluation must return numbers by name, got {scores!r}") from error
    if taken := sorted(MEASURED & scores.keys()):
        raise ValueError(f"an evaluation must not return {taken}, which every step has")
    return scores


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """End a training, and keep its best state, by a number that an evaluation returns.

    All follows from the history, which is in every checkpoint; so a training that was stopped and
    resumed ends where it would have ended.

    Args:
        watch: the name of the number.
        patience: evaluations in a row without a better number, after which the training ends;
            None never ends it.
        best: file to save to whenever the number is better than ever; None keeps nothing. The
            trainer's model is the last one; `resume` and `Translator.load` read the best.
        higher_is_better: for scores; a loss is better when it is lower.

    Example:
        >>> history = [{"step": n, "held_out": x} for n, x in enumerate((3.0, 2.0, 2.5, 2.0), 1)]
        >>> stopping = EarlyStopping("held_out", patience=2)
        >>> stopping.best_row(history), stopping.ends(history), stopping.ends(history[:3])
        ({'step': 2, 'held_out': 2.0}, True, False)

    Source: Prechelt (1998).
    """

    watch: str
    patience: int | None = None
    best: str | os.PathLike[str] | None = None
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if self.watch in MEASURED:
            raise ValueError(f"watch must be what an evaluation returns, got {self.watch!r}")
        check_at_least_1(patience=self.patience)

    def begin(self, trainer: Any) -> None:
        if self.best is not None:
            trainer.claim(self.best)

    def after_step(self, trainer: Any) -> None:
        history = trainer.history
        row = history[-1]
        if self.watch in row:
            trainer.should_stop |= self.ends(history)
            if self.best is not None and self.best_row(history) is row:
                trainer.save(self.best)
        elif row.keys() > MEASURED and not any(self.watch in earlier for earlier in history):
            found = sorted(row.keys() - MEASURED)
            raise ValueError(f"an evaluation must return {self.watch!r} to watch, got {found}")

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


class Checkpoint(Callback):
    """Save the training at regular steps and at the end.

    Args:
        path: the file, which is written by this training alone; of a `ParallelTrainer`, a folder.
        every: steps between two saves.

    Example:
        >>> checkpoint = Checkpoint("model.safetensors", every=10)
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 50) -> None:
        check_at_least_1(every=every)
        self.path, self.every = path, every

    def begin(self, trainer: Any) -> None:
        trainer.claim(self.path)  # and find out now, not after hours, if it cannot be written

    def after_step(self, trainer: Any) -> None:
        if trainer.step % self.every == 0:
            trainer.save(self.path)

    def end(self, trainer: Any) -> None:
        trainer.save(self.path)


class Progress(Callback):
    """A bar in a terminal or a notebook; in a log a line for every tenth of the steps."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown and os.environ.get("RANK", "0") == "0"  # torchrun numbers processes

    def begin(self, trainer: Any) -> None:
        self.bar: Any = None
        self.tenth = 10 * trainer.step // max(trainer.until, 1)
        self.written = time.monotonic()
        is_notebook = type(sys.stderr).__module__.startswith("ipykernel")
        if self.shown and (is_notebook or sys.stderr.isatty()):
            from tqdm import tqdm

            bar = tqdm(initial=trainer.step, total=trainer.until, unit="step")
            self.bar = trainer.resources.enter_context(bar)

    def after_step(self, trainer: Any) -> None:
        row, step, until = trainer.history[-1], trainer.step, trainer.until
        numbers = {name: f"{number:.3g}" for name, number in row.items() if name != "step"}
        tenth = 10 * step // max(until, 1)
        now = time.monotonic()
        if self.bar is not None:
            self.bar.set_postfix(numbers, refresh=False)
            self.bar.update(step - self.bar.n)
        elif self.shown and (tenth != self.tenth or now - self.written >= SILENCE):
            self.tenth = tenth
            self.written = now
            listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
            print(f"step {step} of {until}: {listed}", file=sys.stderr, flush=True)


class StopOnSignal(Callback):
    """Let Ctrl-C, and the SIGTERM that clusters send, end the training after the current step.

    A second signal acts as it does without this.
    """

    def begin(self, trainer: Any) -> None:
        self.stopped = False
        self.signals: list[int] = []
        self.before: dict[int, Any] = {}
        trainer.resources.callback(self.restore)
        if threading.current_thread() is threading.main_thread():  # only there Python lets us
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self.before[number] = signal.signal(number, self.note)

    def note(self, number: int, frame: Any) -> None:
        self.signals.append(number)
        self.restore()

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def after_step(self, trainer: Any) -> None:
        if trainer.in_any_process(bool(self.signals)):  # this process or another
            self.stopped = trainer.should_stop = True

    def end(self, trainer: Any) -> None:
        if self.stopped or self.signals:  # all is saved: now do what the signal asks for
            raise KeyboardInterrupt(f"told to stop after step {trainer.step}")
