"""CTranslate2 computes what our models compute: the same scores, the same texts."""

import sys

import numpy as np
import pytest
import torch
from configurations import (
    DEEP_DECODER,
    IN_ATTENTION,
    PROMPT_IDS,
    PROMPTS,
    SETTINGS,
    SOURCES,
    SRC_IDS,
    TGT_IDS,
    causal,
    seq2seq,
    without_ends,
)
from helpers import PAIRS, assert_same

import minitransformer as mt
from live_model import FOLDER, read_model
from minitransformer.export import to_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")

SPECIAL = mt.Tokenizer.special_tokens
AS_OURS = {"min_decoding_length": 0, "max_decoding_length": 9, "suppress_sequences": [["<pad>"]]}
"""`generate` may end at once, and never writes padding."""


def named(rows):
    """Ids as the engine calls them where there is no tokenizer."""
    return [[SPECIAL[i] if i < 5 else f"#{i}" for i in row] for row in rows]


def opened(kind, model, folder):
    """The engine with the model."""
    to_ctranslate2(model, folder / "engine")
    return kind(str(folder / "engine"), compute_type="float32")


@pytest.mark.parametrize("name", [*SETTINGS, "deep decoder"])
def test_translator_scores_and_writes_the_same(name, tmp_path):
    model = seq2seq(**(SETTINGS | {"deep decoder": DEEP_DECODER})[name])
    engine = opened(ctranslate2.Translator, model, tmp_path)
    targets = without_ends(TGT_IDS, (0, 1))
    found = engine.score_batch(named(SOURCES), named(targets))
    with torch.inference_mode():
        scores = model(SRC_IDS, TGT_IDS).log_softmax(dim=-1)
    for row, target, ours in zip(found, targets, scores, strict=True):
        expected = ours[: len(target) + 1].gather(1, torch.tensor([*target, 2])[:, None])
        assert_same(torch.tensor(row.log_probs), expected[:, 0], 1e-4)
    for num_beams in (1, 2, 5) if name == "pre-norm" else (1,):
        options = {"length_penalty": 0.0}  # else it counts lengths otherwise
        ours = mt.generate(model, SRC_IDS, max_new_tokens=9, num_beams=num_beams, **options)
        theirs = engine.translate_batch(named(SOURCES), beam_size=num_beams, **options, **AS_OURS)
        assert [row.hypotheses[0] for row in theirs] == named(without_ends(ours))


@pytest.mark.parametrize("name", SETTINGS | IN_ATTENTION)
def test_generator_scores_and_writes_the_same(name, tmp_path):
    model = causal(**(SETTINGS | IN_ATTENTION)[name])
    engine = opened(ctranslate2.Generator, model, tmp_path)
    logits = torch.from_numpy(np.array(engine.forward_batch(named(PROMPTS))))
    with torch.inference_mode():
        expected = model(PROMPT_IDS)
    for row, length in enumerate(map(len, PROMPTS)):
        assert_same(logits[row, :length], expected[row, :length], 1e-4)

    ours = mt.generate(model, PROMPT_IDS, max_new_tokens=9)
    options = {"beam_size": 1, "max_length": 9, "suppress_sequences": [["<pad>"]]}
    for prompt, row in zip(named(PROMPTS), named(without_ends(ours)), strict=True):
        # Prompts of several lengths in one call come back with their ends in the result.
        (found,) = engine.generate_batch([prompt], include_prompt_in_result=False, **options)
        assert found.sequences[0] == row


def test_tokens_are_those_of_the_tokenizers(trained, tmp_path):
    to_ctranslate2(trained.trained(), tmp_path / "engine")
    assert {path.name for path in (tmp_path / "engine").iterdir()} == {
        "config.json",
        "model.bin",
        "source_vocabulary.json",
        "src_tokenizer.json",
        "target_vocabulary.json",
        "tgt_tokenizer.json",
    }
    src, tgt = (
        mt.Tokenizer.load(tmp_path / "engine" / f"{side}_tokenizer.json") for side in ("src", "tgt")
    )
    engine = ctranslate2.Translator(str(tmp_path / "engine"))
    sources = [[*src.labels(src.encode(pair.src)), "<eos>"] for pair in PAIRS]
    written = engine.translate_batch(sources, beam_size=1)
    texts = [tgt.decode(map(tgt.ids.__getitem__, row.hypotheses[0])) for row in written]
    assert texts == [pair.tgt for pair in PAIRS]


@pytest.mark.slow
def test_trained_translator_answers_the_same_in_eight_bits_too(tmp_path):
    translator = read_model(FOLDER / "number_words")
    src, tgt = translator.tokenizers.values()
    texts = [pair.src for pair in mt.number_words()["held_out"][:300]]
    expected = translator.translate(texts)
    for quantization, wanted in ((None, 1.0), ("int8", 0.97)):
        folder = tmp_path / str(quantization)
        to_ctranslate2(translator, folder, quantization=quantization)
        engine = ctranslate2.Translator(str(folder))
        sources = [[*src.labels(src.encode(text)), "<eos>"] for text in texts]
        written = engine.translate_batch(sources, beam_size=1, max_batch_size=100)
        found = [tgt.decode(map(tgt.ids.__getitem__, row.hypotheses[0])) for row in written]
        assert sum(map(str.__eq__, found, expected)) >= wanted * len(texts)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("None", "int8")]
    assert sizes[0] > 3 * sizes[1]


def test_what_it_does_not_have_is_refused(tmp_path, monkeypatch):
    for changes in IN_ATTENTION.values():
        found = changes["positional_encoding"]
        with pytest.raises(ValueError, match=f"no encoder with positional_encoding='{found}'"):
            to_ctranslate2(seq2seq(**changes), tmp_path / "engine")
    with pytest.raises(ValueError, match=r"one of \(None, 'int8', .*\), got 'int3'"):
        to_ctranslate2(causal(), tmp_path / "engine", quantization="int3")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"ctranslate2: pip install 'minitransformer\[export\]'"):
        to_ctranslate2(causal(), tmp_path / "engine")
    assert [*tmp_path.iterdir()] == []
