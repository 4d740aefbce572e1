"""What training needs to know: the loss, the learning-rate schedules, and the settings.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "TrainingConfig",
    "cosine_schedule",
    "label_smoothing_loss",
    "linear_cross_entropy",
    "noam_schedule",
]

MAX_LOGITS = 2**22  # that `linear_cross_entropy` has in memory at a time: 16 MB


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
        A scalar, float32.

    Raises:
        ValueError: if shapes do not fit, ε is outside [0, 1), or every target is padding.

    Example:
        >>> import torch
        >>> targets = torch.tensor([[1, 2, 0], [3, 0, 0]])
        >>> loss = label_smoothing_loss(torch.zeros(2, 3, 5), targets)
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Built in chapter 9. Paper: section 5.4; Szegedy et al. (2016), section 7.
    """
    check_loss("logits", logits, targets, smoothing, pad_id)
    real = targets != pad_id
    log_probs = logits[real].float().log_softmax(dim=-1)
    right = -log_probs.gather(-1, targets[real][:, None]).mean()
    return (1 - smoothing) * right - smoothing * log_probs.mean()


def check_loss(name: str, scored: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> None:
    """Raise an error unless there is a loss of these targets."""
    if scored.shape[:-1] != targets.shape:
        raise ValueError(
            f"{name} {tuple(scored.shape)} must have the shape of targets "
            f"{tuple(targets.shape)} and one more axis"
        )
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    if not bool((targets != pad_id).any()):
        raise ValueError(f"all {targets.numel()} targets are padding (id {pad_id})")


class LinearCrossEntropy(torch.autograd.Function):
    """The forward and backward pass of `linear_cross_entropy`, a chunk of positions at a time."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> Tensor:
        n, v = hidden.size(0), weight.size(0)
        chunk = max(1, MAX_LOGITS // v)
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        chunks = (x.split(chunk) for x in (hidden, targets[:, None], grad_hidden))
        for h, target, grad_h in zip(*chunks, strict=True):
            logits = (h @ weight.T).float()
            right = logits.gather(-1, target)
            total -= (1 - smoothing) * right.sum() + smoothing / v * logits.sum()
            highest = logits.amax(dim=-1, keepdim=True)
            exps = logits.sub_(highest).exp_()
            sums = exps.sum(dim=-1, keepdim=True)
            total += (highest + sums.log()).sum()
            # What the loss of a position is to its logits: probabilities minus their targets.
            grad = exps.div_(sums).sub_(smoothing / v)
            grad = grad.scatter_add_(-1, target, torch.full_like(right, smoothing - 1)).to(h.dtype)
            grad_h.copy_(grad @ weight)
            grad_weight += grad.T @ h
        ctx.save_for_backward(grad_hidden.div_(n), grad_weight.div_(n))
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad * grad_hidden, grad * grad_weight, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, smoothing: float = 0.1, pad_id: int = 0
) -> Tensor:
    """`label_smoothing_loss` of the logits x Wᵀ, which are never all in memory.

    With a large vocabulary the logits are by far the largest tensor of a training step, and it
    passes over them many times. Their gradient is known as soon as they are: softmax minus the
    target distribution. So a chunk of positions is scored, its loss and its gradients are taken,
    and its logits forgotten.

    Args:
        hidden: the decoder's output, (..., d), floating point.
        weight: of the output projection, (v, d).
        targets: (...), int64.
        smoothing: ε; 0 is plain cross-entropy.
        pad_id: target id that does not count.

    Returns:
        A scalar, float32.

    Raises:
        ValueError: if shapes do not fit, ε is outside [0, 1), or every target is padding.

    Example:
        >>> hidden, weight = torch.randn(2, 3, 4), torch.zeros(5, 4)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([[1, 2, 0], [3, 0, 0]]))
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Built in chapter 9. Source: Hsu et al., "Liger Kernel" (2024).
    """
    check_loss("hidden", hidden, targets, smoothing, pad_id)
    if hidden.size(-1) != weight.size(-1):
        raise ValueError(
            "hidden and weight must have the same width, "
            f"got {hidden.size(-1)} and {weight.size(-1)}"
        )
    real = targets != pad_id
    hidden, targets = hidden[real], targets[real]
    return cast(Tensor, LinearCrossEntropy.apply(hidden, weight, targets, smoothing))


def noam_schedule(step: int, *, d_model: int, warmup_steps: int = 4000) -> float:
    """lr = d_model^−0.5 · min(step^−0.5, step · warmup_steps^−1.5): the paper's.

    It grows linearly for `warmup_steps`, then falls with the root of the step.

    Args:
        step: the update, counted from 1.
        d_model: width of the model.
        warmup_steps: length of the growth.

    Raises:
        ValueError: if an argument is below 1.

    Example:
        >>> round(noam_schedule(4000, d_model=512), 6)
        0.000699

    Built in chapter 9. Paper: section 5.3, equation 3.
    """
    if min(step, d_model, warmup_steps) < 1:
        raise ValueError(
            "step, d_model and warmup_steps must be at least 1, "
            f"got {step}, {d_model} and {warmup_steps}"
        )
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def cosine_schedule(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Grow linearly to `peak`, then fall along half a cosine to nearly 0 at the end.

    lr = peak · step/warmup, and from there on peak · (1 + cos(π p))/2 with
    p = (step − warmup)/(total + 1 − warmup).

    Args:
        step: the update, counted from 1.
        peak: the highest learning rate, reached at `warmup_steps`.
        warmup_steps: length of the growth.
        total_steps: length of the training, above `warmup_steps`.

    Raises:
        ValueError: if not 1 ≤ step ≤ total_steps or not 1 ≤ warmup_steps < total_steps.

    Example:
        >>> cosine_schedule(50, peak=0.001, warmup_steps=100, total_steps=800)
        0.0005

    Built in chapter 9. Source: Loshchilov & Hutter (2017), equation 5, one cycle.
    """
    if not 1 <= step <= total_steps or not 1 <= warmup_steps < total_steps:
        raise ValueError(
            "step must lie between 1 and total_steps and warmup_steps below total_steps, "
            f"got step={step}, warmup_steps={warmup_steps}, total_steps={total_steps}"
        )
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (total_steps + 1 - warmup_steps)
    return peak * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Args:
        steps: number of updates.
        batch_size: examples in a batch.
        warmup_steps: updates during which the learning rate grows.
        peak_learning_rate: where warm-up ends before a cosine fall; None is the paper's schedule.
        label_smoothing: ε of the loss.
        max_gradient_norm: gradients longer than this are scaled down to it.
        context_length: tokens that a language model sees at once (`LanguageModelTrainer`).
        precision: "fp32", or "bf16" for autocast.
        seed: decides the order of the data and the dropout of every step.

    Raises:
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

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "warmup_steps", "context_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("peak_learning_rate", "max_gradient_norm"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.peak_learning_rate is not None and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps must be below steps, got {self.warmup_steps} and {self.steps}"
            )
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"label_smoothing must be at least 0 and below 1, got {self.label_smoothing}"
            )
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"precision must be 'fp32' or 'bf16', got {self.precision!r}")

    def learning_rate(self, step: int, d_model: int) -> float:
        """The learning rate of an update, counted from 1."""
        if self.peak_learning_rate is None:
            return noam_schedule(step, d_model=d_model, warmup_steps=self.warmup_steps)
        return cosine_schedule(
            step,
            peak=self.peak_learning_rate,
            warmup_steps=self.warmup_steps,
            total_steps=self.steps,
        )
