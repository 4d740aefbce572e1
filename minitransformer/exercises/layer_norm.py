"""The exercises of chapter 7, residuals and layer normalisation."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference
from minitransformer.layers.encoder_decoder import EncoderLayer

ROWS = torch.tensor([[2.0, 2.0, 6.0, 10.0], [-1.0, -1.0, 1.0, 3.0]])
CENTRED = ROWS - ROWS.mean(1, keepdim=True)

layer_norm_by_hand = Exercise(
    function="my_rows",
    arguments=lambda: [()],
    use=lambda mine: mine,
    right=lambda: F.layer_norm(ROWS, (4,), eps=0.0),
    tolerance=5e-3,
    mistakes={
        "The variance is the mean of 4 squares: divide their sum by 4, not by 3.": (
            lambda: CENTRED / ROWS.std(1, keepdim=True)
        ),
        "These rows are centred. They are still to be divided by their deviation.": (
            lambda: CENTRED
        ),
        "Divided by the variance: take its root first.": (
            lambda: CENTRED / CENTRED.square().mean(1, keepdim=True)
        ),
        "Divided by the size of the row, and not centred: this is RMSNorm.": (
            lambda: F.rms_norm(ROWS, (4,), eps=0.0)
        ),
        "The squares are added, but not divided by 4.": (
            lambda: CENTRED / CENTRED.norm(dim=1, keepdim=True)
        ),
    },
    hints=(
        "Mean, centre, variance, scale: start with the mean of (2, 2, 6, 10), which is 5.",
        "The first row has the variance 11. How does the second row follow from the first?",
        "The four steps are in By hand: four numbers, one correction.",
    ),
)


def repaired(weight: Tensor) -> Tensor:
    """The weight times what the other formula makes smaller, measured on a row."""
    (row,) = random_tensors((len(weight),))
    return weight * row.std(correction=0) / row.std(correction=1)


repair_weights = Exercise(
    function="repaired_weight",
    arguments=lambda: [random_tensors((2,)), random_tensors((5,)), random_tensors((8,))],
    right=lambda weight: repaired(weight),
    mistakes={
        "The factor is upside down: their deviation is larger, so they divide by more.": (
            lambda weight: weight * math.sqrt(len(weight) / (len(weight) - 1))
        ),
        "This is the ratio of the variances. The norm divides by the deviation, the root.": (
            lambda weight: weight * (len(weight) - 1) / len(weight)
        ),
        "The ratio of the variances, upside down.": (
            lambda weight: weight * len(weight) / (len(weight) - 1)
        ),
        "The factor is d - 1 over d, not d over d + 1: theirs divides by d - 1.": (
            lambda weight: weight * math.sqrt(len(weight) / (len(weight) + 1))
        ),
        "This is right for the width 8 only.": lambda weight: weight * math.sqrt(7 / 8),
        "The weight is as it was: the two norms differ by a factor.": lambda weight: weight,
    },
    hints=(
        "By which factor do the two deviations of one row differ?",
        "Theirs is larger by the root of d / (d - 1), and stands below the fraction bar.",
        "The two variances: The formula, and what each piece is for.",
    ),
)


def kept(alpha: float, sublayers: int, v: float, exponent: float = 0.5) -> float:
    """What is left of the start after so many sub-layers."""
    left = 1.0
    for _ in range(sublayers):
        left *= (alpha**2 / (alpha**2 + v)) ** exponent
    return left


def alpha_for(share: float, sublayers: int, v: float, exponent: float = 0.5) -> float:
    """The alpha with which so much is left, by halving an interval."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        if kept(middle, sublayers, v, exponent) < share:
            low = middle
        else:
            high = middle
    return high


identity_path = Exercise(
    function="smallest_alpha",
    arguments=lambda: [(0.8, 1, 1.0), (0.5, 2, 3.0), (0.7, 12, 0.6), (0.5, 128, 1.0)],
    right=lambda share, sublayers, v: alpha_for(share, sublayers, v),
    mistakes={
        "This is alpha squared.": lambda share, sublayers, v: alpha_for(share, sublayers, v) ** 2,
        "Variances lose the factor 1 + v / alpha^2 per sub-layer; a size loses its root.": (
            lambda share, sublayers, v: alpha_for(share, sublayers, v, exponent=1.0)
        ),
        "This is for v = 1: with v={v:g} times the variance the result has to depend on v.": (
            lambda share, sublayers, v: alpha_for(share, sublayers, 1.0)
        ),
        "This is for one sub-layer; there are {sublayers} of them in a row.": (
            lambda share, sublayers, v: alpha_for(share, 1, v)
        ),
        "This is for one sub-layer more: {sublayers} of them have {sublayers} factors.": (
            lambda share, sublayers, v: alpha_for(share, sublayers + 1, v)
        ),
        "share={share:g} is what is left, not what is lost.": (
            lambda share, sublayers, v: alpha_for(1 - share, sublayers, v)
        ),
        "Independent parts add their variances, not their deviations.": (
            lambda share, sublayers, v: math.sqrt(v) / (share ** (-1 / sublayers) - 1)
        ),
    },
    hints=(
        "Which variance has the sum, if x has 1 and f(x) has v? Which part of it is x's?",
        "One sub-layer keeps 1 / root(1 + v / alpha^2). Set its power equal to share; solve.",
        "The same without alpha: 64 layers: four kinds of stacks.",
    ),
)


def entropy(tokens: list[int]) -> float:
    """The loss by frequency alone, in nats."""
    counts = torch.tensor(tokens).bincount()
    return float(torch.distributions.Categorical(counts / counts.sum()).entropy())


def last_mean(losses: list[float], count: int = 10) -> float:
    return sum(losses[-count:]) / count


LOSSES = [round(5.0 - 0.3 * step + 0.01 * step**2, 2) for step in range(14)]
TOKENS = [7, 3, 3, 9, 3, 7, 3, 11]

learn = Exercise(
    function="how_stuck",
    arguments=lambda: [
        ([2.0] * 10, [0, 1]),
        (LOSSES, [4, 4, 4, 5]),
        (LOSSES[::-1] + LOSSES, TOKENS),
    ],
    right=lambda losses, tokens: last_mean(losses) / entropy(tokens),
    mistakes={
        "All losses count here; it is the mean of the last 10.": (
            lambda losses, tokens: sum(losses) / len(losses) / entropy(tokens)
        ),
        "Only the last loss counts here; it is the mean of the last 10, which is less noisy.": (
            lambda losses, tokens: losses[-1] / entropy(tokens)
        ),
        "The first 10 losses are taken, not the last.": (
            lambda losses, tokens: sum(losses[:10]) / 10 / entropy(tokens)
        ),
        "This is guessing evenly among the tokens; frequent ones are more likely.": (
            lambda losses, tokens: last_mean(losses) / math.log(len(set(tokens)))
        ),
        "The entropy is in bits here; losses are in nats, with the natural logarithm.": (
            lambda losses, tokens: last_mean(losses) / entropy(tokens) * math.log(2)
        ),
        "The entropy has the wrong sign: logarithms of shares are negative.": (
            lambda losses, tokens: -last_mean(losses) / entropy(tokens)
        ),
        "The fraction is upside down.": lambda losses, tokens: entropy(tokens) / last_mean(losses),
    },
    hints=(
        "Count how often each token occurs. A model that knows only this has which loss?",
        "The sum of -p log p over the tokens' shares p; then the mean of losses[-10:] over it.",
        "unigram is computed in the folded cell of Which order, and the trap that bites first.",
    ),
)


def centred(rows: Tensor) -> Tensor:
    """Each row less its mean."""
    return rows - rows.mean(dim=-1, keepdim=True)


def layer_and_rows(weights: dict[str, Tensor], norm: str) -> tuple[EncoderLayer, Tensor]:
    """A pre-norm layer of two heads and the sizes of the weights, and rows for it."""
    d_ff, d_model = weights["feed_forward.w_1.weight"].shape
    layer = EncoderLayer(d_model, 2, d_ff, dropout=0.0, norm_first=True, norm=norm)
    return layer.eval(), random_tensors((2, 5, d_model))[0]


def with_rms_norm(mine: Callable[..., Any], weights: dict[str, Tensor]) -> Any:
    """What a layer with RMSNorm and the reader's weights makes of centred rows."""
    layer, x = layer_and_rows(weights, "rms_norm")
    found = mine(weights)
    if not isinstance(found, dict):
        return found
    for names, text in (
        (sorted({*found} - {*layer.state_dict()}), "gives {}, which the layer does not have."),
        (sorted({*layer.state_dict()} - {*found}), "does not give {}."),
    ):
        if names:
            raise Difference(text.format(names[0]))
    layer.load_state_dict(found)
    with torch.no_grad():
        return layer(centred(x))


def with_layer_norm(weights: dict[str, Tensor]) -> Tensor:
    """What the layer with layer norm makes of the rows, centred."""
    layer, x = layer_and_rows(weights, "layer_norm")
    layer.load_state_dict(weights)
    with torch.no_grad():
        return centred(layer(x))


def layer_weights(d_model: int, d_ff: int) -> dict[str, Tensor]:
    """Random weights of a pre-norm layer with layer norm."""
    layer = EncoderLayer(d_model, 2, d_ff, norm_first=True)
    shapes = {name: tuple(weight.shape) for name, weight in layer.state_dict().items()}
    tensors = random_tensors(*shapes.values())
    return {name: tensor / 2 for name, tensor in zip(shapes, tensors, strict=True)}


READERS = {
    "self_attention.w_q": "residual_1",
    "self_attention.w_k": "residual_1",
    "self_attention.w_v": "residual_1",
    "feed_forward.w_1": "residual_2",
}
WRITERS = ("self_attention.w_o", "feed_forward.w_2")


def converted(weights: dict[str, Tensor], *, wrong: str) -> dict[str, Tensor]:
    """Weights with one thing done wrong."""
    for name, residual in READERS.items():
        shift = weights[f"{name}.weight"] @ weights[f"{residual}.norm.bias"]
        if wrong == "sign":
            shift = -shift
        lost = wrong == "no beta" or (wrong == "no w_1" and name == "feed_forward.w_1")
        if not lost:
            weights[f"{name}.bias"] = weights[f"{name}.bias"] + shift
    for name in WRITERS:
        for part in ("weight", "bias"):
            written = weights[f"{name}.{part}"]
            axis = -1 if wrong == "axis" else 0
            if wrong not in ("not centred", f"no {part}", f"no {name}"):
                weights[f"{name}.{part}"] = written - written.mean(dim=axis, keepdim=True)
    return {k: v for k, v in weights.items() if not k.endswith("norm.bias")}


into_rms_norm = Exercise(
    function="to_rms_norm",
    arguments=lambda: [(layer_weights(2, 3),), (layer_weights(6, 5),), (layer_weights(4, 7),)],
    use=with_rms_norm,
    compared="Compared is what a layer with your weights makes of centred rows.",
    right=lambda weights: with_layer_norm(weights),
    tolerance=1e-3,
    mistakes={
        "The norms' biases are lost: where can a constant go that the next matrix reads?": (
            lambda weights: converted(weights, wrong="no beta")
        ),
        "The norms' biases are subtracted; those who read them have to add them.": (
            lambda weights: converted(weights, wrong="sign")
        ),
        "The bias of the second norm is lost: w_1 reads it.": (
            lambda weights: converted(weights, wrong="no w_1")
        ),
        "What is written to the stream still has a mean: no matrix is centred.": (
            lambda weights: converted(weights, wrong="not centred")
        ),
        "The matrices are centred, but the biases that are written with them are not.": (
            lambda weights: converted(weights, wrong="no bias")
        ),
        "w_2 writes to the stream as well as w_o.": (
            lambda weights: converted(weights, wrong="no feed_forward.w_2")
        ),
        "w_o writes to the stream as well as w_2.": (
            lambda weights: converted(weights, wrong="no self_attention.w_o")
        ),
        "The mean is taken along the other axis: nn.Linear keeps (out, in), and each output is to "
        "have no mean.": lambda weights: converted(weights, wrong="axis"),
    },
    hints=(
        "Two things: nobody may write a mean to the stream, and each norm's bias has to go on.",
        "w_o and w_2 write to the stream: centre their columns and biases. W (y + b) = W y + W b.",
        "Why centring is all that differs: RMSNorm: without the mean.",
    ),
)
