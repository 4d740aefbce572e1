"""Dropout.

Built in chapter 7. Paper: "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
(Srivastava et al., 2014); where it stands: Vaswani et al. (2017), section 5.4.
"""

import torch
from torch import Tensor, nn

__all__ = ["Dropout"]


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
