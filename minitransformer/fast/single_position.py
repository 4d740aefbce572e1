"""One more token for each row: the layers of a decoder with as little around them as possible.

A step of decoding multiplies a few vectors by every matrix of the model. Its time is the reading
of those matrices, and what Python and PyTorch do between two products. So the three projections
of self-attention are one product, and operations are called without the modules around them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minitransformer.embeddings import OutputProjection
from minitransformer.encoder_decoder import DecoderLayer, EncoderLayer
from minitransformer.fast.reserved_cache import ReservedCache
from minitransformer.fast.turned import can_be_kept, turned
from minitransformer.layer_norm import LayerNorm, ResidualConnection

Sublayer = Callable[[Tensor], Tensor]


class Product:
    """Linear maps of the same vectors in one matrix product, (rows, in) to (rows, out).

    Weights that make vectors wider lie as (in, out), see `turned`. The others are as fast the way
    they lie.
    """

    def __init__(self, *maps: nn.Linear | OutputProjection) -> None:
        biases = [b.detach() for part in maps if (b := getattr(part, "bias", None)) is not None]
        self.bias = torch.cat(biases) if biases else None
        weights = [part.weight.detach() for part in maps]
        is_wide = sum(weight.size(0) for weight in weights) >= weights[0].size(1)
        if is_wide and can_be_kept(weights[0]):
            self.weight = turned(maps)
        else:
            self.weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).T

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return x @ self.weight
        return torch.addmm(self.bias, x, self.weight)


class SinglePositionLayer:
    """What an `EncoderLayer` or a `DecoderLayer` with a cache does to one position of each row.

    Args:
        layer: the layer whose weights are used; they must not change until the text is written.
    """

    def __init__(self, layer: EncoderLayer | DecoderLayer) -> None:
        self.self_attention = layer.self_attention
        parts = (layer.self_attention.rotary, layer.self_attention.norm_q)
        self.prepares = any(part is not None for part in parts)
        self.project = Product(*(getattr(layer.self_attention, w) for w in ("w_q", "w_k", "w_v")))
        self.mix = Product(layer.self_attention.w_o)
        residuals = [layer.residual_1, layer.residual_2]
        if isinstance(layer, DecoderLayer):
            self.cross_attention = layer.cross_attention
            self.ask = Product(layer.cross_attention.w_q)
            self.mix_memory = Product(layer.cross_attention.w_o)
            residuals.append(layer.residual_3)
        network = layer.feed_forward
        self.activation = network.activation
        self.is_gated = network.w_3 is not None
        self.widen = Product(*(part for part in (network.w_1, network.w_3) if part is not None))
        self.narrow = Product(network.w_2)
        self.norms = [(residual.norm_first, plain_norm(residual)) for residual in residuals]

    def __call__(
        self,
        x: Tensor,
        cache: ReservedCache,
        mask: Tensor | None,
        memory: tuple[Tensor, Tensor] | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        """Transform x, (rows, d); `memory` are projected keys and values, masks as in the layer."""
        sublayers: list[Sublayer] = [lambda x: self.self_attend(x, cache, mask)]
        if memory is not None:
            sublayers.append(lambda x: self.cross_attend(x, *memory, memory_mask))
        sublayers.append(self.feed_forward)
        for (norm_first, norm), sublayer in zip(self.norms, sublayers, strict=True):
            x = x + sublayer(norm(x)) if norm_first else norm(x + sublayer(x))
        return x

    def self_attend(self, x: Tensor, cache: ReservedCache, mask: Tensor | None) -> Tensor:
        attention = self.self_attention
        heads = self.project(x).view(x.size(0), -1, 1, attention.d_k)
        queries, both = heads.split([attention.num_heads, 2 * attention.num_kv_heads], dim=1)
        if self.prepares:
            keys, values = both.chunk(2, dim=1)
            queries, keys = attention.prepare(queries, keys, cache.length)
            both = torch.cat([keys, values], dim=1)
        keys, values = cache.append(both)
        return self.mix(attention.attend(queries, keys, values, mask).flatten(1))

    def cross_attend(
        self, x: Tensor, keys: Tensor, values: Tensor, memory_mask: Tensor | None
    ) -> Tensor:
        # In beam search several rows ask one row of the memory: more queries to its keys.
        attention = self.cross_attention
        queries = self.ask(x).view(keys.size(0), -1, attention.num_heads, attention.d_k)
        heads = attention.attend(queries.transpose(1, 2), keys, values, memory_mask)
        return self.mix_memory(heads.transpose(1, 2).reshape(x.shape))

    def feed_forward(self, x: Tensor) -> Tensor:
        inner = self.widen(x)
        if self.is_gated:
            inner, gate = inner.chunk(2, dim=-1)
            return self.narrow(self.activation(inner) * gate)
        return self.narrow(self.activation(inner))


def plain_norm(residual: ResidualConnection) -> Sublayer:
    """The norm of a residual connection, without the module's call where it is a layer norm."""
    norm = residual.norm
    if not isinstance(norm, LayerNorm):
        return norm
    shape, weight, bias, eps = norm.weight.shape, norm.weight.detach(), norm.bias.detach(), norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
