"""The optimiser by its name, which parameter it treats how, and the average of its steps.

Built in chapter 9. Papers: "Adam" (Kingma & Ba, 2014); "Decoupled Weight Decay Regularization"
(Loshchilov & Hutter, 2019).
"""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.muon import Muon
from minitransformer.positional_encoding import LearnedPositionalEncoding
from minitransformer.registry import named_weights
from minitransformer.training import TrainingConfig

__all__ = ["ParameterRule", "new_optimizer", "parameter_rules"]

Model = TypeVar("Model", bound=nn.Module)
TABLES = (TokenEmbedding, OutputProjection, LearnedPositionalEncoding, nn.Embedding)
"""What has a row for each token or position: two axes, but it is looked up, and multiplies nothing
that other rows have a part in."""


class ParameterRule(NamedTuple):
    """How a parameter is treated.

    Example:
        >>> ParameterRule("muon", 0.1).method
        'muon'

    Built in chapter 9.
    """

    method: str
    """"adam" or "muon"."""
    weight_decay: float
    """λ: a step takes learning rate · λ of it away; 0 takes nothing."""


def parameter_rules(model: nn.Module, config: TrainingConfig) -> dict[str, ParameterRule]:
    """Which parameter is treated how: the one place that says so.

    Matrices of the layers have the method of `config.optimizer` and the decay
    `config.weight_decay`. All others have Adam and no decay: the tables of tokens and positions,
    that of the output too, tied or not; biases; gains.

    For a matrix of a layer 0 means no effect, a sensible thing to fall back to. For a gain it means
    silence, and for the row of a rare token to be forgotten between two visits. And Muon turns all
    directions of a matrix into equally long ones, which has a sense where they act together.

    Args:
        model: whose parameters.
        config: how it is trained.

    Returns:
        A rule for each parameter by name; a tied one once.

    Example:
        >>> layer = nn.Sequential(TokenEmbedding(9, 4), nn.Linear(4, 4))
        >>> config = TrainingConfig(optimizer="muon", weight_decay=0.1)
        >>> for name, rule in parameter_rules(layer, config).items():
        ...     print(f"{name:<9} {rule.method:<5} {rule.weight_decay}")
        0.weight  adam  0.0
        1.weight  muon  0.1
        1.bias    adam  0.0

    Built in chapter 9.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, TABLES) for p in m.parameters()}
    method = "muon" if config.optimizer == "muon" else "adam"
    matrix, other = ParameterRule(method, config.weight_decay), ParameterRule("adam", 0.0)
    return {
        name: matrix if parameter.dim() == 2 and id(parameter) not in tables else other
        for name, parameter in named_weights(model).items()
    }


class Together:
    """Several optimisers as one: the parameters of each have its groups, and all one state.

    Args:
        optimizers: of different parameters.

    Example:
        >>> one, two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        >>> both = Together(torch.optim.SGD([one], lr=0.5), torch.optim.Adam([two], lr=0.5))
        >>> (one + 2 * two).backward()
        >>> both.step()
        >>> one.item(), round(two.item(), 3), list(both.state[two])
        (0.5, 0.5, ['step', 'exp_avg', 'exp_avg_sq'])

    Built in chapter 9.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]
        self.state: defaultdict[Tensor, Any] = defaultdict(dict)
        for optimizer in optimizers:
            optimizer.state = self.state

    def zero_grad(self) -> None:
        """Empty the gradients of all parameters."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """One step of each."""
        for optimizer in self.optimizers:
            optimizer.step()


def new_optimizer(model: nn.Module, config: TrainingConfig) -> Any:
    """The optimiser of a training; its learning rate is to be set before every step.

    All parameters have the same rate. Adam moves a weight by the rate at most, and in the middle
    of a training by some tenths of it; `Muon` by 0.2 of it in the quadratic mean.

    Args:
        model: whose parameters.
        config: how it is trained.

    Returns:
        PyTorch's; for "muon" that and Muon as one, with the same `param_groups`, `state`, `step`
        and `zero_grad`; one of the two where the other has no parameter.

    Raises:
        ValueError: if the model has no parameters.

    Example:
        >>> optimizer = new_optimizer(nn.Linear(2, 3), TrainingConfig(optimizer="adamw"))
        >>> type(optimizer).__name__, optimizer.defaults["betas"]
        ('AdamW', (0.9, 0.98))

    Built in chapter 9. Paper: section 5.3; Liu et al. (2025), section 2.2.
    """
    weights, rules = named_weights(model), parameter_rules(model, config)
    if not weights:
        raise ValueError(f"model must have at least 1 parameter, got {type(model).__name__} with 0")

    def groups(method: str) -> list[dict[str, Any]]:
        """The parameters of a method, a group for each weight decay."""
        found: dict[float, list[nn.Parameter]] = {}
        for name, rule in rules.items():
            if rule.method == method:
                found.setdefault(rule.weight_decay, []).append(weights[name])
        return [{"params": params, "weight_decay": decay} for decay, params in found.items()]

    # The paper's betas and epsilon.
    options: dict[str, Any] = {"lr": 0.0, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
    if config.optimizer == "adam":
        return torch.optim.Adam(groups("adam"), **options)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups("adam"), **options)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices := groups("muon"):
        optimizers.append(Muon(matrices, lr=0.0))
    if others := groups("adam"):
        optimizers.append(torch.optim.AdamW(others, **options))
    return Together(*optimizers)


@torch.no_grad()
def move_average(average: dict[str, Tensor], model: nn.Module, beta: float, step: int) -> None:
    """Take the weights after step n into their average, which is made if there is none:

        average = Σ β^(n−i) · weights after step i / Σ β^(n−i), over i from 1 to n.

    So the starting values, which are random, do not count, and after step 1 it is the weights
    themselves. With β near 1 it is their mean over all steps.

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
