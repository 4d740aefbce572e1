"""What training needs to know: the loss and the settings.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from minitransformer.checks import check_loss, check_types
from minitransformer.schedules import cosine_schedule, linear_schedule, noam_schedule

__all__ = ["TrainingConfig", "label_smoothing_loss"]


def label_smoothing_loss(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.1, pad_id: int = 0
) -> Tensor:
    """Mean cross-entropy, in nats, against targets that leave a little to every token.

    The target distribution gives 1 − ε to the right token and spreads ε evenly over all v
    tokens (the right one too), so the loss of a position is

        (1 − ε)·(−log p[target]) + ε·mean over v of (−log p[v]).

    Positions whose target is padding are left out of the mean.

    Args:
        logits: (..., v), floating point.
        targets: (...), int64.
        smoothing: ε; 0 is plain cross-entropy against one-hot targets.
        pad_id: target id that does not count.

    Returns:
        A scalar, float32, or float64 if `logits` are.

    Raises:
        TypeError: if `targets` are not int64.
        ValueError: if shapes do not fit, ε is outside [0, 1), a target that is not padding lies
            outside the vocabulary, or every target is padding.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[1, 2, 0], [3, 0, 0]])
        >>> loss = label_smoothing_loss(torch.zeros(2, 3, 5), targets)
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Built in chapter 9. Paper: section 5.4; Szegedy et al. (2016), section 7.
    """
    check_loss("logits", logits, targets, logits.size(-1), smoothing, pad_id)
    real = targets != pad_id
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Whatever the scores at padding are, NaN too, nothing of them may reach the loss.
    log_probs = wide.masked_fill(~real[..., None], 0.0).log_softmax(dim=-1)
    losses = -log_probs.gather(-1, targets.where(real, 0)[..., None])[..., 0]
    if smoothing:  # 0 times the infinite loss of an impossible token would be no number
        losses = (1 - smoothing) * losses - smoothing * log_probs.mean(dim=-1)
    return losses.masked_fill(~real, 0.0).sum() / real.sum()


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
