"""The loss of a large vocabulary, without all logits in memory.

Source: Hsu et al., "Liger Kernel" (2024).
"""

from typing import Any, cast

import torch
from torch import Tensor

from minitransformer.checks import check_loss, known

__all__ = ["linear_cross_entropy"]

MAX_LOGITS = 2**22  # that are in memory at a time: 16 MB


class LinearCrossEntropy(torch.autograd.Function):
    """The forward and backward pass of `linear_cross_entropy`, a chunk of positions at a time.

    The forward pass returns the loss and its gradients to `hidden` and `weight`. A position counts
    once in the mean or not at all: `counts`, (n, 1), holds ones and zeros.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, targets: Tensor, counts: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        v, wide = weight.size(0), counts.dtype
        chunk = max(1, MAX_LOGITS // v)
        losses, grads_hidden, grad_weight = [], [], None
        chunks = (x.split(chunk) for x in (hidden, targets, counts))
        for h, target, count in zip(*chunks, strict=True):
            logits = (h @ weight.T).to(wide)
            loss = (smoothing - 1) * logits.gather(-1, target)
            if smoothing:  # as in `label_smoothing_loss`
                loss = loss - smoothing * logits.mean(dim=-1, keepdim=True)
            highest = logits.amax(dim=-1, keepdim=True)
            exps = logits.sub_(highest).exp_()
            sums = exps.sum(dim=-1, keepdim=True)
            losses.append((count * (loss + highest + sums.log())).sum())
            # What the loss of a position is to its logits: probabilities minus their targets.
            grad = exps.mul_(count / sums).sub_(count * (smoothing / v))
            grad = grad.scatter_add_(-1, target, count * (smoothing - 1))
            grads_hidden.append(grad.to(h.dtype) @ weight)
            # In float32 even where weights are not: a sum of rounded sums would be far off.
            product = (grad.T @ h.to(wide)).to(wide)
            grad_weight = product if grad_weight is None else grad_weight.add_(product)
        n = counts.sum()
        grad_hidden, grad_weight = torch.cat(grads_hidden) / n, cast(Tensor, grad_weight) / n
        return sum(losses) / n, grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *of_gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        asked = any(x is not None for x in of_gradients)
        if asked and not torch.compiler.is_compiling():  # which asks for all of them
            raise RuntimeError("linear_cross_entropy can be differentiated only once")
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad * grad_hidden, grad * grad_weight, None, None, None


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
        A scalar, float32, or float64 if `hidden` is.

    Raises:
        TypeError: if `targets` are not int64.
        ValueError: if shapes do not fit, ε is outside [0, 1), a target that is not padding lies
            outside the vocabulary, or every target is padding.

    Example:
        >>> hidden, weight = torch.randn(2, 3, 4), torch.zeros(5, 4)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([[1, 2, 0], [3, 0, 0]]))
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Source: Hsu et al., "Liger Kernel" (2024).
    """
    check_loss("hidden", hidden, targets, weight.size(0), smoothing, pad_id)
    if hidden.size(-1) != weight.size(-1):
        raise ValueError(
            "hidden and weight must have the same width, "
            f"got {hidden.size(-1)} and {weight.size(-1)}"
        )
    real = (targets != pad_id).flatten()
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if known(real.any()):
        hidden, targets, real = hidden[real], targets[real], real[real]
    else:  # a program that PyTorch traces cannot leave out padding, but not let it count
        hidden, targets = hidden.masked_fill(~real[:, None], 0.0), targets.where(real, 0)
    counts = real.to(torch.promote_types(hidden.dtype, torch.float32))
    targets, counts = targets[:, None], counts[:, None]
    return cast(Tensor, LinearCrossEntropy.apply(hidden, weight, targets, counts, smoothing)[0])
