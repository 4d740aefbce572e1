"""The exercises of chapter 2, embeddings."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference, brief
from minitransformer.layers import TokenEmbedding


def share(vocab_size: int, width: int, total: int, tables: int) -> float:
    others = total - vocab_size * width
    return 1 - others / (others + tables * vocab_size * width)


share_of_the_table = Exercise(
    function="table_share",
    arguments=lambda: [
        (5, 3, 15, 1),
        (5, 3, 100, 1),
        (5, 3, 100, 2),
        (50_257, 768, 124_439_808, 2),
        (7, 2, 20, 3),
    ],
    right=share,
    mistakes={
        "More tables make a larger model: total counts one table, and here are {tables}.": (
            lambda vocab_size, width, total, tables: tables * vocab_size * width / total
        ),
        "With {tables} tables the model has {tables} - 1 more than total counts, not {tables}.": (
            lambda vocab_size, width, total, tables: (
                tables * vocab_size * width / (total + tables * vocab_size * width)
            )
        ),
        "Divide by all parameters, the table's own included.": (
            lambda vocab_size, width, total, tables: (
                tables * vocab_size * width / (total - vocab_size * width or math.inf)
            )
        ),
        "This is the share of one table, and here are {tables}.": (
            lambda vocab_size, width, total, tables: (
                vocab_size * width / (total + (tables - 1) * vocab_size * width)
            )
        ),
        "This is a percentage; give the share, between 0 and 1.": (
            lambda *arguments: 100 * share(*arguments)
        ),
    },
    hints=(
        "A table has a row for each token, and a row has as many numbers as the model is wide.",
        "How many parameters are there with one table more? Both numbers of the fraction grow.",
        "What a second table costs is said in The way back: scores for every token.",
    ),
)


def counts_by(divisor: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, int], Tensor]:
    """Counts of tokens, divided by something that is computed from ids and counts."""

    def bag(ids: Tensor, vocab_size: int) -> Tensor:
        counts = ids.bincount(minlength=vocab_size)
        return counts / divisor(ids, counts)

    return bag


a_bag_of_words = Exercise(
    function="bag_of_words",
    arguments=lambda: [
        (torch.tensor([0]), 1),
        (torch.tensor([1, 1, 0]), 2),
        (torch.tensor([2, 4, 0, 2]), 5),
        (torch.tensor([3, 3, 3, 0, 1, 3, 0]), 9),
    ],
    right=lambda ids, vocab_size: F.one_hot(ids, vocab_size).float().mean(0),
    mistakes={
        "These are counts: divide them by the length of the sentence, and the product with the "
        "table is the mean, not the sum.": counts_by(lambda ids, counts: 1),
        "Divided by the size of the vocabulary; it is the length of the sentence that counts.": (
            counts_by(lambda ids, counts: len(counts))
        ),
        "Divided by the number of different tokens: one that occurs twice counts twice.": (
            counts_by(lambda ids, counts: (counts > 0).sum())
        ),
        "Each token counts once here, however often it occurs.": (
            lambda ids, vocab_size: (ids.bincount(minlength=vocab_size) > 0) / len(ids)
        ),
        "Tokens that do not occur need a place too, a 0: the vector has vocab_size numbers.": (
            lambda ids, vocab_size: ids.bincount() / len(ids)
        ),
        "These are the rows for each position. Take their mean over the positions.": (
            lambda ids, vocab_size: F.one_hot(ids, vocab_size).float()
        ),
    },
    hints=(
        "A lookup is a product with one-hot rows. What does their mean say?",
        "For each token: how often it occurs, divided by how many tokens there are.",
        "Lookup as a product is in the section By hand: five tokens, three numbers each.",
    ),
)


def loss_by(
    *, dim: int = -1, sign: int = -1, shifted: bool = True, summed: bool = False, log: bool = True
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss with one thing done in another way."""

    def loss(logits: Tensor, right: Tensor) -> Tensor:
        logs = logits.log_softmax(dim)
        if not shifted:
            logs = (logits.exp() / logits.exp().sum(dim, keepdim=True)).log()
        of_right = logs[torch.arange(len(right)), right]
        each = sign * (of_right if log else of_right.exp())
        return each.sum() if summed else each.mean()

    return loss


def logits_and_right(tokens: int, vocab_size: int, scale: float) -> tuple[Tensor, Tensor]:
    (logits,) = random_tensors((tokens, vocab_size))
    return scale * logits, torch.arange(tokens) * 3 % vocab_size


loss_without_opinion = Exercise(
    function="loss",
    arguments=lambda: [
        logits_and_right(1, 2, 0.0),
        logits_and_right(1, 3, 1.0),
        logits_and_right(2, 5, 2.0),
        logits_and_right(7, 4, 1.0),
        (torch.tensor([[1000.0, 1001.0, 990.0], [-1000.0, -1002.0, -999.0]]), torch.tensor([1, 0])),
        (torch.tensor([[0.0, 1000.0]]), torch.tensor([0])),
    ],
    right=lambda logits, right: F.cross_entropy(logits, right),
    mistakes={
        "Large logits overflow: e^1000 is infinite. Subtract each row's largest logit first, or "
        "use logsumexp.": loss_by(shifted=False),
        "The probability of a token far below the best is 0 in 32 bits, its logarithm infinite: "
        "compute the logarithm without it, as a difference.": lambda logits, right: (
            -logits.softmax(-1)[torch.arange(len(right)), right].log().mean()
        ),
        "The sign is wrong: the logarithm of a probability is negative, a loss is not.": (
            loss_by(sign=1)
        ),
        "The softmax runs over the positions: each position's probabilities add up to 1, those "
        "of a row.": loss_by(dim=0),
        "This is the sum over the positions; divide it by their number.": loss_by(summed=True),
        "This is the probability of the right tokens: the loss is minus its logarithm.": (
            loss_by(sign=1, log=False)
        ),
        "This is the mean of minus the logits. What all other tokens score counts too: ln of the "
        "sum of e^z.": lambda logits, right: -logits[torch.arange(len(right)), right].mean(),
    },
    hints=(
        "The probability of the right token is e^z_right divided by the sum of all e^z.",
        "Its logarithm is a difference: z_right less the logarithm of a sum (torch.logsumexp).",
        "The formula of p_j is in The way back: scores for every token.",
    ),
)


def vectors_of_all(mine: Any, embedding: TokenEmbedding, extra: int) -> Any:
    """What a larger embedding gives for all tokens, old and new, and its table for the scores."""
    size = embedding.weight.size(0) + extra
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        larger = mine(embedding, extra)
    if larger is None or larger is ...:
        return None
    if not isinstance(larger, TokenEmbedding):
        raise Difference(f"gives {brief(larger)}, expected a TokenEmbedding.")
    if len(larger.weight) != size:
        raise Difference(f"has {len(larger.weight)} rows, expected {size}.")
    if not larger.weight.requires_grad:
        raise Difference("has a table that cannot learn: its requires_grad is False.")
    return larger(torch.arange(size)), larger.weight


def example(vocab_size: int, width: int, scale: float | None) -> TokenEmbedding:
    """An embedding with the same rows at each call."""
    embedding = TokenEmbedding(vocab_size, width, scale=scale)
    (rows,) = random_tensors((vocab_size, width))
    embedding.weight.data.copy_(rows)
    return embedding


def grown_by(
    new_rows: Callable[[Tensor], Tensor | None], *, in_front: bool = False, keep_scale: bool = True
) -> Callable[[TokenEmbedding, int], TokenEmbedding]:
    """What grows an embedding by rows that are computed from the old; None leaves the start."""

    def grow(embedding: TokenEmbedding, extra: int) -> TokenEmbedding:
        weight = embedding.weight.detach()
        scale = embedding.scale if keep_scale else None
        larger = TokenEmbedding(len(weight) + extra, weight.size(1), scale=scale)
        rows = new_rows(weight)
        old = slice(extra, None) if in_front else slice(len(weight))
        if rows is not None:
            larger.weight.data[:] = rows
        larger.weight.data[old] = weight
        return larger

    return grow


three_new_tokens = Exercise(
    function="grow",
    arguments=lambda: [
        (example(2, 4, None), 1),
        (example(7, 4, None), 3),
        (example(5, 3, 1.0), 2),
        (example(4, 6, None), 0),
    ],
    use=vectors_of_all,
    compared="The results are the vectors that the new embedding gives for all ids, and its table.",
    right=lambda embedding, extra: tuple(
        scale * torch.cat([embedding.weight, *[embedding.weight.mean(0, keepdim=True)] * extra])
        for scale in (embedding.scale, 1)
    ),
    mistakes={
        "The new rows keep their random start. Set them to the mean of the old rows.": (
            grown_by(lambda weight: None)
        ),
        "The new rows are 0: then their logits are always 0, which may be the largest.": (
            grown_by(lambda weight: torch.zeros(weight.size(1)))
        ),
        "The new rows come first, so that old ids read other rows. Add them at the end.": (
            grown_by(lambda weight: weight.mean(0), in_front=True)
        ),
        "The scale is lost: the old embedding had scale=1, the new one has the root of d_model.": (
            grown_by(lambda weight: weight.mean(0), keep_scale=False)
        ),
        "The new rows are the sum of the old ones: take the mean.": (
            grown_by(lambda weight: weight.sum(0))
        ),
        "The new rows repeat the last old one, so that both have the same logit.": (
            grown_by(lambda weight: weight[-1])
        ),
    },
    hints=(
        "Make a new TokenEmbedding, and copy the old rows to where their ids look.",
        "The mean over the rows is one row, repeated extra times; write under torch.no_grad().",
        "What the module holds besides its weight: The module that the package keeps.",
    ),
)


def output_and_gradient(mine: Any, ids: Tensor, weight: Tensor, arriving: Tensor) -> Any:
    """What a lookup gives, and the gradient that it passes on to the table."""
    weight.requires_grad_()
    output = mine.apply(ids, weight)
    if output is None:
        return None
    output.backward(arriving)
    return output, weight.grad


def lookup_with(add: Callable[[Tensor, Tensor, Tensor], Any]) -> type:
    """A lookup whose backward adds the arriving rows in this way."""

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(ids, weight)
            return weight[ids]

        @staticmethod
        def backward(ctx: Any, arriving: Tensor) -> tuple[None, Tensor]:
            ids, weight = ctx.saved_tensors
            gradient = torch.zeros_like(weight)
            add(gradient, ids.flatten(), arriving.flatten(0, -2))
            return None, gradient

    return Lookup


def add_once(gradient: Tensor, ids: Tensor, arriving: Tensor) -> None:
    for index, row in zip(ids, arriving, strict=True):
        gradient[index] = row


def add_means(gradient: Tensor, ids: Tensor, arriving: Tensor) -> None:
    often = ids.bincount(minlength=len(gradient)).clamp(1)[:, None]
    gradient.index_add_(0, ids, arriving).div_(often)


backward_by_hand = Exercise(
    function="Lookup",
    arguments=lambda: [
        (torch.tensor([0]), *random_tensors((2, 3), (1, 3))),
        (torch.tensor([1, 0, 1]), *random_tensors((2, 3), (3, 3))),
        (torch.tensor([[2, 4, 0, 2], [6, 2, 1, 1]]), *random_tensors((7, 3), (2, 4, 3))),
    ],
    use=output_and_gradient,
    compared="The results are Lookup.apply(ids, weight) and, after its backward, weight.grad.",
    right=lambda ids, weight, arriving: (
        weight[ids],
        F.one_hot(ids, len(weight)).float().flatten(0, -2).T @ arriving.flatten(0, -2),
    ),
    mistakes={
        "Of a token that occurs twice only one arriving row has stayed. += on rows that are chosen "
        "by a tensor of ids does not add twice: the rows have to be added up.": lookup_with(
            add_once
        ),
        "The arriving rows of one token are averaged; its gradient is their sum.": (
            lookup_with(add_means)
        ),
        "The rows of all tokens get a gradient; only those that were read may.": (
            lookup_with(lambda gradient, ids, arriving: gradient.add_(arriving.sum(0)))
        ),
        "The gradient is 0 everywhere: are the arriving rows added to a copy?": (
            lookup_with(lambda gradient, ids, arriving: None)
        ),
        "The sign is wrong: the optimiser subtracts the gradient, not backward.": (
            lookup_with(lambda gradient, ids, arriving: gradient.index_add_(0, ids, -arriving))
        ),
    },
    hints=(
        "forward needs ids (ctx.save_for_backward) and the table's shape for backward.",
        "The gradient has the table's shape. index_add_ wants ids in one axis and a row for each; "
        "backward returns one result for each argument of forward.",
        "The rule is in the section The gradient: only rows that were read learn.",
    ),
)
