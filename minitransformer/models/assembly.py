"""What the relatives do to the kit's layers after they are made.

Built in chapter 12.
"""

import torch
from torch import nn

from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layer_norm import LayerNorm, RMSNorm
from minitransformer.positional_encoding import LearnedPositionalEncoding

__all__ = ["set_eps", "start_normal"]


def set_eps(model: nn.Module, eps: float) -> None:
    """Give all norms of a model this ε.

    Example:
        >>> norm = LayerNorm(4)
        >>> set_eps(norm, 1e-12)
        >>> norm.eps
        1e-12
    """
    for part in model.modules():
        if isinstance(part, LayerNorm | RMSNorm):
            part.eps = eps


def start_normal(model: nn.Module, std: float, generator: torch.Generator | None) -> None:
    """Draw all matrices and tables from a normal distribution; biases start at 0, norms at 1.

    Source: Radford et al. (2018), section 4.1, and Devlin et al.'s code, with a σ of 0.02.

    Example:
        >>> linear = nn.Linear(300, 200)
        >>> start_normal(linear, 0.02, torch.Generator().manual_seed(0))
        >>> round(linear.weight.std().item(), 3), linear.bias.abs().sum().item()
        (0.02, 0.0)
    """
    tables = TokenEmbedding | OutputProjection | LearnedPositionalEncoding | nn.Embedding
    for module in model.modules():
        if isinstance(module, tables | nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=std, generator=generator)
            if (bias := module._parameters.get("bias")) is not None:
                nn.init.zeros_(bias)
