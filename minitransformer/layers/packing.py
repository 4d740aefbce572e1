"""The real tokens of a padded batch, packed together, so that nothing is computed on padding.

All of a Transformer but attention treats each position on its own. So the n real positions of a
batch can pass through it as one (n, d) matrix. Only attention needs to know which of them belong
together: its mask says so.

Source: Zeng et al., "Boosting Distributed Training Performance of the Unpadded
BERT Model" (2022).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from minitransformer.layers.attention import Mask

__all__ = ["PackedMask", "Packing"]

PACKABLE: dict[Callable[..., Any], tuple[str, ...] | None] = dict.fromkeys(
    kind.forward
    for kind in (nn.Linear, nn.Identity, nn.Dropout, nn.LayerNorm, nn.Sequential, nn.ModuleList)
)
"""Each `forward` that may be given packed positions, with the parts that have to be known too; None
for all of them. If you write a layer that treats each position on its own, add its `forward`."""


def takes_packed(module: object) -> bool:
    """Whether a module and its parts compute of packed positions, (n, d), what they would of rows.

    Example:
        >>> takes_packed(nn.Sequential(nn.Linear(4, 4), nn.Dropout())), takes_packed(nn.GRU(4, 4))
        (True, False)
    """
    forward: Any = getattr(type(module), "forward", None)
    if not isinstance(module, nn.Module) or forward not in PACKABLE:
        return False
    if has_own_methods(module) or module._compiled_call_impl is not None:
        return False
    names = PACKABLE[forward]
    parts = module.children() if names is None else (getattr(module, name) for name in names)
    return all(map(takes_packed, parts))


def counts_positions(module: nn.Module) -> bool:
    """Whether what a position gets in training depends on how many there are, as of experts."""
    return any(hasattr(part, "balance_loss") for part in module.modules())


def has_own_methods(module: nn.Module) -> bool:
    """Whether a module has been given a function in the place of one of its class."""
    kind: Any = type(module)
    return not methods_of(kind).isdisjoint(vars(module))


@cache
def methods_of(kind: type) -> frozenset[str]:
    """The names of a class's methods."""
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name)))


class Packing:
    """Where the real tokens of a padded batch are.

    To move them costs time too: where nine in ten are real, padding stays where it is, unless a
    layer counts its positions.

    Args:
        real: boolean, (b, length); True = a real token. None if padding is to stay.
        always: whether padding is removed however little there is.

    Example:
        >>> import torch
        >>> packing = Packing(torch.tensor([[True, True], [True, False]]))
        >>> packing.pack(torch.tensor([[5, 6], [7, 0]]))
        tensor([5, 6, 7])
        >>> packing.unpack(torch.tensor([5, 6, 7]))
        tensor([[5, 6],
                [7, 0]])
    """

    def __init__(self, real: Tensor | None, *, always: bool = False) -> None:
        self.index: Tensor | None = None
        share = 1.0 if real is None else int(real.sum()) / real.numel()
        if real is not None and share < (1.0 if always else 0.9):
            self.shape, self.index = real.shape, real.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:
        """(b, length, ...) → (n, ...), row after row."""
        return x if self.index is None else x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(n, ...) → (b, length, ...), zeros where there is padding."""
        if self.index is None:
            return x
        rows = x.new_zeros(self.shape.numel(), *x.shape[1:]).index_copy(0, self.index, x)
        return rows.unflatten(0, self.shape)


class PackedMask(NamedTuple):
    """A mask for queries and keys that are packed; `MultiHeadAttention` takes it as its mask.

    Example:
        >>> import torch
        >>> rows = Packing(torch.tensor([[True, True], [True, False]]))
        >>> PackedMask("causal", rows, rows).mask
        'causal'
    """

    mask: Mask
    """Boolean, broadcastable to (b, h, q, k); True = may be attended. Or "causal"."""
    queries: Packing
    keys: Packing


def packed_mask(mask: Mask, queries: Packing, keys: Packing) -> Mask | PackedMask:
    """The mask itself where neither queries nor keys are packed."""
    packed = queries.index is not None or keys.index is not None
    return PackedMask(mask, queries, keys) if packed else mask


def up_to_last(real: Tensor) -> Tensor:
    """Mark every position of a row, (b, length), up to the last one that is marked."""
    return real.flip(-1).cumsum(dim=-1).flip(-1) > 0
