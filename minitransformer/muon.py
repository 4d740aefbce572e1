"""Muon: momentum whose directions all count the same, for the matrices of layers.

An update of Adam is a matrix of which a few directions are long and most are short. Muon makes all
of them about as long: of the momentum U S Vᵀ it keeps U Vᵀ. A polynomial in products of matrices
comes close to that without a decomposition (Newton-Schulz).

It computes what PyTorch's own does with `adjust_lr_fn="match_rms_adamw"`. Matrices of one
shape are stacked: one batched product for each shape, and not one product for each matrix.

Built in chapter 9. Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural
networks" (2024); "Muon is Scalable for LLM Training" (Liu et al., 2025), section 2.2.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def product_dtype(device: torch.device) -> torch.dtype:
    """Half the precision is enough here, and worth it where a processor has products for it.

    Where it has none, bfloat16 is many times slower than float32.
    """
    if device.type != "cpu":
        return torch.bfloat16
    # Older versions of PyTorch cannot say; float32 is never wrong.
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_fast = torch.backends.cpu.get_cpu_capability() == "AVX512" and known.get("avx512_bf16")
    return torch.bfloat16 if is_fast else torch.float32


def orthogonalise(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """Matrices with about the same singular vectors, and singular values of about 1.

    X is divided by its Frobenius norm, so that no singular value is above 1. Then each step is
    X ← a X + (b A + c A²) X with A = X Xᵀ, which takes every singular value σ to a σ + b σ³ + c σ⁵.

    Args:
        matrices: (..., m, n), floating point.
        steps: how often; after 5 most singular values lie between 0.7 and 1.2.

    Returns:
        (..., m, n).

    Example:
        >>> x = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalise(x))
        >>> bool(((values > 0.5) & (values < 1.4)).all())
        True

    Built in chapter 9.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = (matrices.mT if is_tall else matrices).reshape(-1, *sorted(matrices.shape[-2:]))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x.bmm(x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(matrices.shape)


class Muon(torch.optim.Optimizer):
    """W ← (1 - lr·λ) W - 0.2·lr·√max(m, n)·orthogonalise(momentum), for matrices W, (m, n).

    The factor 0.2·√max(m, n) makes a weight move by 0.2 of the rate in the quadratic mean, or less
    if the gradient has fewer directions than the matrix. So a rate that suits Adam is one to begin
    with for Muon.

    Args:
        parameters: matrices, or groups of them.
        lr: the learning rate.
        momentum: how much of the mean gradient stays at a step; Nesterov's.
        weight_decay: λ.

    Raises:
        ValueError: if a parameter is no matrix.

    Example:
        >>> matrix = torch.nn.Parameter(torch.zeros(3, 3))
        >>> matrix.grad = torch.diag(torch.tensor([100.0, 10.0, 1.0]))
        >>> Muon([matrix], lr=1.0).step()
        >>> bool((matrix.diagonal() < -0.2).all())
        True

    Built in chapter 9.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    raise ValueError(f"Muon is for matrices, got shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change every matrix that has a gradient; returns nothing."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor, Tensor]]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    known = matrix, matrix.grad, self.momentum_of(matrix)
                    by_shape.setdefault(matrix.shape, []).append(known)
            for shape, alike in by_shape.items():
                matrices, gradients, means = map(list, zip(*alike, strict=True))
                torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, means, group["momentum"])
                stack = torch.stack(ahead)
                updates = orthogonalise(stack.to(product_dtype(stack.device))).to(stack.dtype)
                if group["weight_decay"]:
                    torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
                scale = 0.2 * group["lr"] * math.sqrt(max(shape))
                torch._foreach_add_(matrices, updates.unbind(), alpha=-scale)

    def momentum_of(self, matrix: Tensor) -> Tensor:
        """The running mean of a matrix's gradients; at first, zeros."""
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        return state["momentum_buffer"]
