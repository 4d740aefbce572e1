"""Rotary positions: queries and keys turned by angles, so that scores know distances alone.

Built in chapter 3. Paper: "RoFormer: Enhanced Transformer with Rotary Position Embedding" (Su et
al., 2021).
"""

import math
from typing import Literal

import torch
from torch import Tensor

from minitransformer.checks import check_at_least_1, check_positions
from minitransformer.layers.positional_encoding import Constants, rows_at, table_rows

__all__ = ["RotaryPositionalEncoding", "rotary_frequencies"]

Layout = Literal["interleaved", "half"]


def rotary_frequencies(d_k: int, base: float = 10_000.0) -> Tensor:
    """How far each pair of components turns from one position to the next: base^(-2i/e) radians.

    The slowest pair comes round once in about 2π·base positions, so models for longer texts take
    a greater base. Models that turn only a share of each head take the frequencies of a head of
    that width.

    Args:
        d_k: width that is turned, e; even.
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
    """Turn queries and keys by an angle that grows with their position (RoPE).

    The components of a vector are taken in pairs, and pair i at position pos is turned by the
    angle pos / 10000^(2i/e), the angle of the sinusoidal table. The dot product of a query
    and a key then depends on their positions through the distance alone. Other frequencies than
    the paper's are given: of another base, slowed down for longer texts, or for fewer pairs than
    there are; the components after those pairs are not turned.

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
            raise ValueError(f"d_k must be even to turn pairs of components, got {d_k}")
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
        """Turn the vectors of positions start, start+1, ...

        Args:
            x: queries or keys, (..., n, e).
            start: position of the first one, not 0 when decoding with a cache; or the position of
                each, int64, broadcastable to (..., n).

        Returns:
            (..., n, e), the dtype of `x`; each vector keeps its length. It is turned in float32, in
            float64 if it has that dtype.

        Raises:
            ValueError: if a position lies past `max_len` or below 0, or `x` has another width.
        """
        if x.size(-1) != self.d_k:
            raise ValueError(f"x must have width d_k={self.d_k}, got {x.size(-1)}")
        interleaved, width = self.layout == "interleaved", self.table.size(-1)
        x, rest = x[..., :width], x[..., width:]
        check_positions(x, 0, self.table)
        pairs = x.unflatten(-1, (-1, 2)) if interleaved else torch.stack(x.chunk(2, -1), -1)
        # A pair is a complex number, and to turn it is to multiply it by cosine + i sine.
        pairs = pairs.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        if isinstance(start, Tensor):
            angles = rows_at(self.table, start).to(pairs)
        else:
            angles = table_rows(self.table, start, x.size(-2)).to(pairs)
        turn = torch.complex(angles[..., 1::2], angles[..., 0::2])
        turned = torch.view_as_real(torch.view_as_complex(pairs) * turn)
        turned = (turned if interleaved else turned.mT).flatten(-2).to(x.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.size(-1) else turned
