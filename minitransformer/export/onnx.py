"""To ONNX: graphs that ONNX Runtime and others run, in browsers and on phones too.

They are those of `torch_export`, with the inputs and outputs that `graphs` lists: `encoder.onnx`
and `decoder.onnx`, or `decoder_only.onnx`, for any number of rows and any lengths.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from minitransformer.checks import library
from minitransformer.export.folder import Exportable, export_folder, exportable
from minitransformer.export.graphs import AXES, INPUTS, OUTPUTS
from minitransformer.export.torch_export import programs

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
            with quiet_exporter():
                exported = torch.onnx.export(
                    program,
                    input_names=INPUTS[name],
                    output_names=OUTPUTS[name],
                    dynamic_shapes=AXES[name],
                    dynamo=True,
                    verbose=False,
                )
            assert exported is not None  # it would be, with dynamo=False
            model_proto = exported.model_proto
            # What the exporter notes beside the graph: also where on this machine the code stood.
            for part in (model_proto.graph, *model_proto.graph.node):
                part.ClearField("metadata_props")
            model_proto.graph.ClearField("value_info")
            (unfinished / f"{name}.onnx").write_bytes(model_proto.SerializeToString())


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
