"""Caches that remember less: fewer positions, coarser numbers, or fewer of them.

Each class here takes the place of a `KVCache`, which holds 2 · layers · heads · e numbers for each
token, or of the attention it belongs to.

Axes: `b` batch, `h` head, `n` position, `e` head width, `d` model width, `c` latent width.

Built in chapter 15. Papers: Xiao et al. (2024); Liu et al. (2024), KIVI; DeepSeek-AI (2024),
section 2.1.
"""

import math

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1, check_axes
from minitransformer.layers.attention import Mask, scaled_dot_product_attention
from minitransformer.layers.cache import KVCache

__all__ = ["LatentAttention", "LatentCache", "QuantisedCache", "RollingCache"]


class RollingCache(KVCache):
    """The first and the last positions of one layer; those between are forgotten.

    As a `KVCache`, each position one by one: the same as a mask that shows each query the first
    `sinks` positions and, itself included, the last `window`. Memory, and the time of a step:
    O(window + sinks), whatever the length.

    Args:
        window: how many of the last positions are kept, the newest included.
        sinks: how many of the first positions are never forgotten. Heads that have nothing to look
            for look there, so a model that loses them breaks.

    Raises:
        ValueError: if `window` is below 1, or `sinks` below 0.

    Example:
        >>> cache = RollingCache(window=2, sinks=1)
        >>> for n in range(5):
        ...     keys, values = cache.extend(*2 * [torch.full((1, 1, 1, 1), float(n))])
        >>> keys.flatten().tolist(), cache.length
        ([0.0, 3.0, 4.0], 5)

    Paper: Xiao et al. (2024), section 3.
    """

    def __init__(self, window: int, sinks: int = 4) -> None:
        super().__init__()
        if sinks < 0:
            raise ValueError(f"sinks must be at least 0, got {sinks}")
        check_at_least_1(window=window)
        self.window, self.sinks = window, sinks

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the next positions' keys and values, (b, h, n, e); return what is attended.

        Positions that are given together all see each other, and what was kept before.
        """
        is_one = keys.size(-2) == 1
        keys, values = super().extend(keys, values)
        self.keys, self.values = self.kept(keys), self.kept(values)
        return (self.keys, self.values) if is_one else (keys, values)

    def crop(self, length: int) -> None:
        """Nothing but the whole can be kept: what was forgotten before is gone.

        Raises:
            ValueError: if `length` is another than that of the cache.
        """
        if length != self.length:
            raise ValueError(f"a RollingCache of {self.length} positions cannot keep {length}")

    def kept(self, x: Tensor) -> Tensor:
        """The first and the last positions of x, (b, h, n, e)."""
        surplus = x.size(-2) - self.sinks - self.window
        if surplus <= 0:
            return x
        return torch.cat([x[..., : self.sinks, :], x[..., self.sinks + surplus :, :]], dim=-2)


class QuantisedCache(KVCache):
    """Keys and values of one layer in 8 bits, each vector with its own scale.

    A number is off by at most 1/254 of the largest of its vector. Memory: e + 4 bytes for a vector
    where float32 takes 4e. Time: each step makes numbers of all of them again, O(n · e).

    Example:
        >>> cache = QuantisedCache()
        >>> keys, values = cache.extend(torch.tensor([[[[1.0, -0.5]]]]), torch.ones(1, 1, 1, 2))
        >>> keys
        tensor([[[[ 1.0000, -0.5039]]]])

    Paper: Liu et al. (2024), section 3; they scale keys by component.
    """

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As that of `KVCache`, which holds bytes here, (b, h, n, e + 4)."""
        dtype = keys.dtype
        keys, values = super().extend(in_bytes(keys), in_bytes(values))
        return in_numbers(keys).to(dtype), in_numbers(values).to(dtype)

    @property
    def num_bytes(self) -> int:
        """How much memory the cache takes."""
        return self.keys.numel() + self.values.numel()


def in_bytes(x: Tensor) -> Tensor:
    """Vectors (..., e) as int8, (..., e + 4): whole numbers, and what to multiply them by."""
    scale = x.abs().amax(-1, keepdim=True).float() / 127  # (..., 1)
    whole = (x / scale.masked_fill(scale == 0, 1.0)).round()
    return torch.cat([whole.to(torch.int8), scale.view(torch.int8)], dim=-1)  # (..., e + 4)


def in_numbers(x: Tensor) -> Tensor:
    """Vectors (..., e), float32, of what `in_bytes` made of them."""
    scale = x[..., -4:].clone(memory_format=torch.contiguous_format).view(torch.float32)  # (..., 1)
    return x[..., :-4] * scale


class LatentCache:
    """What a `LatentAttention` remembers of the positions so far: c numbers for each.

    Example:
        >>> cache = LatentCache()
        >>> for _ in range(3):
        ...     latent = cache.extend(torch.zeros(2, 1, 5))
        >>> tuple(latent.shape), cache.length
        ((2, 3, 5), 3)

    Paper: DeepSeek-AI (2024), section 2.1.2.
    """

    latent: Tensor

    def __init__(self) -> None:
        self.length = 0

    def extend(self, latent: Tensor) -> Tensor:
        """Append the next positions' latent vectors, (b, n, c); return all so far."""
        if self.length:
            latent = torch.cat([self.latent, latent], dim=-2)
        self.latent, self.length = latent, latent.size(-2)
        return latent


class LatentAttention(nn.Module):
    """Attention whose keys and values all come from one short vector for each position.

    k = W^UK c and v = W^UV c with c = W^DKV x. Only c is remembered. While writing, W^UK is
    multiplied into the queries and W^UV into the outputs, so keys and values are never made.
    (The paper adds a rotary key that all heads share: a rotated key does not come from c alone.)

    With a cache, memory is c numbers for each position, and a step costs O(n · h · c) time where
    keys and values cost O(n · h · e); without one, time is that of multi-head attention.

    Raises:
        ValueError: if a size is below 1, or `num_heads` does not divide `d_model`.

    Example:
        >>> LatentAttention(12, num_heads=3, d_latent=5)(torch.randn(2, 7, 12)).shape
        torch.Size([2, 7, 12])

    Paper: DeepSeek-AI (2024), section 2.1.2.
    """

    def __init__(self, d_model: int, num_heads: int, d_latent: int) -> None:
        super().__init__()
        check_at_least_1(d_model=d_model, num_heads=num_heads, d_latent=d_latent)
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model, got {num_heads} and {d_model}")
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_dkv = nn.Linear(d_model, d_latent, bias=False)
        self.w_uk = nn.Linear(d_latent, d_model, bias=False)
        self.w_uv = nn.Linear(d_latent, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self, x: Tensor, mask: Mask | None = None, cache: LatentCache | None = None
    ) -> Tensor:
        """Attend from each position of x, (b, n, d), to all, and to those in the cache.

        The result is (b, n, d). `mask` is boolean, broadcastable to (b, h, n, n so far), True = may
        be attended; or "causal". Positions in the cache are attended by their latent vectors.
        """
        check_axes(x=x)
        queries, latent = self.heads(self.w_q(x)), self.w_dkv(x)
        if cache is None:
            keys, values = self.heads(self.w_uk(latent)), self.heads(self.w_uv(latent))
            mixed = scaled_dot_product_attention(queries, keys, values, mask)
        else:
            latent = cache.extend(latent)[:, None]  # one head of keys, which are the values too
            up_k, up_v = (
                w.weight.unflatten(0, (self.num_heads, -1)) for w in (self.w_uk, self.w_uv)
            )
            # The attention divides by the root of c; the scores want that of e.
            queries = queries @ up_k * math.sqrt(latent.size(-1) / self.d_k)
            mixed = scaled_dot_product_attention(queries, latent, latent, mask)
            mixed = mixed @ up_v.transpose(-2, -1)
        return self.w_o(mixed.transpose(-3, -2).flatten(-2))

    def heads(self, x: Tensor) -> Tensor:
        """(b, n, d) → (b, h, n, e)."""
        return x.unflatten(-1, (-1, self.d_k)).transpose(-3, -2)
