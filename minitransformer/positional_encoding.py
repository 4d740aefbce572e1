"""Positions: what tells attention, blind to order, where each token stands.

Built in chapter 3. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.5.
"""

import math

import torch
from torch import Tensor, nn

__all__ = ["SinusoidalPositionalEncoding", "sinusoidal_positions"]


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """The paper's table of sines and cosines, one row a position.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),  PE(pos, 2i+1) = cos(the same angle).

    Args:
        length: number of positions.
        d_model: width, d; an odd width ends on a sine without its cosine.

    Returns:
        (length, d), float32.

    Example:
        >>> sinusoidal_positions(3, 2)
        tensor([[ 0.0000,  1.0000],
                [ 0.8415,  0.5403],
                [ 0.9093, -0.4161]])

    Built in chapter 3. Paper: section 3.5.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    # 1 / 10000^(2i/d), written as an exponential; float64 keeps far positions exact.
    angle = position * torch.exp(-math.log(10_000.0) * even / d_model)
    table = torch.empty(length, d_model)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table


class SinusoidalPositionalEncoding(nn.Module):
    """Add the sinusoidal table to token vectors. It has no parameters.

    Args:
        d_model: width, d.
        max_len: number of positions the table holds.

    Built in chapter 3. Paper: section 3.5.
    """

    table: Tensor

    def __init__(self, d_model: int, max_len: int = 1024) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_positions(max_len, d_model), persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the encodings of positions start, start+1, ...

        Args:
            x: token vectors, (b, q, d).
            start: position of the first one; not 0 when decoding with a cache.

        Returns:
            (b, q, d), the dtype of `x`.

        Raises:
            ValueError: if a position lies past `max_len`.

        Example:
            >>> SinusoidalPositionalEncoding(2)(torch.zeros(1, 1, 2), start=1)
            tensor([[[0.8415, 0.5403]]])
        """
        end = start + x.size(-2)
        if end > self.table.size(0):
            raise ValueError(
                f"a sequence of {end} positions is longer than max_len={self.table.size(0)}"
            )
        return x + self.table[start:end].to(x.dtype)
