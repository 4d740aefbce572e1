"""Encoder and decoder: the layers of chapters 5 to 7 in their order, and stacks of them.

Built in chapter 8. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.layers.attention import Mask
from minitransformer.layers.cache import KVCache
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import Dropout, LayerNorm, Norm, ResidualConnection, RMSNorm
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.layers.packing import PACKABLE, PackedMask

__all__ = ["Decoder", "DecoderLayer", "Encoder", "EncoderLayer"]


class EncoderLayer(nn.Module):
    """Two sub-layers, each in its residual connection: self-attention, then feed-forward.

    With a causal mask it is a decoder layer without cross-attention, and as such the layer of
    decoder-only models.

    Args:
        d_model: width, d.
        num_heads: heads of the attention, h.
        d_ff: inner width of the feed-forward network, f.
        self_attention: a module with the `forward` of `MultiHeadAttention`, which is what it is
            when left out.
        feed_forward: a module from (..., d) to (..., d); a `FeedForward` when left out.
        dropout, norm_first, norm: see `ResidualConnection`.

    Example:
        >>> import torch
        >>> layer, src = EncoderLayer(12, num_heads=3, d_ff=20), torch.randn(2, 5, 12)
        >>> layer(src).shape, layer(src, "causal").shape
        (torch.Size([2, 5, 12]), torch.Size([2, 5, 12]))

    Paper: section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int = 8,
        d_ff: int = 2048,
        *,
        self_attention: nn.Module | None = None,
        feed_forward: nn.Module | None = None,
        dropout: float = 0.1,
        norm_first: bool = False,
        norm: Norm = "layer_norm",
    ) -> None:
        super().__init__()
        self.self_attention = self_attention or MultiHeadAttention(d_model, num_heads)
        self.feed_forward = feed_forward or FeedForward(d_model, d_ff)
        residual: dict[str, Any] = {"dropout": dropout, "norm_first": norm_first, "norm": norm}
        self.residual_1 = ResidualConnection(d_model, **residual)
        self.residual_2 = ResidualConnection(d_model, **residual)

    def forward(
        self,
        src: Tensor,
        src_mask: Mask | PackedMask | None = None,
        cache: KVCache | None = None,
        **options: Any,
    ) -> Tensor:
        """Transform the source.

        Args:
            src: (b, s, d); with a cache, only the positions that it does not hold yet.
            src_mask: boolean, broadcastable to (b, h, s, s), or to (b, h, s, cached + s) with a
                cache; True = may be attended. Or "causal".
            cache: keys and values of earlier positions, see `KVCache`.
            options: what the self-attention takes besides, such as `positions`.

        Returns:
            (b, s, d).
        """
        x = self.residual_1(src, lambda x: self.self_attention(x, x, x, src_mask, cache, **options))
        return self.residual_2(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Three sub-layers: masked self-attention, cross-attention to the encoder, feed-forward.

    Its arguments are those of `EncoderLayer`, and `cross_attention`, as `self_attention`.

    Example:
        >>> import torch
        >>> layer = DecoderLayer(12, num_heads=3, d_ff=20)
        >>> layer(torch.randn(2, 4, 12), torch.randn(2, 5, 12), "causal").shape
        torch.Size([2, 4, 12])

    Paper: section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int = 8,
        d_ff: int = 2048,
        *,
        self_attention: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
        feed_forward: nn.Module | None = None,
        dropout: float = 0.1,
        norm_first: bool = False,
        norm: Norm = "layer_norm",
    ) -> None:
        super().__init__()
        self.self_attention = self_attention or MultiHeadAttention(d_model, num_heads)
        self.cross_attention = cross_attention or MultiHeadAttention(d_model, num_heads)
        self.feed_forward = feed_forward or FeedForward(d_model, d_ff)
        residual: dict[str, Any] = {"dropout": dropout, "norm_first": norm_first, "norm": norm}
        self.residual_1 = ResidualConnection(d_model, **residual)
        self.residual_2 = ResidualConnection(d_model, **residual)
        self.residual_3 = ResidualConnection(d_model, **residual)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Mask | PackedMask | None = None,
        memory_mask: Mask | PackedMask | None = None,
        cache: KVCache | None = None,
        **options: Any,
    ) -> Tensor:
        """Transform the target, looking at the encoder's output.

        Args:
            tgt: (b, t, d); with a cache, only the positions that it does not hold yet.
            memory: the encoder's output, (b, s, d); with a cache, as many consecutive rows of
                `tgt` may share each of its rows.
            tgt_mask: boolean, broadcastable to (b, h, t, t), or to (b, h, t, cached + t) with
                a cache; True = may be attended. Or "causal".
            memory_mask: boolean, broadcastable to (b, h, t, s); True = may be attended.
            cache: keys and values of earlier positions, see `KVCache`.
            options: what the self-attention takes besides, such as `positions`.

        Returns:
            (b, t, d).
        """
        x = self.residual_1(tgt, lambda x: self.self_attention(x, x, x, tgt_mask, cache, **options))
        x = self.residual_2(x, lambda x: self.attend_memory(x, memory, memory_mask, cache))
        return self.residual_3(x, self.feed_forward)

    def attend_memory(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Mask | PackedMask | None,
        cache: KVCache | None,
    ) -> Tensor:
        """Cross-attention; with a cache, the memory's keys and values are computed once."""
        if cache is None:
            return self.cross_attention(x, memory, memory, memory_mask)
        # Rows that share a source are more queries of its keys.
        queries = x.reshape(memory.size(0), -1, x.size(-1))  # (b·n, t, d) → (b, n·t, d)
        new = memory[:, cache.memory.length :]  # (b, s, d), later (b, 0, d)
        return self.cross_attention(queries, new, new, memory_mask, cache.memory).view_as(x)


class Encoder(nn.Module):
    """A stack of encoder layers, and a norm at its end where layers are pre-norm.

    Args:
        layers: the layers, in order; the paper has N = 6.
        norm: of what the last one returns; with pre-norm nothing else normalises it.

    Raises:
        ValueError: if there are no layers.

    Example:
        >>> import torch
        >>> encoder = Encoder([EncoderLayer(12, num_heads=3, d_ff=20) for _ in range(2)])
        >>> encoder(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])

    Paper: section 3.1.
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        check_at_least_1(layers=len(self.layers))
        self.norm = norm or nn.Identity()

    def forward(
        self,
        src: Tensor,
        src_mask: Mask | PackedMask | None = None,
        caches: Sequence[KVCache] | None = None,
        **options: Any,
    ) -> Tensor:
        """Transform embedded tokens, (b, s, d); arguments as in `EncoderLayer`, a cache a layer."""
        for index, layer in enumerate(self.layers):
            src = layer(src, src_mask, None if caches is None else caches[index], **options)
        return self.norm(src)


class Decoder(nn.Module):
    """A stack of decoder layers, and a norm at its end, with the arguments of `Encoder`.

    Example:
        >>> import torch
        >>> decoder = Decoder([DecoderLayer(12, num_heads=3, d_ff=20) for _ in range(2)])
        >>> decoder(torch.randn(2, 4, 12), torch.randn(2, 5, 12), "causal").shape
        torch.Size([2, 4, 12])

    Paper: section 3.1.
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        check_at_least_1(layers=len(self.layers))
        self.norm = norm or nn.Identity()

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Mask | PackedMask | None = None,
        memory_mask: Mask | PackedMask | None = None,
        caches: Sequence[KVCache] | None = None,
        **options: Any,
    ) -> Tensor:
        """Transform embedded tokens, (b, t, d); arguments as in `DecoderLayer`, a cache a layer."""
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else caches[index]
            tgt = layer(tgt, memory, tgt_mask, memory_mask, cache, **options)
        return self.norm(tgt)


SUBLAYERS = ("residual_1", "residual_2", "feed_forward", "self_attention")
PACKABLE |= {
    Encoder.forward: ("layers", "norm"),
    Decoder.forward: ("layers", "norm"),
    EncoderLayer.forward: SUBLAYERS,
    DecoderLayer.forward: (*SUBLAYERS, "residual_3", "cross_attention"),
    ResidualConnection.forward: ("norm", "dropout"),
}
PACKABLE.update(dict.fromkeys(x.forward for x in (FeedForward, Dropout, LayerNorm, RMSNorm)))
