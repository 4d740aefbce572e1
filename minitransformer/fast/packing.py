"""The real tokens of a padded batch, packed together, so that nothing is computed on padding.

Source: Zeng et al., "Boosting Distributed Training Performance of the Unpadded BERT Model" (2022).
"""

from typing import NamedTuple

from torch import Tensor

from minitransformer.attention import Mask

__all__ = ["PackedMask", "Packing"]


class Packing:
    """Where the real tokens of a padded batch stand.

    All of a Transformer but attention treats each position on its own. So the n real positions
    of a batch can pass through it as one (n, d) matrix. Only attention needs to know
    which of them belong together: it puts them back in rows. To move them costs time too: where
    nine in ten are real, padding stays where it is, and n counts it.

    Args:
        real: boolean, (b, length); True = a real token.

    Example:
        >>> import torch
        >>> packing = Packing(torch.tensor([[True, True], [True, False]]))
        >>> packing.pack(torch.tensor([[5, 6], [7, 0]]))
        tensor([5, 6, 7])
        >>> packing.unpack(torch.tensor([5, 6, 7]))
        tensor([[5, 6],
                [7, 0]])
    """

    def __init__(self, real: Tensor) -> None:
        self.shape = real.shape
        almost_all = 10 * int(real.sum()) >= 9 * real.numel()
        self.index = None if almost_all else real.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:
        """(b, length, ...) → (n, ...), row after row."""
        x = x.flatten(0, 1)
        return x if self.index is None else x.index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(n, ...) → (b, length, ...), zeros where there is padding."""
        if self.index is not None:
            x = x.new_zeros(self.shape.numel(), *x.shape[1:]).index_copy(0, self.index, x)
        return x.unflatten(0, self.shape)


class PackedMask(NamedTuple):
    """What attention must know when queries and keys are packed.

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


def up_to_last(real: Tensor) -> Tensor:
    """Mark every position of a row, (b, length), up to the last one that is marked."""
    return real.flip(-1).cumsum(dim=-1).flip(-1) > 0
