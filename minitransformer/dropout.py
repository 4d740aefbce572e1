"""Dropout, with random numbers that cost less on a CPU.

Built in chapter 7. Paper: "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
(Srivastava et al., 2014); where it stands: Vaswani et al. (2017), section 5.4.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Dropout"]


class Dropout(nn.Dropout):
    """While training, zero elements with probability p and scale the others by 1/(1 - p).

    PyTorch's kernel draws a number for each element. On a CPU that costs more than all else in
    dropout. Here one 64-bit number decides on four elements, so p is rounded to a multiple of
    2⁻¹⁶ there.

    Its random numbers come from `generator`; from PyTorch's global one while that is None, as it
    is outside of training.

    Example:
        >>> dropout = Dropout(0.5)
        >>> sorted(set(dropout(torch.ones(100)).tolist())), dropout.eval()(torch.ones(2))
        ([0.0, 2.0], tensor([1., 1.]))

    Built in chapter 7.
    """

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x, of any shape; the same shape and dtype come back."""
        if not self.training or self.p == 0.0:
            return x
        dropped = round(self.p * 2**16)  # of 2^16 values
        on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if dropped == 2**16 or (self.generator is None and not on_cpu):
            return F.dropout(x, self.p)
        if x.device.type != "cpu":
            keep = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
            return x * keep.div_(1 - self.p)
        random = x.new_empty(-(-x.numel() // 4), dtype=torch.int64)  # a quarter, rounded up
        random.random_(-(2**63), None, generator=self.generator)
        sixteen_bits = random.view(torch.int16)[: x.numel()].view(x.shape)
        keep = sixteen_bits >= dropped - 2**15
        return x * keep.to(x.dtype).mul_(2**16 / (2**16 - dropped))


@contextmanager
def drawing_from(generator: torch.Generator, model: nn.Module) -> Iterator[None]:
    """Inside the block every `Dropout` of the model draws from this generator."""
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    before = [dropout.generator for dropout in dropouts]
    try:
        for dropout in dropouts:
            dropout.generator = generator
        yield
    finally:
        for dropout, its_own in zip(dropouts, before, strict=True):
            dropout.generator = its_own
