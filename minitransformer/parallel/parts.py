"""A batch dealt in parts, whose losses add up to that of the batch."""

from typing import Any

from torch import Tensor, nn

from minitransformer.trainer import Trainer


class LossOf(nn.Module):
    """A trainer's loss of rows as a module, as which the engines expect it."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.model = trainer.model
        self.of = trainer.loss

    def forward(self, rows: Any) -> Tensor:
        """The smoothed loss of these rows of a batch, a scalar."""
        return self.of(rows)


def check_parts(parts: int, count: int) -> None:
    """Raise an error unless so many processes can share so many parts evenly."""
    if parts < 1 or parts % count:
        shared_by = [number for number in range(1, parts + 1) if parts % number == 0]
        raise ValueError(
            f"every batch is dealt in {parts} parts, which {count} processes cannot share evenly; "
            f"start one of {shared_by}"
        )


def num_targets(rows: Any, pad_id: int) -> int:
    """How many tokens of some rows of a batch are to be predicted.

    Example:
        >>> import torch
        >>> from minitransformer.data import Example
        >>> num_targets([Example([4, 2], [1, 7, 8, 2]), Example([5, 2], [1, 2])], pad_id=0)
        4
        >>> num_targets(torch.tensor([[1, 7, 8, 2], [5, 6, 2, 0]]), pad_id=0)
        5
    """
    if isinstance(rows, Tensor):  # of a language model, each with one more than it reads
        return int((rows[:, 1:] != pad_id).sum())
    return sum(token != pad_id for example in rows for token in example.tgt[1:])
