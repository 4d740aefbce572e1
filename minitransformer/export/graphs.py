"""What becomes graphs: a model's encoder and decoder, with the caches as arguments and results.

There are two graphs, for any number of rows and any lengths:

| | in | out |
| --- | --- | --- |
| encoder | `ids` (b, s) | `memory` (2, N, b, h, s, e), `memory_mask` (b, 1, 1, s) |
| decoder | `ids` (b, t), `past` (2, N, b, h, p, e), both of these | `logits` (b, t, v), `present` |
| decoder-only | `ids` (b, t), `past`, `left_padding` (b,) | `logits`, `present` |

Ids are int64. A decoder reads t positions after p others, whose keys (the first half) and values
in all N layers are `past`; h counts their heads. At first p is 0. What it gives as `present`,
(2, N, b, h, p + t, e), is the next step's `past`. `memory` is the same of the source: keys and
values that cross-attention needs, computed once. Rows of prompts end together, so a decoder-only
model's short ones begin with padding, and `left_padding` counts it. Past `max_len` logits are NaN.
"""

from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.layers.cache import KVCache

__all__ = ["AXES", "INPUTS", "OUTPUTS", "DecoderGraph", "DecoderOnlyGraph", "EncoderGraph"]

INPUTS = {
    "encoder": ["ids"],
    "decoder": ["ids", "past", "memory", "memory_mask"],
    "decoder_only": ["ids", "past", "left_padding"],
}
OUTPUTS = {
    "encoder": ["memory", "memory_mask"],
    "decoder": ["logits", "present"],
    "decoder_only": ["logits", "present"],
}
OF_IDS, OF_PAST = {0: "b", 1: "t"}, {2: "b", 4: "p"}
AXES: dict[str, tuple[dict[int, str], ...]] = {
    "encoder": ({0: "b", 1: "s"},),
    "decoder": (OF_IDS, OF_PAST, {2: "b", 4: "s"}, {0: "b", 3: "s"}),
    "decoder_only": (OF_IDS, OF_PAST, {0: "b"}),
}
"""The axes of each input whose lengths are left open."""


class Past(KVCache):
    """A cache that is handed in, and read out when a step is done."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.length = keys, values, keys.size(-2)

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As that of `KVCache`; a past of 0 positions needs no exception."""
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)
        return self.keys, self.values


class Graph(nn.Module):
    """What becomes a graph: a model, and one of the things that it does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


class EncoderGraph(Graph):
    """What is computed once for each source."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        encoded, mask = self.model.encode(ids)
        layers = [layer.cross_attention for layer in self.model.decoder.layers]
        keys = [attention.prepare(attention.w_k(encoded), attention.norm_k) for attention in layers]
        values = [attention.split_heads(attention.w_v(encoded)) for attention in layers]
        return stacked(keys, values), mask


class DecoderGraph(Graph):
    """The next positions of targets: `Transformer.decode`, with keys and values that are there."""

    def forward(
        self, ids: Tensor, past: Tensor, memory: Tensor, memory_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        caches = [Past(*layer) for layer in past.unbind(1)]
        x = self.model.embed(self.model.tgt_embedding, ids, past.size(-2))
        for index, layer in enumerate(self.model.decoder.layers):

            def itself(x: Tensor, attention: Any = layer.self_attention, i: int = index) -> Tensor:
                return attention(x, x, x, "causal", caches[i])

            def source(x: Tensor, attention: Any = layer.cross_attention, i: int = index) -> Tensor:
                queries = attention.prepare(attention.w_q(x), attention.norm_q)
                heads = attention.attend(queries, memory[0, i], memory[1, i], memory_mask)
                return attention.w_o(heads.transpose(-3, -2).flatten(-2))

            x = layer.residual_2(layer.residual_1(x, itself), source)
            x = layer.residual_3(x, layer.feed_forward)
        present = stacked([cache.keys for cache in caches], [cache.values for cache in caches])
        return self.model.output_projection(self.model.decoder.norm(x)), present


class DecoderOnlyGraph(Graph):
    """The next positions of texts: `DecoderOnlyTransformer.decode`."""

    def forward(self, ids: Tensor, past: Tensor, left_padding: Tensor) -> tuple[Tensor, Tensor]:
        caches = [Past(*layer) for layer in past.unbind(1)]
        logits = self.model.decode(ids, caches, left_padding)
        return logits, stacked([cache.keys for cache in caches], [cache.values for cache in caches])


def stacked(keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Keys and values of all layers as one tensor, (2, N, b, h, n, e)."""
    return torch.stack([torch.stack(keys), torch.stack(values)])
