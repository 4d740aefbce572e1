"""A batch dealt in parts, whose losses add up to that of the batch."""

from typing import Any

from torch import Tensor, nn

from minitransformer.trainer import Trainer
from minitransformer.training import TrainingConfig


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


def check_recipe(config: TrainingConfig, engine: str, parts: int | None) -> None:
    """Raise an error unless the engine can train so, in as many parts."""
    if config.accumulate > 1 and parts not in (None, config.accumulate):
        raise ValueError(
            f"the trainer's accumulate={config.accumulate} are the parts, but got parts={parts}"
        )
    if config.optimizer == "muon" and engine == "fsdp":
        raise ValueError(
            "optimizer='muon' needs whole matrices, of which engine='fsdp' leaves each process a "
            "share; take engine='ddp'"
        )
