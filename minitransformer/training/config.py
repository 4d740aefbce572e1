"""The settings of a training.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
from dataclasses import dataclass
from typing import Literal

from minitransformer.checks import check_types
from minitransformer.training.schedules import cosine_schedule, linear_schedule, noam_schedule

__all__ = ["TrainingConfig"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained.

    Args:
        steps: number of updates.
        batch_size: examples in a batch.
        max_tokens_per_batch: instead, the most positions in a batch, padding included: rows times
            the longest row of both sides (`token_batches`).
        gradient_accumulation_steps: parts that a batch is computed in, one after the other, to
            need less memory. Their gradients are added up, weighted by their targets (`in_parts`).
        warmup_steps: updates during which the learning rate grows.
        peak_learning_rate: where warm-up ends before the fall; None is the paper's schedule.
        schedule: how the rate falls from its peak: "cosine" or "linear".
        optimizer: "adam", the paper's; "adamw", with weight decay; or "muon" for the matrices of
            the layers, and Adam for the rest (`new_optimizer`).
        weight_decay: λ: each step takes learning rate · λ of the layers' matrices away. Biases,
            gains, and the tables of embeddings and output are exempt (`parameter_rules`).
        ema_decay: β of the moving average of the weights (`Trainer.averaged`), which reaches about
            1/(1 − β) steps back, and takes the memory of a second model; 0 keeps none.
        label_smoothing: ε of the loss; None is the trainer's default: the paper's 0.1 for pairs, 0
            for a language model, so that exp(loss) is its perplexity.
        max_gradient_norm: gradients longer than this are scaled down to it.
        context_length: tokens that a language model sees at once (`LanguageModelTrainer`).
        precision: "fp32", or "bf16" for autocast.
        seed: decides the order of the data and the dropout of every step.

    Raises:
        TypeError: if a value is of another type than is annotated here.
        ValueError: if a value is out of range.

    Example:
        >>> TrainingConfig(steps=100, warmup_steps=100)
        Traceback (most recent call last):
        ValueError: warmup_steps must be below steps, got 100 and 100

    Paper: sections 5.3 and 5.4.
    """

    steps: int = 800
    batch_size: int = 128
    max_tokens_per_batch: int | None = None
    gradient_accumulation_steps: int = 1
    warmup_steps: int = 100
    peak_learning_rate: float | None = 3e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    weight_decay: float = 0.0
    ema_decay: float = 0.0
    label_smoothing: float | None = None
    max_gradient_norm: float = 1.0
    context_length: int = 64
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        counts: tuple[str, ...] = ("steps", "batch_size", "warmup_steps", "context_length")
        counts += ("max_tokens_per_batch", "gradient_accumulation_steps")
        lengths = ("peak_learning_rate", "max_gradient_norm")
        for bound, holds, names in (
            ("at least 1", lambda x: x >= 1, counts),
            ("above 0 and finite", lambda x: 0 < x < math.inf, lengths),
            ("at least 0 and finite", lambda x: 0 <= x < math.inf, ("weight_decay",)),
            ("at least 0 and below 1", lambda x: 0 <= x < 1, ("label_smoothing", "ema_decay")),
        ):
            for name in names:
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"{name} must be {bound}, got {value}")
        if self.peak_learning_rate is None and self.schedule != "cosine":
            raise ValueError(
                f"schedule={self.schedule!r} falls from a peak, but peak_learning_rate=None is "
                "the paper's schedule"
            )
        if self.peak_learning_rate is not None and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be below steps, got {self.warmup_steps} and {self.steps}"
            )
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(
                f"optimizer='adam' decays nothing, got weight_decay={self.weight_decay}: "
                "take optimizer='adamw'"
            )

    def learning_rate(self, step: int, d_model: int) -> float:
        """The learning rate of an update, counted from 1."""
        warmup, peak = self.warmup_steps, self.peak_learning_rate
        if peak is None:
            return noam_schedule(step, d_model=d_model, warmup_steps=warmup)
        fall = linear_schedule if self.schedule == "linear" else cosine_schedule
        return fall(step, peak=peak, warmup_steps=warmup, total_steps=self.steps)
