"""To PyTorch alone: a model as graphs of its operations, which run without this package.

What goes into a graph and comes out of it is in the table of `graphs`.
"""

import copy
import math
import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from minitransformer.export.folder import Exportable, export_folder, exportable
from minitransformer.export.graphs import AXES, DecoderGraph, DecoderOnlyGraph, EncoderGraph
from minitransformer.layers.attention import Backend, ScaledDotProductAttention
from minitransformer.layers.positional_encoding import (
    LearnedPositionalEncoding,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)

__all__ = ["to_torch"]

OLDEST_TORCH = "2.11"
"""The oldest PyTorch whose graphs have been compared with the models."""


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
    graphs: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {}
    if model.config.num_encoder_layers:
        encoder, source = EncoderGraph(model), torch.ones(3, 5, dtype=torch.int64)
        with torch.no_grad():
            memory = encoder(source)
        graphs["encoder"] = encoder, (source,)
        graphs["decoder"] = DecoderGraph(model), (ids, past, *memory)
    else:
        graphs["decoder_only"] = DecoderOnlyGraph(model), (ids, past, torch.zeros_like(ids[:, 0]))
    found = {}
    for name, (graph, arguments) in graphs.items():
        shapes = tuple({axis: lengths[of] for axis, of in axes.items()} for axes in AXES[name])
        with torch.no_grad():
            found[name] = torch.export.export(
                graph,
                arguments,
                dynamic_shapes=shapes,
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
    """Write graphs that ``torch.export.load`` reads, each a file of its own: `encoder.pt2`, ...

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
