"""To ONNX: graphs that ONNX Runtime and others run, in browsers and on phones too.

They are those of `torch_export`, with the inputs and outputs that `graphs` lists: `encoder.onnx`
and `decoder.onnx`, or `decoder_only.onnx`, for any number of rows and any lengths.

Needs the libraries `onnx` and `onnxscript`.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from minitransformer.checks import library
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.export.folder import export_folder, exportable
from minitransformer.export.graphs import AXES, INPUTS, OUTPUTS
from minitransformer.export.torch_export import programs
from minitransformer.transformer import Transformer
from minitransformer.translator import TextModel

if TYPE_CHECKING:
    import onnx

__all__ = ["as_graph", "to_onnx"]


def to_onnx(
    model: TextModel | Transformer | DecoderOnlyTransformer,
    folder: str | os.PathLike[str],
) -> None:
    """Write the graphs of a model, each a file with all its weights.

    Args:
        model: a `Translator` or a `TextGenerator`, whose tokenizers are written too; or a model
            alone. Published ones too.
        folder: where to; a new one, or an empty one.

    Raises:
        FileExistsError: if `folder` is not empty.
        ImportError: if `onnx` or `onnxscript` is not installed, or PyTorch older than 2.11.
        TypeError: if the model is none of the two kinds.

    Example:
        >>> import onnxruntime, tempfile
        >>> from minitransformer.config import TransformerConfig
        >>> config = TransformerConfig.decoder_only(9, d_model=8, num_heads=2, num_layers=1)
        >>> with tempfile.TemporaryDirectory() as name:
        ...     to_onnx(DecoderOnlyTransformer(config), f"{name}/engine")
        ...     graph = onnxruntime.InferenceSession(f"{name}/engine/decoder_only.onnx")
        >>> [(place.name, place.shape) for place in graph.get_inputs()]
        [('ids', ['b', 't']), ('past', [2, 1, 'b', 2, 'p', 4]), ('left_padding', ['b'])]


    """
    for name in ("onnx", "onnxscript"):
        library(name, "export")
    plain_model, tokenizers = exportable(model)
    with export_folder(folder, tokenizers) as unfinished:
        # The formula: the fused kernel's way with empty rows takes an operation on booleans that
        # ONNX Runtime does not have.
        for name, program in programs(plain_model, "reference").items():
            graph = as_graph(program, INPUTS[name], OUTPUTS[name], AXES[name])
            (unfinished / f"{name}.onnx").write_bytes(graph.SerializeToString())


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Nothing is said of what PyTorch has to say to itself, and of torchvision, not needed here."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", ".*The axis name", UserWarning)  # two have one name
            yield
    finally:
        registration.setLevel(level)


def as_graph(
    program: ExportedProgram,
    inputs: list[str],
    outputs: list[str],
    axes: tuple[dict[int, str], ...],
    *,
    optimize: bool = True,
) -> "onnx.ModelProto":
    """A program as a graph of ONNX.

    Args:
        program: what `torch.export.export` returned.
        inputs: what the graph's inputs are to be called.
        outputs: the same for its outputs.
        axes: the same for the axes of its inputs whose lengths are open.
        optimize: whether operations are joined; if not, every weight keeps its name and its shape.
    """
    with quiet_exporter():
        exported = torch.onnx.export(
            program,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=axes,
            dynamo=True,
            optimize=optimize,
            verbose=False,
        )
    assert exported is not None  # it would be, with dynamo=False
    graph = exported.model_proto
    # What the exporter notes beside the graph: also where on this machine the code stood.
    graph.graph.ClearField("metadata_props")
    graph.graph.ClearField("value_info")
    for node in graph.graph.node:
        node.ClearField("metadata_props")
    return graph
