"""The exercises of chapter 11, BERT."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.models.bert import BERT, BERTConfig, BERTForMaskedLM


@cache
def counted(num_layers: int, d: int, f: int, vocab_size: int, max_len: int) -> int:
    """The parameters of a model that is built."""
    sizes: dict[str, Any] = {"num_layers": num_layers, "d_model": d, "d_ff": f, "num_heads": 1}
    config = BERTConfig(vocab_size=vocab_size, max_len=max_len, **sizes)
    return sum(parameter.numel() for parameter in BERT(config).parameters())


def without(missing: Callable[[int, int, int], int]) -> Callable[..., int]:
    """The count less some, which depend on layers and widths."""
    return lambda num_layers, d, f, *sizes: (
        counted(num_layers, d, f, *sizes) - missing(num_layers, d, f)
    )


parameters = Exercise(
    function="count_parameters",
    arguments=lambda: [(1, 1, 1, 5, 1), (1, 2, 5, 7, 3), (2, 4, 6, 11, 9), (3, 6, 20, 50, 8)],
    right=lambda num_layers, d, f, vocab_size, max_len: counted(
        num_layers, d, f, vocab_size, max_len
    ),
    mistakes={
        "These are the matrices without biases: a bias has a number for each output.": without(
            lambda num_layers, d, f: num_layers * (5 * d + f) - d
        ),
        "A norm has two numbers for each of its d={d} features, a scale and a shift.": without(
            lambda num_layers, d, f: d * (2 * num_layers + 1)
        ),
        "A layer has two norms, one for each of its sub-layers.": without(
            lambda num_layers, d, f: 2 * d * num_layers
        ),
        "Two rows of d={d} are missing: the segment table's, or the norm's on the sum?": without(
            lambda num_layers, d, f: 2 * d
        ),
        "The pooler is missing: a matrix from d={d} to d features, with a bias.": without(
            lambda num_layers, d, f: d * d - d
        ),
        "An attention has four matrices: queries, keys, values and output.": without(
            lambda num_layers, d, f: num_layers * (d * d + d)
        ),
    },
    hints=(
        "Three groups: the tables with their norm, the layers, the pooler.",
        "A layer: four matrices d by d, one d by f, one f by d, six biases, two norms.",
        "All parts are in the section The model: three tables, an encoder, two heads.",
    ),
)


def attend(key: Tensor, numbers: Tensor) -> Tensor:
    """Weights of five queries without biases, with a number for each key added to its products."""
    (query,) = random_tensors((5, key.size(-1)))
    return ((query @ key.mT + torch.as_tensor(numbers)) / key.size(-1) ** 0.5).softmax(-1)


def with_biases(key: Tensor, b_q: Tensor, b_k: Tensor) -> Tensor:
    (query,) = random_tensors((5, key.size(-1)))
    return ((query + b_q) @ (key + b_k).mT / key.size(-1) ** 0.5).softmax(-1)


idle_bias = Exercise(
    function="numbers_of_keys",
    arguments=lambda: [
        random_tensors((2, 4), (4,), (4,)),
        random_tensors((1, 4), (4,), (4,)),
        random_tensors((7, 3), (3,), (3,)),
    ],
    use=lambda mine, key, b_q, b_k: (
        None if (numbers := mine(key, b_q, b_k)) is None else attend(key, numbers)
    ),
    right=with_biases,
    compared="Compared are the attention weights of five queries with your numbers.",
    mistakes={
        "These give the weights without any bias. One of the two biases does something.": (
            lambda key, b_q, b_k: torch.zeros(len(key))
        ),
        "The keys' bias does not meet the keys: it is added to them, and meets the query.": (
            lambda key, b_q, b_k: key @ b_k
        ),
        "Both biases meet the keys here. Multiply out (q + b_q) · (k + b_k): which terms have k?": (
            lambda key, b_q, b_k: key @ (b_q + b_k)
        ),
        "Divided by the root of the width twice: your numbers are added before that division.": (
            lambda key, b_q, b_k: key @ b_q / key.size(-1) ** 0.5
        ),
        "The sign is wrong.": lambda key, b_q, b_k: -key @ b_q,
    },
    hints=(
        "Multiply out (q + b_q) · (k + b_k) into four products.",
        "A term without k is the same for all keys, and the softmax of a row does not see it.",
        "A layer's attention is described in An encoder sees everything, and pays for it.",
    ),
)


def share(n: int, layers: int, *, own: int = 0, among: int = 1) -> float:
    """One entry of the layers' product, where each takes a mean of others."""
    one = (1 - torch.eye(n, dtype=torch.float64) * (1 - own)) / (n - among)
    return torch.linalg.matrix_power(one, layers)[0, 0].item()


not_hidden = Exercise(
    function="own_share",
    arguments=lambda: [(2, 0), (2, 1), (2, 2), (3, 2), (6, 2), (6, 3), (9, 5)],
    right=lambda n, layers: share(n, layers),
    mistakes={
        "The mask hides a token from itself in one layer only: the others carry it on.": (
            lambda n, layers: 0.0 if layers else 1.0
        ),
        "Here a position sees itself too: the mean is of the {n} - 1 others.": (
            lambda n, layers: share(n, layers, own=1, among=0)
        ),
        "Divided by all {n} positions: the mean is of {n} - 1.": (
            lambda n, layers: share(n, layers, among=0)
        ),
        "One layer too many: after none, a vector is its own token.": (
            lambda n, layers: share(n, layers + 1)
        ),
        "One layer too few.": lambda n, layers: share(n, max(layers - 1, 0)),
    },
    hints=(
        "Write one layer as a matrix: row i says what share of each position's vector i takes.",
        "Zeros on the diagonal, 1 / (n - 1) elsewhere. Two layers are this matrix twice.",
        "Why it matters: the first point in An encoder sees everything, and pays for it.",
    ),
)


def padded(*lengths: int, width: int) -> tuple[Tensor, Tensor]:
    """Vectors and ids of texts of these lengths; there are numbers at padding, too."""
    (hidden,) = random_tensors((len(lengths), max(lengths), width))
    ids = torch.arange(1, max(lengths) + 1).repeat(len(lengths), 1)
    return hidden, ids * (ids <= torch.tensor(lengths)[:, None])


def one_by_one(hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    rows = [vectors[row != 0].mean(dim=0) for vectors, row in zip(hidden, ids, strict=True)]
    return torch.stack([vectors[0] for vectors in hidden]), torch.stack(rows)


class_or_mean = Exercise(
    function="text_vectors",
    arguments=lambda: [
        padded(1, width=3),
        padded(4, width=3),
        padded(5, 2, width=4),
        padded(3, 7, 4, width=2),
    ],
    right=one_by_one,
    mistakes={
        "The mean takes padding in: only positions whose id is not 0 count.": (
            lambda hidden, ids: (hidden[:, 0], hidden.mean(dim=1))
        ),
        "Padding is left out of the sum, but the division is by all positions.": (
            lambda hidden, ids: (hidden[:, 0], (hidden * (ids != 0)[..., None]).mean(dim=1))
        ),
        "The class token comes first, not last.": (
            lambda hidden, ids: (hidden[:, -1], one_by_one(hidden, ids)[1])
        ),
        "The two are exchanged: first the class token's vectors, then the means.": (
            lambda hidden, ids: one_by_one(hidden, ids)[::-1]
        ),
        "This mean leaves the class token out: it is a real token, too.": (
            lambda hidden, ids: (
                hidden[:, 0],
                (hidden * (ids > 1)[..., None]).sum(1) / (ids > 1).sum(1).clamp(min=1)[:, None],
            )
        ),
    },
    hints=(
        "The class token is the first of each text. For the mean, which positions are real?",
        "Zero the vectors at padding, sum over positions, divide by the number of real ones.",
        "The same mean is taken in What is pre-training worth? Two tasks with labels.",
    ),
)


@cache
def tiny_model() -> BERTForMaskedLM:
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 4, "num_heads": 1, "num_layers": 1, "d_ff": 4, "max_len": 9}
    model = BERTForMaskedLM(BERTConfig(vocab_size=12, dropout=0.0, **sizes))
    torch.set_rng_state(torch_state)
    return model


def reached(ids: Tensor, targets: Tensor, max_len: int) -> Tensor:
    """The rows of a real model's position table that have a gradient."""
    model = tiny_model()
    model.zero_grad()
    model.loss(ids, targets).backward()
    table = model.positions.weight.grad
    assert table is not None
    return F.pad(table.abs().sum(dim=1) > 0, (0, max_len))[:max_len]


def texts(*rows: str) -> tuple[Tensor, Tensor]:
    """Ids and targets: a letter is a token, ? a mask token that is asked for, . is padding."""
    ids = torch.tensor([[0 if c == "." else 4 if c == "?" else 5 + "abcd".index(c) for c in row]
                        for row in rows])  # fmt: skip
    return ids, torch.where(ids == 4, 7, 0)


never_learn = Exercise(
    function="rows_that_learn",
    arguments=lambda: [
        (*texts("?"), 1),
        (*texts("a?"), 3),
        (*texts("ab?d.."), 7),
        (*texts("a?.....", "b?cda.."), 8),
        (*texts("ab?....", "abcdab."), 9),
    ],
    right=reached,
    mistakes={
        "These are the rows asked for. Each real token has a part in the answers of others.": (
            lambda ids, targets, max_len: F.pad(
                (targets != 0).any(dim=0), (0, max_len - ids.size(1))
            )
        ),
        "Padding has no part in an answer: no position attends to it.": (
            lambda ids, targets, max_len: torch.arange(max_len) < ids.size(1)
        ),
        "A text in which nothing is asked for has no loss, and so no gradient.": (
            lambda ids, targets, max_len: F.pad((ids != 0).any(dim=0), (0, max_len - ids.size(1)))
        ),
        "Rows behind the longest text take part in nothing here.": (
            lambda ids, targets, max_len: torch.ones(max_len, dtype=torch.bool)
        ),
        "True and False are exchanged: True means that a row has a gradient.": (
            lambda ids, targets, max_len: ~reached(ids, targets, max_len)
        ),
        "As far as the first text goes: the table serves all texts of the batch.": (
            lambda ids, targets, max_len: F.pad(ids[0] != 0, (0, max_len - ids.size(1)))
        ),
    },
    hints=(
        "Which position vectors take part in an answer that is asked for?",
        "All real tokens of a text in which something is asked for; and one such text is enough.",
        "The loss is defined in The questions: 15 %, of which 80, 10 and 10; the four laws follow "
        "the model.",
    ),
)
