"""The position-wise feed-forward network.

Built in chapter 6. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.3.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.layers.layer_norm import Dropout

__all__ = ["FeedForward"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "swiglu": F.silu,
}
GATED = ("reglu", "geglu", "geglu_tanh", "swiglu")


class FeedForward(nn.Module):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂, the same at every position.

    The paper's activation is max(0, ·), "relu". "gelu" is x Φ(x) with the exact Φ of the normal
    distribution, "gelu_tanh" the approximation of GPT-2's code, and "silu" x / (1 + e⁻ˣ), also
    called swish. Gated networks multiply the activation by a second projection:

        FFN(x) = (activation(x W₁) ⊙ x W₃) W₂,

    "swiglu" with silu, "geglu" and "geglu_tanh" with the two gelus, "reglu" with relu. These are
    three matrices instead of two, and have no biases. With two thirds of the inner width they
    have as many weights as the others.

    Args:
        d_model: width in and out, d.
        d_ff: width inside, f.
        activation: one of these names.
        bias: whether the projections have biases; when left out, unless the network is gated.
        dropout: probability of zeroing an inner unit while training; the paper has none here.

    Raises:
        ValueError: if a width is below 1, or `activation` is unknown.

    Example:
        >>> import torch
        >>> FeedForward(8, 32)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])

    Paper: section 3.3, equation 2. GELU: Hendrycks & Gimpel (2016);
    gates: Shazeer (2020), equations 5 and 6.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, d_ff=d_ff)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        gated = activation in GATED
        bias = not gated if bias is None else bias
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_3 = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of x, (..., d), on its own; the same shape comes back."""
        inner = self.activation(self.w_1(x))  # (..., f)
        if self.w_3 is not None:
            inner = inner * self.w_3(x)
        return self.w_2(self.dropout(inner))  # (..., d)
