"""Programs of torch.export compute what the models compute, at other lengths than those traced."""

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
    model_of,
    small_of,
    without_ends,
)
from helpers import PAIRS, assert_same, decoder_only_model, small_model
from step_by_step import logits_in_chunks, written
from torch.torch_version import TorchVersion

import minitransformer as mt
from minitransformer.export import to_torch
from minitransformer.export.graphs import DecoderGraph, DecoderOnlyGraph, EncoderGraph
from minitransformer.export.torch_export import programs

TRACED = ("all at once", "learned positions")
"""Kinds of models that become different operations; tracing one takes seconds."""

CHUNKS = ([6], [1] * 6, [2, 1, 3])


def runner(model):
    """The programs of a model, as one function."""
    modules = {name: program.module() for name, program in programs(model).items()}
    return lambda name, *inputs: modules[name](*inputs)


def untraced(model):
    """The graphs of a model as plain modules, as one function."""
    kinds = {"encoder": EncoderGraph, "decoder": DecoderGraph, "decoder_only": DecoderOnlyGraph}
    return lambda name, *inputs: kinds[name](model)(*inputs)


@pytest.mark.parametrize("name", ENCODER_DECODERS | IN_ATTENTION)
def test_graphs_compute_the_same_before_they_are_traced(name):
    model = model_of((ENCODER_DECODERS | IN_ATTENTION)[name])
    with torch.inference_mode():
        expected = model(SRC_IDS, TGT_IDS)
        found = logits_in_chunks(untraced(model), model, TGT_IDS, SRC_IDS, [2, 1, 3])
    assert_same(found, expected)


@pytest.mark.parametrize("name", DECODER_ONLY)
def test_decoder_only_graph_computes_the_same_before_it_is_traced(name):
    model = model_of(DECODER_ONLY[name], "decoder-only")
    with torch.inference_mode():
        expected = model(TGT_IDS)
        found = logits_in_chunks(untraced(model), model, TGT_IDS, None, [2, 1, 3])
    assert_same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(TRACED))
def test_encoder_and_decoder_compute_the_same(name):
    model = small_of((ENCODER_DECODERS | IN_ATTENTION)[name])
    run = runner(model)
    with torch.inference_mode():
        expected = model(SRC_IDS, TGT_IDS)
    for chunks in CHUNKS:
        assert_same(logits_in_chunks(run, model, TGT_IDS, SRC_IDS, chunks), expected)
    one = logits_in_chunks(run, model, TGT_IDS[2:3], SRC_IDS[2:3, :2], [6])
    assert_same(one, expected[2:3])  # alone, and without padding
    ours = mt.generate(model, SRC_IDS, max_new_tokens=8)
    assert written(run, model, SRC_IDS, 8) == without_ends(ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(TRACED))
def test_decoder_only_computes_the_same(name):
    model = small_of(DECODER_ONLY[name], "decoder-only")
    run = runner(model)
    with torch.inference_mode():
        expected = model(TGT_IDS)
    for chunks in CHUNKS:
        assert_same(logits_in_chunks(run, model, TGT_IDS, None, chunks), expected)
    ours = mt.generate(model, PROMPT_IDS, max_new_tokens=8)
    padding = torch.tensor([5 - len(row) for row in PROMPTS])
    left = torch.tensor([[0] * (5 - len(row)) + row for row in PROMPTS])
    assert written(run, model, left, 8, padding) == without_ends(ours)


@pytest.mark.parametrize("name", ["pre-norm", "grouped heads"])
def test_norms_of_queries_and_keys_are_in_the_graphs(name):
    """Norms of queries and keys; the graphs run here as modules, before they are traced."""
    model = model_of(ENCODER_DECODERS[name])
    generator = torch.Generator().manual_seed(2)
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            for side in ("norm_q", "norm_k"):
                norm = mt.RMSNorm(attention.d_k)
                norm.weight.data.uniform_(0.5, 3.0, generator=generator)
                setattr(attention, side, norm)
    with torch.inference_mode():
        expected = model(SRC_IDS, TGT_IDS)
        found = logits_in_chunks(untraced(model), model, TGT_IDS, SRC_IDS, [2, 1, 3])
    assert_same(found, expected)


FAMILY = mt.models
SIZES = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20}
SIDES = {"encoder_num_heads": 3, "decoder_num_heads": 2, "encoder_d_ff": 20, "decoder_d_ff": 16}
PUBLISHED = {
    "T5": lambda: FAMILY.T5(
        FAMILY.T5Config(
            vocab_size=31, d_model=12, d_k=5, num_heads=3, d_ff=20, num_encoder_layers=2
        )
    ),
    "GPT2": lambda: FAMILY.GPT2(FAMILY.GPT2Config(vocab_size=31, **SIZES, max_len=16)),
    "Llama": lambda: FAMILY.Llama(
        FAMILY.LlamaConfig(vocab_size=31, **SIZES, num_kv_heads=1, max_len=16)
    ),
    "Qwen3": lambda: FAMILY.Llama(
        FAMILY.Qwen3Config(vocab_size=31, **SIZES, num_kv_heads=1, d_k=6, max_len=16)
    ),
    "Marian": lambda: FAMILY.Marian(
        FAMILY.MarianConfig(
            vocab_size=31,
            d_model=12,
            num_encoder_layers=1,
            num_decoder_layers=2,
            **SIDES,
            pad_id=0,
            start_id=0,
        )
    ),
    "BART": lambda: FAMILY.BART(
        FAMILY.BARTConfig(
            vocab_size=31, d_model=12, num_encoder_layers=1, num_decoder_layers=2, **SIDES, pad_id=0
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLISHED])
def test_published_models_compute_the_same(name):
    model = PUBLISHED[name]().eval()
    sources = SRC_IDS if model.config.num_encoder_layers else None
    ids = TGT_IDS.where(TGT_IDS != 0, 3)  # 0 is a token where nothing is padding
    with torch.inference_mode():
        expected = model(ids) if sources is None else model(sources, ids)
        run = runner(model) if name == "T5" else untraced(model)  # tracing takes seconds
        for chunks in CHUNKS:
            assert_same(logits_in_chunks(run, model, ids, sources, chunks), expected)


@pytest.mark.slow
def test_past_the_longest_text_there_are_no_numbers():
    model = decoder_only_model().eval()
    run = runner(model)
    ids = torch.full((2, 17), 3)
    assert_same(logits_in_chunks(run, model, ids[:, :16], None, [7, 9]), model(ids[:, :16]))
    assert logits_in_chunks(run, model, ids, None, [7, 10])[:, -1].isnan().all()


@pytest.mark.slow
def test_folder_runs_without_the_package(trained, tmp_path):
    folder = tmp_path / "engine"
    to_torch(trained.trained(), folder)
    names = {"decoder.pt2", "encoder.pt2", "src_tokenizer.json", "tgt_tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == names
    modules = {
        name: torch.export.load(folder / f"{name}.pt2").module() for name in ("encoder", "decoder")
    }
    src, tgt = trained.tokenizers.values()
    ids = mt.pad_rows([[*src.encode(pair.src), 2] for pair in PAIRS])
    found = written(lambda name, *inputs: modules[name](*inputs), trained.model, ids, 6)
    assert [tgt.decode(row) for row in found] == [pair.tgt for pair in PAIRS]


def test_older_pytorch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.1"))
    with pytest.raises(ImportError, match=r"needs PyTorch 2\.11 or newer, got 2\.10\.1"):
        programs(small_model())


@pytest.mark.slow
def test_whole_models_go_through_torch_export_as_they_are():
    """Without doubled tables: nothing in the plain forward looks at numbers."""
    b, s, t = (torch.export.Dim(name, max=16) for name in "bst")
    model = small_model().eval()
    ids = (torch.ones(3, 5, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64))
    program = torch.export.export(model, ids, dynamic_shapes=({0: b, 1: s}, {0: b, 1: t}))
    with torch.inference_mode():
        assert_same(program.module()(SRC_IDS, TGT_IDS), model(SRC_IDS, TGT_IDS))
