"""A folder gives back what was saved, never a mixture, and says what is wrong with it."""

import json
import os
import re
import shutil
import stat
import sys
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers import assert_same_weights, decoder_only_model, each_model, small_config, small_model
from safetensors.torch import load_file, save_file

import minitransformer as mt
from minitransformer import files
from minitransformer.models import BERT, GPT2, BERTConfig, GPT2Config, pretrained

PLAIN = ["README.md", "config.json", "model.safetensors"]
BOTH = [*PLAIN, "src_tokenizer.json", "tgt_tokenizer.json"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a small model."""
    small_model().save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def assert_same_model(model, other):
    assert type(model) is type(other)
    assert model.config == other.config
    assert_same_weights(model, other)


def change_config(folder, **changes):
    """Change entries of config.json; None takes one out."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [small_model, decoder_only_model])
@each_model
def test_what_is_loaded_is_what_was_saved(tmp_path, changes, kind, dtype):
    model = kind(**changes).to(dtype)
    # Parameters are the whole state, or else a folder would not hold all of a model.
    named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert model.state_dict().keys() == named
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(str(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
    assert not again.training
    assert_same_model(again, model)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("tie", [False, True])
def test_tied_weights_are_stored_once_and_stay_tied(tmp_path, share, tie):
    config = replace(small_config(), src_vocab_size=31, share_embeddings=share, tie_output=tie)
    model = mt.Transformer(config)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    large = [name for name, weight in stored.items() if weight.shape == (31, 12)]
    assert len(large) == 3 - share - tie
    assert stored.keys() == dict(model.named_parameters()).keys()
    again = mt.Transformer.from_pretrained(tmp_path)
    assert (again.tgt_embedding is again.src_embedding) == share
    assert (again.output_projection.weight is again.tgt_embedding.weight) == tie


def test_layout_is_the_hubs(folder):
    assert sorted(os.listdir(folder)) == PLAIN
    (folder / "other").touch()
    mode = stat.S_IMODE((folder / "other").stat().st_mode)  # that of any new file
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in PLAIN} == {mode}
    (folder / "README.md").write_text("my words")
    small_model().save_pretrained(folder)
    assert (folder / "README.md").read_text() == "my words"
    content = json.loads((folder / "config.json").read_text())
    assert content["model_type"] == "minitransformer"
    assert content["architectures"] == ["Transformer"]
    assert content["d_model"] == 12
    header = (folder / "model.safetensors").read_bytes()
    header = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert header["__metadata__"].keys() == {"format", "minitransformer.sha256"}
    assert header["__metadata__"]["format"] == "pt"


def test_older_folder_without_a_newer_setting_has_its_default(folder):
    change_config(folder, num_kv_heads=None, activation=None, dropout=0)
    assert mt.Transformer.from_pretrained(folder).config == small_model().config


def writer():
    letters = mt.CharacterTokenizer.train(["abcdef"])
    config = mt.TransformerConfig.decoder_only(letters.vocab_size, d_model=8, num_heads=2, d_ff=8)
    return mt.DecoderOnlyTransformer(config), letters


def test_loaders_say_what_a_folder_holds_instead(tmp_path, folder, trained):
    trained.model.save_pretrained(tmp_path / "translator", **trained.tokenizers)
    model, letters = writer()
    model.save_pretrained(tmp_path / "writer", text=letters)
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20}
    BERT(BERTConfig(**sizes)).save_pretrained(tmp_path / "reader")
    for kind, name, message in (
        (mt.TextGenerator, "reader", r"holds no TextGenerator: it is a BERT with tokenizers \[\]"),
        (mt.Translator, "writer", r"writer holds no Translator: .*s \['text'\]"),
        (mt.TextGenerator, "translator", r"translator holds no TextGenerator: .*'src', 'tgt'"),
        (mt.Translator, "small", r"it is a Transformer with tokenizers \[\]"),
    ):
        with pytest.raises(ValueError, match=message):
            kind.load(tmp_path / name)
    (tmp_path / "translator" / "tgt_tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"the folder .* has no tgt_tokenizer.json"):
        mt.Translator.load(tmp_path / "translator")


LETTERS = mt.CharacterTokenizer.train(["abc"])
REFUSED = {
    "other sides": {"src": LETTERS, "tgt": LETTERS},
    "one side more": {"text": LETTERS, "src": LETTERS},
    "its class": {"text": mt.CharacterTokenizer},
    "its file": {"text": "tokenizer.json"},
    "too large": {"text": mt.CharacterTokenizer(map(chr, range(97, 120)))},
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", ["DecoderOnlyTransformer", "GPT2"])
def test_what_is_refused_leaves_the_folder_as_it_was(kind, wrong, tmp_path):
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1}
    config = mt.TransformerConfig.decoder_only(LETTERS.vocab_size, **sizes)
    model = mt.DecoderOnlyTransformer(config)
    if kind == "GPT2":
        model = GPT2(GPT2Config(vocab_size=LETTERS.vocab_size, max_len=16, **sizes))
    model.save_pretrained(tmp_path / "old", text=LETTERS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    for name in ("old", "new"):
        with pytest.raises((TypeError, ValueError), match="tokenizer"):
            model.save_pretrained(tmp_path / name, **wrong)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("vocab_size", "pad_id", "message"),
    [
        (10, 0, r"tokenizer text has 11 tokens, more than the 10 of the model"),
        (11, 3, "tokenizer text has pad_id=0, the model 3"),
    ],
)
def test_tokenizer_that_does_not_fit_is_refused(tmp_path, vocab_size, pad_id, message):
    plain, letters = writer()
    config = replace(plain.config, pad_id=pad_id)
    config = replace(config, src_vocab_size=vocab_size, tgt_vocab_size=vocab_size)
    model = mt.DecoderOnlyTransformer(config)
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "new", text=letters)
    assert not (tmp_path / "new").exists()
    model.save_pretrained(tmp_path)
    letters.save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}: {message}"):
        mt.TextGenerator.load(tmp_path)


@pytest.mark.parametrize("with_tokenizers", [False, True])
@pytest.mark.parametrize("kind", ["translator", "writer"])
def test_card_says_how_to_load_the_model(tmp_path, monkeypatch, trained, kind, with_tokenizers):
    model, tokenizers = trained.model, trained.tokenizers
    if kind == "writer":
        model, letters = writer()
        tokenizers = {"text": letters}
    model.save_pretrained(tmp_path / "my-model", **(tokenizers if with_tokenizers else {}))
    card = (tmp_path / "my-model" / "README.md").read_text(encoding="utf-8")
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {"library_name": "minitransformer"}
    assert text.startswith("\n# my-model\n")
    assert f"{sum(weight.numel() for weight in model.parameters()):,} parameters" in text
    assert f"| `d_ff` | {model.config.d_ff} |" in text
    example = re.search(r"```python\n(.*?)```", text, re.S)[1]
    monkeypatch.chdir(tmp_path)
    said = {}
    exec(example, said)
    loaded = said["model"]
    assert_same_model(loaded.model if with_tokenizers else loaded, model)


def test_saving_again_leaves_no_file_of_the_old_model(tmp_path, trained):
    trained.model.save_pretrained(tmp_path, **trained.tokenizers)
    model, letters = writer()
    (tmp_path / ".gitattributes").touch()
    model.save_pretrained(tmp_path, text=letters)
    assert sorted(os.listdir(tmp_path)) == [".gitattributes", *PLAIN, "tokenizer.json"]
    assert_same_model(mt.TextGenerator.load(tmp_path).model, model)
    model.save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".gitattributes", *PLAIN]


class Stopped(BaseException):
    """As if somebody pulled the plug."""


@pytest.mark.parametrize("steps", range(25))
def test_whoever_stops_it_leaves_the_old_model_the_new_one_or_none(
    tmp_path, trained, monkeypatch, steps
):
    """Stopped before its nth change of the folder or file that it writes, for every n."""
    old, new = trained.model, mt.Transformer(replace(trained.model.config, d_ff=8))
    old.save_pretrained(tmp_path, **trained.tokenizers)
    left = iter(range(steps))

    def stopping(do):
        def step(*arguments, **options):
            if next(left, None) is None:
                raise Stopped
            return do(*arguments, **options)

        return step

    places = {os: ["fsync", "replace"], files: ["save"], pretrained: ["write_json"]}
    with monkeypatch.context() as patch:
        for place, names in (places | {Path: ["unlink"]}).items():
            for name in names:
                patch.setattr(place, name, stopping(getattr(place, name)))
        with nullcontext() if steps == 24 else pytest.raises(Stopped):  # every step was the last
            new.save_pretrained(tmp_path, **trained.tokenizers)
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    if (tmp_path / "config.json").exists():
        assert_same_model(mt.Translator.load(tmp_path).model, new if steps == 24 else old)
    else:
        assert 0 < steps < 24
        with pytest.raises(FileNotFoundError, match=r"the folder .* has no config.json"):
            mt.Translator.load(tmp_path)


def test_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match="taken"):
        small_model().save_pretrained(tmp_path / "taken")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    message = re.escape(f"the folder {folder} has no {name}")
    with pytest.raises(FileNotFoundError, match=message):
        mt.Transformer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "config.json: model_type is 'bert', expected 'minitransformer'"),
        ({"model_type": None}, "model_type is None, expected 'minitransformer'"),
        ({"architectures": None}, "architectures is None, expected a list of one name"),
        ({"architectures": "Transformer"}, "architectures is 'Transformer', expected a list"),
        ({"architectures": ["DecoderOnlyTransformer"]}, "DecoderOnlyTransformer, not a Transf"),
        ({"num_experts": 4, "d_modle": 3}, "does not know: d_modle, num_experts; it knows src_v"),
        ({"src_vocab_size": None}, "config.json: it lacks src_vocab_size"),
        ({"d_model": "12"}, "config.json: d_model must be int, got '12'"),
        ({"num_heads": 5}, "config.json: num_heads must divide d_model, got 5 and 12"),
        ({"num_encoder_layers": 0}, "config.json: num_encoder_layers must be at least 1, got 0"),
        ({"src_vocab_size": 30}, r"1 of \d+ .* src_emb.*, is \(29, 12\), expected \(30, 12\)"),
        ({"num_encoder_layers": 1}, r"\d+ of .* encoder.layers.1.\S+, is .*, expected missing"),
        ({"tie_output": False}, r"output_projection.weight, is missing, expected \(31, 12\)"),
    ],
    ids=str,
)
def test_wrong_configuration_is_named(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        mt.Transformer.from_pretrained(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_damaged_weights_are_named(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    message = rf"{re.escape(str(path))} \({path.stat().st_size} bytes\) is damaged"
    with pytest.raises(ValueError, match=message):
        mt.Transformer.from_pretrained(folder)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = re.escape("no folder owner/name; ") + ".*pip install 'minitransformer\\[hub\\]'"
    for load in (mt.Transformer.from_pretrained, mt.Translator.load):
        with pytest.raises(FileNotFoundError, match=message):
            load("owner/name")


@pytest.fixture
def hub(tmp_path, monkeypatch, trained):
    """A Hub with one model, as `huggingface_hub` would show it; yields what it was asked."""
    stored, asked = tmp_path / "stored", []
    trained.model.save_pretrained(stored, **trained.tokenizers)
    (stored / "training_data.csv").touch()

    def snapshot_download(name, allow_patterns):
        asked.append(name)
        if name != "owner/backwards":
            raise OSError(f"401 Client Error. Repository Not Found: {name}")
        (tmp_path / "cache").mkdir(exist_ok=True)
        for path in stored.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, tmp_path / "cache")
        return str(tmp_path / "cache")

    module = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_model_comes_from_the_hub_if_there_is_no_folder(hub, tmp_path, monkeypatch, trained):
    assert_same_model(mt.Transformer.from_pretrained("owner/backwards"), trained.model)
    translator = mt.Translator.load("owner/backwards")
    assert translator.translate(["b a d c"]) == ["c d a b"]
    assert hub == ["owner/backwards"] * 2
    assert sorted(os.listdir(tmp_path / "cache")) == BOTH  # only what is read is downloaded
    with pytest.raises(FileNotFoundError, match=r"no folder no/where, and from .* 401 Client Err"):
        mt.Transformer.from_pretrained("no/where")
    monkeypatch.chdir(tmp_path)
    small_model().save_pretrained("owner/backwards")
    assert mt.Transformer.from_pretrained("owner/backwards").config == small_model().config
    assert len(hub) == 3


def test_weights_of_others_without_a_checksum_are_loaded(folder):
    weights = dict(small_model().named_parameters())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert_same_model(mt.Transformer.from_pretrained(folder), small_model())
