"""Low-rank adaptation: fine-tuning that trains a few thin matrices and merges them at the end.

Built in chapter 12. Paper: "LoRA: Low-Rank Adaptation of Large Language Models" (Hu et al., 2021),
section 4.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from minitransformer.layers.packing import PACKABLE
from minitransformer.models.registry import register

__all__ = ["LoRALinear", "add_lora", "merge_lora"]


class LoRALinear(nn.Module):
    """W x + b + (α/r) B A x: a linear layer that stays, and a change of rank r that learns.

    A (r, in) starts at random, B (out, r) at zero, so that the layer begins as it was. The gradient
    of each goes through the other: with both at zero nothing would ever move.

    Args:
        linear: the layer; its parameters are frozen.
        rank: r; at most as many directions change.
        alpha: α, what the change is multiplied by, over r; r when left out.
        generator: source of A's starting values; PyTorch's global one when left out.

    Raises:
        ValueError: if `rank` is below 1 or above a width of the layer.

    Example:
        >>> layer = LoRALinear(nn.Linear(6, 5), rank=2)
        >>> layer(torch.randn(3, 6)).shape, [tuple(p.shape) for p in (layer.a, layer.b)]
        (torch.Size([3, 5]), [(2, 6), (5, 2)])

    Paper: section 4.1.
    """

    def __init__(
        self,
        linear: nn.Linear,
        rank: int,
        alpha: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        smaller = min(linear.weight.shape)
        if not 1 <= rank <= smaller:
            raise ValueError(f"rank must lie between 1 and {smaller}, got {rank}")
        self.settings = {"rank": rank, "alpha": alpha}  # what makes such a layer, for checkpoints
        self.linear = linear.requires_grad_(False)
        self.scale = (rank if alpha is None else alpha) / rank
        std = 1 / math.sqrt(linear.in_features)
        self.a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.normal_(self.a, std=std, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (..., in), to (..., out), by way of (..., r)."""
        return self.linear(x) + self.scale * (x @ self.a.T @ self.b.T)

    def merged(self) -> nn.Linear:
        """The layer with the change in its weight: the same outputs, at the old cost.

        Added in float32 at least and rounded once, to the weight's dtype.
        """
        weight = self.linear.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        change = self.scale * (self.b.to(wide) @ self.a.to(wide))
        with torch.no_grad():
            weight.copy_(weight.to(wide) + change)
        return self.linear


register(LoRALinear)
PACKABLE[LoRALinear.forward] = None


def add_lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    names: Collection[str] | None = None,
    generator: torch.Generator | None = None,
) -> list[str]:
    """Freeze a model, and give its linear layers changes of low rank, which alone will learn.

    Args:
        model: changed in place. Embeddings and the output projection are no linear layers.
        rank, alpha, generator: see `LoRALinear`.
        names: the last part of the names of the layers that get one, such as ("w_q", "w_v"), the
            paper's; all linear layers when left out.

    Returns the names of those layers.

    Raises:
        ValueError: if there is no such layer, or some have a change already.

    Example:
        >>> from minitransformer.layers.feed_forward import FeedForward
        >>> network = FeedForward(6, 8)
        >>> add_lora(network, rank=2, names=["w_2"])
        ['w_2']
        >>> [name for name, p in network.named_parameters() if p.requires_grad]
        ['w_2.a', 'w_2.b']

    Paper: section 4.2.
    """
    if any(isinstance(part, LoRALinear) for part in model.modules()):
        raise ValueError("the model has low-rank changes already: merge_lora adds them to it")
    found = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and (names is None or name.split(".")[-1] in names)
    }
    if not found:
        raise ValueError(f"the model has no linear layer of the names {names}")
    model.requires_grad_(False)
    for name, layer in found.items():
        model.set_submodule(name, LoRALinear(layer, rank, alpha, generator))
    return list(found)


def merge_lora(model: nn.Module) -> None:
    """Add all low-rank changes to their weights; the model has its old parts, which all learn.

    Raises:
        ValueError: if it has no such change.

    Example:
        >>> from minitransformer.layers.feed_forward import FeedForward
        >>> network = FeedForward(6, 8)
        >>> _ = add_lora(network, rank=2)
        >>> merge_lora(network)
        >>> type(network.w_1).__name__
        'Linear'
    """
    found = {name: part for name, part in model.named_modules() if isinstance(part, LoRALinear)}
    if not found:
        raise ValueError("the model has no low-rank change to merge")
    for name, part in found.items():
        model.set_submodule(name, part.merged())
    model.requires_grad_(True)
