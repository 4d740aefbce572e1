"""Room for the keys and values of a text, reserved once."""

import torch
from torch import Tensor

from minitransformer.decoding import KVCache


class ReservedCache(KVCache):
    """A `KVCache` in memory reserved once, for `torch.cat` copies all that was there each time.

    Keys and values lie in one tensor, (b, 2 kv heads, max_len, e), keys first: what is done to
    both is one operation.

    Args:
        max_len: number of positions to make room for.

    Example:
        >>> cache, new = ReservedCache(max_len=10), torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), tuple(cache.keys.shape)
        ((2, 3, 2, 4), (2, 3, 10, 4))
    """

    store: Tensor

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len = max_len
        self.spare: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the next positions' keys and values, (b, kv heads, q, e); return all so far.

        Raises:
            ValueError: if there is no room left.
        """
        return self.append(torch.cat([keys, values], dim=1))

    def append(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """`extend` with keys and values side by side, (b, 2 kv heads, q, e)."""
        start, end = self.length, self.length + both.size(2)
        if end > self.max_len:
            raise ValueError(f"the cache holds {self.max_len} positions, {end} are needed")
        if start == 0:
            b, heads, _, e = both.shape
            self.hold(both.new_empty(b, heads, self.max_len, e))
        self.store[:, :, start:end] = both
        self.length = end
        keys, values = self.store[:, :, :end].chunk(2, dim=1)
        return keys, values

    def hold(self, store: Tensor) -> None:
        """Go on with this store."""
        self.store = store
        self.keys, self.values = store.chunk(2, dim=1)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, (n,) int64, in this order; a row may be taken several times.

        They are copied to a second store, which the next call copies back from.
        """
        old, new, n, filled = self.store, self.spare, rows.size(0), slice(self.length)
        if new is None or new.size(0) < n:
            new = old.new_empty(n, *old.shape[1:])
        torch.index_select(old[:, :, filled], 0, rows, out=new[:n, :, filled])
        self.spare = old
        self.hold(new[:n])
