"""The book's figures: one style, and the pictures that several chapters draw.

Colours are cividis, which reads the same with colour-blind eyes and in grey; the ground is
white on light and dark pages alike. matplotlib is imported when a figure is drawn, not before.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minitransformer.checks import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "plot_attention",
    "plot_attention_grid",
    "plot_history",
    "running_mean",
    "use_book_style",
]

STYLE: dict[Any, Any] = {
    "figure.figsize": (5.0, 3.1),
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "image.cmap": "cividis",
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}
COLOURS = ("#00204d", "#a5691a", "#5f7fa8", "#b8a13c")
"""Line colours, far apart in lightness too; give each line its own dash as well."""


def use_book_style() -> None:
    """Give every figure drawn from here on the book's fonts, sizes and colours.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> with plt.rc_context():
        ...     use_book_style()
        ...     plt.rcParams["image.cmap"]
        'cividis'
    """
    plt = library("matplotlib.pyplot", "book")
    from cycler import cycler

    plt.rcParams.update(STYLE | {"axes.prop_cycle": cycler(color=COLOURS)})


def plot_attention(
    weights: Tensor,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    ax: "Axes | None" = None,
    title: str = "",
    show_values: bool = False,
) -> "Axes":
    """Draw attention weights: a row for each query, a column for each key, bright = much.

    Args:
        weights: (q, k), from 0 to 1.
        query_labels, key_labels: q and k labels.
        ax: where to draw, and what is returned; a new figure's when left out.
        title: above the picture.
        show_values: write each weight that does not round to zero into its cell.

    Raises:
        ValueError: if the labels are not as many as the rows and columns.

    Example:
        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> weights, ax = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), Figure().subplots()
        >>> plot_attention(weights, ["ich", "bin"], ["I", "am"], ax=ax, title="head 0")
        <Axes: title={'center': 'head 0'}>
    """
    plt = library("matplotlib.pyplot", "book")
    if weights.shape != (len(query_labels), len(key_labels)):
        raise ValueError(
            f"weights {tuple(weights.shape)} need as many query and key labels, "
            f"got {len(query_labels)} and {len(key_labels)}"
        )
    if ax is None:
        _, ax = plt.subplots()
    values = weights.detach().float().cpu().numpy()
    ax.imshow(values, vmin=0.0, vmax=1.0, aspect="auto")
    ax.set_xticks(range(len(key_labels)), key_labels, rotation=45, ha="right")
    ax.set_yticks(range(len(query_labels)), query_labels)
    ax.spines[:].set_visible(False)
    ax.set_title(title)
    if show_values:
        for row, col in (weights > 0.005).nonzero().tolist():
            colour = "white" if values[row, col] < 0.5 else "black"
            ax.text(col, row, f"{values[row, col]:.2f}", ha="center", va="center", color=colour)
    return ax


def plot_attention_grid(
    weights: Tensor, query_labels: Sequence[str], key_labels: Sequence[str], *, columns: int = 2
) -> "Figure":
    """Draw the weights of several heads, (h, q, k), as `plot_attention` does, side by side.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import torch
        >>> figure = plot_attention_grid(torch.full((3, 2, 2), 0.5), ["ich", "bin"], ["I", "am"])
        >>> [ax.get_title() for ax in figure.axes if ax.get_visible()]
        ['head 0', 'head 1', 'head 2']
        >>> plt.close(figure)
    """
    rows = -(-len(weights) // columns)
    size = (2.6 * columns, (0.24 * len(query_labels) + 1.2) * rows)
    figure = library("matplotlib.pyplot", "book").figure(figsize=size)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for head, ax in enumerate(axes.flat):
        if head < len(weights):
            plot_attention(weights[head], query_labels, key_labels, ax=ax, title=f"head {head}")
        else:
            ax.set_visible(False)
    return figure


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it, `window` at most: a noisy curve, made readable.

    Raises:
        ValueError: if `window` is below 1.

    Example:
        >>> running_mean([4.0, 2.0, 0.0, 1.0], window=2)
        [4.0, 3.0, 1.0, 0.5]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def plot_history(
    history: Sequence[dict[str, float]], *names: str, window: int = 1, ax: "Axes | None" = None
) -> "Axes":
    """Draw named columns of a training history against the step.

    Args:
        history: rows with a "step" and other numbers, as `Trainer.fit` returns them.
        names: which numbers to draw; rows without them are passed over.
        window: draw the running mean of this many rows, and the rows as a faint line; numbers
            that not every row has, such as evaluations, are drawn as they are.
        ax: where to draw, and what is returned; a new figure's when left out.

    Raises:
        ValueError: if there is no name, no row has one of them, or `window` is below 1.

    Example:
        >>> from matplotlib.figure import Figure
        >>> history = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0}]
        >>> plot_history(history, "loss", ax=Figure().subplots())
        <Axes: xlabel='step', ylabel='loss'>
    """
    plt = library("matplotlib.pyplot", "book")
    if not names:
        raise ValueError("names must hold at least 1 name, got 0")
    for name in names:
        if not any(name in row for row in history):
            raise ValueError(f"no row of the history has {name!r}")
    if ax is None:
        _, ax = plt.subplots()
    for index, name in enumerate(names):
        points = [(row["step"], row[name]) for row in history if name in row]
        dash = ("-", "--", "-.", ":")[index % 4]
        marker = "o" if len(points) < 30 else ""
        steps, values = zip(*points, strict=True)
        wide = window if len(points) == len(history) else min(window, 1)  # below 1 is refused
        smooth = running_mean(values, wide)
        (line,) = ax.plot(steps, smooth, dash, marker=marker, label=name.replace("_", " "))
        if wide > 1:
            ax.plot(steps, values, color=line.get_color(), alpha=0.25, linewidth=0.8)
    ax.set_xlabel("step")
    if len(names) > 1:
        ax.legend()
    else:
        ax.set_ylabel(names[0].replace("_", " "))
    return ax
