"""The exercises of chapter 19, looking inside."""

from collections.abc import Callable

import torch
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors


def some_weights(
    b: int, h: int, q: int, k: int, *, causal: bool = True, empty: bool = False
) -> Tensor:
    """Attention weights of random scores; the last row sees nothing if `empty`."""
    (scores,) = random_tensors((b, h, q, k))
    seen = torch.ones(q, k, dtype=torch.bool)
    seen = seen.tril(k - q) if causal else seen
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    if empty:
        weights[-1] = 0
    return weights


def levelled(weights: Tensor) -> Tensor:
    seen = (weights > 0).float()
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


uniform = Exercise(
    function="uniform",
    arguments=lambda: [
        (some_weights(1, 1, 1, 1),),
        (some_weights(1, 1, 2, 2),),
        (some_weights(1, 1, 1, 3, causal=False),),
        (some_weights(2, 3, 4, 4),),
        (some_weights(2, 3, 4, 5, empty=True),),
    ],
    right=levelled,
    mistakes={
        "Masked keys get a share too; what is zero has to stay zero.": (
            lambda weights: torch.full_like(weights, 1 / weights.size(-1))
        ),
        "Divided by all keys: where some are masked, a row no longer adds up to 1.": (
            lambda weights: (weights > 0).float() / weights.size(-1)
        ),
        "Each key's column adds up to 1 here; it is each query's row that has to.": (
            lambda weights: (weights > 0).float() / (weights > 0).sum(-2, keepdim=True).clamp(min=1)
        ),
        "A row that sees nothing becomes 0 / 0; it has to stay zero.": (
            lambda weights: (weights > 0).float() / (weights > 0).float().sum(-1, keepdim=True)
        ),
        "These are ones where something is seen. Divide each row by its sum.": (
            lambda weights: (weights > 0).float()
        ),
        "Nothing has changed: these are the weights as they came.": lambda weights: weights,
    },
    hints=(
        "Which keys may a query see? Those with a weight above zero.",
        "Ones where the weight is above zero, divided by the sum of their row.",
        "A row of zeros has the sum 0: clamp it. The section Is attention an explanation? uses it.",
    ),
)


def score_by(
    offset: int = 1, start: int = 0, *, rows: Callable[[Tensor], Tensor] = lambda x: x.mean(1)
) -> Callable[[Tensor, int], Tensor]:
    """Each head's weight on one earlier place, with one thing done in another way."""

    def score(weights: Tensor, period: int) -> Tensor:
        queries = range(period + start, weights.size(-2))
        found = [weights[:, :, q, q - period + offset] for q in queries]
        return rows(torch.stack(found, -1).mean(0))

    return score


def from_first(weights: Tensor, period: int) -> Tensor:
    """The mean over all queries, the first copy's too."""
    return score_by(rows=lambda x: x.sum(1))(weights, period) / weights.size(-2)


induction = Exercise(
    function="induction_score",
    arguments=lambda: [
        (some_weights(1, 1, 3, 3), 2),
        (some_weights(1, 1, 4, 4), 2),
        (some_weights(2, 3, 8, 8), 4),
        (some_weights(2, 3, 9, 9), 3),
    ],
    right=lambda weights, period: score_by()(weights, period),
    mistakes={
        "This is the weight on the same token in the copy before. Its successor is meant.": (
            score_by(0)
        ),
        "The place meant is one later than the same token in the copy before, not two.": (
            score_by(2)
        ),
        "This is the weight on the token before: a previous-token head has much of it.": (
            lambda weights, period: weights.diagonal(-1, -2, -1).mean((0, 2))
        ),
        "Only queries from {period} on have a copy before them; the mean is over these.": (
            from_first
        ),
        "Each head has its score: the mean runs over rows and queries, not over heads.": (
            lambda weights, period: score_by()(weights, period).mean()
        ),
        "The query at {period} has a copy before it too.": (
            lambda weights, period: (
                score_by(start=1)(weights, period)
                if weights.size(-2) > period + 1
                else torch.zeros(weights.size(1))
            )
        ),
        "A sum of weights; the score is their mean.": score_by(rows=lambda x: x.sum(1)),
    },
    hints=(
        "Where does the query at position q find its own token, and where that token's successor?",
        "At q - period, and at q - period + 1: a diagonal of the last two axes.",
        "The section A circuit one can find says what the score is.",
    ),
)


recovered = Exercise(
    function="recovered",
    arguments=lambda: [
        (torch.tensor([4.0]), torch.tensor([0.0]), torch.tensor([1.0])),
        (torch.tensor([4.0]), torch.tensor([-4.0]), torch.tensor([2.0])),
        (torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 0.0]), torch.tensor([0.0, 3.0])),
        random_tensors((5,), (5,), (5,)),
    ],
    right=lambda clean, corrupted, patched: (
        (patched - corrupted).mean() / (clean - corrupted).mean()
    ).item(),
    mistakes={
        "The other way round: this is what is still missing.": (
            lambda clean, corrupted, patched: (
                (clean - patched).mean() / (clean - corrupted).mean()
            ).item()
        ),
        "This compares with the clean run alone; measured is from the corrupted run on.": (
            lambda clean, corrupted, patched: (patched.mean() / clean.mean()).item()
        ),
        "This is a difference of logits. Divide by the one between the clean and corrupted run.": (
            lambda clean, corrupted, patched: (patched - corrupted).mean().item()
        ),
        "This divides by the clean run; divide by what there is to recover.": (
            lambda clean, corrupted, patched: ((patched - corrupted).mean() / clean.mean()).item()
        ),
        "A mean of ratios: one example with a small difference decides it. Take means first.": (
            lambda clean, corrupted, patched: (
                ((patched - corrupted) / (clean - corrupted)).mean().item()
            )
        ),
        "Not cut off: a patch can recover more than all, or less than nothing.": (
            lambda clean, corrupted, patched: min(
                max(((patched - corrupted).mean() / (clean - corrupted).mean()).item(), 0.0), 1.0
            )
        ),
    },
    hints=(
        "What is it if the patch does nothing, and what if it does everything?",
        "From the corrupted run to the patched one, as a share of the way to the clean one.",
        "Means over the examples first, then the quotient: Where is the units digit?",
    ),
)


def mean_by(
    axes: tuple[int, ...] = (0, 2), *, padding: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """A mean over real positions, with one thing done in another way."""

    def mean(heads: Tensor, real: Tensor) -> Tensor:
        counted = torch.ones_like(real) if padding else real
        weight = counted[:, None, :, None].to(heads.dtype).expand(*heads.shape[:3], 1)
        return (heads * weight).sum(axes) / weight.sum(axes).clamp(min=1)

    return mean


def real_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


mean_of_real = Exercise(
    function="mean_of_real",
    arguments=lambda: [
        (*random_tensors((1, 1, 1, 2)), real_of(1)),
        (torch.arange(1.0, 9.0).view(2, 1, 2, 2), real_of(2, 1)),
        (*random_tensors((3, 2, 4, 5)), real_of(4, 2, 1)),
    ],
    right=mean_by(),
    mistakes={
        "Padding counts here as if it were text.": mean_by(padding=True),
        "Padding is set to zero, but still counted below the line.": (
            lambda heads, real: (heads * real[:, None, :, None]).mean((0, 2))
        ),
        "A mean of the rows' means: a position in a short row counts more.": (
            lambda heads, real: mean_by((2,))(heads, real).mean(0)
        ),
        "One mean for each position; the mean runs over positions too.": (
            lambda heads, real: mean_by((0,))(heads, real)
        ),
        "One mean for all heads; each has its own.": (
            lambda heads, real: mean_by()(heads, real).mean(0)
        ),
        "A sum; divide by the number of real positions.": (
            lambda heads, real: (heads * real[:, None, :, None]).sum((0, 2))
        ),
    },
    hints=(
        "Over which axes does the mean run, and how many positions does it count?",
        "Multiply by the mask, add up over rows and positions, divide by the mask's sum.",
        "heads.transpose(1, 2)[real] has all real positions in a row. Why: the trap's section.",
    ),
)


def effects_by(
    wide: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The product with a direction of what `wide` makes of heads and W^O."""
    return lambda heads, w_o, direction: wide(heads, w_o) @ direction


effects = Exercise(
    function="head_effects",
    arguments=lambda: [
        random_tensors((1, 1, 1, 2), (2, 2), (2,)),
        random_tensors((1, 2, 1, 2), (4, 4), (4,)),
        random_tensors((2, 3, 5, 4), (12, 12), (12,)),
        random_tensors((2, 3, 5, 4), (7, 12), (7,)),
    ],
    right=effects_by(
        lambda heads, w_o: torch.einsum(
            "bhqe,dhe->bhqd", heads, w_o.unflatten(1, (heads.size(1), -1))
        )
    ),
    mistakes={
        "All heads at once; each has an effect of its own.": (
            lambda heads, w_o, direction: heads.transpose(1, 2).flatten(2) @ w_o.mT @ direction
        ),
        "W^O is transposed: nn.Linear computes x Wᵀ, its weight is (d, h·e).": effects_by(
            lambda heads, w_o: (
                torch.einsum("bhqe,hed->bhqd", heads, w_o.unflatten(0, (heads.size(1), -1)))
                if w_o.size(0) == w_o.size(1)
                else torch.zeros(*heads.shape[:3], len(w_o))
            )
        ),
        "The columns of W^O are shared out wrongly: head 0 has the first e, not each h-th.": (
            effects_by(
                lambda heads, w_o: torch.einsum(
                    "bhqe,deh->bhqd", heads, w_o.unflatten(1, (-1, heads.size(1)))
                )
            )
        ),
        "Every head goes through the first head's columns.": effects_by(
            lambda heads, w_o: heads @ w_o[:, : heads.size(-1)].mT
        ),
        "Absolute values: an effect has a sign, for or against the token.": (
            lambda heads, w_o, direction: (
                torch.einsum("bhqe,dhe->bhqd", heads, w_o.unflatten(1, (heads.size(1), -1)))
                @ direction
            ).abs()
        ),
    },
    hints=(
        "Head i is multiplied by e columns of W^O. Which?",
        "Those from i·e to (i + 1)·e, transposed. Then the product with the direction.",
        "w_o.unflatten(1, (h, e)) has them apart. The deeper page has the formula.",
    ),
)
