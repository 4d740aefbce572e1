"""Figures show what they are given, in one style, and only when asked to."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from helpers import randn, refuses

from minitransformer import plot_attention, use_book_style
from minitransformer.plotting import plot_attention_grid, plot_history, running_mean

WEIGHTS = randn(3, 5, 7).softmax(-1)
QUERIES, KEYS = list("ABCDE"), list("stuvwxy")
HISTORY = [{"step": step, "loss": 5.0 / step, "learning_rate": step / 100} for step in range(1, 41)]
HISTORY[9]["exact_match"] = 0.25
HISTORY[39]["exact_match"] = 0.75


@pytest.fixture(autouse=True)
def _own_style_and_no_figure_left():
    with mpl.rc_context():
        yield
        plt.close("all")


def texts(labels):
    return [label.get_text() for label in labels]


def test_attention_is_drawn_queries_down_and_keys_across():
    ax = plot_attention(WEIGHTS[0], QUERIES, KEYS, title="head 0")
    (image,) = ax.get_images()
    assert torch.equal(torch.tensor(image.get_array()), WEIGHTS[0])
    assert image.get_clim() == (0.0, 1.0)
    assert texts(ax.get_yticklabels()) == QUERIES
    assert texts(ax.get_xticklabels()) == KEYS
    assert ax.get_title() == "head 0"
    assert texts(ax.texts) == []
    ax.figure.canvas.draw()


def test_values_are_written_into_their_cells_and_can_be_read():
    ax = plot_attention(torch.tensor([[0.25, 0.75, 0.0]]), ["A"], ["s", "t", "u"], show_values=True)
    written = {(t.get_position(), t.get_text(), t.get_color()) for t in ax.texts}
    assert written == {
        ((0, 0), "0.25", "white"),
        ((1, 0), "0.75", "black"),
    }


def test_given_axes_are_drawn_on_and_weights_may_have_gradients_and_few_bits():
    _, (left, right) = plt.subplots(1, 2)
    weights = WEIGHTS[0].bfloat16().requires_grad_()
    assert plot_attention(weights, QUERIES, KEYS, ax=right) is right
    assert right.get_images()[0].get_array().dtype == "float32"
    assert plot_history(HISTORY, "loss", ax=left) is left
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(("columns", "shape"), [(1, (3, 1)), (2, (2, 2)), (3, (1, 3))])
def test_grid_has_a_picture_for_each_head(columns, shape):
    figure = plot_attention_grid(WEIGHTS, QUERIES, KEYS, columns=columns)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    assert [ax.get_title() for ax in shown] == ["head 0", "head 1", "head 2"]
    for head, ax in enumerate(shown):
        (image,) = ax.get_images()
        assert torch.equal(torch.tensor(image.get_array()), WEIGHTS[head])
    figure.canvas.draw()


def test_history_is_drawn_against_the_step():
    ax = plot_history(HISTORY, "loss", "exact_match")
    loss, exact_match = ax.get_lines()
    assert loss.get_xydata().tolist() == [[row["step"], row["loss"]] for row in HISTORY]
    assert exact_match.get_xydata().tolist() == [[10, 0.25], [40, 0.75]]
    assert loss.get_linestyle() != exact_match.get_linestyle()  # never colour alone
    assert texts(ax.get_legend().get_texts()) == ["loss", "exact match"]
    assert ax.get_xlabel() == "step"
    single = plot_history(HISTORY, "learning_rate")
    assert (single.get_ylabel(), single.get_legend()) == ("learning rate", None)


def test_window_smooths_the_curve_and_draws_evaluations_as_they_are():
    smooth, rows, exact_match = plot_history(HISTORY, "loss", "exact_match", window=4).get_lines()
    losses = [row["loss"] for row in HISTORY]
    means = [losses[max(0, i - 3) : i + 1] for i in range(len(losses))]
    assert smooth.get_ydata() == pytest.approx([sum(part) / len(part) for part in means])
    assert rows.get_ydata().tolist() == losses
    assert rows.get_alpha() < 0.5
    assert rows.get_color() == smooth.get_color()
    assert exact_match.get_xydata().tolist() == [[10, 0.25], [40, 0.75]]


test_what_cannot_be_drawn_is_refused = refuses(
    (r"weights \(5, 7\) .* got 7 and 5", lambda: plot_attention(WEIGHTS[0], KEYS, QUERIES)),
    (r"weights \(5, 7\) .* got 5 and 6", lambda: plot_attention(WEIGHTS[0], QUERIES, KEYS[:6])),
    (r"weights \(5, 7\) .* got 0 and 7", lambda: plot_attention(WEIGHTS[0], [], KEYS)),
    ("no row of the history has 'accuracy'", lambda: plot_history(HISTORY, "accuracy")),
    ("names must hold at least 1 name, got 0", lambda: plot_history(HISTORY)),
    ("window must be at least 1, got 0", lambda: running_mean([1.0], window=0)),
)


def test_settings_change_and_figures_are_left_only_when_asked_for():
    before = dict(mpl.rcParams)
    plot_attention_grid(WEIGHTS, QUERIES, KEYS)
    plot_history(HISTORY, "loss", "exact_match", window=3)
    plt.close("all")
    with pytest.raises(ValueError, match="accuracy"):
        plot_history(HISTORY, "accuracy")
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before
    use_book_style()
    assert mpl.rcParams["figure.facecolor"] == "white"
    ax = plot_history(HISTORY, "loss", "learning_rate")
    assert len({line.get_color() for line in ax.get_lines()}) == 2
    assert not ax.spines["top"].get_visible()
    assert plot_attention(WEIGHTS[0], QUERIES, KEYS).get_images()[0].get_cmap().name == "cividis"
