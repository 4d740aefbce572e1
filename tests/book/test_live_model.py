"""The model of the live page: its graph computes what the package computes."""

from dataclasses import replace
from functools import cache

import onnxruntime
import pytest
import torch
from helpers import assert_same, small_model

import minitransformer as mt
from live_model import EXAMPLES, FOLDER, NextToken, load_weights, read_translator, to_graph
from minitransformer.tasks.recipes import JOBS

pytestmark = pytest.mark.slow

LENGTHS = [(1, 1), (1, 9), (12, 1), (2, 2), (7, 16), (16, 5), (16, 16)]

translator = cache(lambda name: read_translator(FOLDER / name))
"""The package's model with the weights of a graph of the page, and its tokenizers."""


def assert_computes_the_same(graph, model, lengths):
    """A graph, as bytes or a path, and a model agree on random ids of these lengths."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    sizes = (model.config.src_vocab_size, model.config.tgt_vocab_size)
    for pair in lengths:
        source, target = (
            torch.randint(1, size, (1, length), generator=generator, dtype=torch.int32)
            for size, length in zip(sizes, pair, strict=True)
        )
        with torch.inference_mode():
            expected = NextToken(model.eval())(source, target)
        given = {"source": source.numpy(), "target": target.numpy()}
        found = session.run(["scores", "attention"], given)
        for ours, theirs in zip(expected, found, strict=True):
            assert_same(torch.from_numpy(theirs), ours, 1e-4)


@pytest.fixture(scope="module")
def exported():
    """A small model's graph, and the model."""
    model = small_model(num_encoder_layers=1, num_decoder_layers=2, norm_first=True)
    return to_graph(model), model


def test_graph_of_a_model_computes_the_same_and_tells_nothing_of_the_machine(exported):
    graph, model = exported
    assert_computes_the_same(graph.SerializeToString(), model, LENGTHS)
    assert b".py" not in graph.SerializeToString()


def test_weights_come_back_and_those_of_another_model_are_refused(exported):
    graph, model = exported
    other = mt.Transformer(model.config)
    load_weights(other, graph)
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    wider = mt.Transformer(replace(model.config, d_ff=24))
    with pytest.raises(ValueError, match=r"encoder.*w_1.weight of shape \(24, 12\), found \(20, "):
        load_weights(wider, graph)


# --- the page's models -----------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_graph_of_the_page_computes_the_same(name):
    graph = FOLDER / name / "translator.onnx"
    assert_computes_the_same(graph, translator(name).model, [(16, 5), (128, 64)])


def test_tokenizers_of_the_page_are_those_of_training():
    trainer = JOBS["number-words"].new_trainer(mt.TrainingConfig())
    ours = translator("number_words")
    assert ours.model.config == trainer.model.config
    for side, tokenizer in trainer.tokenizers.items():
        assert ours.tokenizers[side].to_dict() == tokenizer.to_dict()


def test_tokenizers_of_the_sentences_know_every_word():
    for pairs in mt.grammar_sentences(num_train=5_000).values():
        for tokenizer, texts in zip(
            translator("grammar").tokenizers.values(), zip(*pairs, strict=True), strict=True
        ):
            assert tokenizer.unk_id not in {i for text in texts for i in tokenizer.encode(text)}


@pytest.mark.everything
def test_models_are_as_good_as_the_page_says():
    numbers, sentences = mt.number_words(), mt.grammar_sentences(num_train=1)
    assert len(numbers["held_out"]) == len(numbers["longer"]) == 2000
    assert translator("number_words").exact_match(numbers["held_out"]) == 0.9995
    assert translator("number_words").exact_match(numbers["longer"]) == 0
    right = translator("grammar").exact_match(sentences["held_out"])
    assert right == pytest.approx(0.99, abs=0.002)
    assert translator("grammar").exact_match(sentences["deep"]) == pytest.approx(0.001, abs=0.001)
