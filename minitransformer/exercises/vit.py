"""The exercises of chapter 14, ViT."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference
from minitransformer.layers import attention_weights
from minitransformer.models import PatchEmbedding


@cache
def counted_by_class(size: int, side: int, channels: int, d: int) -> tuple[int, int]:
    with torch.device("meta"):
        embed = PatchEmbedding(size, side, channels, d)
    return embed.positions.size(1), sum(parameter.numel() for parameter in embed.parameters())


def counted(
    *,
    class_token: int = 1,
    bias: int = 1,
    axes: int = 2,
    axes_of_patch: int = 2,
    grey: bool = False,
) -> Callable[..., tuple[int, int]]:
    """Tokens and parameters with some parts left out."""

    def count(size: int, side: int, channels: int, d: int) -> tuple[int, int]:
        tokens = (size // side) ** axes + class_token
        matrix = (1 if grey else channels) * side**axes_of_patch * d + bias * d
        return tokens, matrix + class_token * d + tokens * d

    return count


count = Exercise(
    function="embedding_size",
    arguments=lambda: [
        (2, 2, 1, 3),
        (3, 1, 2, 4),
        (6, 2, 3, 5),
        (224, 16, 3, 768),
        (384, 16, 3, 768),
    ],
    right=counted_by_class,
    mistakes={
        "The class token is a token too: it is counted, has a vector, and a position.": (
            counted(class_token=0)
        ),
        "d={d} numbers are missing: the bias of the matrix, or the position of the class token.": (
            counted(bias=0)
        ),
        "A pixel has channels={channels} numbers, so a patch has {channels} times as many.": (
            counted(grey=True)
        ),
        "A picture has two axes: size / side patches along each.": counted(axes=1),
        "A patch has two axes: side={side} pixels along each.": counted(axes_of_patch=1),
    },
    hints=(
        "How many patches are in a row, and how many rows are there?",
        "Parameters: the matrix, (channels · side², d), its bias, the class token, and a position "
        "for each token.",
        "The parts are in The model: a class token, positions, and chapter 8.",
    ),
)


def folded(patches: Tensor, rows: int, high: int, wide: int) -> Tensor:
    columns = patches.size(1) // rows
    size = (rows * high, columns * wide)
    return F.fold(patches.mT, size, (high, wide), stride=(high, wide))


def unpatched(split: Callable[..., tuple[int, ...]], *order: int) -> Callable[..., Tensor]:
    """What splits (patches, numbers) by `split`, (b, five axes), and puts the axes in an order."""

    def join(patches: Tensor, rows: int, high: int, wide: int) -> Tensor:
        b, n, numbers = patches.shape
        channels, columns = numbers // (high * wide), n // rows
        whole = patches.reshape(b, *split(rows, columns, channels, high, wide)).permute(order)
        return whole.reshape(b, channels, rows * high, columns * wide)

    return join


def plain(rows: int, columns: int, channels: int, high: int, wide: int) -> tuple[int, ...]:
    return rows, columns, channels, high, wide


def of_pictures(b: int, c: int, rows: int, columns: int, high: int, wide: int) -> tuple[Any, ...]:
    return *random_tensors((b, rows * columns, c * high * wide)), rows, high, wide


there_and_back = Exercise(
    function="pictures_of",
    arguments=lambda: [
        of_pictures(1, 1, 1, 1, 1, 2),
        of_pictures(1, 1, 2, 3, 1, 2),
        of_pictures(1, 3, 1, 2, 3, 2),
        of_pictures(2, 3, 2, 4, 3, 2),
        of_pictures(2, 1, 3, 1, 2, 4),
    ],
    right=folded,
    mistakes={
        "A view alone does not do it: it puts the numbers of a patch one after the other along "
        "a row of pixels.": unpatched(plain, 0, 1, 2, 3, 4, 5),
        "Patches are counted row by row; here they are column by column.": (
            unpatched(
                lambda rows, columns, channels, high, wide: (columns, rows, channels, high, wide),
                *(0, 3, 2, 4, 1, 5),
            )
        ),
        "In a patch the channels come first: (c high wide), not (high wide c).": (
            unpatched(
                lambda rows, columns, channels, high, wide: (rows, columns, high, wide, channels),
                *(0, 5, 1, 3, 2, 4),
            )
        ),
        "A row of patches has pixels of each patch side by side: column before high is wrong in "
        "(row high).": unpatched(plain, 0, 3, 1, 2, 4, 5),
        "In a patch pixels are read row by row; here they are column by column.": (
            unpatched(
                lambda rows, columns, channels, high, wide: (rows, columns, channels, wide, high),
                *(0, 3, 1, 5, 2, 4),
            )
        ),
        "The order of the axes is (row high) and (column wide): high and row are exchanged.": (
            unpatched(plain, 0, 3, 4, 1, 2, 5)
        ),
    },
    hints=(
        "rearrange can split both axes and join them in another way; read PATTERN from right to "
        "left.",
        "Split patches into (row column) and numbers into (c high wide); join (row high) and "
        "(column wide). rearrange must be told row, high and wide.",
        "PATTERN is in the section Patches times a matrix, three ways.",
    ),
)


def sums(of_rows: Tensor, of_columns: Tensor) -> Tensor:
    return torch.stack([row + column for row in of_rows for column in of_columns])


two_tables = Exercise(
    function="one_list",
    arguments=lambda: [
        random_tensors((1, 2), (1, 2)),
        random_tensors((2, 3), (1, 3)),
        random_tensors((2, 3), (4, 3)),
        random_tensors((4, 6), (4, 6)),
    ],
    right=sums,
    mistakes={
        "This list goes column by column; patches are counted row by row.": (
            lambda of_rows, of_columns: (of_columns[:, None] + of_rows).flatten(0, 1)
        ),
        "Rows and columns are still two axes: the list has one.": (
            lambda of_rows, of_columns: of_rows[:, None] + of_columns
        ),
        "A patch gets the sum of its two vectors, not the product.": (
            lambda of_rows, of_columns: (of_rows[:, None] * of_columns).flatten(0, 1)
        ),
        "A patch gets the sum of its two vectors, not the mean.": (
            lambda of_rows, of_columns: sums(of_rows, of_columns) / 2
        ),
        "Only the row's vector is in it: the columns' are missing.": (
            lambda of_rows, of_columns: sums(of_rows, 0 * of_columns)
        ),
        "The vectors are set side by side; the sum has width d.": (
            lambda of_rows, of_columns: torch.stack(
                [torch.cat([row, column]) for row in of_rows for column in of_columns]
            )
        ),
        "Each row meets one column here; it needs all columns.": (
            lambda of_rows, of_columns: of_rows + of_columns[: len(of_rows)]
        ),
    },
    hints=(
        "Patch 5 of 4 × 4 has row 1 and column 1. Which two vectors does patch 6 get?",
        "First a grid, (rows, columns, d), by broadcasting; then make its first two axes one.",
        "How patches are counted is in By hand: a digit in sixteen vectors.",
    ),
)


def products(size: int, side: int, d: int, f: int, layers: int) -> tuple[int, int, int]:
    """The multiplications of matrix products, each as (rows, inner, columns)."""
    cut = (size // side) ** 2
    n = cut + 1
    patches = [(cut, side * side, d)]
    matrices = [*[(n, d, d)] * 4, (n, d, f), (n, f, d)] * layers
    attention = [(n, d, n), (n, n, d)] * layers
    first, second, third = (
        sum(rows * inner * columns for rows, inner, columns in group)
        for group in (patches, matrices, attention)
    )
    return first, second, third


def costs(
    *, class_token: int = 1, squares: int = 4, wide: int = 2, mixed: int = 2, once: bool = False
) -> Callable[..., tuple[int, int, int]]:
    """The three numbers with one part as often as told."""

    def cost(size: int, side: int, d: int, f: int, layers: int) -> tuple[int, int, int]:
        layers = 1 if once else layers
        n = class_token + (size // side) ** 2
        matrices = layers * n * (squares * d * d + wide * d * f)
        return size**2 * d, matrices, mixed * layers * n * n * d

    return cost


def class_token_cut(size: int, side: int, d: int, f: int, layers: int) -> tuple[int, int, int]:
    _, matrices, attention = products(size, side, d, f, layers)
    return (1 + (size // side) ** 2) * side**2 * d, matrices, attention


what_a_patch_costs = Exercise(
    function="multiplications",
    arguments=lambda: [
        (2, 2, 3, 5, 1),
        (6, 2, 4, 7, 3),
        (8, 4, 48, 96, 2),
        (8, 2, 48, 96, 2),
        (8, 1, 48, 96, 2),
    ],
    right=products,
    mistakes={
        "The encoder reads one token more than there are patches: the class token.": (
            costs(class_token=0)
        ),
        "The class token is not cut from the picture: the patches' matrix never sees it.": (
            class_token_cut
        ),
        "Attention has four matrices of d × d, one of them for the output.": costs(squares=3),
        "The feed-forward network has two matrices, (d, f) and (f, d).": costs(wide=1),
        "Scores and weighted sums cost n² d each; here only one of them is counted.": (
            costs(mixed=1)
        ),
        "This is for one layer, and there are layers={layers}.": costs(once=True),
        "Scores are for all pairs of tokens: n², not n.": lambda size, side, d, f, layers: (
            *products(size, side, d, f, layers)[:2],
            2 * layers * (1 + (size // side) ** 2) * d,
        ),
    },
    hints=(
        "A product of (n, a) and (a, b) costs n · a · b multiplications.",
        "With n tokens, the class token included, a layer has four matrices (d, d) and two of "
        "d · f; scores and weighted sums cost n² d each, however many heads there are.",
        "The shapes are in The model: a class token, positions, and chapter 8.",
    ),
)


def step(rows: int, columns: int, down: int = 0, right: int = -1) -> Tensor:
    """Where each patch looks: one place further, or at itself where the grid ends."""
    weights = torch.zeros(rows * columns, rows * columns)
    for row in range(rows):
        for column in range(columns):
            inside = 0 <= row + down < rows and 0 <= column + right < columns
            target = (row + down) * columns + column + right
            weights[row * columns + column, target if inside else row * columns + column] = 1.0
    return weights


def weights_of(mine: Any, rows: int, columns: int) -> Any:
    """The attention weights that positions and two matrices give."""
    answer = mine(rows, columns)
    if answer is None or answer is ...:
        return None
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        raise Difference("has to give three: positions, W^Q and W^K.")
    positions, w_q, w_k = (torch.as_tensor(part).detach().float() for part in answer)
    return attention_weights(positions @ w_q, positions @ w_k)


def head_by(
    move: Callable[[int, int], Tensor], factor: float = 100.0
) -> Callable[[int, int], tuple[Tensor, Tensor, Tensor]]:
    """One-hot positions, queries moved in some way and multiplied by a factor."""

    def head(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.eye(rows * columns)
        return places, factor * move(rows, columns), places

    return head


def wrapped(rows: int, columns: int) -> Tensor:
    return torch.eye(rows * columns).roll(-1, 1)


a_head_that_is_a_convolution = Exercise(
    function="left_head",
    arguments=lambda: [(1, 1), (1, 2), (2, 3), (3, 2), (4, 4)],
    use=weights_of,
    compared="The results are the attention weights that your positions and matrices give.",
    right=step,
    tolerance=1e-2,
    mistakes={
        "The neighbours are those on the right. Are rows and columns of W exchanged, or does W^K "
        "move where W^Q should?": head_by(lambda rows, columns: step(rows, columns, right=1)),
        "In the first column a patch has no left neighbour, and takes itself. Here it takes the "
        "last of the row before.": head_by(wrapped),
        "The right scores are largest, but the softmax is still soft: multiply them by a large "
        "number.": head_by(step, 1.0),
        "These are the neighbours above: places of a row follow one another in the list.": (
            head_by(lambda rows, columns: step(rows, columns, -1, 0))
        ),
        "Each patch takes itself: nothing moves.": (
            head_by(lambda rows, columns: torch.eye(rows * columns))
        ),
        "The weights of all patches are equal: do the scores depend on the places?": (
            head_by(lambda rows, columns: torch.zeros(rows * columns, rows * columns))
        ),
    },
    hints=(
        "With one-hot positions, a matrix has a row for each place: what W^Q gives for place p is "
        "its row p.",
        "Let W^K be the identity, and let row p of W^Q be one-hot at the place p should look at, "
        "times 100.",
        "One-hot rows as a lookup are in chapter 2; that places need positions is shown in The "
        "model: a class token, positions, and chapter 8.",
    ),
)
