"""A model with a batch: what the laws of a healthy model are tried on.

Axes: `b` batch, `s` source position, `t` target position, `v` vocabulary.

Built in chapter 17.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Case", "Found", "change"]

Found = tuple[bool, str] | None  # none where there is nothing to try


@dataclass(frozen=True)
class Case:
    """A model and a batch for it."""

    model: Any
    src: Tensor | None
    ids: Tensor
    targets: Tensor
    pad_id: int
    measure: Callable[..., Tensor]
    """Its loss: a function of the model, a batch and `smoothing`."""

    @property
    def batch(self) -> list[Tensor]:
        """What the loss takes."""
        return [x for x in (self.src, self.ids, self.targets) if x is not None]

    def loss(self, *rows: Tensor) -> Tensor:
        """The loss of the batch, or of other rows, without smoothing."""
        return self.measure(self.model, *(rows or self.batch), smoothing=0.0)

    @property
    def real(self) -> Tensor:
        """Which targets count, (b, t)."""
        return self.targets != self.pad_id

    def logits(self, src: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """The model's logits, for another source or other ids."""
        src = self.src if src is None else src
        ids = self.ids if ids is None else ids
        logits: Tensor = self.model(ids) if src is None else self.model(src, ids)
        return logits.float()

    def tolerance(self, logits: Tensor) -> float:
        """What rounding may change in logits."""
        dtype = next(self.model.parameters()).dtype
        return 64 * torch.finfo(dtype).eps * (1 + float(logits.abs().max()))

    def other(self, ids: Tensor) -> Tensor:
        """Another token in each place that has one, and padding where there is padding."""
        known = ids[ids != self.pad_id].unique()
        place = torch.searchsorted(known, ids.clamp(min=int(known[0])))
        return torch.where(ids == self.pad_id, ids, known[(place + 1) % len(known)])


def change(before: Tensor, after: Tensor, where: Tensor | None = None) -> float:
    """The largest difference of logits, (b, t, v), at the positions `where`, (b, t)."""
    moved = (after - before).abs().amax(-1)
    return float(moved.max() if where is None else moved.masked_fill(~where, 0.0).max())
