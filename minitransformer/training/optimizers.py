"""Optimisers by name, how each parameter is treated, Muon, and the average of a model's weights.

Built in chapter 9. Sources: "Adam" (Kingma & Ba, 2014); "Decoupled Weight Decay Regularization"
(Loshchilov & Hutter, 2019); Jordan et al., "Muon: An optimizer for hidden layers in neural
networks" (2024); "Muon is Scalable for LLM Training" (Liu et al., 2025), section 2.2.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from minitransformer.layers.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layers.positional_encoding import LearnedPositionalEncoding
from minitransformer.models.registry import named_weights
from minitransformer.training.config import TrainingConfig

__all__ = ["Muon", "ParameterRule", "new_optimizer", "parameter_rules"]

Model = TypeVar("Model", bound=nn.Module)
TABLES = (TokenEmbedding, OutputProjection, LearnedPositionalEncoding, nn.Embedding)
"""Modules whose matrix has a row for each token or position: rows are looked up one by one."""


class ParameterRule(NamedTuple):
    """How a parameter is treated."""

    method: str  # "adam" or "muon"
    weight_decay: float  # λ: a step takes learning rate · λ of it away


def parameter_rules(model: nn.Module, config: TrainingConfig) -> dict[str, ParameterRule]:
    """Which parameter is treated how: the one place that says so.

    Matrices of the layers have the method of `config.optimizer` and the decay
    `config.weight_decay`. All others have Adam and no decay: the tables of tokens and positions,
    that of the output too, tied or not; biases; gains.

    A layer's matrix that decays to 0 has no effect, which is harmless. A gain of 0 silences its
    layer, and the row of a rare token would be forgotten until it occurs again. Muon needs matrices
    whose rows act together. A tied parameter has one rule, under its first name.

    Example:
        >>> layer = nn.Sequential(TokenEmbedding(9, 4), nn.Linear(4, 4))
        >>> config = TrainingConfig(optimizer="muon", weight_decay=0.1)
        >>> for name, rule in parameter_rules(layer, config).items():
        ...     print(f"{name:<9} {rule.method:<5} {rule.weight_decay}")
        0.weight  adam  0.0
        1.weight  muon  0.1
        1.bias    adam  0.0
    """
    tables = {id(p) for m in model.modules() if isinstance(m, TABLES) for p in m.parameters()}
    method = "muon" if config.optimizer == "muon" else "adam"
    matrix, other = ParameterRule(method, config.weight_decay), ParameterRule("adam", 0.0)
    return {
        name: matrix if parameter.dim() == 2 and id(parameter) not in tables else other
        for name, parameter in named_weights(model).items()
    }


def new_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The optimiser of a training; its learning rate is to be set before every step.

    All parameters have the same rate. Adam moves a weight by the rate at most, and in the middle
    of a training by some tenths of it; `Muon` by 0.2 of it in the quadratic mean.

    It is PyTorch's Adam or AdamW, or `Muon`, with a parameter group for each rule; a ValueError, if
    the model has no parameters.

    Example:
        >>> optimizer = new_optimizer(nn.Linear(2, 3), TrainingConfig(optimizer="adamw"))
        >>> type(optimizer).__name__, optimizer.defaults["betas"]
        ('AdamW', (0.9, 0.98))

    Paper: section 5.3; Liu et al. (2025), section 2.2.
    """
    weights = named_weights(model)
    if not weights:
        raise ValueError(f"model must have at least 1 parameter, got {type(model).__name__} with 0")
    by_rule: dict[ParameterRule, list[nn.Parameter]] = {}
    for name, rule in parameter_rules(model, config).items():
        by_rule.setdefault(rule, []).append(weights[name])
    groups = [rule._asdict() | {"params": params} for rule, params in by_rule.items()]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}
    make: Any = kinds[config.optimizer]
    # The paper's betas and epsilon.
    return make(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


class Muon(torch.optim.Optimizer):
    """Momentum whose directions all count the same, for matrices; AdamW for other parameters.

    An update of Adam is a matrix of which a few directions are long and most are short. Muon makes
    all of them about as long: of the momentum U S Vᵀ it keeps about U Vᵀ (`orthogonalise`).

        W ← (1 − lr·λ) W − 0.2·lr·√max(m, n)·orthogonalise(momentum), for matrices W, (m, n).

    The factor makes a weight move by 0.2 of the rate in the quadratic mean: begin with a rate
    that suits Adam. It is PyTorch's `Muon` with `adjust_lr_fn="match_rms_adamw"`,
    but matrices of one shape are stacked: one batched product for each shape, not for each matrix.

    Args:
        parameters: matrices, or groups of parameters; those with `"method": "adam"` are AdamW's.
        lr, weight_decay: the learning rate, and λ.
        momentum: how much of the mean gradient stays at a step; Nesterov's.
        betas, eps, fused: as in `torch.optim.AdamW`, for groups with `"method": "adam"`.

    Raises:
        ValueError: if a parameter of any other group is no matrix.

    Example:
        >>> matrix = torch.nn.Parameter(torch.zeros(3, 3))
        >>> matrix.grad = torch.diag(torch.tensor([100.0, 10.0, 1.0]))
        >>> Muon([matrix], lr=1.0).step()
        >>> bool((matrix.diagonal() < -0.2).all())
        True
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "betas": betas}
        super().__init__(parameters, defaults | {"eps": eps, "fused": fused, "method": "muon"})
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["method"] == "muon" and parameter.dim() != 2:
                    raise ValueError(f"Muon is for matrices, got shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Change every parameter that has a gradient; returns the closure's loss, if any."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        others = [group for group in self.param_groups if group["method"] == "adam"]
        if others:
            adam = torch.optim.AdamW(others)
            adam.state = self.state  # both keep it under their parameters
            adam.step()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"] if group["method"] == "muon" else ():
                if matrix.grad is not None:
                    by_shape.setdefault(matrix.shape, []).append(matrix)
            for matrices in by_shape.values():
                self.step_matrices(matrices, group)
        return loss

    def step_matrices(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """Muon's step for matrices of one shape, (m, n)."""
        gradients: list[Any] = [matrix.grad for matrix in matrices]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        means = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        ahead = torch.stack(torch._foreach_lerp(gradients, means, group["momentum"]))
        updates = orthogonalise(ahead.to(product_dtype(ahead.device))).to(ahead.dtype)
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        scale = 0.2 * group["lr"] * math.sqrt(max(ahead.shape[1:]))
        torch._foreach_add_(matrices, updates.unbind(), alpha=-scale)


COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """Matrices with about the same singular vectors, and singular values of about 1.

    X, (..., m, n), is divided by its Frobenius norm, so that no singular value is above 1. A step
    is X ← a X + (b A + c A²) X with A = X Xᵀ, which takes every singular value σ to
    a σ + b σ³ + c σ⁵ (Newton-Schulz): products only. After 5 most lie between 0.7 and 1.2.

    Example:
        >>> x = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalise(x))
        >>> bool(((values > 0.5) & (values < 1.4)).all())
        True
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = (matrices.mT if is_tall else matrices).reshape(-1, *sorted(matrices.shape[-2:]))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x.bmm(x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(matrices.shape)


def product_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 is precise enough here, but much slower than float32 on a CPU without support."""
    if device.type != "cpu":
        return torch.bfloat16
    # Older versions of PyTorch cannot say; float32 is never wrong.
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_fast = torch.backends.cpu.get_cpu_capability() == "AVX512" and known.get("avx512_bf16")
    return torch.bfloat16 if is_fast else torch.float32


@torch.no_grad()
def move_average(average: dict[str, Tensor], model: nn.Module, beta: float, step: int) -> None:
    """Take the weights after step n into their average, which is made if there is none:

        average = Σ β^(n−i) · weights after step i / Σ β^(n−i), over i from 1 to n.

    So the random starting values do not count. With β near 1 it is the mean over all steps.

    Example:
        >>> model, average = nn.Linear(1, 1, bias=False), {}
        >>> for step, weight in enumerate((4.0, 1.0), 1):
        ...     _ = nn.init.constant_(model.weight, weight)
        ...     move_average(average, model, 0.5, step)
        >>> average["weight"].item()  # (0.5 · 4 + 1) / (0.5 + 1)
        2.0
    """
    for name, weight in named_weights(model).items():
        mean = average.setdefault(name, torch.zeros_like(weight))
        mean += (1 - beta) / (1 - beta**step) * (weight - mean)


@torch.no_grad()
def copy_with(weights: Mapping[str, Tensor], model: Model) -> Model:
    """A copy of the model with these weights, and its own where there are none of that name."""
    found = copy.deepcopy(model)
    for name, weight in named_weights(found).items():
        weight.grad = None
        weight.copy_(weights.get(name, weight))
    return found
