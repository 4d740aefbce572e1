"""An encoder-decoder Transformer with layer normalisation before each sublayer.

Masks are boolean, True = may be attended. A cache keeps keys and values of earlier positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import PAD, VOCAB_SIZE

Cache = dict[int, tuple[Tensor, Tensor]]  # by layer


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    d_model: int = 64
    num_heads: int = 4
    num_layers: int = 2
    d_ff: int = 128
    dropout: float = 0.1
    vocab_size: int = VOCAB_SIZE


class Attention(nn.Module):
    """Multi-head attention of `x` to `memory`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.d_model, self.num_heads = config.d_model, config.num_heads
        self.w_q = nn.Linear(config.d_model, config.d_model)
        self.w_k = nn.Linear(config.d_model, config.d_model)
        self.w_v = nn.Linear(config.d_model, config.d_model)
        self.w_o = nn.Linear(config.d_model, config.d_model)

    def split(self, x: Tensor) -> Tensor:
        """Give each head its part of the width."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (b, h, n, e)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all heads."""
        return self.split(self.w_k(memory)), self.split(self.w_v(memory))  # (b, h, k, e)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from each position of `x`, (b, q, d); the mask fits (b, h, q, k)."""
        query = self.split(self.w_q(x))  # (b, h, q, e)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_model)  # (b, h, q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        mixed = scores.softmax(dim=-1) @ value  # (b, h, q, e)
        return self.w_o(mixed.transpose(1, 2).flatten(2))  # (b, q, d)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """Self-attention, attention to a memory if there is one, and a feed-forward network."""

    def __init__(self, config: Config, index: int, cross: bool) -> None:
        super().__init__()
        self.index, self.dropout = index, config.dropout
        self.self_attention = Attention(config)
        self.cross_attention = Attention(config) if cross else None
        self.feed_forward = FeedForward(config)
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model) for _ in range(2 + cross))

    def drop(self, x: Tensor) -> Tensor:
        """Dropout at the end of a sublayer."""
        return F.dropout(x, self.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """`x` is (b, n, d), the result too."""
        h = self.norms[0](x)
        key, value = self.self_attention.keys_and_values(h)
        if cache is not None:
            if self.index in cache:
                old_key, old_value = cache[self.index]
                key = torch.cat((old_key, key), dim=2)  # (b, h, k, e)
                value = torch.cat((old_value, value), dim=2)
            cache[self.index] = key, value
        x = x + self.drop(self.self_attention(h, key, value, mask))
        if self.cross_attention is not None and memory is not None:
            key, value = self.cross_attention.keys_and_values(memory)
            x = x + self.drop(self.cross_attention(self.norms[1](x), key, value, memory_mask))
        return x + self.drop(self.feed_forward(self.norms[-1](x)))


class Transformer(nn.Module):
    """Encoder and decoder; the output layer has the embedding's weights."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        sizes = range(config.num_layers)
        self.encoder = nn.ModuleList(Layer(config, i, cross=False) for i in sizes)
        self.decoder = nn.ModuleList(Layer(config, i, cross=True) for i in sizes)
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = nn.Parameter(self.embedding.weight.detach().clone())

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Embeddings and sinusoidal positions, the first of which is `start`."""
        d = self.config.d_model
        place = torch.arange(start, start + ids.size(1), device=ids.device)  # (n)
        rates = 10_000 ** (-torch.arange(0, d, 2, device=ids.device) / d)  # (d / 2)
        angles = place[:, None] * rates  # (n, d / 2)
        positions = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (n, d)
        return self.embedding(ids) * math.sqrt(d) + positions  # (b, n, d)

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """The memory, (b, s, d), and its mask, (b, 1, 1, s)."""
        mask = (src != PAD)[:, None, None]  # (b, 1, 1, s)
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits, (b, t, v). With a cache, `tgt` has only the positions that are not in it."""
        x = self.embed(tgt)
        seen = cache[0][0].size(2) if cache else 0
        size = (tgt.size(1), seen + tgt.size(1))
        causal = torch.ones(size, dtype=torch.bool, device=tgt.device).tril(seen)  # (q, k)
        for layer in self.decoder:
            x = layer(x, causal, memory, memory_mask, cache)
        return self.output(self.decoder_norm(x))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits, (b, t, v), of what follows each position of `tgt`."""
        memory, memory_mask = self.encode(src)
        return self.decode(tgt, memory, memory_mask)
