"""Dropout.

Built in chapter 7. Paper: "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
(Srivastava et al., 2014); where it stands: Vaswani et al. (2017), section 5.4.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Dropout"]


class Dropout(nn.Dropout):
    """While training, zero elements with probability p and scale the others by 1/(1 - p).

    It is PyTorch's, but its random numbers come from `generator`; from the global one while that
    is None, as it is outside of training.

    Example:
        >>> dropout = Dropout(0.5)
        >>> sorted(set(dropout(torch.ones(100)).tolist())), dropout.eval()(torch.ones(2))
        ([0.0, 2.0], tensor([1., 1.]))

    Built in chapter 7.
    """

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x, of any shape; the same shape and dtype come back."""
        if not self.training or self.generator is None or self.p in (0.0, 1.0):
            return super().forward(x)
        keep = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * keep / (1 - self.p)


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
