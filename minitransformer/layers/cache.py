"""What attention has computed for earlier positions, kept while a text is decoded.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1
(auto-regressive decoding).
"""

from functools import cached_property

import torch
from torch import Tensor

from minitransformer.checks import check_at_least_1

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of one layer's positions so far, which need not be computed twice.

    Args:
        max_len: number of positions to reserve memory for. Then new ones are written in place,
            which is faster but passes no gradients on; when left out, `torch.cat` copies all.

    Example:
        >>> cache, new = KVCache(), torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), cache.length
        ((2, 3, 2, 4), 2)
    """

    keys: Tensor
    values: Tensor

    def __init__(self, max_len: int | None = None) -> None:
        check_at_least_1(max_len=max_len)
        self.max_len = max_len
        self.length = 0
        self.reserved: list[Tensor] = []

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the next positions' keys and values, (b, h, q, e); return all so far.

        More than `max_len` positions are a ValueError.
        """
        b, start, end = keys.size(0), self.length, self.length + keys.size(-2)
        if self.max_len is not None:
            if end > self.max_len:
                raise ValueError(f"the cache holds {self.max_len} positions, {end} are needed")
            if start == 0 and (not self.reserved or b > self.reserved[0].size(0)):
                self.reserved = [
                    x.new_empty(b, x.size(1), self.max_len, x.size(-1)) for x in (keys, values)
                ]
            self.reserved[0][:b, :, start:end] = keys
            self.reserved[1][:b, :, start:end] = values
            keys, values = self.reserved[0][:b, :, :end], self.reserved[1][:b, :, :end]
        elif start:
            keys = torch.cat([self.keys, keys], dim=-2)  # (b, h, k, e)
            values = torch.cat([self.values, values], dim=-2)
        self.keys, self.values, self.length = keys, values, end
        return keys, values

    @cached_property
    def memory(self) -> "KVCache":
        """Keys and values of the encoder's output in the same layer, which are computed once."""
        return KVCache()

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, (n,) int64, in this order; a row may be taken several times.

        `memory` is left as it is: as many consecutive rows for each of its rows share it.
        """
        if self.length:
            keys, values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
            length, self.length = self.length, 0
            KVCache.extend(self, keys, values)  # whatever a derived class keeps
            self.length = length

    def repeat(self, count: int) -> None:
        """Take each row `count` times: several texts that begin alike, and share `memory`."""
        if self.length:
            rows = torch.arange(self.keys.size(0), device=self.keys.device)
            self.select(rows.repeat_interleave(count))

    def crop(self, length: int) -> None:
        """Keep the first positions alone.

        Without so many it is a ValueError.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie between 0 and {self.length}, got {length}")
        if length < self.length:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
            self.length = length

    def reset(self) -> None:
        """Forget everything, `memory` too."""
        self.__dict__.pop("memory", None)
        self.length, self.reserved = 0, []
