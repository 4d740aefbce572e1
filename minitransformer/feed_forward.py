"""The position-wise feed-forward network.

Built in chapter 6. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.3.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FeedForward"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W₁ + b₁) W₂ + b₂, the same at every position.

    Args:
        d_model: width in and out, d.
        d_ff: width inside, f.
        activation: "relu", the paper's, or "gelu".
        dropout: probability of zeroing an inner unit while training; the paper has none here.

    Raises:
        ValueError: if `activation` is unknown.

    Example:
        >>> import torch
        >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])

    Built in chapter 6. Paper: section 3.3, equation 2.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: str = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of x, (..., d), on its own; the same shape comes back."""
        return self.w_2(self.dropout(self.activation(self.w_1(x))))
