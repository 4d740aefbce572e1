"""What all exports do: refuse what is none of the models, and leave a whole folder or none."""

import re

import pytest
import torch
from configurations import causal, seq2seq
from helpers import TEXTS, can_export

import minitransformer as mt
from minitransformer.export import to_ctranslate2, to_onnx, to_torch, to_transformers
from minitransformer.layers import MixtureOfExperts

CTRANSLATE2 = pytest.param(to_ctranslate2, marks=can_export("ctranslate2"))
ONNX = pytest.param(to_onnx, marks=can_export("onnx"))
TORCH = pytest.param(to_torch, marks=can_export("torch"))
each_engine = pytest.mark.parametrize("export", [CTRANSLATE2, ONNX, TORCH, to_transformers])

SIZES = {"vocab_size": 31, "d_model": 12, "num_heads": 3, "num_layers": 1}


@each_engine
def test_what_is_there_stays(export, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(FileExistsError, match=f"^{re.escape(str(folder))} is there already"):
            export(causal(norm_first=True), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@each_engine
def test_what_it_cannot_have_is_refused(export, tmp_path):
    bert = mt.models.BERT(mt.models.BERTConfig(**SIZES, d_ff=20))
    gpt2 = mt.models.GPT2(mt.models.GPT2Config(**SIZES))
    exchanged = causal(norm_first=True)
    exchanged.decoder.layers[1].self_attention.window = 3
    mixture = causal(norm_first=True)
    experts = [mt.FeedForward(mixture.config.d_model, 20) for _ in range(3)]
    mixture.decoder.layers[0].feed_forward = MixtureOfExperts(mixture.config.d_model, experts)
    published = mt.models.PublishedTokenizer.from_dict(mt.WordTokenizer.train(TEXTS).to_dict())
    writer = mt.TextGenerator(causal(norm_first=True), published)
    refused = [(bert, TypeError, r"a DecoderOnlyTransformer, got a BERT$")]
    if export in (to_ctranslate2, to_transformers):  # which name layers and tokens
        refused += [
            (gpt2, TypeError, "itself, got a GPT2; `save_pretrained` of a pub"),
            (mixture, ValueError, r"layers\.0\.feed_forward is a MixtureOfExperts, a FeedForward"),
            (exchanged, ValueError, r"layers\.1\.self_attention\.window is not what the"),
            (writer, ValueError, "text is a PublishedTokenizer, expected a tokenizer of"),
        ]
    for model, error, message in refused:
        with pytest.raises(error, match=message):
            export(model, tmp_path / "engine")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("export", [ONNX, TORCH])
def test_published_tokenizer_keeps_its_files(export, tmp_path):
    published = mt.models.PublishedTokenizer.from_dict(mt.WordTokenizer.train(TEXTS).to_dict())
    model = mt.models.GPT2(mt.models.GPT2Config(**SIZES, max_len=16))
    export(mt.TextGenerator(model, published), tmp_path / "engine")
    again = mt.models.PublishedTokenizer.from_pretrained(tmp_path / "engine")
    assert again.files == published.files


@pytest.mark.slow
@pytest.mark.parametrize("export", [CTRANSLATE2, TORCH])
def test_model_stays_as_it_was(export, tmp_path):
    model = causal(num_layers=1, dropout=0.3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export(model, tmp_path / "engine")
    assert all(part.training for part in model.modules())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_folder_comes_whole_or_not_at_all(tmp_path, monkeypatch):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ctranslate2.specs.TransformerSpec, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        to_ctranslate2(seq2seq(), tmp_path / "deep" / "engine")
    assert [*(tmp_path / "deep").iterdir()] == []
