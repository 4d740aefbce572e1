"""ONNX Runtime computes what our models compute, at other lengths than those traced."""

import pytest
import torch
from configurations import first_of, small
from graphs_law import assert_same_logits, assert_same_texts

from minitransformer.export import to_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

pytestmark = pytest.mark.slow


def runner(folder):
    """The graphs of a folder, as one function."""
    sessions = {
        path.stem: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for path in folder.glob("*.onnx")
    }

    def run(name, *inputs):
        names = [place.name for place in sessions[name].get_inputs()]
        given = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(found) for found in sessions[name].run(None, given)]

    return run


@pytest.mark.parametrize(
    "name", first_of("all at once", "learned positions, causal", "alibi", "alibi, causal")
)
def test_graphs_compute_the_same(name, tmp_path):
    model = small(name)
    to_onnx(model, tmp_path / "engine")
    run = runner(tmp_path / "engine")
    assert_same_logits(run, model, bound=1e-4)
    assert_same_texts(run, model)
    graphs = {path.stem: onnx.load(path) for path in (tmp_path / "engine").iterdir()}
    for graph in graphs.values():
        onnx.checker.check_model(graph)
        assert b"/minitransformer/" not in graph.SerializeToString()  # where the code is
    if name == "all at once":
        assert sides(graphs["decoder"].graph.input) == {
            "ids": ["b", "t"],
            "past": [2, 2, "b", 1, "p", 4],
            "memory": [2, 2, "b", 1, "s", 4],
            "memory_mask": ["b", 1, 1, "s"],
        }
        assert [*sides(graphs["decoder"].graph.output)] == ["logits", "present"]


def sides(values):
    """The shape of each input or output of a graph, by its name."""
    return {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in values
    }
