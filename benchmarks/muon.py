"""Muon: momentum whose directions all count the same, for the matrices of hidden layers.

An update of Adam is a matrix of which a few directions are long and most are short. Muon makes all
of them about as long: of the momentum U S Vᵀ it keeps U Vᵀ. A polynomial in products of matrices
comes close to that without a decomposition (Newton-Schulz).

The same as `torch.optim.Muon`, but matrices of one shape are stacked, so that there is one batched
product for each shape and not one product for each matrix.

Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Matrices with about the same singular vectors, and singular values of about 1.

    X is divided by its Frobenius norm, so that no singular value is above 1. Then each step is
    X ← a X + (b A + c A²) X with A = X Xᵀ, which takes every singular value σ to a σ + b σ³ + c σ⁵.

    Args:
        matrices: (..., m, n), floating point.
        steps: how often; after 5 most singular values lie between 0.7 and 1.2.
        dtype: of the products; half the precision is enough, where a processor has it.

    Returns:
        (..., m, n), in `dtype`.

    Example:
        >>> x = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalise(x).float())
        >>> bool(((values > 0.5) & (values < 1.4)).all())
        True
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = (matrices.mT if is_tall else matrices).to(dtype)
    shape, x = x.shape, x.flatten(0, -3) if x.dim() > 2 else x[None]
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x.bmm(x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.view(shape)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """W ← (1 - lr·λ) W - lr·√max(1, m/n)·orthogonalise(momentum), for matrices W, (m, n).

    Args:
        parameters: matrices, or groups of them.
        lr: how far a step goes.
        momentum: how much of the mean gradient stays at a step; Nesterov's.
        weight_decay: λ.
        steps: of `orthogonalise`.

    Raises:
        ValueError: if a parameter is no matrix.

    Example:
        >>> matrix = torch.nn.Parameter(torch.zeros(3, 3))
        >>> matrix.grad = torch.diag(torch.tensor([100.0, 10.0, 1.0]))
        >>> Muon([matrix], lr=1.0).step()
        >>> bool((matrix.diagonal() < -0.5).all())
        True
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps}
        super().__init__(parameters, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    raise ValueError(f"Muon is for matrices, got shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Change every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), matrices in by_shape.items():
                gradients = torch.stack([matrix.grad for matrix in matrices])
                state = self.state[matrices[0]]  # of all that share its shape
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(gradients)
                mean = state["momentum"].lerp_(gradients, 1 - group["momentum"])
                update = orthogonalise(gradients.lerp_(mean, group["momentum"]), group["steps"])
                scale = group["lr"] * math.sqrt(max(1.0, rows / columns))
                updates = update.to(gradients.dtype).unbind()
                if group["weight_decay"]:
                    torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(matrices, updates, alpha=-scale)


class Together:
    """Several optimisers that a `Trainer` takes for one: each group's rate is `scale` times its.

    Args:
        optimizers: whose groups have a `scale`.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0}]

    def zero_grad(self) -> None:
        """Forget the gradients of all."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """A step of each, at its share of the learning rate that the trainer has set."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.param_groups[0]["lr"] * group["scale"]
            optimizer.step()
