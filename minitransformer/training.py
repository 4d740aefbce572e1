"""The settings of a training.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from minitransformer.checks import check_types
from minitransformer.schedules import cosine_schedule, linear_schedule, noam_schedule

__all__ = ["TrainingConfig"]


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Args:
        steps: number of updates.
        batch_size: examples in a batch.
        batch_tokens: instead, the most positions in a batch, padding included: rows times the
            longest row of both sides (`token_batches`).
        accumulate: parts that a batch is computed in, one after the other, to need less memory.
            Their gradients are added up, each weighed by its targets (`in_parts`).
        warmup_steps: updates during which the learning rate grows.
        peak_learning_rate: where warm-up ends before the fall; None is the paper's schedule.
        schedule: how the rate falls from its peak: "cosine" or "linear".
        optimizer: "adam", the paper's; "adamw", with weight decay; or "muon" for the matrices of
            the layers, and Adam for the rest (`new_optimizer`).
        weight_decay: λ: each step takes learning rate · λ of the layers' matrices away. Biases,
            gains, and the tables of embeddings and output stay out of it (`parameter_rules`).
        average: β of the moving average of the weights (`Trainer.averaged`), which reaches about
            1/(1 − β) steps back, and takes the memory of a second model; 0 keeps none.
        label_smoothing: ε of the loss.
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

    Built in chapter 9. Paper: sections 5.3 and 5.4.
    """

    steps: int = 800
    batch_size: int = 128
    warmup_steps: int = 100
    peak_learning_rate: float | None = 3e-3
    label_smoothing: float = 0.1
    max_gradient_norm: float = 1.0
    context_length: int = 64
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    batch_tokens: int | None = None
    accumulate: int = 1
    schedule: Literal["cosine", "linear"] = "cosine"
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    weight_decay: float = 0.0
    average: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        whole = ("steps", "batch_size", "warmup_steps", "context_length", "accumulate")
        for name in (*whole, "batch_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("peak_learning_rate", "max_gradient_norm"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("peak_learning_rate", "max_gradient_norm", "weight_decay"):
            if getattr(self, name) is not None and not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        for name, known in get_type_hints(type(self)).items():
            if get_origin(known) is Literal and getattr(self, name) not in get_args(known):
                listed = " or ".join(map(repr, get_args(known)))
                raise ValueError(f"{name} must be {listed}, got {getattr(self, name)!r}")
        for name in ("label_smoothing", "average"):
            if not 0.0 <= getattr(self, name) < 1.0:
                value = getattr(self, name)
                raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
        if self.peak_learning_rate is None and self.schedule != "cosine":
            raise ValueError(
                f"schedule={self.schedule!r} falls from a peak, but peak_learning_rate=None is "
                "the paper's schedule"
            )
        if self.peak_learning_rate is not None and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be below steps, got {self.warmup_steps} and {self.steps}"
            )
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError(
                f"optimizer='adam' decays nothing, got weight_decay={self.weight_decay}: "
                "take optimizer='adamw'"
            )

    def learning_rate(self, step: int, d_model: int) -> float:
        """The learning rate of an update, counted from 1."""
        if self.peak_learning_rate is None:
            return noam_schedule(step, d_model=d_model, warmup_steps=self.warmup_steps)
        fall = linear_schedule if self.schedule == "linear" else cosine_schedule
        return fall(
            step,
            peak=self.peak_learning_rate,
            warmup_steps=self.warmup_steps,
            total_steps=self.steps,
        )

    def rows_of_text(self) -> int:
        """Rows in a batch of a language model, which all have `context_length` tokens.

        Raises:
            ValueError: if not one of them fits into `batch_tokens`.
        """
        if self.batch_tokens is None:
            return self.batch_size
        if self.batch_tokens < self.context_length:
            raise ValueError(
                f"a row of context_length={self.context_length} tokens is longer than "
                f"batch_tokens={self.batch_tokens}"
            )
        return self.batch_tokens // self.context_length
