"""To PyTorch alone: a model as graphs of its operations, which run without this package.

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

import copy
import math
import os
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from minitransformer.export.folder import Exportable, export_folder, exportable
from minitransformer.layers.attention import Backend, ScaledDotProductAttention
from minitransformer.layers.cache import KVCache
from minitransformer.layers.positional_encoding import (
    LearnedPositionalEncoding,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)

__all__ = ["to_torch"]

OLDEST_TORCH = "2.11"
"""The oldest PyTorch whose graphs have been compared with the models."""


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

    inputs: ClassVar[dict[str, dict[int, str]]]  # each with the axes whose lengths are left open
    outputs: ClassVar[list[str]]

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


class EncoderGraph(Graph):
    """What is computed once for each source."""

    inputs: ClassVar = {"ids": {0: "b", 1: "s"}}
    outputs: ClassVar = ["memory", "memory_mask"]

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        encoded, mask = self.model.encode(ids)
        layers = [layer.cross_attention for layer in self.model.decoder.layers]
        keys = [attention.prepare(attention.w_k(encoded), attention.norm_k) for attention in layers]
        values = [attention.split_heads(attention.w_v(encoded)) for attention in layers]
        return stacked(keys, values), mask


class DecoderGraph(Graph):
    """The next positions of targets: `Transformer.decode`, with keys and values that are there."""

    inputs: ClassVar = {
        "ids": {0: "b", 1: "t"},
        "past": {2: "b", 4: "p"},
        "memory": {2: "b", 4: "s"},
        "memory_mask": {0: "b", 3: "s"},
    }
    outputs: ClassVar = ["logits", "present"]

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

    inputs: ClassVar = {"ids": {0: "b", 1: "t"}, "past": {2: "b", 4: "p"}, "left_padding": {0: "b"}}
    outputs: ClassVar = ["logits", "present"]

    def forward(self, ids: Tensor, past: Tensor, left_padding: Tensor) -> tuple[Tensor, Tensor]:
        caches = [Past(*layer) for layer in past.unbind(1)]
        logits = self.model.decode(ids, caches, left_padding)
        return logits, stacked([cache.keys for cache in caches], [cache.values for cache in caches])


def stacked(keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Keys and values of all layers as one tensor, (2, N, b, h, n, e)."""
    return torch.stack([torch.stack(keys), torch.stack(values)])


GRAPHS: dict[str, type[Graph]] = {
    "encoder": EncoderGraph,
    "decoder": DecoderGraph,
    "decoder_only": DecoderOnlyGraph,
}


def programs(model: Any, backend: Backend = "sdpa") -> dict[str, ExportedProgram]:
    """The graphs of a model, by name: "encoder" and "decoder", or "decoder_only".

    Args:
        model: an encoder-decoder or a decoder-only model, a published one too.
        backend: how attention is computed, see `scaled_dot_product_attention`.

    Raises:
        ImportError: if PyTorch is older than `OLDEST_TORCH`.
    """
    if torch.__version__ < OLDEST_TORCH:
        raise ImportError(
            f"this export needs PyTorch {OLDEST_TORCH} or newer, got {torch.__version__}"
        )
    longest = None if model.max_len == math.inf else model.config.max_len
    lengths = {
        name: Dim(name, min=low, max=longest) for name, low in {"s": 1, "t": 1, "p": 0}.items()
    }
    lengths["b"] = Dim("b", min=1)
    model = prepared(model, backend)
    attention = model.decoder.layers[0].self_attention
    dtype = model.output_projection.weight.dtype
    sizes = (2, len(model.decoder.layers), 3, attention.num_kv_heads, 4, attention.d_k)
    ids, past = torch.ones(3, 2, dtype=torch.int64), torch.zeros(sizes, dtype=dtype)
    if model.config.num_encoder_layers:
        source = torch.ones(3, 5, dtype=torch.int64)
        with torch.no_grad():
            memory = EncoderGraph(model)(source)
        arguments = {"encoder": (source,), "decoder": (ids, past, *memory)}
    else:
        arguments = {"decoder_only": (ids, past, torch.zeros_like(ids[:, 0]))}
    found = {}
    for name, inputs in arguments.items():
        graph = GRAPHS[name]
        shapes = [{i: lengths[axis] for i, axis in of.items()} for of in graph.inputs.values()]
        with torch.no_grad():
            found[name] = torch.export.export(
                graph(model),
                inputs,
                dynamic_shapes=tuple(shapes),
                # What 2.11 cannot prove of lengths (4s < 12s) it then asserts when the graph runs.
                prefer_deferred_runtime_asserts_over_guards=torch.__version__ < "2.13",
            )
    return found


def prepared(model: Any, backend: Backend) -> Any:
    """A copy on the CPU, in evaluation mode, with that attention, and tables of positions doubled.

    So p + t ends in the tables where p and t do; otherwise PyTorch would ask for a rule that binds
    p to t. Past `max_len` they hold NaN.
    """
    model = copy.deepcopy(model).cpu().eval()
    if model.max_len < math.inf:
        model.config = replace(model.config, max_len=2 * model.config.max_len)
    for part in model.modules():
        if isinstance(part, ScaledDotProductAttention):
            part.backend = backend
        elif isinstance(part, LearnedPositionalEncoding):
            part.weight = nn.Parameter(doubled(part.weight.detach()))
        elif isinstance(part, SinusoidalPositionalEncoding | RotaryPositionalEncoding):
            part.table = doubled(part.table)
    return model


def doubled(table: Tensor) -> Tensor:
    """A table, and as many rows of NaN."""
    return torch.cat([table, torch.full_like(table, torch.nan)])


def to_torch(model: Exportable, folder: str | os.PathLike[str]) -> None:
    """Write graphs that ``torch.export.load`` reads, one file each: `encoder.pt2`, ...

    Args:
        model: a `Translator` or a `TextGenerator`, whose tokenizers are written too; or a model
            alone. Published ones too.
        folder: where to; a new one, or an empty one.

    Raises:
        FileExistsError, ImportError: if `folder` is not empty, or PyTorch older than 2.11.
        TypeError: if the model is none of the two kinds.

    Example:
        >>> import tempfile
        >>> import minitransformer as mt
        >>> config = mt.TransformerConfig.decoder_only(9, d_model=8, num_heads=2, num_layers=1)
        >>> with tempfile.TemporaryDirectory() as name:
        ...     to_torch(mt.DecoderOnlyTransformer(config), f"{name}/engine")
        ...     graph = torch.export.load(f"{name}/engine/decoder_only.pt2").module()
        >>> no_past, no_padding = torch.zeros(2, 1, 1, 2, 0, 4), torch.tensor([0])
        >>> logits, past = graph(torch.tensor([[5, 6, 7]]), no_past, no_padding)
        >>> tuple(logits.shape), tuple(past.shape)
        ((1, 3, 9), (2, 1, 1, 2, 3, 4))
    """
    plain_model, tokenizers = exportable(model)
    with export_folder(folder, tokenizers) as unfinished:
        for name, program in programs(plain_model).items():
            torch.export.save(program, unfinished / f"{name}.pt2")
