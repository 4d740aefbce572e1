"""The models of the live page: they are what the page says, and are written as they are."""

from functools import cache

import pytest
import torch
from helpers import small_model

import minitransformer as mt
from live_model import FOLDER, read_translator, write
from minitransformer.tasks.recipes import JOBS

pytestmark = pytest.mark.slow

translator = cache(lambda name: read_translator(FOLDER / name))
"""The package's model with the page's weights, and its tokenizers."""


def test_a_model_is_written_in_half_as_many_bytes(tmp_path):
    words = [mt.WordTokenizer([f"word{i}" for i in range(size - 5)]) for size in (29, 31)]
    model = small_model()
    files = write(mt.Translator(model, *words), tmp_path)
    assert {file.name for file in files} == {
        "config.json",
        "model.safetensors",
        "src_tokenizer.json",
        "tgt_tokenizer.json",
    }
    again = read_translator(tmp_path).model
    for ours, theirs in zip(again.parameters(), small_model().parameters(), strict=True):
        assert torch.equal(ours, theirs.half().float())


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
