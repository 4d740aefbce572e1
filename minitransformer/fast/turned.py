"""Weights as (in, out), turned once and kept between texts for as long as their model lives.

`nn.Linear` keeps its weight as (out, in). With the other order a product of few vectors is faster,
but to turn a weight takes as long as several steps save. So what has been turned is kept, outside
the model: it is in no checkpoint, and in no copy.
"""

from collections.abc import Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

KEPT: WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor]] = WeakKeyDictionary()
"""By the first of some maps: what they made of fixed numbers when they were turned, and turned."""


def can_be_kept(weight: Tensor) -> bool:
    """Whether `turned` would see every change of a weight that matters, and help."""
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)


def turned(maps: Sequence[nn.Module]) -> Tensor:
    """The weights of linear maps of the same vectors, each (out, in), as one: (in, all outs).

    Whether what is kept still holds, the weights themselves are asked, by a product with fixed
    numbers. For all of a model it takes about as long as one step. PyTorch's count of a parameter's
    versions would cost nothing, but `parameter.data.add_(...)` for one goes by it. A change that
    this product rounds away is one that others round away as well.

    Example:
        >>> linear = nn.Linear(3, 2)
        >>> turned([linear]).shape, turned([linear]) is turned([linear])
        (torch.Size([3, 2]), True)
        >>> linear.weight.data[1, 2] = 5.0
        >>> float(turned([linear])[2, 1])
        5.0
    """
    weights = [cast(Tensor, part.weight).detach() for part in maps]
    # No two of them are equal and none is small, so that exchanged columns are seen as well.
    numbers = torch.arange(weights[0].size(1), dtype=weights[0].dtype, device="cpu").cos() + 2
    made = torch.cat([weight.mv(numbers) for weight in weights])
    kept = KEPT.get(maps[0])
    if kept is None or not are_equal(kept[0], made) or kept[1].size(0) != numbers.size(0):
        kept = KEPT[maps[0]] = made, torch.cat([w.T for w in weights], dim=1).contiguous()
    return kept[1]


def are_equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same, in dtype too."""
    return x.dtype == y.dtype and torch.equal(x, y)
