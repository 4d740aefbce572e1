"""Masks that are rules: which block of queries has to look at which block of keys.

A rule says for positions whether a query may attend to a key. Written out for n positions it is a
mask of n² elements; a `BlockMask` keeps, for each block of queries, the blocks of keys in which
there is something to see. What it leaves out is never computed. Sizes below 1 are a ValueError.

Axes: `q` query position, `k` key position, `n` position.

Built in chapter 15. Papers: Child et al. (2019), section 4; Beltagy et al. (2020), section 3;
Zaheer et al. (2020), section 2.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce

import torch
from torch import Tensor

from minitransformer.checks import check_at_least_1, check_causal

__all__ = [
    "BlockMask",
    "all_of",
    "any_of",
    "causal_rule",
    "dilated_rule",
    "global_rule",
    "random_rule",
    "strided_rule",
    "window_rule",
]

MaskRule = Callable[[Tensor, Tensor], Tensor]
"""Takes positions of queries and keys, int64, that broadcast; True = may be attended."""
Visit = tuple[slice, Iterable[tuple[slice, Tensor | None]]]
"""Some queries; and the keys they look at, with what of those may be attended (None: all)."""


def causal_rule(query: Tensor, key: Tensor) -> Tensor:
    """A query sees itself and what came before: n (n + 1) / 2 pairs.

    Example:
        >>> causal_rule(torch.tensor([[0], [1]]), torch.tensor([[0, 1]])).int().tolist()
        [[1, 0], [1, 1]]
    """
    return query >= key


def window_rule(size: int) -> MaskRule:
    """A query sees what is less than `size` positions away, on both sides: about 2 n · size pairs.

    Example:
        >>> [int(window_rule(2)(torch.tensor(5), torch.tensor(k))) for k in range(3, 9)]
        [0, 1, 1, 1, 0, 0]

    Paper: Beltagy et al. (2020), section 3.1.
    """
    check_at_least_1(size=size)
    return lambda query, key: (query - key).abs() < size


def dilated_rule(size: int, step: int) -> MaskRule:
    """As `window_rule`, of every `step`-th position only: as many pairs, `step` times as far.

    In blocks of neighbouring positions it saves little: nearly every block within reach
    holds something to see.

    Example:
        >>> [int(dilated_rule(2, 3)(torch.tensor(5), torch.tensor(k))) for k in range(1, 10)]
        [0, 1, 0, 0, 1, 0, 0, 1, 0]

    Paper: Beltagy et al. (2020), section 3.1.
    """
    check_at_least_1(size=size, step=step)
    return lambda query, key: ((query - key).abs() < size * step) & ((query - key) % step == 0)


def strided_rule(stride: int) -> MaskRule:
    """A query sees its own row of `stride` positions, and the last of each other row.

    Two such layers connect all positions, by way of the last ones (Sparse Transformer,
    "fixed"). With a stride of √n these are about 2 n √n pairs.

    Example:
        >>> [int(strided_rule(3)(torch.tensor(4), torch.tensor(k))) for k in range(9)]
        [0, 0, 1, 1, 1, 1, 0, 0, 1]

    Paper: Child et al. (2019), section 4.3.
    """
    check_at_least_1(stride=stride)
    return lambda query, key: (query // stride == key // stride) | (key % stride == stride - 1)


def global_rule(count: int) -> MaskRule:
    """The first `count` positions see all, and are seen by all (Longformer): 2 n · count pairs.

    Example:
        >>> [int(global_rule(1)(torch.tensor(5), torch.tensor(k))) for k in range(4)]
        [1, 0, 0, 0]

    Paper: Beltagy et al. (2020), section 3.1.
    """
    return lambda query, key: (query < count) | (key < count)


def random_rule(
    num_positions: int, num_blocks: int, block_size: int, generator: torch.Generator | None = None
) -> MaskRule:
    """Each block of queries sees `num_blocks` different blocks of keys, drawn by chance (BigBird).

    Raises:
        ValueError: if there are fewer blocks than are to be drawn.

    Example:
        >>> BlockMask(random_rule(6, 1, block_size=2), 6, block_size=2).share_computed
        0.333...

    Paper: Zaheer et al. (2020), section 2.
    """
    check_at_least_1(block_size=block_size)
    total = -(-num_positions // block_size)
    if not 0 <= num_blocks <= total:
        raise ValueError(
            f"num_blocks must lie between 0 and the {total} there are, got {num_blocks}"
        )
    drawn = torch.rand(total, total, generator=generator).argsort(dim=-1)[:, :num_blocks]
    seen = torch.zeros(total, total, dtype=torch.bool).scatter_(1, drawn, True)
    return lambda query, key: seen.to(query.device)[query // block_size, key // block_size]


def any_of(*rules: MaskRule) -> MaskRule:
    """What one of the rules allows at least.

    Example:
        >>> BlockMask(any_of(window_rule(1), global_rule(1)), 3).dense().int().tolist()
        [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
    """
    return lambda query, key: reduce(torch.logical_or, [rule(query, key) for rule in rules])


def all_of(*rules: MaskRule) -> MaskRule:
    """What all of the rules allow.

    Example:
        >>> BlockMask(all_of(window_rule(2), causal_rule), 3).dense().int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    return lambda query, key: reduce(torch.logical_and, [rule(query, key) for rule in rules])


class BlockMask:
    """A rule, and for each block of queries the blocks of keys in which it allows something.

    With fewer queries than keys the queries are the last positions, as for `causal_mask`. To find
    the blocks, every pair is looked at once: O(q · k) in time, or O(q · reach); O(block_size + k)
    in memory. A mask is made once and serves all layers, heads and steps.

    Args:
        rule: which query sees which key; it takes their positions, int64, that broadcast.
        num_queries, num_keys: q and k; as many keys as queries when left out.
        block_size: positions in a block; the last one may be shorter.
        reach: the rule allows nothing this far away or further, and is not asked there.

    Attributes:
        visible: for each block of queries, in order, the numbers of its blocks of keys, and
            whether all of that block may be attended, so that nothing needs to be hidden.

    Raises:
        ValueError: if there are more queries than keys.

    Example:
        >>> mask = BlockMask(causal_rule, 5, block_size=2)
        >>> mask.visible[1], mask.share_computed
        ([(0, True), (1, False)], 0.68)
    """

    def __init__(
        self,
        rule: MaskRule,
        num_queries: int,
        num_keys: int | None = None,
        block_size: int = 128,
        reach: int | None = None,
    ) -> None:
        check_at_least_1(block_size=block_size)
        num_keys = num_queries if num_keys is None else num_keys
        check_causal(num_queries, num_keys)
        self.rule, self.block_size = rule, block_size
        self.num_queries, self.num_keys = num_queries, num_keys
        self.visible: list[list[tuple[int, bool]]] = []
        number_of = torch.arange(num_keys) // block_size  # of each key's block
        sizes = number_of.bincount()
        far = num_keys if reach is None else reach
        for queries in blocks(num_queries, block_size):
            start = max(0, queries.start + num_keys - num_queries - far) // block_size * block_size
            stop = min(num_keys, queries.stop + num_keys - num_queries + far)
            # Some blocks at a time: what fits into a processor's cache.
            parts = [slice(start + x.start, start + x.stop) for x in blocks(stop - start, 1024)]
            seen = torch.cat([self.allowed(queries, keys).sum(0) for keys in parts])
            found = torch.zeros_like(sizes).index_add_(0, number_of[start:stop], seen)
            whole = (found == sizes * (queries.stop - queries.start)).tolist()
            self.visible.append([(n, whole[n]) for n in found.nonzero().flatten().tolist()])

    def allowed(
        self, queries: slice, keys: slice, device: torch.device | str | None = None
    ) -> Tensor:
        """The mask of some queries and keys, boolean, (their number, their number)."""
        first = self.num_keys - self.num_queries
        query = torch.arange(queries.start, queries.stop, device=device)[:, None] + first
        key = torch.arange(keys.start, keys.stop, device=device)[None]
        return self.rule(query, key).expand(query.size(0), key.size(1))

    def dense(self, device: torch.device | str | None = None) -> Tensor:
        """The whole mask, boolean, (q, k)."""
        return self.allowed(slice(0, self.num_queries), slice(0, self.num_keys), device)

    def visits(self, device: torch.device | str | None = None) -> Iterator[Visit]:
        """For each block of queries the blocks of keys to visit, and what is hidden there."""
        rows, cut = (blocks(n, self.block_size) for n in (self.num_queries, self.num_keys))
        for queries, row in zip(rows, self.visible, strict=True):
            seen = (
                (cut[n], None if whole else self.allowed(queries, cut[n], device))
                for n, whole in row
            )
            yield queries, seen

    @property
    def share_computed(self) -> float:
        """How much of the q · k scores lies in a block that has to be computed."""
        queries, keys = (blocks(n, self.block_size) for n in (self.num_queries, self.num_keys))
        computed = sum(
            (rows.stop - rows.start) * (keys[n].stop - keys[n].start)
            for rows, row in zip(queries, self.visible, strict=True)
            for n, _ in row
        )
        return computed / (self.num_queries * self.num_keys)


def blocks(length: int, size: int) -> list[slice]:
    """The blocks that so many positions are cut into."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
