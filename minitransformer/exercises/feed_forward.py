"""The exercises of chapter 6, feed-forward networks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference

QUESTIONS = torch.tensor([[1.0, 1.0, 2.0], [1.0, -1.0, -1.0]])
"""Of the units A, B and C in the example by hand, a column each: (d, f)."""
BIASES = torch.tensor([-1.0, 0.0, 1.0])
RIGHT_OUTPUT = torch.tensor([3.0, 14.0])
Weights = tuple[Tensor, Tensor, Tensor, Tensor]


def network(x: Tensor, weights: Weights) -> Tensor:
    """The formula, as the chapter has it."""
    w_1, b_1, w_2, b_2 = weights
    return torch.addmm(b_2, torch.addmm(b_1, x, w_1).relu(), w_2)


def weights_of(found: Any, d: int, units: int, out: int) -> Weights | None:
    """The reader's weights as tensors, if they are those of such a network."""
    if found is None or found is ...:
        return None
    if not isinstance(found, tuple | list) or len(found) != 4:
        raise Difference("does not give four things: w_1, b_1, w_2, b_2.")
    w_1, b_1, w_2, b_2 = (torch.as_tensor(part, dtype=torch.float32) for part in found)
    shapes = {"w_1": (d, units), "b_1": (units,), "w_2": (units, out), "b_2": (out,)}
    for (name, shape), part in zip(shapes.items(), (w_1, b_1, w_2, b_2), strict=True):
        if part.shape != shape:
            raise Difference(f"gives {name} of the shape {tuple(part.shape)}, expected {shape}.")
    return w_1, b_1, w_2, b_2


def output_and_units(mine: Any) -> Any:
    """The first answer, and how the units fire for the second, once the first one is right."""
    if not isinstance(mine, tuple | list) or len(mine) != 2:
        raise Difference("does not hold two things: the output, and a row.")
    output, row = (torch.as_tensor(part, dtype=torch.float32) for part in mine)
    if output.shape != (2,) or not torch.allclose(output, RIGHT_OUTPUT):
        return output, torch.zeros(3)
    if row.shape != (2,):
        raise Difference("has no row of two numbers for which no unit fires, so far.")
    return output, torch.addmv(BIASES, QUESTIONS.T, row).relu()


another_row = Exercise(
    function="my_answers",
    arguments=lambda: [()],
    use=output_and_units,
    compared="Compared are the output, and how strongly A, B and C fire for your row.",
    right=lambda: (RIGHT_OUTPUT, torch.zeros(3)),
    tolerance=5e-3,
    mistakes={
        "The last bias, (0, 1), is missing.": lambda: (torch.tensor([3.0, 13.0]), torch.zeros(3)),
        "The units' own biases, -1, 0 and 1, are missing.": (
            lambda: (torch.tensor([5.0, 12.0]), torch.zeros(3))
        ),
        "This is the output for (1, 2).": lambda: (torch.tensor([1.0, 3.0]), torch.zeros(3)),
        "This is the output without unit B. For (2, 1) it fires, too.": (
            lambda: (torch.tensor([-2.0, 9.0]), torch.zeros(3))
        ),
        "The answers are added as they are: each is multiplied by the strength of its unit.": (
            lambda: (torch.tensor([5.0, 8.0]), torch.zeros(3))
        ),
        "For (0, 0) unit C still fires: its bias is 1.": lambda: (RIGHT_OUTPUT, torch.zeros(2)),
    },
    hints=(
        "Ask, cut off, answer: do the first step for A, B and C.",
        "All three fire, with 2, 1 and 4. For a silent row make the first number negative.",
        "The three steps are in By hand: two numbers in, three units, two numbers out.",
    ),
)


def rows_let_through(mine: Callable[..., Any], d: int, units: int) -> Any:
    """What a network with the reader's weights makes of rows that it has to let through."""
    weights = weights_of(mine(d, units), d, units, d)
    return None if weights is None else network(rows_for(d, units), weights)


def rows_for(d: int, units: int) -> Tensor:
    """Any rows for 2d units, also large ones, and rows above -10 for d units: (5, d)."""
    (rows,) = random_tensors((5, d))
    return 5000 * rows if units == 2 * d else (6 * rows).clamp(min=-9.5)


def let_through_with(d: int, units: int, *, wrong: str) -> tuple[Tensor, ...]:
    """Weights with one thing done wrong."""
    eye = torch.eye(d)
    if units == d:
        shift = {"no shift": 0.0, "1": 1.0}.get(wrong, 10.0)
        back = 0.0 if wrong == "not back" else -shift
        return eye, torch.full((d,), shift), eye, torch.full((d,), back)
    negative = eye if wrong == "same twice" else -eye
    both_signs = torch.cat([eye, negative], dim=1)  # (d, 2d)
    second = both_signs.T
    if wrong == "size":
        second = torch.cat([eye, eye])
    if wrong == "one half":
        second = torch.cat([eye, torch.zeros(d, d)])
    return both_signs, torch.zeros(2 * d), second, torch.zeros(d)


let_it_through = Exercise(
    function="identity_weights",
    arguments=lambda: [(1, 2), (1, 1), (3, 6), (3, 3), (4, 8), (4, 4)],
    use=rows_let_through,
    compared="Compared are the rows that come out of a network with your weights.",
    right=lambda d, units: rows_for(d, units),
    mistakes={
        "The size comes out, without the sign: the second half of the units has to subtract.": (
            lambda d, units: let_through_with(d, units, wrong="size")
        ),
        "Only positive numbers come through: a second unit has to bring the negative ones.": (
            lambda d, units: let_through_with(d, units, wrong="one half")
        ),
        "Both units ask the same, so negative numbers are lost twice.": (
            lambda d, units: let_through_with(d, units, wrong="same twice")
        ),
        "With d = {d} units negative numbers are cut off: shift them first, by the first bias.": (
            lambda d, units: let_through_with(d, units, wrong="no shift")
        ),
        "The shift by the first bias is still in the output: the last bias takes it back.": (
            lambda d, units: let_through_with(d, units, wrong="not back")
        ),
        "The shift is too small: numbers just above -10 have to become positive.": (
            lambda d, units: let_through_with(d, units, wrong="1")
        ),
    },
    hints=(
        "Take d = 1 first. How do two units keep any number, and how one a number above -10?",
        "max(0, x) - max(0, -x) = x. With one unit: shift up, and back.",
        "What the activation destroys: Why wider inside, and why four times?",
    ),
)


def output_for(mine: Callable[..., Any], a: float, b: float) -> Any:
    """What a network with the reader's weights gives for the row (a, b)."""
    weights = weights_of(mine(), 2, 3, 1)
    return None if weights is None else network(torch.tensor([[a, b]]), weights).item()


def three_units(first: list[list[float]], last: list[float]) -> Callable[..., Weights]:
    """Weights without biases: what each unit asks, and what it answers."""
    w_1, w_2 = torch.tensor(first).T, torch.tensor(last)[:, None]
    return lambda: (w_1, torch.zeros(3), w_2, torch.zeros(1))


the_larger_one = Exercise(
    function="max_weights",
    arguments=lambda: [
        (3.0, 1.0),
        (1.0, 4.0),
        (2.0, 2.0),
        (-5.0, -2.0),
        (-1.0, -3.0),
        (-2.0, 6.0),
        (-900.0, -20.0),
    ],
    use=output_for,
    compared="Compared is what the network with your weights gives for the row (a, b).",
    right=lambda a, b: float(max(a, b)),
    mistakes={
        "Negative numbers are lost: b itself takes two units, as in exercise 2.": (
            three_units([[1, -1], [0, 1], [0, 0]], [1, 1, 0])
        ),
        "This is the smaller one.": three_units([[-1, 1], [0, 1], [0, -1]], [-1, 1, -1]),
        "This is the distance between the numbers: which of them has to be added?": (
            three_units([[1, -1], [-1, 1], [0, 0]], [1, 1, 0])
        ),
        "This is the sum of both numbers' positive parts.": (
            three_units([[1, 0], [0, 1], [0, 0]], [1, 1, 0])
        ),
        "The third unit has the wrong sign: b = max(0, b) - max(0, -b).": (
            three_units([[1, -1], [0, 1], [0, -1]], [1, 1, 1])
        ),
        "This is b: what a has more, if it has, is missing.": (
            three_units([[0, 1], [0, -1], [0, 0]], [1, -1, 0])
        ),
    },
    hints=(
        "How much does one have to add to b to get the larger one?",
        "max(a, b) = b + max(0, a - b). And b itself from two units: exercise 2.",
        "How units are made into functions: What attention cannot compute.",
    ),
)


class Recorded(nn.Module):
    """A network that remembers how many rows it gets at a time."""

    def __init__(self, d: int) -> None:
        super().__init__()
        w_1, w_2 = random_tensors((d, 4), (4, d))
        self.w_1, self.w_2 = w_1, w_2
        self.rows: list[int] = []

    def __repr__(self) -> str:
        return "ffn"

    def forward(self, x: Tensor) -> Tensor:
        """x, (..., d), to the same shape."""
        self.rows.append(x.shape[:-1].numel())
        return (x @ self.w_1).relu() @ self.w_2


def output_and_rows(mine: Callable[..., Any], x: Tensor, size: int) -> Any:
    """What the reader's function gives, and the most rows that the network got at once."""
    ffn = Recorded(x.size(-1))
    found = mine(ffn, x, size)
    return None if found is None or found is ... else (found, max(ffn.rows, default=0))


def pieces(ffn: nn.Module, x: Tensor, size: int, axis: int) -> Tensor:
    return torch.cat([ffn(piece) for piece in x.split(size, dim=axis)], dim=axis)


in_pieces = Exercise(
    function="in_pieces",
    arguments=lambda: [
        (*random_tensors((1, 1, 3)), 1),
        (*random_tensors((1, 4, 3)), 2),
        (*random_tensors((2, 5, 3)), 2),
        (*random_tensors((3, 4, 2)), 9),
        (*random_tensors((4, 7, 2)), 3),
    ],
    use=output_and_rows,
    compared="Compared are the output, and the most rows that ffn gets at once.",
    right=lambda x, size: (Recorded(x.size(-1))(x), len(x) * min(size, x.size(1))),
    mistakes={
        "All positions go through at once: at most size={size} of them should.": (
            lambda ffn, x, size: ffn(x)
        ),
        "The batch is cut here, axis 0; positions are axis 1.": (
            lambda ffn, x, size: pieces(ffn, x, size, axis=0)
        ),
        "This cuts into size={size} pieces; each piece should have that many positions.": (
            lambda ffn, x, size: torch.cat([ffn(piece) for piece in x.chunk(size, 1)], 1)
        ),
        "One position at a time: size={size} of them should go through at once.": (
            lambda ffn, x, size: pieces(ffn, x, 1, axis=1)
        ),
        "The last piece, which may be shorter, is lost.": (
            lambda ffn, x, size: pieces(
                ffn, x[:, : max(x.size(1) // size, 1) * size], min(size, x.size(1)), axis=1
            )
        ),
    },
    hints=(
        "Tensors can be cut along an axis into pieces of a given size. Which axis has the "
        "positions?",
        "x.split(size, dim=1) gives the pieces, torch.cat joins what comes out.",
        "Why this is allowed: Position-wise: three tests.",
    ),
)


def by_autograd(
    X: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor, G: Tensor
) -> tuple[Tensor, ...]:
    leaves = [tensor.requires_grad_() for tensor in (X, w_1, b_1, w_2, b_2)]
    output = network(leaves[0], (leaves[1], leaves[2], leaves[3], leaves[4]))
    return torch.autograd.grad(output, leaves, G)


def gradients_with(wrong: str, *given: Tensor) -> tuple[Tensor, ...]:
    """The gradients with one thing done wrong."""
    X, w_1, b_1, w_2, _, G = given
    asked = X @ w_1 + b_1  # (n, f)
    fires = torch.ones_like(asked) if wrong == "no mask" else (asked > 0).float()
    if wrong == "mask turned":
        fires = 1 - fires
    hidden = asked if wrong == "not cut off" else asked.relu()
    to_asked = G @ w_2.T * (hidden if wrong == "values" else fires)
    b_2_gradient = G.mean(0) if wrong == "mean" else G.sum(0)
    b_1_gradient = to_asked.mean(0) if wrong == "mean" else to_asked.sum(0)
    if wrong == "biases of rows":
        b_1_gradient, b_2_gradient = to_asked, G
    return to_asked @ w_1.T, X.T @ to_asked, b_1_gradient, hidden.T @ G, b_2_gradient


def network_tensors(n: int, d: int, f: int) -> tuple[Tensor, ...]:
    """X, w_1, b_1, w_2, b_2 and G; the first unit never fires if there are more."""
    tensors = random_tensors((n, d), (d, f), (f,), (f, d), (d,), (n, d))
    if f > 1:
        tensors[2][0] = -100.0
    return tensors


gradient_by_hand = Exercise(
    function="gradients",
    arguments=lambda: [
        network_tensors(1, 2, 3),
        network_tensors(2, 3, 4),
        network_tensors(7, 3, 5),
    ],
    right=lambda X, w_1, b_1, w_2, b_2, G: by_autograd(X, w_1, b_1, w_2, b_2, G),
    mistakes={
        "Units that do not fire pass nothing back: multiply by 1 where the sum is above 0, or "
        "by 0.": (lambda *given: gradients_with("no mask", *given)),
        "The gradient passes where a unit is silent, and stops where it fires: the other way "
        "round.": lambda *given: gradients_with("mask turned", *given),
        "The activation's slope is 1 or 0; here it is multiplied by the hidden value.": (
            lambda *given: gradients_with("values", *given)
        ),
        "W_2 is multiplied by what is cut off: its gradient has the hidden values, not the sums.": (
            lambda *given: gradients_with("not cut off", *given)
        ),
        "Biases are added to every row, so their gradient is the sum over rows, not the mean.": (
            lambda *given: gradients_with("mean", *given)
        ),
        "A bias is one row for all: its gradient is summed over the rows.": (
            lambda *given: gradients_with("biases of rows", *given)
        ),
    },
    hints=(
        "Go backwards, one operation at a time: last bias, W_2, activation, first bias, W_1.",
        "Of Y = A W the gradients are G W^T for A and A^T G for W. A bias is added to each row.",
        "The formula, step by step: The picture and the formula.",
    ),
)
