"""Encoder and decoder: the layers of chapters 5 to 7 in their order, and stacks of them.

Built in chapter 8. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from minitransformer.feed_forward import FeedForward
from minitransformer.layer_norm import NORMS, ResidualConnection
from minitransformer.multi_head_attention import MultiHeadAttention

__all__ = ["Decoder", "DecoderLayer", "Encoder", "EncoderLayer"]


class LayerCache(Protocol):
    """What a decoder layer asks of the cache it decodes with (`inference.KVCache` has them)."""

    memory: tuple[Tensor, Tensor]
    length: int

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new positions' keys and values; return those of all positions so far."""


class EncoderLayer(nn.Module):
    """Two sub-layers, each in its residual connection: self-attention, then feed-forward.

    Args:
        d_model: width, d.
        num_heads: heads of the attention, h.
        d_ff: inner width of the feed-forward network, f.
        dropout: see `ResidualConnection`.
        activation: see `FeedForward`.
        norm_first: see `ResidualConnection`.
        norm: see `ResidualConnection`.
        attention_bias: the `bias` of each `MultiHeadAttention`.
        num_kv_heads: see `MultiHeadAttention`.
        positional_encoding: of self-attention, see `MultiHeadAttention`.
        max_len: see `MultiHeadAttention`.

    Built in chapter 8. Paper: section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        norm: str = "layer_norm",
        attention_bias: bool = True,
        num_kv_heads: int | None = None,
        positional_encoding: Literal["rotary", "alibi"] | None = None,
        max_len: int = 1024,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            bias=attention_bias,
            positional_encoding=positional_encoding,
            max_len=max_len,
        )
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation)
        residual: dict[str, Any] = {"dropout": dropout, "norm_first": norm_first, "norm": norm}
        self.residual_1 = ResidualConnection(d_model, **residual)
        self.residual_2 = ResidualConnection(d_model, **residual)

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Transform the source.

        Args:
            src: (b, s, d).
            src_mask: boolean, broadcastable to (b, h, s, s); True = may be attended.

        Returns:
            (b, s, d).
        """
        x = self.residual_1(src, lambda x: self.self_attention(x, x, x, src_mask))
        return self.residual_2(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Three sub-layers: masked self-attention, cross-attention to the encoder, feed-forward.

    Args:
        d_model: width, d.
        num_heads: heads of each attention, h.
        d_ff: inner width of the feed-forward network, f.
        dropout: see `ResidualConnection`.
        activation: see `FeedForward`.
        norm_first: see `ResidualConnection`.
        norm: see `ResidualConnection`.
        attention_bias: the `bias` of each `MultiHeadAttention`.
        num_kv_heads: see `MultiHeadAttention`.
        positional_encoding: of self-attention, see `MultiHeadAttention`.
        max_len: see `MultiHeadAttention`.

    Built in chapter 8. Paper: section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        norm: str = "layer_norm",
        attention_bias: bool = True,
        num_kv_heads: int | None = None,
        positional_encoding: Literal["rotary", "alibi"] | None = None,
        max_len: int = 1024,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            bias=attention_bias,
            positional_encoding=positional_encoding,
            max_len=max_len,
        )
        self.cross_attention = MultiHeadAttention(
            d_model, num_heads, num_kv_heads=num_kv_heads, bias=attention_bias
        )
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation)
        residual: dict[str, Any] = {"dropout": dropout, "norm_first": norm_first, "norm": norm}
        self.residual_1 = ResidualConnection(d_model, **residual)
        self.residual_2 = ResidualConnection(d_model, **residual)
        self.residual_3 = ResidualConnection(d_model, **residual)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Transform the target, looking at the encoder's output.

        Args:
            tgt: (b, t, d); with a cache, only the positions that it does not hold yet.
            memory: the encoder's output, (b, s, d).
            tgt_mask: boolean, broadcastable to (b, h, t, t), or to (b, h, t, cached + t) with
                a cache; True = may be attended.
            memory_mask: boolean, broadcastable to (b, h, t, s); True = may be attended.
            cache: keys and values of earlier positions and of `memory`, see `KVCache`.

        Returns:
            (b, t, d).
        """

        def self_attention(x: Tensor) -> Tensor:
            start = 0 if cache is None else cache.length
            keys, values = self.self_attention.keys_values(x, x, start)
            if cache is not None:
                keys, values = cache.extend(keys, values)
            return self.self_attention.attend(x, keys, values, tgt_mask, start)

        def cross_attention(x: Tensor) -> Tensor:
            if cache is None:
                return self.cross_attention(x, memory, memory, memory_mask)
            return self.cross_attention.attend(x, *cache.memory, memory_mask)

        x = self.residual_1(tgt, self_attention)
        x = self.residual_2(x, cross_attention)
        return self.residual_3(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers; with pre-norm, one more layer norm at its end.

    Args:
        num_layers: number of layers, the paper's N.
        layer_options: the keyword arguments of each `EncoderLayer`.

    Built in chapter 8. Paper: section 3.1.
    """

    def __init__(self, num_layers: int, **layer_options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(**layer_options) for _ in range(num_layers))
        self.norm = final_norm(layer_options)

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Transform embedded tokens, (b, s, d), to the memory, (b, s, d)."""
        for layer in self.layers:
            src = layer(src, src_mask)
        return self.norm(src)


class Decoder(nn.Module):
    """A stack of decoder layers; with pre-norm, one more layer norm at its end.

    Args:
        num_layers: number of layers, the paper's N.
        layer_options: the keyword arguments of each `DecoderLayer`.

    Built in chapter 8. Paper: section 3.1.
    """

    def __init__(self, num_layers: int, **layer_options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(**layer_options) for _ in range(num_layers))
        self.norm = final_norm(layer_options)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Tensor:
        """Transform embedded tokens, (b, t, d); arguments as in `DecoderLayer`, a cache a layer."""
        for index, layer in enumerate(self.layers):
            cache = None if caches is None else caches[index]
            tgt = layer(tgt, memory, tgt_mask, memory_mask, cache)
        return self.norm(tgt)


def final_norm(layer_options: dict[str, Any]) -> nn.Module:
    """Pre-norm leaves the sum of all sub-layers unnormalised: normalise it at the end."""
    if not layer_options.get("norm_first"):
        return nn.Identity()
    return NORMS[layer_options.get("norm", "layer_norm")](layer_options["d_model"])
