"""Dropout, with random numbers that cost less on a CPU.

Built in chapter 7. Paper: "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
(Srivastava et al., 2014); where it stands: Vaswani et al. (2017), section 5.4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Dropout"]


class Dropout(nn.Dropout):
    """While training, zero elements with probability p and scale the others by 1/(1 - p).

    PyTorch's kernel draws a number for each element. On a CPU that costs more than all else in
    dropout. Here one 64-bit number decides on four elements, so p is rounded to a multiple of
    2⁻¹⁶ there.

    Example:
        >>> dropout = Dropout(0.5)
        >>> sorted(set(dropout(torch.ones(100)).tolist())), dropout.eval()(torch.ones(2))
        ([0.0, 2.0], tensor([1., 1.]))

    Built in chapter 7.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x, of any shape; the same shape and dtype come back."""
        if not self.training or self.p == 0.0:
            return x
        dropped = round(self.p * 2**16)  # of 2^16 values
        if x.device.type != "cpu" or dropped == 2**16:
            return F.dropout(x, self.p)
        quarter = -(-x.numel() // 4)  # rounded up
        random = torch.empty(quarter, dtype=torch.int64).random_(-(2**63), None)
        sixteen_bits = random.view(torch.int16)[: x.numel()].view(x.shape)
        keep = sixteen_bits >= dropped - 2**15
        return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))
