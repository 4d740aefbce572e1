"""The exercises of chapter 5, multi-head attention."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference


def parts_of_heads(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
    """What each head adds to the output for some fixed rows; matrices as `nn.Linear` keeps them."""
    (x,) = random_tensors((3, w_q.size(1)))
    queries, keys, values = (
        F.linear(x, w).unflatten(-1, (num_heads, -1)).transpose(0, 1) for w in (w_q, w_k, w_v)
    )  # (h, n, e)
    heads = F.scaled_dot_product_attention(queries, keys, values)
    return torch.einsum("hne,dhe->hnd", heads, w_o.unflatten(-1, (num_heads, -1)))


def parts_with_new_matrices(mine: Callable[..., Any], *arguments: Any) -> Any:
    """The same with the matrices that the reader's function gives."""
    found = mine(*arguments)
    if found is None or found is ...:
        return None
    if isinstance(found, Tensor) and found.dim() == 3:
        found = list(found)
    if not isinstance(found, tuple | list) or len(found) != 4:
        raise Difference("does not give four matrices.")
    matrices = [torch.as_tensor(matrix) for matrix in found]
    for matrix, given in zip(matrices, arguments, strict=False):
        if matrix.shape != given.shape:
            raise Difference(
                f"gives a matrix {tuple(matrix.shape)}, expected {tuple(given.shape)}."
            )
    w_q, w_k, w_v, w_o = matrices
    return parts_of_heads(w_q, w_k, w_v, w_o, arguments[-1])


def reversed_blocks(matrix: Tensor, num_heads: int, axis: int) -> Tensor:
    return torch.cat(matrix.chunk(num_heads, dim=axis)[::-1], dim=axis)


def reversed_heads(
    w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, h: int, *, axes: tuple[Any, ...]
) -> list[Tensor]:
    """Each matrix with its heads reversed along the given axis, or as it is."""
    matrices = zip((w_q, w_k, w_v, w_o), axes, strict=True)
    return [w if axis is None else reversed_blocks(w, h, axis) for w, axis in matrices]


order_of_heads = Exercise(
    function="reverse_heads",
    arguments=lambda: [
        (*random_tensors((4, 4), (4, 4), (4, 4), (4, 4)), 2),
        (*random_tensors((3, 3), (3, 3), (3, 3), (3, 3)), 1),
        (*random_tensors((12, 12), (12, 12), (12, 12), (12, 12)), 3),
    ],
    use=parts_with_new_matrices,
    compared="Compared is what each head adds to the output of a layer with your matrices.",
    right=lambda w_q, w_k, w_v, w_o, num_heads: parts_of_heads(w_q, w_k, w_v, w_o, num_heads).flip(
        0
    ),
    mistakes={
        "The matrices are as they were, and so is the order of the heads.": (
            lambda *given: reversed_heads(*given, axes=(None, None, None, None))
        ),
        "W^O is as it was: each head's result now meets the part that belongs to another head.": (
            lambda *given: reversed_heads(*given, axes=(0, 0, 0, None))
        ),
        "In W^O the heads are along the other axis: nn.Linear keeps it transposed, (d, h e).": (
            lambda *given: reversed_heads(*given, axes=(0, 0, 0, 0))
        ),
        "Columns of the first three matrices are reversed: these belong to the input's numbers. "
        "nn.Linear keeps (h e, d), so heads are rows.": (
            lambda *given: reversed_heads(*given, axes=(1, 1, 1, 1))
        ),
        "The values keep their order: then a head's weights meet another head's values.": (
            lambda *given: reversed_heads(*given, axes=(0, 0, None, 1))
        ),
        "Only queries and keys are reversed; values and W^O belong to the heads too.": (
            lambda *given: reversed_heads(*given, axes=(0, 0, None, None))
        ),
    },
    hints=(
        "Which rows of W^Q, as nn.Linear keeps it, make the queries of head 0?",
        "Heads are blocks of d / h rows in three matrices, and blocks of columns in W^O.",
        "What belongs to a head in W^O: Concatenate and multiply = each head adds its own part.",
    ),
)


def positions(
    gib: float, kv_heads: int, *, kinds: int = 2, layers: int = 32, bytes_: float = 2, k: int = 1024
) -> float:
    """Counted by adding positions, in steps that become smaller, until none fits."""
    left, count = gib * k**3, 0.0
    step = 2.0**30
    while step >= 1:
        size = step * kinds * layers * kv_heads * 128 * bytes_
        if size <= left:
            left, count = left - size, count + step
        else:
            step /= 2
    return count


what_fits = Exercise(
    function="positions_that_fit",
    arguments=lambda: [(10, 32), (10, 8), (10, 1), (1, 6), (0, 2)],
    right=lambda gib, kv_heads: positions(gib, kv_heads),
    tolerance=1e-9,
    mistakes={
        "Twice as many as fit: keys and values are both kept, and a number has two bytes.": (
            lambda gib, kv_heads: positions(gib, kv_heads, kinds=1)
        ),
        "Four times as many as fit: keys and values are both kept, and a number has two bytes.": (
            lambda gib, kv_heads: positions(gib, kv_heads, kinds=1, bytes_=1)
        ),
        "This is for one layer; each of the 32 keeps its own.": (
            lambda gib, kv_heads: positions(gib, kv_heads, layers=1)
        ),
        "A GiB has 2 to the power of 30 bytes, not 10 to the power of 9.": (
            lambda gib, kv_heads: positions(gib, kv_heads, k=1000)
        ),
        "The number of heads of keys and values ({kv_heads}) has to count: the 32 query heads are "
        "not kept.": lambda gib, kv_heads: positions(gib, 32),
        "A position fits only as a whole: round down.": (
            lambda gib, kv_heads: gib * 2**30 / (2 * 32 * kv_heads * 128 * 2)
        ),
        "This is rounded up. A position fits only as a whole: round down.": (
            lambda gib, kv_heads: math.ceil(gib * 2**30 / (2 * 32 * kv_heads * 128 * 2))
        ),
    },
    hints=(
        "How many numbers does one position leave in the cache of one layer?",
        "Keys and values, for each layer, for each head, of width 128, 2 bytes each.",
        "The formula for the cache: Heads that share keys and values.",
    ),
)


def with_loops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    *,
    wrong: str = "",
) -> Tensor:
    """Head after head and sentence after sentence, with one thing done wrong."""
    output = torch.zeros(len(query), query.size(1), w_o.size(-1))
    e = w_q.size(-1)
    scale = {"no scale": 1.0, "scale d": w_q.size(1) ** -0.5}.get(wrong, e**-0.5)
    for sentence in range(len(query)):
        keys_from = query if wrong == "self" else key
        values_from = key if wrong == "values" else value
        for head in range(len(w_q)):
            q, k = query[sentence] @ w_q[head], keys_from[sentence] @ w_k[head]
            v = (query if wrong == "self" else values_from)[sentence] @ w_v[head]
            weights = (scale * q @ k.T).softmax(0 if wrong == "axis" else 1)
            output[sentence] += weights @ v @ w_o[head]
    return output / len(w_q) if wrong == "mean" else output


def heads_tensors(b: int, q: int, k: int, d: int, h: int, e: int) -> tuple[Tensor, ...]:
    return random_tensors((b, q, d), (b, k, d), (b, k, d), *[(h, d, e)] * 3, (h, e, d))


without_moving = Exercise(
    function="attention_with_einsum",
    arguments=lambda: [
        heads_tensors(1, 1, 1, 2, 1, 2),
        heads_tensors(1, 1, 2, 4, 1, 3),
        heads_tensors(2, 4, 7, 6, 3, 5),
    ],
    right=lambda query, key, value, w_q, w_k, w_v, w_o: with_loops(
        query, key, value, w_q, w_k, w_v, w_o
    ),
    mistakes={
        "Without the scale: scores are divided by the root of the width of a head.": (
            lambda *given: with_loops(*given, wrong="no scale")
        ),
        "The scores are divided by the root of d; here it is the width of a head, e.": (
            lambda *given: with_loops(*given, wrong="scale d")
        ),
        "The softmax runs over the queries: each query's weights add up to 1 over the keys.": (
            lambda *given: with_loops(*given, wrong="axis")
        ),
        "The heads' parts are added, not averaged.": (
            lambda *given: with_loops(*given, wrong="mean")
        ),
        "The values are made from key here; key and value may differ.": (
            lambda *given: with_loops(*given, wrong="values")
        ),
    },
    hints=(
        "Four steps: project, scores, weighted sum, output. Write each one's axes down first.",
        "An axis that is missing after the arrow is summed over: h, too, in the last step.",
        "The same with another notation: attention_with_einops in From a loop to one product.",
    ),
)


def horizon(n: int, num_heads: int, allowed: Callable[[int, int], bool]) -> Tensor:
    """A mask from a rule for the head and how far back the key is."""
    back = [[query - key for key in range(n)] for query in range(n)]
    return torch.tensor(
        [[[allowed(head, far) for far in row] for row in back] for head in range(num_heads)]
    )


def without_batch(mine: Callable[..., Any], n: int, num_heads: int) -> Any:
    """The mask that the reader's function gives, where it has a batch of 1 without that axis."""
    found = mine(n, num_heads)
    if isinstance(found, Tensor) and found.dim() == 4 and len(found) == 1:
        return found[0]
    return found


another_horizon = Exercise(
    function="horizon_mask",
    arguments=lambda: [(1, 1), (2, 1), (3, 2), (7, 3), (9, 4)],
    use=without_batch,
    right=lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back <= 2**i),
    mistakes={
        "One key too few: a position sees itself and the 2^i positions before it.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back < 2**i)
        ),
        "Heads count from 0: the first one sees 1 position before itself, not 2.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back <= 2 ** (i + 1))
        ),
        "This is 2 times i, not 2 to the power of i.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back <= 2 * i)
        ),
        "This is i to the power of 2, not 2 to the power of i.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back <= i**2)
        ),
        "Keys after the query are seen too: the layer is to be causal.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: abs(back) <= 2**i)
        ),
        "Keys after the query are seen, however far they are: the layer is to be causal.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: back <= 2**i)
        ),
        "True and False are exchanged: True means may be attended.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: not 0 <= back <= 2**i)
        ),
        "Rows and columns are exchanged: queries are rows, keys columns.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= -back <= 2**i)
        ),
        "Every head has the same horizon here.": (
            lambda n, num_heads: horizon(n, num_heads, lambda i, back: 0 <= back <= 1)
        ),
    },
    hints=(
        "How far back is key k of query q? One table, (q, k), serves all heads.",
        "Give the reach of each head the shape (h, 1, 1), and compare it with the table.",
        "Which shapes a mask may have: All of it in one class.",
    ),
)


def through_one_head(w_v: Tensor, w_o: Tensor, num_heads: int) -> Tensor:
    """What becomes of unit vectors if only one head's values are let through, head by head."""
    d = len(w_v)
    of_head = torch.arange(d) // (d // num_heads) == torch.arange(num_heads)[:, None]  # (h, d)
    values = F.linear(torch.eye(d), w_v)
    return F.linear(values * of_head[:, None], w_o)  # (h, d, d)


two_in_one = Exercise(
    function="head_matrices",
    arguments=lambda: [
        (*random_tensors((2, 2), (2, 2)), 1),
        (*random_tensors((6, 6), (6, 6)), 2),
        (*random_tensors((6, 6), (6, 6)), 3),
        (*random_tensors((5, 5), (5, 5)), 5),
    ],
    right=through_one_head,
    mistakes={
        "These matrices act on columns, M x; here a token is a row, x M: transpose.": (
            lambda w_v, w_o, num_heads: through_one_head(w_v, w_o, num_heads).mT
        ),
        "nn.Linear keeps matrices transposed: a head's part of w_v are rows, of w_o columns.": (
            lambda w_v, w_o, num_heads: through_one_head(w_v.T, w_o.T, num_heads)
        ),
        "A head's part of w_o are columns, since nn.Linear keeps it transposed.": (
            lambda w_v, w_o, num_heads: through_one_head(w_v, w_o.T, num_heads)
        ),
        "A head's part of w_v are rows, since nn.Linear keeps it transposed.": (
            lambda w_v, w_o, num_heads: through_one_head(w_v.T, w_o, num_heads)
        ),
        "The order is wrong: values come first, the output second.": (
            lambda w_v, w_o, num_heads: (
                w_o.T.unflatten(1, (num_heads, -1)).transpose(0, 1)
                @ w_v.T.unflatten(0, (num_heads, -1))
            )
        ),
        "This is the product of the whole matrices: a head has d / h of the columns only.": (
            lambda w_v, w_o, num_heads: (w_v.T @ w_o.T).expand(num_heads, -1, -1)
        ),
    },
    hints=(
        "Which numbers of w_v and of w_o belong to head 0?",
        "Of w_v it is a block of rows, of w_o one of columns. As rows act, the first is (d, e).",
        "The blocks of W^O: Concatenate and multiply = each head adds its own part.",
    ),
)
