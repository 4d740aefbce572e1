"""Positions as a learned bias of the scores, one number for each head and bucket of distances.

Built in chapter 13. Paper: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (Raffel et al., 2020), section 2.1.
"""

import math

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.layers.packing import PACKABLE

__all__ = ["RelativePositionBias", "Scaled", "position_buckets"]


def position_buckets(
    distance: Tensor, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """The bucket of each distance: near ones have one each, far ones share, ever more of them.

    Half of the buckets hold one distance each, from 0 on. The other half divide what comes up to
    `max_distance` evenly on a logarithmic scale, and the last takes all that is farther. With two
    directions each has half of all buckets, keys behind the query the second one. With one
    direction all keys behind the query count as distance 0; a causal mask hides them.

    Args:
        distance: position of the key minus that of the query, int64, any shape; the result's too.
        num_buckets: how many there are.
        max_distance: where the logarithmic scale ends.
        bidirectional: whether keys behind the query have buckets of their own.

    Example:
        >>> distance = torch.tensor([-200, -9, -8, -1, 0, 1, 8, 9, 200])
        >>> position_buckets(distance).tolist()
        [15, 8, 8, 1, 0, 17, 24, 24, 31]
        >>> position_buckets(distance, bidirectional=False).tolist()
        [31, 9, 8, 1, 0, 0, 0, 0, 0]

    Paper: section 2.1; the formula is that of its authors' code.
    """
    if bidirectional:
        num_buckets //= 2
        first, far = num_buckets * (distance > 0), distance.abs()
    else:
        first, far = torch.zeros_like(distance), -distance.clamp(max=0)
    alone = num_buckets // 2
    # In float32, as there: where a border is a whole number, its rounding decides.
    share = torch.log(far.clamp(min=alone).float() / alone) / math.log(max_distance / alone)
    shared = alone + (share * (num_buckets - alone)).long()
    return first + torch.where(far < alone, far, shared.clamp(max=num_buckets - 1))


class RelativePositionBias(nn.Module):
    """A learned bias for each head and each bucket of distances, in the place of `ALiBi`.

    Its numbers start at 0, where attention knows no order. All layers of a stack may share one
    table. Any length has a bias: there is no longest sequence.

    Args:
        num_heads: number of heads, h.
        num_buckets, max_distance, bidirectional: see `position_buckets`.

    Raises:
        ValueError: if `num_heads` is below 1, there are too few buckets for two halves, or
            `max_distance` is not beyond the distances that have a bucket each.

    Example:
        >>> bias = RelativePositionBias(2, num_buckets=8, max_distance=10)
        >>> bias(3, 5).shape
        torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_at_least_1(num_heads=num_heads)
        fewest = 4 if bidirectional else 2
        if num_buckets < fewest:
            raise ValueError(f"num_buckets must be at least {fewest}, got {num_buckets}")
        alone = num_buckets // fewest
        if max_distance <= alone:
            raise ValueError(
                f"max_distance must be above the {alone} distances that have a bucket each, "
                f"got {max_distance}"
            )
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(
        self, num_queries: int, num_keys: int, device: torch.device | str | None = None
    ) -> Tensor:
        """The biases, (h, q, k), the weights' dtype; the last query stands at the last key.

        Raises:
            ValueError: if there are more queries than keys: the first would have no position.
        """
        if num_queries > num_keys:
            raise ValueError(
                f"num_queries must not exceed num_keys, got {num_queries} queries, {num_keys} keys"
            )
        position = torch.arange(num_keys, device=device or self.weight.device)
        buckets = position_buckets(
            position - position[num_keys - num_queries :, None],
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return self.weight[buckets].permute(2, 0, 1)


class Scaled(nn.Module):
    """Multiply by a number that is not learned.

    Example:
        >>> Scaled(0.5)(torch.tensor([4.0]))
        tensor([2.])
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Scale x, of any shape."""
        return x * self.factor


PACKABLE[Scaled.forward] = None
