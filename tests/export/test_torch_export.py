"""Programs of torch.export compute what the models compute, at other lengths than those traced."""

import pytest
import torch
from configurations import MODELS, SRC_IDS, TGT_IDS, first_of, small
from graphs_law import assert_same_logits, assert_same_texts, logits_in_chunks, written
from helpers import (
    HEADS,
    PAIRS,
    PUBLISHED,
    assert_same,
    decoder_only_model,
    each_published,
    small_model,
)
from torch.torch_version import TorchVersion

import minitransformer as mt
from minitransformer.export import to_torch
from minitransformer.export.torch_export import GRAPHS, programs
from minitransformer.models import Mixtral, MixtralConfig

# Kinds of models that become different operations; tracing one takes seconds.
TRACED = first_of(
    *("all at once", "all at once, causal", "learned positions", "learned positions, causal")
)

MIXTURE = {"Mixtral": (Mixtral, MixtralConfig(**HEADS, num_kv_heads=1, max_len=16))}
"""In a program all of its experts compute all tokens."""


def runner(model):
    """The programs of a model, as one function."""
    modules = {name: program.module() for name, program in programs(model).items()}
    return lambda name, *inputs: modules[name](*inputs)


def untraced(model):
    """The graphs of a model as plain modules, as one function."""
    return lambda name, *inputs: GRAPHS[name](model)(*inputs)


@pytest.mark.parametrize("name", MODELS)
def test_graphs_compute_the_same_before_they_are_traced(name):
    kind, changes = MODELS[name]
    model = kind(**changes)
    assert_same_logits(untraced(model), model, [[2, 1, 3]])


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_traced_programs_compute_the_same(name):
    model = small(name)
    run = runner(model)
    assert_same_logits(run, model)
    assert_same_texts(run, model)


@pytest.mark.parametrize("name", ["pre-norm", "grouped heads"])
def test_norms_of_queries_and_keys_are_in_the_graphs(name):
    kind, changes = MODELS[name]
    model = kind(**changes)
    generator = torch.Generator().manual_seed(2)
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            for side in ("norm_q", "norm_k"):
                norm = mt.RMSNorm(attention.d_k)
                norm.weight.data.uniform_(0.5, 3.0, generator=generator)
                setattr(attention, side, norm)
    assert_same_logits(untraced(model), model, [[2, 1, 3]])


@each_published
def test_graphs_of_published_models_compute_the_same(kind, config):
    model = kind(config).eval()
    ids = TGT_IDS.where(TGT_IDS != 0, 3)  # 0 is a token where nothing is padding
    assert_same_logits(untraced(model), model, ids=ids)


@pytest.mark.slow
@pytest.mark.everything
@pytest.mark.parametrize("name", ["T5", "Mixtral"])
def test_program_of_a_published_model_computes_the_same(name):
    kind, config = (PUBLISHED | MIXTURE)[name]
    model = kind(config).eval()
    assert_same_logits(runner(model), model, ids=TGT_IDS.where(TGT_IDS != 0, 3))


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
    """Nothing in the plain forward looks at numbers."""
    b, s, t = (torch.export.Dim(name, max=16) for name in "bst")
    model = small_model().eval()
    ids = (torch.ones(3, 5, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64))
    program = torch.export.export(model, ids, dynamic_shapes=({0: b, 1: s}, {0: b, 1: t}))
    with torch.inference_mode():
        assert_same(program.module()(SRC_IDS, TGT_IDS), model(SRC_IDS, TGT_IDS))
