"""A law through losses: L(N, D) = E + A/N^α + B/D^β, with intervals, and what follows from it.

N are parameters and D tokens. The form, and the Huber loss of the logarithms that is made small,
are those of Hoffmann et al. (2022), section 3.3, who searched from many starts as we do.

Intervals come from the bootstrap, as in Besiroglu et al. (2024): the points are drawn again with
replacement and the law is fitted again, many times. Drawn are pairs of size and tokens, with all
their seeds: seeds of a pair share what the law does not know of it, and so are not independent.

`scaling_law.py` makes the points, and prints what `summary` finds.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import logsumexp, softmax

Array = NDArray[np.float64]

DELTA = 1e-3
"""Where Huber's loss turns from a square into a line: a thousandth of the loss, as published."""
LEVEL = (0.025, 0.975)
LOWEST = np.array([-9.0, -9.0, -9.0, 0.01, 0.01])
HIGHEST = np.array([3.0, 3.0, 3.0, 3.0, 3.0])
"""What log E, log A, log B, α and β may be, A and B at the middle of the points."""


class Law(NamedTuple):
    """One law, or many: each entry is a number or an array of one length.

    Example:
        >>> round(float(Law(1.69, 406.4, 410.7, 0.34, 0.28).loss(70e9, 1.4e12)), 2)
        1.94
    """

    E: Any
    A: Any
    B: Any
    alpha: Any
    beta: Any

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """E + A/N^α + B/D^β; an axis is added to many laws, for the points."""
        E, A, B, alpha, beta = (np.asarray(entry)[..., None] for entry in self)
        found = E + A / np.power(parameters, alpha) + B / np.power(tokens, beta)
        return found if np.ndim(parameters) or np.ndim(tokens) else found[..., 0]

    @property
    def exponent(self) -> Any:
        """How the best size grows: N ∝ (operations)^exponent, where operations are 6·N·D."""
        return self.beta / (self.alpha + self.beta)


def starts_of(losses: Array) -> list[tuple[float, ...]]:
    """Where the search begins: several floors and exponents, the rest of the loss shared."""
    lowest = losses.min()
    rest = np.log((np.median(losses) - lowest / 2) / 2)
    return [
        (np.log(floor * lowest), rest, rest, alpha, beta)
        for floor in (0.2, 0.5, 0.9)
        for alpha in (0.2, 0.6)
        for beta in (0.2, 0.6)
    ]


def predicted(theta: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Log losses, (n,), and their gradients by the five parameters, (n, 5)."""
    e, a, b, alpha, beta = theta
    terms = np.stack([e + 0 * x, a - alpha * x, b - beta * y])  # (3, n)
    floor, by_size, by_tokens = softmax(terms, axis=0)
    gradients = np.stack([floor, by_size, by_tokens, -x * by_size, -y * by_tokens], axis=-1)
    return logsumexp(terms, axis=0), gradients  # (n,), (n, 5)


def fit(
    parameters: Any,
    tokens: Any,
    losses: Any,
    *,
    delta: float = DELTA,
    near: Law | None = None,
) -> Law:
    """The law with the smallest Huber loss of log residuals.

    Args:
        parameters: N of each point, (n,).
        tokens: D of each point, (n,).
        losses: in nats, (n,).
        delta: Huber's.
        near: a law like it, which saves the starts.

    Raises:
        ValueError: if there are fewer than 6 points, or one is not above 0.

    Example:
        >>> truth = Law(1.0, 30.0, 20.0, 0.4, 0.3)
        >>> n, d = (axis.ravel() for axis in np.meshgrid([1e4, 1e5, 1e6], [1e5, 1e6, 1e7]))
        >>> [round(float(entry), 3) for entry in fit(n, d, truth.loss(n, d))]
        [1.0, 30.0, 20.0, 0.4, 0.3]
    """
    n, d, losses = (np.asarray(column, dtype=float) for column in (parameters, tokens, losses))
    smallest = min((column.min() for column in (n, d, losses) if len(column)), default=0.0)
    if len(losses) < 6 or smallest <= 0:
        raise ValueError(
            "at least 6 points above 0 are needed for 5 numbers, "
            f"got {len(losses)}, the smallest entry {smallest}"
        )
    # At the middle of the points the five numbers depend on each other the least.
    middle = np.log(n).mean(), np.log(d).mean()
    x, y, target = np.log(n) - middle[0], np.log(d) - middle[1], np.log(losses)
    starts = starts_of(losses)
    if near is not None:
        a, b = np.log(near.A) - near.alpha * middle[0], np.log(near.B) - near.beta * middle[1]
        starts = [(np.log(near.E), a, b, near.alpha, near.beta)]
    found = [
        least_squares(
            lambda theta: predicted(theta, x, y)[0] - target,
            np.clip(start, LOWEST, HIGHEST),
            lambda theta: predicted(theta, x, y)[1],
            bounds=(LOWEST, HIGHEST),
            loss="huber",
            f_scale=delta,
        )
        for start in starts
    ]
    e, a, b, alpha, beta = min(found, key=lambda result: result.cost).x
    entries = np.exp(e), np.exp(a + alpha * middle[0]), np.exp(b + beta * middle[1]), alpha, beta
    return Law(*(float(entry) for entry in entries))


# --- intervals


class Fitted(NamedTuple):
    """A law, others like it from points drawn again, and what they leave over.

    Residuals are of the runs' log losses, as large as they would be of points that were not fitted.
    """

    law: Law
    drawn: Law
    residuals: Array


def fitted(
    runs: Sequence[tuple[float, float, float]],
    samples: int,
    *,
    seed: int = 0,
    delta: float = DELTA,
    by_run: bool = False,
) -> Fitted:
    """Fit a law to runs, and again to points drawn from them with replacement.

    Args:
        runs: parameters, tokens and loss of each. Those of equal size and tokens are one point,
            with the mean of their log losses.
        samples: how many laws are drawn.
        seed: of the drawing.
        delta: Huber's.
        by_run: whether each run is a point of its own, as if seeds were independent.
    """
    points: dict[Any, list[float]] = {}
    for index, (n, d, loss) in enumerate(runs):
        points.setdefault((n, d, index if by_run else 0), []).append(np.log(loss))
    n, d = np.array([key[:2] for key in points]).T
    losses = np.exp([np.mean(logs) for logs in points.values()])
    law = fit(n, d, losses, delta=delta)
    count = len(points)
    weights = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=samples)
    places = [np.repeat(np.arange(count), weight) for weight in weights]
    laws = [fit(n[at], d[at], losses[at], delta=delta, near=law) for at in places]
    drawn = Law(*np.array(laws).T)
    by_point = zip(points.values(), np.log(law.loss(n, d)), strict=True)
    residuals = np.concatenate([logs - guess for logs, guess in by_point])
    return Fitted(law, drawn, residuals * np.sqrt(count / (count - 5)))


def interval(drawn: Any) -> tuple[float, float]:
    """The 95 % interval of what was found from each draw."""
    low, high = np.quantile(drawn, LEVEL)
    return float(low), float(high)


def prediction(found: Fitted, parameters: float, tokens: float, seed: int = 0) -> list[float]:
    """The loss of a run that is not trained yet, with its 95 % interval: [loss, low, high].

    The interval has the law's uncertainty and a run's own distance from it. It does not know
    whether the law holds where it was not fitted.
    """
    random = np.random.default_rng(seed)
    logs = np.log(found.drawn.loss(parameters, tokens))
    low, high = interval(np.exp(logs + random.choice(found.residuals, size=len(logs))))
    return [float(found.law.loss(parameters, tokens)), low, high]


def best_sizes(law: Law, operations: float, sizes: Array, per_token: Array) -> Any:
    """The size with the lowest loss for so many operations; of many laws, of each.

    Args:
        law: one, or many.
        operations: of the whole training.
        sizes: parameters of models, ascending.
        per_token: operations that these need for a token; between them, and beyond, it is a line
            on double logarithmic axes.
    """
    grid = np.linspace(np.log(sizes[0]) - 2, np.log(sizes[-1]) + 2, 2001)
    slopes = np.diff(np.log(per_token)) / np.diff(np.log(sizes))
    place = np.clip(np.searchsorted(np.log(sizes), grid) - 1, 0, len(slopes) - 1)
    logs = np.log(per_token)[place] + slopes[place] * (grid - np.log(sizes)[place])
    losses = law.loss(np.exp(grid), operations / np.exp(logs))
    return np.exp(grid[losses.argmin(axis=-1)])


def summary(found: Fitted) -> dict[str, Any]:
    """Each number of a law with its interval, [estimate, low, high]."""
    named = {**found.law._asdict(), "exponent": found.law.exponent}
    drawn = {**found.drawn._asdict(), "exponent": found.drawn.exponent}
    rounded = {
        name: [float(f"{number:.4g}") for number in (value, *interval(drawn[name]))]
        for name, value in named.items()
    }
    return {**rounded, "residual": round(float(np.sqrt(np.mean(found.residuals**2))), 5)}
