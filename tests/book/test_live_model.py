"""The models of the live page: they are what the page says, and are written as they are."""

import lzma
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import small_model

import minitransformer as mt
from live_model import FOLDER, WRITER, read_model, write
from minitransformer.tasks.recipes import JOBS

pytestmark = pytest.mark.slow

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
PLAYS = SHARED / "tinyshakespeare" / "input.txt"
LEARNED = 1_003_855  # characters of it

translator = cache(lambda name: read_model(FOLDER / name))
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
    again = read_model(tmp_path).model
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


def longest_copy(text: str, source: str) -> int:
    """The most words in a row that a text has from the source; `source` begins with a space."""
    words = text.split()
    runs = ((i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
    return max((j - i for i, j in runs if f" {' '.join(words[i:j])} " in source), default=0)


def test_most_probable_speeches_are_much_the_same():
    """The two that the page quotes are one."""
    found = translator(WRITER).complete(["ROMEO:", "JULIET:"], max_new_tokens=40)
    assert found == ["\nI'll tell thee what I can tell thee what I do."] * 2
    beam = {"num_beams": 3, "length_penalty": 0.6, "max_new_tokens": 57}
    assert translator(WRITER).complete(["ROMEO:", "JULIET:"], **beam) == ["", ""]


@pytest.mark.everything
def test_writer_is_as_good_as_the_page_says():
    if not PLAYS.is_file():
        pytest.skip("the plays are not in shared/data beside the repository")
    text = PLAYS.read_text(encoding="utf-8")
    held_out = re.split(r"\n{2,}", text[LEARNED:].strip())
    writer = translator(WRITER)
    assert sum(p.numel() for p in writer.model.parameters()) == 1_401_280
    bits = writer.bits_per_character(held_out, context_length=128)
    assert bits == pytest.approx(2.12, abs=0.005)
    learned, rest = text[:LEARNED], text[LEARNED:].strip()
    counts = Counter(learned)
    frequency = sum(-math.log2(max(1, counts[c]) / LEARNED) for c in rest) / len(rest)
    packed = [len(lzma.compress(part.encode())) for part in (learned, learned + rest)]
    assert frequency == pytest.approx(4.83, abs=0.005)
    assert 8 * (packed[1] - packed[0]) / len(rest) == pytest.approx(2.52, abs=0.01)
    names = Counter(re.findall(r"^[A-Z][A-Z ]+:$", learned, re.MULTILINE)).most_common(20)
    for seed in range(5):
        torch.manual_seed(seed)
        drawn = {"max_new_tokens": 58, "temperature": 0.8, "top_p": 0.95}
        speeches = writer.complete([name for name, _ in names] * 4, **drawn)
        assert (
            max(longest_copy(speech, " ".join(["", *learned.split(), ""])) for speech in speeches)
            <= 6
        )
