"""To ONNX: graphs that ONNX Runtime and others run, in browsers and on phones too.

They are those of `torch_export`, with the inputs and outputs that its table lists: `encoder.onnx`
and `decoder.onnx`, or `decoder_only.onnx`, for any number of rows and any lengths.
"""

import logging
import os
import warnings
from typing import Any

import torch

from minitransformer.checks import library
from minitransformer.export.folder import Exportable, export_folder, exportable
from minitransformer.export.torch_export import GRAPHS, programs

__all__ = ["to_onnx"]


def to_onnx(model: Exportable, folder: str | os.PathLike[str]) -> None:
    """Write the graphs of a model, each a file with all its weights.

    Arguments and errors are those of `to_torch`; `onnx` and `onnxscript` must be installed too.

    Example:
        >>> import onnxruntime, tempfile
        >>> import minitransformer as mt
        >>> config = mt.TransformerConfig.decoder_only(9, d_model=8, num_heads=2, num_layers=1)
        >>> with tempfile.TemporaryDirectory() as name:
        ...     to_onnx(mt.DecoderOnlyTransformer(config), f"{name}/engine")
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
            graph = onnx_graph(
                program,
                input_names=[*GRAPHS[name].inputs],
                output_names=GRAPHS[name].outputs,
                dynamic_shapes=(*GRAPHS[name].inputs.values(),),
            )
            (unfinished / f"{name}.onnx").write_bytes(graph.SerializeToString())


def onnx_graph(*program: Any, **options: Any) -> Any:
    """What `torch.onnx.export` makes of a program, or of a module and its inputs: a model proto.

    It is silent, and holds nothing that the exporter notes beside the graph, such as the place of
    the code on this machine.
    """
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # it would miss torchvision, which is not needed
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", ".*The axis name", UserWarning)  # two have one name
            exported = torch.onnx.export(*program, dynamo=True, verbose=False, **options)
    finally:
        registration.setLevel(level)
    assert exported is not None  # it would be, with dynamo=False
    graph = exported.model_proto
    for part in (graph.graph, *graph.graph.node):
        part.ClearField("metadata_props")
    graph.graph.ClearField("value_info")
    return graph
