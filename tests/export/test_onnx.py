"""ONNX Runtime computes what our models compute, at other lengths than those traced."""

from functools import cache

import pytest
import torch
from configurations import (
    DECODER_ONLY,
    ENCODER_DECODERS,
    IN_ATTENTION,
    PROMPT_IDS,
    PROMPTS,
    SRC_IDS,
    TGT_IDS,
    first_of,
    small_of,
    without_ends,
)
from helpers import assert_same
from step_by_step import logits_in_chunks, written

import minitransformer as mt
from minitransformer.export import to_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

pytestmark = pytest.mark.slow

ENCODER_DECODERS = {
    name: (ENCODER_DECODERS | IN_ATTENTION)[name] for name in ("all at once", "alibi")
}
DECODER_ONLY = {name: DECODER_ONLY[name] for name in ("learned positions", "alibi")}
CHUNKS = ([6], [1] * 6, [2, 1, 3])


def runner(folder):
    """The graphs of a folder, as one function."""
    sessions = {
        path.stem: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for path in folder.glob("*.onnx")
    }

    def run(name, *inputs):
        session = sessions[name]
        given = {
            place.name: tensor.numpy()
            for place, tensor in zip(session.get_inputs(), inputs, strict=True)
        }
        return [torch.from_numpy(found) for found in session.run(None, given)]

    return run


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    """The encoder-decoder of that name and the folder with its graphs, each written once."""

    @cache
    def write(name):
        folder = tmp_path_factory.mktemp("onnx") / "engine"
        model = small_of(ENCODER_DECODERS[name])
        to_onnx(model, folder)
        return model, folder

    return write


@pytest.mark.parametrize("name", first_of(ENCODER_DECODERS))
def test_encoder_and_decoder_compute_the_same(name, written_once):
    model, folder = written_once(name)
    run = runner(folder)
    with torch.inference_mode():
        expected = model(SRC_IDS, TGT_IDS)
    for chunks in CHUNKS:
        assert_same(logits_in_chunks(run, model, TGT_IDS, SRC_IDS, chunks), expected, 1e-4)
    one = logits_in_chunks(run, model, TGT_IDS[2:3], SRC_IDS[2:3, :2], [6])
    assert_same(one, expected[2:3], 1e-4)  # alone, and without padding
    ours = mt.generate(model, SRC_IDS, max_new_tokens=8)
    read = torch.cat([torch.ones(len(ours), 1, dtype=torch.int64), ours[:, :-1]], dim=1)
    scores = logits_in_chunks(run, model, read, SRC_IDS, [1] * ours.size(1))
    chosen = scores.gather(-1, ours[..., None])[..., 0]
    best = scores[..., 1:].amax(dim=-1)  # but for padding, which is never written
    assert ((chosen > best - 1e-4) | (ours == 0)).all()  # of two as good, any


@pytest.mark.parametrize("name", first_of(DECODER_ONLY))
def test_decoder_only_computes_the_same(name, tmp_path):
    model = small_of(DECODER_ONLY[name], "decoder-only")
    to_onnx(model, tmp_path / "engine")
    run = runner(tmp_path / "engine")
    with torch.inference_mode():
        expected = model(TGT_IDS)
    for chunks in CHUNKS:
        assert_same(logits_in_chunks(run, model, TGT_IDS, None, chunks), expected, 1e-4)
    ours = mt.generate(model, PROMPT_IDS, max_new_tokens=8)
    padding = torch.tensor([5 - len(row) for row in PROMPTS])
    left = torch.tensor([[0] * (5 - len(row)) + row for row in PROMPTS])
    assert written(run, model, left, 8, padding) == without_ends(ours)


def test_graphs_say_what_goes_in_and_out(written_once):
    _, folder = written_once("all at once")
    graphs = {path.stem: onnx.load(path) for path in folder.iterdir()}
    for graph in graphs.values():
        onnx.checker.check_model(graph)
        assert b"/minitransformer/" not in graph.SerializeToString()  # nor where the code stood
    sides = {
        name: [
            [
                (value.name, [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim])
                for value in side
            ]
            for side in (graph.graph.input, graph.graph.output)
        ]
        for name, graph in graphs.items()
    }
    assert sides["decoder"][0][:2] == [
        ("ids", ["b", "t"]),
        ("past", [2, 2, "b", 1, "p", 4]),
    ]
    assert sides["decoder"][0][2:] == [
        ("memory", [2, 2, "b", 1, "s", 4]),
        ("memory_mask", ["b", 1, 1, "s"]),
    ]
    assert [name for name, _ in sides["decoder"][1]] == ["logits", "present"]


def test_empty_past_is_a_slice_of_memory(written_once):
    """What the page says, for whoever has no model at hand to ask for sizes."""
    model, folder = written_once("all at once")
    memory, _ = runner(folder)("encoder", SRC_IDS)
    assert memory[..., :0, :].shape == (2, len(model.decoder.layers), 4, 1, 0, 4)
