"""Positions: attention alone does not know where a token is.

Two schemes add a vector to each token before the first layer (sinusoidal, learned); two act
inside every self-attention, on queries and keys (rotary) or on the scores (ALiBi).

Built in chapter 3. Papers: "Attention Is All You Need" (Vaswani et al., 2017), section 3.5;
RoFormer (Su et al., 2021); ALiBi (Press et al., 2022).
"""

import math
from collections.abc import Callable
from typing import Literal, Self

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1

__all__ = [
    "ALiBi",
    "LearnedPositionalEncoding",
    "RotaryPositionalEncoding",
    "SinusoidalPositionalEncoding",
    "alibi_slopes",
    "rotary_frequencies",
    "sinusoidal_positions",
]

Layout = Literal["interleaved", "half"]


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
            start: position of the first one, not 0 when decoding with a cache; or the position of
                each, (q,) or (b, q), int64: what is below 0, for padding, counts as 0.

        Returns:
            (b, q, d), the dtype of `x`.

        Raises:
            ValueError: if a position lies past `max_len` or an int `start` below 0, or shapes do
                not fit together.

        Example:
            >>> SinusoidalPositionalEncoding(2)(torch.zeros(1, 1, 2), start=1)
            tensor([[[0.8415, 0.5403]]])
        """
        return x + table_rows(self.table, x, start).to(x)  # (b, q, d)


class LearnedPositionalEncoding(nn.Module):
    """Add a learned vector for each position: an embedding of positions, not of tokens.

    Entries start normal with mean square 1/2, like the sines and cosines they replace. Positions
    that training never showed keep these random vectors. Arguments and errors are those of
    `SinusoidalPositionalEncoding`.

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
        return x + table_rows(self.weight, x, start).to(x.dtype)  # (b, q, d)


def rotary_frequencies(d_k: int, base: float = 10_000.0) -> Tensor:
    """How far each pair rotates from one position to the next: base^(-2i/e) radians.

    The slowest pair comes round once in about 2π·base positions, so models for longer texts take
    a greater base. Models that rotate only a part of each head take the frequencies of a head of
    that width.

    Args:
        d_k: width that is rotated, e; even.
        base: the paper's is 10,000.

    Returns:
        (e/2,), float64, on the CPU, the fastest first.

    Raises:
        ValueError: if `base` is not above 1.

    Example:
        >>> rotary_frequencies(4)
        tensor([1.0000, 0.0100], dtype=torch.float64)

    Paper: section 3.2.2.
    """
    if not base > 1:
        raise ValueError(f"base must be above 1, got {base}")
    even = torch.arange(0, d_k, 2, dtype=torch.float64, device="cpu")
    return torch.exp(-math.log(base) * even / d_k)  # as in `sinusoidal_positions`


class RotaryPositionalEncoding(Constants):
    """Rotate queries and keys by an angle that grows with their position (RoPE).

    The components of a vector are taken in pairs, and pair i at position pos is rotated by the
    angle pos / 10000^(2i/e), the angle of the sinusoidal table. The dot product of a query
    and a key then depends on their positions through the distance alone. Other frequencies than
    the paper's are given: of another base, slowed down for longer texts, or for fewer pairs than
    there are; the components after those pairs stay.

    Which components make a pair is a convention. "interleaved" pairs neighbours (2i, 2i+1), as
    the paper does; "half" pairs (i, i + e/2), as GPT-NeoX and Hugging Face's Llama do. Weights
    trained with one are wrong with the other, until the rows of W^Q and W^K are reordered.

    Args:
        d_k: width of a head, e; even.
        max_len: number of positions the table of angles holds.
        layout: "interleaved" or "half".
        frequencies: the angle between neighbouring positions, of each pair, in radians; (e/2,) or
            fewer. `rotary_frequencies(d_k, base)` when left out.
        base: see `rotary_frequencies`.

    Raises:
        ValueError: if a size is below 1, `d_k` is odd, `layout` is unknown, or there are more
            frequencies than pairs.

    Example:
        >>> rotary = RotaryPositionalEncoding(2)
        >>> rotary(torch.tensor([[1.0, 0.0]]), start=1)
        tensor([[0.5403, 0.8415]])

    Paper: "RoFormer" (Su et al., 2021), section 3.2.2.
    """

    def __init__(
        self,
        d_k: int,
        max_len: int = 1024,
        layout: Layout = "interleaved",
        frequencies: Tensor | None = None,
        *,
        base: float = 10_000.0,
    ) -> None:
        super().__init__()
        check_at_least_1(d_k=d_k, max_len=max_len)
        if d_k % 2:
            raise ValueError(f"d_k must be even to rotate pairs of components, got {d_k}")
        if layout not in ("interleaved", "half"):
            raise ValueError(f"layout must be 'interleaved' or 'half', got {layout!r}")
        if frequencies is None:
            frequencies = rotary_frequencies(d_k, base)
        if frequencies.dim() != 1 or not 1 <= len(frequencies) <= d_k // 2:
            raise ValueError(
                f"frequencies must be at most d_k/2={d_k // 2} numbers, one for each pair, "
                f"got shape {tuple(frequencies.shape)}"
            )
        self.d_k = d_k
        self.layout = layout
        angle = torch.arange(max_len, device="cpu")[:, None] * frequencies.double()
        self.table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Rotate the vectors of positions start, start+1, ...

        Args:
            x: queries or keys, (..., n, e).
            start: position of the first one, not 0 when decoding with a cache; or the position of
                each, int64, broadcastable to (..., n).

        Returns:
            (..., n, e), the dtype of `x`; each vector keeps its length. Rotated in float32, or in
            float64 if it has that dtype.

        Raises:
            ValueError: if a position lies past `max_len` or below 0, or `x` has another width.
        """
        if x.size(-1) != self.d_k:
            raise ValueError(f"x must have width d_k={self.d_k}, got {x.size(-1)}")
        interleaved, width = self.layout == "interleaved", self.table.size(-1)
        x, rest = x[..., :width], x[..., width:]
        pairs = x.unflatten(-1, (-1, 2)) if interleaved else torch.stack(x.chunk(2, -1), -1)
        # A pair is a complex number, and to rotate it is to multiply it by cosine + i sine.
        dtype = torch.promote_types(x.dtype, torch.float32)
        pairs = pairs.to(dtype).contiguous()  # (..., n, e/2, 2)
        angles = table_rows(self.table, x, start).to(pairs)  # (..., n, e), sines and cosines
        rotation = torch.complex(angles[..., 1::2], angles[..., 0::2])  # (..., n, e/2)
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * rotation)  # (..., n, e/2, 2)
        rotated = (rotated if interleaved else rotated.mT).flatten(-2).to(x.dtype)  # (..., n, e)
        return torch.cat([rotated, rest], dim=-1) if rest.size(-1) else rotated


class ALiBi(Constants):
    """Attention with linear biases: each head's scores fall in proportion to the distance.

    bias(i, j) = -slope · |i - j|. Each head has its own slope, which is not learned: steep ones
    see the neighbourhood, flat ones far. There is no table, and no longest sequence. Without a
    causal mask, as in an encoder, the bias cannot tell what comes before from what comes after.

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
        """The biases, (h, q, k), float32, on `device`; the last query is at the last key.

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


def table_rows(table: Tensor, x: Tensor, start: int | Tensor) -> Tensor:
    """The rows of a table for the positions of x, (..., n, d): from `start` on, or one by one."""
    max_len, end = table.size(0), x.size(-2)
    if x.size(-1) != table.size(-1):
        raise ValueError(f"x must have the table's width {table.size(-1)}, got {x.size(-1)}")
    if isinstance(start, Tensor):
        if start.dtype != torch.int64 or start.shape[-1:] != x.shape[-2:-1]:
            raise ValueError(
                f"start must be an int or a position for each of the {end}, int64, "
                f"got shape {tuple(start.shape)}, {start.dtype}"
            )
        try:
            return table.to(start.device)[start.clamp(min=0)]  # (..., n, d)
        except IndexError:  # on a GPU nothing is raised: there CUDA itself asserts
            end = int(start.max()) + 1
    else:
        if start < 0:
            raise ValueError(f"start must be at least 0, got {start}")
        end += start
        if end <= max_len:
            return table[start:end]  # (n, d)
    raise ValueError(f"a sequence of {end} positions is longer than max_len={max_len}")
