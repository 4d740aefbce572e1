"""The two scripts that compare with `transformers`: the table of classes, and the real weights."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from alike import transformers
from test_published_tokenizer import marian_folder
from tokenizer_kinds import trained

from minitransformer import models

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
}
BART = {
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
}
MADE = {
    "openai-community/gpt2": (
        "gpt2",
        "GPT2LMHeadModel",
        {"n_embd": 12, "n_head": 3, "n_layer": 2, "eos_token_id": 0},
    ),
    "HuggingFaceTB/SmolLM2-135M": ("smollm2", "LlamaForCausalLM", TINY),
    "google-bert/bert-base-uncased": ("bert", "BertForMaskedLM", TINY),
    "FacebookAI/roberta-base": ("roberta", "RobertaForMaskedLM", TINY),
    "google-t5/t5-small": (
        "t5",
        "T5ForConditionalGeneration",
        {"d_model": 12, "d_kv": 4, "num_heads": 3, "num_layers": 2, "d_ff": 20}
        | {"decoder_start_token_id": 0},
    ),
    "facebook/bart-base": ("roberta", "BartForConditionalGeneration", BART),
    "Helsinki-NLP/opus-mt-de-en": ("marian", "MarianMTModel", BART),
    "google/vit-base-patch16-224": (
        None,
        "ViTForImageClassification",
        TINY | {"patch_size": 112, "num_labels": 5},
    ),
}
"""Small models with random weights in the place of the published ones."""


def script(folder, monkeypatch):
    """A script of that folder, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(
        f"{folder}_published", ROOT / folder / "published.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name, folder):
    tokens, kind, settings = MADE[name]
    if tokens == "marian":
        marian_folder(folder)
        pad_id = json.loads((folder / "config.json").read_text())["pad_token_id"]
        ids = {"pad_token_id": pad_id, "decoder_start_token_id": pad_id}
        settings = settings | ids | {"vocab_size": pad_id + 1}
    elif tokens:
        tokenizer, _ = trained(tokens)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = settings | {"vocab_size": tokenizer.get_vocab_size()}
    torch.manual_seed(0)
    kind = getattr(transformers, kind)
    kind(kind.config_class(**settings)).save_pretrained(folder)


# --- the real weights, tools/published.py ----------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_models_of_the_list_are_compared(name, tmp_path, monkeypatch, capsys):
    made(name, tmp_path)
    assert script("tools", monkeypatch).main([f"{name}={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours, theirs = (line[10:] for line in lines if line.startswith(("  ours    ", "  theirs  ")))
    assert ours == theirs
    assert lines[-2:] == ["  the same", "1 of 1 the same"]


def test_another_model_is_told_apart(tmp_path, monkeypatch, capsys):
    made("openai-community/gpt2", tmp_path)
    tool = script("tools", monkeypatch)
    published = models.GPT2.from_pretrained

    def changed(*arguments, **options):
        model = published(*arguments, **options)
        model.embedding.scale = 1.1
        return model

    monkeypatch.setattr(models.GPT2, "from_pretrained", changed)
    assert tool.main([f"openai-community/gpt2={tmp_path}"]) == 1
    assert "  NOT the same\n0 of 1 the same" in capsys.readouterr().out


def test_what_to_do_with_a_pickle_is_said(tmp_path, monkeypatch, capsys):
    made("facebook/bart-base", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert script("tools", monkeypatch).main([f"facebook/bart-base={tmp_path}"]) == 1
    found = capsys.readouterr().out
    assert "only pytorch_model.bin, a pickle" in found
    assert "With --convert" in found


def test_pickle_is_converted_by_transformers(tmp_path, monkeypatch, capsys):
    hub = pytest.importorskip("huggingface_hub")
    made("facebook/bart-base", tmp_path)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: str(tmp_path))
    assert script("tools", monkeypatch).main(["facebook/bart-base", "--convert"]) == 0
    assert "transformers reads it and writes it again" in capsys.readouterr().out
    assert not (tmp_path / "model.safetensors").exists()


def test_page_has_the_list(monkeypatch, capsys):
    tool = script("tools", monkeypatch)
    assert tool.main(["--list"]) == 0
    page = (ROOT / "chapters" / "reference" / "published.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
    for model in tool.MODELS:
        assert f'{model.relative}.from_pretrained("{model.name}")' in page


@pytest.mark.parametrize(
    "name",
    ["openai-community/gpt2", "Helsinki-NLP/opus-mt-de-en", "google-bert/bert-base-uncased"],
)
def test_cells_of_the_page_run(name, tmp_path, capsys):
    made(name, tmp_path)
    page = (ROOT / "chapters" / "reference" / "published.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (cell,) = (cell for cell in cells if "print(" in cell and f'"{name}"' in cell)
    exec(f"import minitransformer as mt\n{cell.replace(name, str(tmp_path))}", {})
    assert len(capsys.readouterr().out) > 2


SIZES = {
    "openai-community/gpt2": models.GPT2Config(),
    "HuggingFaceTB/SmolLM2-135M": models.LlamaConfig(
        vocab_size=49_152,
        d_model=576,
        num_heads=9,
        num_layers=30,
        d_ff=1536,
        num_kv_heads=3,
        tie_output=True,
    ),
    "Qwen/Qwen2.5-0.5B": models.Qwen2Config(
        vocab_size=151_936,
        d_model=896,
        num_heads=14,
        num_layers=24,
        d_ff=4864,
        num_kv_heads=2,
        tie_output=True,
    ),
    "Qwen/Qwen3-0.6B": models.Qwen3Config(
        vocab_size=151_936,
        d_model=1024,
        num_heads=16,
        num_layers=28,
        d_ff=3072,
        num_kv_heads=8,
        d_k=128,
        tie_output=True,
    ),
    "google-bert/bert-base-uncased": models.BERTConfig(),
    "distilbert/distilbert-base-uncased": models.DistilBERTConfig(),
    "FacebookAI/roberta-base": models.RoBERTaConfig(
        vocab_size=50_265, max_len=514, num_segments=1, pad_id=1
    ),
    "google-t5/t5-small": models.T5Config(),
    "google/flan-t5-small": models.T5Config(
        d_ff=1024, num_heads=6, num_encoder_layers=8, network="gated-gelu", tie_output=False
    ),
    "Helsinki-NLP/opus-mt-de-en": models.MarianConfig(
        vocab_size=58_101,
        d_model=512,
        num_encoder_layers=6,
        num_decoder_layers=6,
        encoder_num_heads=8,
        decoder_num_heads=8,
        encoder_d_ff=2048,
        decoder_d_ff=2048,
        max_len=512,
        activation="swish",
        scale_embedding=True,
    ),
    "facebook/bart-base": models.BARTConfig(
        vocab_size=50_265,
        d_model=768,
        num_encoder_layers=6,
        num_decoder_layers=6,
        encoder_num_heads=12,
        decoder_num_heads=12,
        encoder_d_ff=3072,
        decoder_d_ff=3072,
    ),
    "google/vit-base-patch16-224": models.ViTConfig(num_classes=1000),
}
"""The configurations of the models in the list."""


def test_sizes_in_the_list_follow_from_the_configurations(monkeypatch):
    found = {model.name: model for model in script("tools", monkeypatch).MODELS}
    assert found.keys() == SIZES.keys()
    for name, config in SIZES.items():
        with torch.device("meta"):
            model = getattr(models, found[name].relative)(config)
        size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        assert found[name].parameters == round(size, 1)
        assert (
            0.95 < found[name].download / size / (2 if found[name].download < 3 * size else 4) < 1.3
        )


# --- the table of classes, benchmarks/published.py -------------------------------------------


def test_table_of_real_files_says_what_is_done_with_each(monkeypatch, capsys):
    script("benchmarks", monkeypatch).files()
    rows = capsys.readouterr().out.splitlines()
    [found] = [row for row in rows if row.startswith("gpt2-xl ")]
    assert " ".join(found.split()) == "gpt2-xl GPT2 48 1600 1557.6 M 9 honoured, 12 passed over"
    assert any(row.startswith("Olmo-3-7B ") and "model_type is 'olmo3'" in row for row in rows)


def test_table_of_classes_is_exact_and_notices_what_is_not(monkeypatch, capsys):
    table = script("benchmarks", monkeypatch)
    options = ["--configurations", "1", "--only", "Marian", "ViT"]
    monkeypatch.setattr("sys.argv", ["published.py", *options])
    assert table.main() == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows if row.endswith("  exact")] == ["Marian", "ViT"]
    assert rows[-1] == "2 of 2 exact"
    published = models.ViT.from_pretrained

    def changed(*arguments, **options):
        model = published(*arguments, **options)
        model.encoder.norm.eps *= 2
        return model

    monkeypatch.setattr(models.ViT, "from_pretrained", changed)
    with pytest.raises(ValueError, match="would be lost"):
        table.main()
