"""Around every sub-layer: layer normalisation, dropout and the residual connection.

Built in chapter 7. Papers: "Layer Normalization" (Ba et al., 2016); "Root Mean Square Layer
Normalization" (Zhang & Sennrich, 2019); "Dropout: A Simple Way to Prevent Neural Networks from
Overfitting" (Srivastava et al., 2014); Vaswani et al. (2017), sections 3.1 and 5.4.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1

__all__ = ["Dropout", "LayerNorm", "RMSNorm", "ResidualConnection", "layer_norm", "rms_norm"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LN(x) = γ (x − μ) / √(σ² + ε) + β, over the last axis, written out.

    μ is the mean and σ² the biased variance (divided by d, not d − 1) of each position.

    Args:
        x: (..., d), floating point.
        weight: γ, (d,).
        bias: β, (d,).
        eps: ε, inside the root.

    Returns:
        The shape and dtype of `x`.

    Example:
        >>> layer_norm(torch.tensor([1.0, 3.0]), torch.ones(2), torch.zeros(2), eps=0.0)
        tensor([-1.,  1.])

    Paper: Ba et al., equation 4.
    """
    # At least float32, as in PyTorch's kernel: float16 has no squares of numbers above 255.
    numbers = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = numbers.mean(dim=-1, keepdim=True)  # (..., 1)
    variance = numbers.var(dim=-1, keepdim=True, unbiased=False)
    return (weight * (numbers - mean) / torch.sqrt(variance + eps) + bias).to(x.dtype)


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters, computed by PyTorch's fused kernel of the same formula.

    Args:
        d_model: width, d.
        eps: ε, inside the root.

    Raises:
        ValueError: if the width is below 1.

    Paper: Ba et al., section 3.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model)
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each position of x, (..., d); the same shape comes back.

        Example:
            >>> LayerNorm(2)(torch.tensor([[0.0, 100.0]])).round()
            tensor([[-1.,  1.]], grad_fn=<RoundBackward0>)
        """
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """RMSNorm(x) = γ x / √(mean of x² + ε), over the last axis, written out.

    Layer norm without its mean and its bias: the vector keeps its direction before γ.

    Args:
        x: (..., d), floating point.
        weight: γ, (d,).
        eps: ε, inside the root.

    Returns:
        The shape and dtype of `x`.

    Example:
        >>> rms_norm(torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.ones(4), eps=0.0)
        tensor([1.2000, 1.6000, 0.0000, 0.0000])

    Paper: Zhang & Sennrich, equation 4.
    """
    numbers = x.to(torch.promote_types(x.dtype, torch.float32))  # as in `layer_norm`
    mean_square = numbers.square().mean(dim=-1, keepdim=True)  # (..., 1)
    return (weight * numbers / torch.sqrt(mean_square + eps)).to(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` with its parameter, computed by PyTorch's operation of the same name.

    Its arguments are those of `LayerNorm`.

    Paper: Zhang & Sennrich, section 4.
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model)
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale each position of x, (..., d); the same shape comes back.

        Example:
            >>> RMSNorm(2)(torch.tensor([[0.0, 100.0]]))
            tensor([[0.0000, 1.4142]], grad_fn=<MulBackward0>)
        """
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
Norm = str | Callable[[int], nn.Module]
"""A name of `NORMS`, or what makes a norm of a width."""


def new_norm(norm: Norm, d_model: int) -> nn.Module:
    """A norm by its name, or by what makes it."""
    if not isinstance(norm, str):
        return norm(d_model)
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {sorted(NORMS)}, got {norm!r}")
    return NORMS[norm](d_model)


class Dropout(nn.Dropout):
    """While training, zero elements with probability p and scale the others by 1/(1 - p).

    PyTorch's draws a number for each element. On a CPU that costs more than all else in dropout,
    so there one 64-bit number decides on four elements, and p is rounded to a multiple of 2⁻¹⁶.

    Example:
        >>> dropout = Dropout(0.5)
        >>> sorted(set(dropout(torch.ones(100)).tolist())), dropout.eval()(torch.ones(2))
        ([0.0, 2.0], tensor([1., 1.]))
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x, of any shape; the same shape and dtype come back."""
        if not self.training:
            return x
        dropped = round(self.p * 2**16)  # of 2^16 values
        if dropped in (0, 2**16) or not draws_now(x):
            return super().forward(x)
        random = torch.empty(-(-x.numel() // 4), dtype=torch.int64)  # a quarter, rounded up
        random.random_(-(2**63), None)
        sixteen_bits = random.view(torch.int16)[: x.numel()].view(x.shape)
        keep = sixteen_bits >= dropped - 2**15
        return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


def draws_now(x: Tensor) -> bool:
    """Whether x is an ordinary tensor on a CPU, and nothing is compiled or mapped (`vmap`)."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return type(x) is Tensor and x.device.type == "cpu"


class ResidualConnection(nn.Module):
    """Carry x past a sub-layer and add what the sub-layer makes of it.

    Post-norm, the paper's:  Norm(x + Dropout(Sublayer(x))).
    Pre-norm, what most models since use:  x + Dropout(Sublayer(Norm(x))).

    Args:
        d_model: width, d.
        dropout: probability of zeroing an element of the sub-layer's output while training.
        norm_first: pre-norm if True.
        norm: "layer_norm", the paper's, or "rms_norm"; or what makes a norm of a width, such as
            `RMSNorm` or `partial(LayerNorm, eps=1e-12)`.

    Raises:
        ValueError: if the width is below 1, or `norm` is unknown.

    Paper: sections 3.1 and 5.4.
    """

    def __init__(
        self,
        d_model: int,
        *,
        dropout: float = 0.0,
        norm_first: bool = False,
        norm: Norm = "layer_norm",
    ) -> None:
        super().__init__()
        self.norm = new_norm(norm, d_model)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer`, a function from (..., d) to (..., d), around x.

        Example:
            >>> residual = ResidualConnection(4, norm_first=True)
            >>> residual(torch.ones(1, 4), lambda x: 2 * x)
            tensor([[1., 1., 1., 1.]], grad_fn=<AddBackward0>)
        """
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))
