"""Positions: what tells attention, blind to order, where each token stands.

Two schemes add a vector to each token before the first layer (sinusoidal, learned); two act
inside every self-attention, on the scores (ALiBi) or on queries and keys (`rotary`, next door).

Built in chapter 3. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.5.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1, check_positions

__all__ = [
    "ALiBi",
    "LearnedPositionalEncoding",
    "SinusoidalPositionalEncoding",
    "alibi_slopes",
    "sinusoidal_positions",
]


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """The paper's table of sines and cosines, one row a position.

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),  PE(pos, 2i+1) = cos(the same angle).

    Args:
        length: number of positions.
        d_model: width, d; an odd width ends on a sine without its cosine.

    Returns:
        (length, d), float32, on the CPU, whatever PyTorch's defaults are.

    Example:
        >>> sinusoidal_positions(3, 2)
        tensor([[ 0.0000,  1.0000],
                [ 0.8415,  0.5403],
                [ 0.9093, -0.4161]])

    Paper: section 3.5.
    """
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    # 1 / 10000^(2i/d), written as an exponential; float64 keeps far positions exact.
    angle = position * torch.exp(-math.log(10_000.0) * even / d_model)
    table = torch.empty(length, d_model, dtype=torch.float32, device="cpu")
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table


class Constants(nn.Module):
    """A module whose plain tensors go with it to another device, and otherwise never change.

    They follow from a formula. As buffers they would be rounded by `half()`, for good, and left
    without content by `to_empty()`.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, constant in vars(self).items():
            if isinstance(constant, Tensor):
                device = fn(constant.new_empty(0)).device
                if device.type != "meta":  # where numbers are lost
                    vars(self)[name] = constant.to(device)
        return self


class SinusoidalPositionalEncoding(Constants):
    """Add the sinusoidal table to token vectors. It has no parameters.

    Args:
        d_model: width, d.
        max_len: number of positions the table holds.

    Raises:
        ValueError: if a size is below 1.

    Paper: section 3.5.
    """

    def __init__(self, d_model: int, max_len: int = 1024) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, max_len=max_len)
        self.table = sinusoidal_positions(max_len, d_model)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Add the encodings of positions start, start+1, ...

        Args:
            x: token vectors, (b, q, d).
            start: position of the first one, not 0 when decoding with a cache; or one for each
                row, (b,) int64, where rows begin with padding: what is below 0 counts as 0.

        Returns:
            (b, q, d), the dtype of `x`.

        Raises:
            ValueError: if a position lies past `max_len` or an int `start` below 0, or shapes do
                not fit together.

        Example:
            >>> SinusoidalPositionalEncoding(2)(torch.zeros(1, 1, 2), start=1)
            tensor([[[0.8415, 0.5403]]])
        """
        check_positions(x, start, self.table)
        return x + table_rows(self.table, start, x.size(-2)).to(x)


class LearnedPositionalEncoding(nn.Module):
    """Add a learned vector for each position: an embedding of positions, not of tokens.

    Entries start normal with mean square 1/2, like the sines and cosines they replace. Positions
    that training never showed keep these random vectors.

    Args:
        d_model: width, d.
        max_len: number of positions there are vectors for.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> encoding = LearnedPositionalEncoding(4, max_len=9)
        >>> torch.equal(encoding(torch.zeros(1, 2, 4), start=3)[0], encoding.weight[3:5])
        True

    Paper: Gehring et al. (2017); compared in "Attention Is All You Need",
    table 3, row E.
    """

    def __init__(self, d_model: int, max_len: int = 1024) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, max_len=max_len)
        self.weight = nn.Parameter(torch.randn(max_len, d_model) * math.sqrt(0.5))

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Add the vectors of positions start, start+1, ...; as `SinusoidalPositionalEncoding`."""
        check_positions(x, start, self.weight)
        return x + table_rows(self.weight, start, x.size(-2)).to(x.dtype)


class ALiBi(Constants):
    """Attention with linear biases: each head's scores fall in proportion to the distance.

    bias(i, j) = -slope · |i - j|. Each head has its own slope, which is not learned: steep ones
    see the neighbourhood, flat ones far. There is no table, and no longest sequence. Without a
    causal mask, as in an encoder, the bias cannot tell what stands before from what stands after.

    Args:
        num_heads: number of heads, h.

    Example:
        >>> ALiBi(2)(2, 3)[0]
        tensor([[-0.0625,  0.0000, -0.0625],
                [-0.1250, -0.0625,  0.0000]])

    Paper: "Train Short, Test Long" (Press et al., 2022), section 3.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(
        self, num_queries: int, num_keys: int, device: torch.device | str | None = None
    ) -> Tensor:
        """The biases, (h, q, k), float32, on `device`; the last query stands at the last key.

        Raises:
            ValueError: if there are more queries than keys: the first would have no position.
        """
        if num_queries > num_keys:
            raise ValueError(
                f"num_queries must not exceed num_keys, got {num_queries} queries, {num_keys} keys"
            )
        slopes = self.slopes.to(device or self.slopes.device)
        positions = torch.arange(num_keys, device=slopes.device)
        distance = (positions[num_keys - num_queries :, None] - positions).abs()
        return slopes[:, None, None] * -distance


def alibi_slopes(num_heads: int) -> Tensor:
    """The slopes of ALiBi: 2^(-8/h), 2^(-16/h), ..., 2^-8, one for each head.

    If h is no power of two, the slopes of the power below it come first, then every other one of
    the power above.

    Args:
        num_heads: number of heads, h, at least 1.

    Returns:
        (h,), float32, on the CPU, whatever PyTorch's defaults are.

    Raises:
        ValueError: if `num_heads` is below 1.

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])

    Paper: Press et al., section 3, and its authors' code for other h.
    """
    check_at_least_1(num_heads=num_heads)
    power = 2 ** (num_heads.bit_length() - 1)
    exponent = torch.arange(1, 2 * power + 1, dtype=torch.float64, device="cpu")
    below, above = 2.0 ** (-8 / power * exponent[:power]), 2.0 ** (-4 / power * exponent[::2])
    return torch.cat([below, above[: num_heads - power]]).float()


def table_rows(table: Tensor, start: int | Tensor, length: int) -> Tensor:
    """Rows start, ..., start+length-1 of a table with a row for each position."""
    max_len = table.size(0)
    if isinstance(start, Tensor):
        return rows_at(table, start[:, None] + torch.arange(length, device=start.device))
    if start < 0:
        raise ValueError(f"start must be at least 0, got {start}")
    if start + length > max_len:
        raise too_long(start + length, max_len)
    return table[start : start + length]


def rows_at(table: Tensor, positions: Tensor) -> Tensor:
    """The rows of these positions; what is below 0 counts as 0."""
    try:
        return table.to(positions.device)[positions.clamp(min=0)]
    except IndexError:  # on a GPU nothing is raised: there CUDA itself asserts
        raise too_long(int(positions.max()) + 1, table.size(0)) from None


def too_long(end: int, max_len: int) -> ValueError:
    """The error for positions that a table does not have."""
    return ValueError(f"a sequence of {end} positions is longer than max_len={max_len}")
