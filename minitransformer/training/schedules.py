"""Learning-rate schedules: a rate for each update.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.3.
"""

import math

from minitransformer.checks import check_schedule

__all__ = ["cosine_schedule", "linear_schedule", "noam_schedule"]


def noam_schedule(step: int, *, d_model: int, warmup_steps: int = 4000) -> float:
    """lr = d_model^−0.5 · min(step^−0.5, step · warmup_steps^−1.5): the paper's.

    It grows linearly for `warmup_steps`, then falls with the root of the step. Steps count from 1;
    an argument below 1 is a ValueError.

    Example:
        >>> round(noam_schedule(4000, d_model=512), 6)
        0.000699

    Paper: section 5.3, equation 3.
    """
    if min(step, d_model, warmup_steps) < 1:
        raise ValueError(
            "step, d_model and warmup_steps must be at least 1, "
            f"got {step}, {d_model} and {warmup_steps}"
        )
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def cosine_schedule(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, floor: float = 0.0
) -> float:
    """Grow linearly to `peak`, then fall along half a cosine to `floor`.

    lr = peak · step/warmup, and from there on floor + (peak − floor) · (1 + cos(π p))/2 with
    p = (step − warmup)/(total + 1 − warmup), at most 1.

    Steps count from 1. With 0 `warmup_steps` it begins at the peak; after `total_steps` the rate is
    `floor`.

    Raises:
        ValueError: if `step` is negative or not 0 ≤ warmup_steps < total_steps.

    Example:
        >>> cosine_schedule(50, peak=0.001, warmup_steps=100, total_steps=800)
        0.0005

    Source: Loshchilov & Hutter (2017), equation 5, one cycle.
    """
    check_schedule(step, warmup_steps, total_steps)
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min((step - warmup_steps) / (total_steps + 1 - warmup_steps), 1)
    return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2


def linear_schedule(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, floor: float = 0.0
) -> float:
    """Grow linearly to `peak`, then fall linearly to `floor`.

    As `cosine_schedule`, with 1 − p where that has (1 + cos(π p))/2.

    Example:
        >>> options = {"peak": 1.0, "warmup_steps": 2, "total_steps": 5}
        >>> [linear_schedule(step, **options) for step in range(8)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]

    Source: Devlin et al. (2019), appendix A.2.
    """
    check_schedule(step, warmup_steps, total_steps)
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = min((step - warmup_steps) / (total_steps + 1 - warmup_steps), 1)
    return floor + (peak - floor) * (1 - progress)
