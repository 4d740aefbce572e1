"""The exercises of chapter 15, attention that costs less."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.efficient_attention import flash_attention_with_lse, merge_attention
from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference


def merged() -> float:
    parts = [(torch.tensor([[4.0]]), torch.tensor([2.0]).log())]
    parts += [(torch.tensor([[1.0]]), torch.tensor([6.0]).log())]
    return merge_attention(parts)[0].item()


merge = Exercise(
    function="my_output",
    arguments=lambda: [()],
    use=lambda mine: mine,
    right=merged,
    tolerance=5e-3,
    mistakes={
        "This is the plain mean. The second device has more weight.": lambda: 2.5,
        "The weights are exchanged: each sum belongs to its own output.": lambda: 3.25,
        "The two are added up; the division by the sum over all keys is still to come.": (
            lambda: 14.0
        ),
        "The two outputs are means already: weigh them, and do not add them.": lambda: 5.0,
        "The sums are the weights as they are; there is no exponential of them.": (
            lambda: (4 * math.exp(2) + math.exp(6)) / (math.exp(2) + math.exp(6))
        ),
        "The sums are the weights, not their logarithms.": (
            lambda: (4 * math.log(2) + math.log(6)) / math.log(12)
        ),
    },
    hints=(
        "Each device has divided by its own sum. What had it before that division?",
        "Weigh each output by its sum; divide by both sums together.",
        "The formula is in Merge attention from several devices.",
    ),
)


def fits(
    memory: float,
    heads: int,
    layers: int,
    width: int,
    *,
    weights: Callable[..., float] = lambda n, heads, layers, width: 2 * heads * n * n,
    cache: Callable[..., float] = lambda n, heads, layers, width: (
        2 * 2 * layers * heads * width * n
    ),
) -> tuple[float, ...]:
    """The lengths at which these sizes take the memory, found by halving an interval."""
    found = []
    for size in (weights, cache):
        low, high = 0.0, memory
        for _ in range(200):
            middle = (low + high) / 2
            small = size(middle, heads, layers, width) <= memory
            low, high = (middle, high) if small else (low, middle)
        found.append(low)
    return tuple(found)


where_it_hurts = Exercise(
    function="longest",
    arguments=lambda: [(1e9, 1, 1, 1), (8e10, 4, 2, 8), (8e10, 3, 5, 16), (8e10, 32, 32, 128)],
    right=fits,
    mistakes={
        "The cache holds keys and values: two vectors for each head.": partial(
            fits, cache=lambda n, heads, layers, width: 2 * layers * heads * width * n
        ),
        "Each number takes two bytes.": lambda memory, heads, layers, width: fits(
            2 * memory, heads, layers, width
        ),
        "The weights of one layer are asked for, the cache of all {layers}.": partial(
            fits, weights=lambda n, heads, layers, width: 2 * layers * heads * n * n
        ),
        "This is the cache of one layer; there are {layers}.": partial(
            fits, cache=lambda n, heads, layers, width: 4 * heads * width * n
        ),
        "Each of the {heads} heads has its weights and its cache.": (
            lambda memory, heads, layers, width: fits(memory, 1, layers, width)
        ),
        "The weights grow with the square of the length: take a root.": partial(
            fits, weights=lambda n, heads, layers, width: 2 * heads * n
        ),
        "Weights do not depend on the width of a head: one for each query and key.": partial(
            fits, weights=lambda n, heads, layers, width: 2 * heads * width * n * n
        ),
    },
    hints=(
        "How many numbers are the weights of n positions? How many does one position add to a "
        "cache?",
        "heads · n² weights; layers · heads · 2 · width numbers a position. Then the bytes.",
        "The square: What the square costs. The cache: A smaller cache.",
    ),
)


class Slope:
    """A bias: keys before the query lose by distance, those after it twice as much."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __repr__(self) -> str:
        return f"Slope({self.slope:g})"

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        back = torch.as_tensor(queries) - torch.as_tensor(keys)
        return self.slope * torch.where(back > 0, -back, 2 * back).float()


Bias = Callable[[Tensor, Tensor], Tensor]


def in_blocks(
    mine: Callable[..., object], query: Tensor, key: Tensor, value: Tensor, size: int, bias: Bias
) -> object:
    """The reader's output, if it asks for no more of the bias at once than a block's."""
    most = 0

    def counting(queries: Tensor, keys: Tensor) -> Tensor:
        nonlocal most
        found = bias(queries, keys)
        most = max(most, found.numel())
        return found

    output = mine(query, key, value, size, counting)
    if most > len(query) * size:
        raise Difference(
            f"makes {most} numbers of the bias at once; a block of {size} keys has "
            f"{len(query) * size}."
        )
    return output


def whole(bias: Bias, num_queries: int, num_keys: int) -> Tensor:
    """The whole bias, made key by key."""
    rows = torch.arange(num_queries)[:, None]
    return torch.cat([bias(rows, torch.tensor([[key]])) for key in range(num_keys)], dim=1)


def biased(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    size: int,
    bias: Bias,
    *,
    change: Callable[[Bias, Tensor, Tensor, int, int], Tensor] = lambda bias, q, k, e, size: bias(
        q, k
    ),
) -> Tensor:
    """All at once, with another bias perhaps: from positions, the width and the blocks' size."""
    matrix = whole(lambda q, k: change(bias, q, k, query.size(1), size), len(query), len(key))
    return F.scaled_dot_product_attention(query, key, value, matrix.float())


def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / math.sqrt(query.size(1))


def far_from_zero(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """A query with scores far above 0, then one with scores far below it, and so on."""
    key, value = random_tensors((keys, 4), (keys, 2))
    signs = 1.0 - 2 * (torch.arange(queries) % 2)
    return 2000 * signs[:, None].expand(-1, 4), key.abs(), value


bias_as_rule = Exercise(
    function="biased_attention",
    arguments=lambda: [
        (*random_tensors((1, 2), (1, 2), (1, 3)), 1, Slope(0.5)),
        (*random_tensors((4, 2), (3, 2), (3, 5)), 1, Slope(0.5)),
        (*random_tensors((5, 4), (7, 4), (7, 6)), 3, Slope(0.25)),
        (*random_tensors((5, 4), (6, 4), (6, 3)), 9, Slope(1.0)),
        (*far_from_zero(3, 7), 2, Slope(0.0)),
    ],
    use=in_blocks,
    right=biased,
    mistakes={
        "The bias is not in the output.": partial(
            biased, change=lambda bias, q, k, e, size: 0 * q * k
        ),
        "The bias is divided by the root of the width here; it is added after that.": partial(
            biased, change=lambda bias, q, k, e, size: bias(q, k) / math.sqrt(e)
        ),
        "In each block the positions of keys begin at 0 again: they go on from block to block.": (
            partial(biased, change=lambda bias, q, k, e, size: bias(q, k % size))
        ),
        "The bias is subtracted here.": partial(
            biased, change=lambda bias, q, k, e, size: -bias(q, k)
        ),
        "Positions are exchanged: bias(queries, keys).": partial(
            biased, change=lambda bias, q, k, e, size: bias(k, q)
        ),
        "The bias multiplies the scores here; it is added.": (
            lambda query, key, value, size, bias: (
                (scores(query, key) * whole(bias, len(query), len(key))).softmax(1) @ value
            )
        ),
        "Large scores overflow: the largest so far has to be subtracted in exponents.": (
            lambda query, key, value, size, bias: (
                (exps := (scores(query, key) + whole(bias, len(query), len(key))).exp())
                @ value
                / exps.sum(1, keepdim=True)
            )
        ),
    },
    hints=(
        "Only the scores of a block change. Which positions have its keys?",
        "Keys start to start + size - 1: rows (q, 1) and columns (1, size) give a block's bias.",
        "The function to extend is in The picture, the formula.",
    ),
)


def idle_steps(devices: int) -> int:
    """Steps at which a device gets keys that all lie after its queries."""
    return sum(theirs > own for own in range(devices) for theirs in range(devices))


def on_ring(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    devices: int,
    *,
    rounds: int | None = None,
    allowed: Callable[[Tensor, Tensor], Tensor] = lambda own, theirs: own >= theirs,
    join: Callable[[Sequence[tuple[Tensor, Tensor]]], Tensor] = lambda parts: merge_attention(
        parts
    )[0],
) -> tuple[Tensor, int]:
    """The simulation with one thing done otherwise."""
    places, found = torch.arange(len(query)).chunk(devices), []
    for device, own in enumerate(places):
        parts = []
        for step in range(devices if rounds is None else rounds):
            theirs = places[(device - step) % devices]
            mask = allowed(own[:, None], theirs[None])
            parts.append(flash_attention_with_lse(query[own], key[theirs], value[theirs], mask))
        found.append(join(parts))
    return torch.cat(found), idle_steps(devices)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


ring = Exercise(
    function="ring_attention",
    arguments=lambda: [
        (*random_tensors((1, 2), (1, 2), (1, 3)), 1),
        (*random_tensors((2, 3), (2, 3), (2, 4)), 2),
        (*random_tensors((8, 4), (8, 4), (8, 6)), 4),
        (*random_tensors((15, 4), (15, 4), (15, 2)), 3),
    ],
    right=lambda query, key, value, devices: (causal(query, key, value), idle_steps(devices)),
    mistakes={
        "The parts are averaged: merge them by their log-sum-exp.": partial(
            on_ring, join=lambda parts: torch.stack([output for output, _ in parts]).mean(0)
        ),
        "The parts are added up: merge them by their log-sum-exp.": partial(
            on_ring, join=lambda parts: torch.stack([output for output, _ in parts]).sum(0)
        ),
        "The mask is missing: a query may not see keys after it.": partial(
            on_ring, allowed=lambda own, theirs: (own >= 0) & (theirs >= 0)
        ),
        "The mask starts at 0 on each device: it needs positions in the whole text.": partial(
            on_ring, allowed=lambda own, theirs: own - own.min() >= theirs - theirs.min()
        ),
        "Each device sees only its own keys here; {devices} rounds bring all others.": partial(
            on_ring, rounds=1
        ),
        "A query sees itself, too: its position is not after its own.": partial(
            on_ring, allowed=lambda own, theirs: own > theirs
        ),
        "Idle is a step whose keys are all hidden, not one in which some are.": (
            lambda query, key, value, devices: (
                causal(query, key, value),
                idle_steps(devices) + devices * (len(query) > devices),
            )
        ),
        "The output is right. Count the steps at which all keys lie after all queries.": (
            lambda query, key, value, devices: (causal(query, key, value), 0)
        ),
    },
    hints=(
        "First without masks: each device's parts from all four quarters, merged.",
        "In the mask compare positions in the whole text. A step with no True in it is idle.",
        "The two functions and their law: Merge attention from several devices.",
    ),
)


def fading(
    query: Tensor, key: Tensor, value: Tensor, gamma: float, *, late: int = 0, sees_itself: int = 1
) -> Tensor:
    """Step by step: the state read at each position; `late`: fade after writing."""
    state = torch.zeros(key.size(1), value.size(1))
    outputs = []
    for q, k, v in zip(query, key, value, strict=True):
        new = torch.outer(k, v)
        before = gamma * state
        state = gamma * (state + new) if late else before + new
        outputs.append((state if sees_itself else before).mT @ q)
    return torch.stack(outputs)


def distances(query: Tensor) -> Tensor:
    return torch.arange(len(query))[:, None] - torch.arange(len(query))


state_that_fades = Exercise(
    function="fading_attention",
    arguments=lambda: [
        (*random_tensors((1, 2), (1, 2), (1, 3)), 0.5),
        (*random_tensors((2, 2), (2, 2), (2, 3)), 0.5),
        (*random_tensors((7, 4), (7, 4), (7, 6)), 0.9),
        (*random_tensors((5, 3), (5, 3), (5, 2)), 1.0),
    ],
    right=fading,
    mistakes={
        "The new pair fades at once: gamma={gamma:g} multiplies the old state only.": (
            partial(fading, late=1)
        ),
        "Nothing fades here.": lambda query, key, value, gamma: fading(query, key, value, 1.0),
        "The state is read before the new pair is added: a position sees itself, too.": (
            partial(fading, sees_itself=0)
        ),
        "Positions see later ones: where the distance is negative there have to be zeros.": (
            lambda query, key, value, gamma: (
                (query @ key.mT * gamma ** distances(query).abs()) @ value
            )
        ),
        "The order is turned round: the state holds what came before.": (
            lambda query, key, value, gamma: fading(
                query.flip(0), key.flip(0), value.flip(0), gamma
            ).flip(0)
        ),
        "There is a scale, 1 over the root of the width. This form has none.": (
            lambda query, key, value, gamma: (
                fading(query, key, value, gamma) / math.sqrt(query.size(1))
            )
        ),
        "There is a softmax. This is linear attention: products as they are.": (
            lambda query, key, value, gamma: F.scaled_dot_product_attention(
                query, key, value, gamma ** distances(query).clamp(min=0), is_causal=False
            )
        ),
    },
    hints=(
        "How often has a pair been multiplied by gamma when it is read, d positions later?",
        "Step by step: fade, add, read. With the square: a matrix of powers, and zeros.",
        "The same without fading is in Linear attention: multiply in another order.",
    ),
)
