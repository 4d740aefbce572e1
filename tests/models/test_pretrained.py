"""A folder gives back what was saved, never a mixture, and says what is wrong with it."""

import json
import os
import re
import shutil
import stat
import sys
from dataclasses import replace
from fnmatch import fnmatch
from types import SimpleNamespace

import pytest
import torch
import yaml
from helpers import decoder_only_model, each_model, small_model
from safetensors.torch import load_file, save_file

import minitransformer.files
import minitransformer.models.pretrained
from minitransformer import (
    CharacterTokenizer,
    DecoderOnlyTransformer,
    TextGenerator,
    Transformer,
    TransformerConfig,
    Translator,
    WordTokenizer,
)
from minitransformer.models import GPT2, GPT2Config

PLAIN = ["README.md", "config.json", "model.safetensors"]
BOTH = [*PLAIN, "src_tokenizer.json", "tgt_tokenizer.json"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a small model."""
    small_model().save_pretrained(tmp_path / "small")
    return tmp_path / "small"


def weights(model):
    return dict(model.named_parameters())


def assert_same_model(model, other):
    assert type(model) is type(other)
    assert model.config == other.config
    for name, weight in weights(other).items():
        assert weights(model)[name].dtype == weight.dtype
        assert torch.equal(weights(model)[name], weight), name


def change_config(folder, **changes):
    """Change entries of config.json; None takes one out."""
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# --- saved = loaded


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
    config = TransformerConfig(
        src_vocab_size=31,
        tgt_vocab_size=31,
        d_model=12,
        num_heads=3,
        d_ff=20,
        share_embeddings=share,
        tie_output=tie,
    )
    model = Transformer(config, torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    large = [name for name, weight in stored.items() if weight.shape == (31, 12)]
    assert len(large) == 3 - share - tie
    assert sum(weight.numel() for weight in stored.values()) == sum(
        weight.numel() for weight in model.parameters()
    )
    again = Transformer.from_pretrained(tmp_path)
    assert (again.tgt_embedding is again.src_embedding) == share
    assert (again.output_projection.weight is again.tgt_embedding.weight) == tie


def test_layout_is_the_hubs(folder):
    assert sorted(os.listdir(folder)) == PLAIN
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
    assert Transformer.from_pretrained(folder).config == small_model().config


# --- with tokenizers


def test_translator_is_what_was_trained(tmp_path, trained):
    trained.model.save_pretrained(tmp_path / "backwards", **trained.tokenizers)
    assert sorted(os.listdir(tmp_path / "backwards")) == BOTH
    translator = Translator.load(tmp_path / "backwards")
    model, (src, tgt) = translator.model, translator.tokenizers.values()
    assert not model.training
    assert_same_model(model, trained.model)
    assert isinstance(src, WordTokenizer)
    assert (src.tokens, tgt.tokens) == tuple(t.tokens for t in trained.tokenizers.values())
    assert translator.translate(["b a d c"]) == ["c d a b"]


def writer():
    letters = CharacterTokenizer.train(["abcdef"])
    config = TransformerConfig.decoder_only(letters.vocab_size, d_model=8, num_heads=2, d_ff=8)
    return DecoderOnlyTransformer(config), letters


def test_loaders_say_what_a_folder_holds_instead(tmp_path, folder, trained):
    trained.model.save_pretrained(tmp_path / "translator", **trained.tokenizers)
    model, letters = writer()
    model.save_pretrained(tmp_path / "writer", text=letters)
    with pytest.raises(ValueError, match=r"writer holds no Translator: .*s \['text'\]"):
        Translator.load(tmp_path / "writer")
    with pytest.raises(ValueError, match=r"translator holds no TextGenerator: .*'src', 'tgt'"):
        TextGenerator.load(tmp_path / "translator")
    with pytest.raises(ValueError, match=r"it is a Transformer with tokenizers \[\]"):
        Translator.load(folder)
    (tmp_path / "translator" / "tgt_tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"the folder .* has no tgt_tokenizer.json"):
        Translator.load(tmp_path / "translator")


class Unread(CharacterTokenizer):
    """What is read of its file is a CharacterTokenizer."""

    @staticmethod
    def split(text):
        return text.split("a")


LETTERS = CharacterTokenizer.train(["abc"])
REFUSED = {
    "other sides": {"src": LETTERS, "tgt": LETTERS},
    "one side more": {"text": LETTERS, "src": LETTERS},
    "its class": {"text": CharacterTokenizer},
    "its file": {"text": "tokenizer.json"},
    "too large": {"text": CharacterTokenizer(map(chr, range(97, 120)))},
    "not read as it is": {"text": Unread(LETTERS.tokens[5:])},
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", ["DecoderOnlyTransformer", "GPT2"])
def test_what_is_refused_leaves_the_folder_as_it_was(kind, wrong, tmp_path):
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1}
    config = TransformerConfig.decoder_only(LETTERS.vocab_size, **sizes)
    model = DecoderOnlyTransformer(config)
    if kind == "GPT2":
        model = GPT2(GPT2Config(vocab_size=LETTERS.vocab_size, max_len=16, **sizes))
    model.save_pretrained(tmp_path / "old", text=LETTERS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    for name in ("old", "new"):
        with pytest.raises((TypeError, ValueError), match="tokenizer"):
            model.save_pretrained(tmp_path / name, **wrong)
    assert {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_tokenizer_larger_than_the_model_is_refused(tmp_path, trained):
    tokenizers = trained.tokenizers | {"src": WordTokenizer(map(str, range(94)))}
    size = trained.model.config.src_vocab_size
    message = f"tokenizer src has 99 tokens, more than the {size} of the model"
    with pytest.raises(ValueError, match=message):
        trained.model.save_pretrained(tmp_path, **tokenizers)
    trained.model.save_pretrained(tmp_path, **trained.tokenizers)
    tokenizers["src"].save(tmp_path / "src_tokenizer.json")
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}: {message}"):
        Translator.load(tmp_path)


# --- the model card


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


# --- never a mixture


def test_saving_again_leaves_no_file_of_the_old_model(tmp_path, trained):
    trained.model.save_pretrained(tmp_path, **trained.tokenizers)
    model, letters = writer()
    (tmp_path / ".gitattributes").touch()
    model.save_pretrained(tmp_path, text=letters)
    assert sorted(os.listdir(tmp_path)) == [".gitattributes", *PLAIN, "tokenizer.json"]
    assert_same_model(TextGenerator.load(tmp_path).model, model)
    model.save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".gitattributes", *PLAIN]


class Stopped(BaseException):
    """As if somebody pulled the plug."""


@pytest.mark.parametrize("steps", range(25))
def test_whoever_stops_it_leaves_the_old_model_the_new_one_or_none(
    tmp_path, trained, monkeypatch, steps
):
    """Stopped before its nth change of the folder or file that it writes, for every n."""
    old = copy_of(trained.model, 0.0)
    old.save_pretrained(tmp_path, **trained.tokenizers)
    new = copy_of(trained.model, 1.0)
    left = iter(range(steps))

    def stopping(do):
        def step(*arguments, **options):
            if next(left, None) is None:
                raise Stopped
            return do(*arguments, **options)

        return step

    module = minitransformer.models.pretrained
    with monkeypatch.context() as patch:
        for place, name in (
            (minitransformer.files, "save"),
            (module, "write_json"),
            (os, "fsync"),
            (os, "replace"),
            (module.Path, "unlink"),
        ):
            patch.setattr(place, name, stopping(getattr(place, name)))
        try:
            new.save_pretrained(tmp_path, **trained.tokenizers)
            finished = True
        except Stopped:
            finished = False
    assert finished == (steps == 24)  # so that every step was the last one
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    try:
        model = Translator.load(tmp_path).model
    except FileNotFoundError as error:
        assert re.fullmatch(r"the folder .* has no config.json", str(error))  # noqa: PT017
        assert not finished
        return
    assert_same_model(model, new if finished else old)


def copy_of(model, shift):
    """The same model with weights that are all moved."""
    moved = Transformer(model.config)
    moved.load_state_dict({k: weight + shift for k, weight in model.state_dict().items()})
    return moved


def test_stopped_before_the_last_steps_the_old_model_is_whole(folder, monkeypatch):
    old = Transformer.from_pretrained(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(minitransformer.models.pretrained, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        small_model(d_ff=24).save_pretrained(folder)
    assert sorted(os.listdir(folder)) == PLAIN
    assert_same_model(Transformer.from_pretrained(folder), old)


def test_files_have_the_permissions_of_any_new_file(folder):
    (folder / "other").touch()
    mode = stat.S_IMODE((folder / "other").stat().st_mode)
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in PLAIN} == {mode}


def test_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError, match="taken"):
        small_model().save_pretrained(tmp_path / "taken")


# --- what is wrong with a folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    message = re.escape(f"the folder {folder} has no {name}")
    with pytest.raises(FileNotFoundError, match=message):
        Transformer.from_pretrained(folder)


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
        ({"d_model": 12.0}, "d_model must be int, got 12.0"),
        ({"num_heads": True}, "num_heads must be int, got True"),
        ({"num_kv_heads": "3"}, "num_kv_heads must be int or None, got '3'"),
        ({"dropout": "no"}, "dropout must be float, got 'no'"),
        ({"norm_first": 1}, "norm_first must be bool, got 1"),
        ({"num_heads": 5}, "config.json: num_heads must divide d_model, got 5 and 12"),
        ({"num_encoder_layers": 0}, "config.json: num_encoder_layers must be at least 1, got 0"),
        (
            {"src_vocab_size": 30},
            r"small: 1 of \d+ weights do not fit the configuration; the first, "
            r"src_embedding.weight, is \(29, 12\), expected \(30, 12\)",
        ),
        (
            {"num_encoder_layers": 1},
            r"\d+ of \d+ weights .* the first, encoder.layers.1.\S+, is .*, expected missing",
        ),
        (
            {"tie_output": False},
            r"1 of \d+ weights .* output_projection.weight, is missing, expected \(31, 12\)",
        ),
    ],
    ids=str,
)
def test_wrong_configuration_is_named(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        Transformer.from_pretrained(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_damaged_weights_are_named(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    message = rf"{re.escape(str(path))} \({path.stat().st_size} bytes\) is damaged"
    with pytest.raises(ValueError, match=message):
        Transformer.from_pretrained(folder)


# --- the Hub


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = re.escape("no folder owner/name; ") + ".*pip install 'minitransformer\\[hub\\]'"
    for load in (Transformer.from_pretrained, Translator.load):
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
        cache = tmp_path / "cache"
        names = os.listdir(stored)
        left_out = {n for n in names if not any(fnmatch(n, p) for p in allow_patterns)}
        shutil.copytree(stored, cache, ignore=lambda *_: left_out, dirs_exist_ok=True)
        return str(cache)

    module = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_model_comes_from_the_hub(hub, tmp_path, trained):
    assert_same_model(Transformer.from_pretrained("owner/backwards"), trained.model)
    translator = Translator.load("owner/backwards")
    assert translator.translate(["b a d c"]) == ["c d a b"]
    assert hub == ["owner/backwards"] * 2
    assert sorted(os.listdir(tmp_path / "cache")) == BOTH  # only what is read is downloaded


def test_folder_comes_first(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_model().save_pretrained("owner/backwards")
    assert Transformer.from_pretrained("owner/backwards").config == small_model().config
    assert hub == []


def test_what_the_hub_does_not_have_is_named(hub):
    with pytest.raises(FileNotFoundError, match=r"no folder no/where, and from .* 401 Client Err"):
        Transformer.from_pretrained("no/where")


# --- damage, compiled layers, classes of the user's own


def test_weights_of_others_without_a_checksum_are_loaded(folder):
    save_file(weights(small_model()), folder / "model.safetensors", {"format": "pt"})
    assert_same_model(Transformer.from_pretrained(folder), small_model())


@pytest.mark.parametrize("part", ["all", "layers"])
def test_compiled_model_is_saved_as_the_model_that_it_is(tmp_path, part):
    model = small_model()
    if part == "layers":
        model.decoder.layers[1] = torch.compile(model.decoder.layers[1], backend="eager")
        model.save_pretrained(tmp_path)
    else:
        torch.compile(model, backend="eager").save_pretrained(tmp_path)
    assert_same_model(Transformer.from_pretrained(tmp_path), small_model())


def test_tokenizer_that_pads_with_another_id_is_refused(tmp_path):
    plain, letters = writer()
    model = DecoderOnlyTransformer(replace(plain.config, pad_id=3))
    with pytest.raises(ValueError, match="tokenizer text has pad_id=0, the model 3"):
        model.save_pretrained(tmp_path / "new", text=letters)
    assert not (tmp_path / "new").exists()
    model.save_pretrained(tmp_path)
    letters.save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))}: tokenizer text has pad_id"):
        TextGenerator.load(tmp_path)
