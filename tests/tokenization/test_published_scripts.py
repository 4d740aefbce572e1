"""The two scripts that compare with `transformers`: the table of classes, and the real weights."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from alike import transformers
from tokenizer_kinds import marian_folder, trained

from minitransformer import models

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "chapters" / "reference" / "published.md"
GPT2, MARIAN = "openai-community/gpt2", "Helsinki-NLP/opus-mt-de-en"
VIT = "google/vit-base-patch16-224"
MADE = {
    GPT2: ("GPT2LMHeadModel", {"n_embd": 12, "n_head": 3, "n_layer": 2, "eos_token_id": 0}),
    MARIAN: (
        "MarianMTModel",
        {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3}
        | {"decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 16},
    ),
    VIT: (
        "ViTForImageClassification",
        {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
        | {"intermediate_size": 20, "patch_size": 112, "num_labels": 5},
    ),
}
"""Small models with random weights in the place of the published ones."""


def script(folder, monkeypatch):
    """A script of that folder, as a module."""
    path = next((ROOT / folder).rglob("published.py"))
    spec = importlib.util.spec_from_file_location(f"{folder}_published", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name, folder):
    kind, settings = MADE[name]
    if name == MARIAN:
        marian_folder(folder)
        pad_id = json.loads((folder / "config.json").read_text())["pad_token_id"]
        ids = {"pad_token_id": pad_id, "decoder_start_token_id": pad_id}
        settings = settings | ids | {"vocab_size": pad_id + 1}
    elif name == GPT2:
        tokenizer, _ = trained("gpt2")
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = settings | {"vocab_size": tokenizer.get_vocab_size()}
    torch.manual_seed(0)
    kind = getattr(transformers, kind)
    kind(kind.config_class(**settings)).save_pretrained(folder)


def changed(model, change, monkeypatch):
    """Let that class of ours read something else than what is published."""
    read = model.from_pretrained

    def reader(*arguments, **options):
        found = read(*arguments, **options)
        change(found)
        return found

    monkeypatch.setattr(model, "from_pretrained", reader)


@pytest.mark.parametrize("name", MADE)
def test_models_of_the_list_are_compared(name, tmp_path, monkeypatch, capsys):
    made(name, tmp_path)
    tool = script("tools", monkeypatch)
    assert tool.main([f"{name}={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours, theirs = (line[10:] for line in lines if line.startswith(("  ours    ", "  theirs  ")))
    assert ours == theirs
    assert lines[-2:] == ["  the same", "1 of 1 the same"]
    if name == GPT2:
        changed(models.GPT2, lambda ours: setattr(ours.embedding, "scale", 1.1), monkeypatch)
        assert tool.main([f"{name}={tmp_path}"]) == 1
        assert "  NOT the same\n0 of 1 the same" in capsys.readouterr().out


def test_a_pickle_is_read_by_transformers_if_asked_for(tmp_path, monkeypatch, capsys):
    hub = pytest.importorskip("huggingface_hub")
    tool = script("tools", monkeypatch)
    made(MARIAN, tmp_path)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    assert tool.main([f"{MARIAN}={tmp_path}"]) == 1
    assert re.search(
        "(?s)only pytorch_model.bin, a pickle.*With --convert", capsys.readouterr().out
    )
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: str(tmp_path))
    assert tool.main([MARIAN, "--convert"]) == 0
    assert "transformers reads it and writes it again" in capsys.readouterr().out
    assert not (tmp_path / "model.safetensors").exists()


def test_page_has_the_list_and_its_cells_run(tmp_path, monkeypatch, capsys):
    tool = script("tools", monkeypatch)
    assert tool.main(["--list"]) == 0
    page = PAGE.read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
    cells = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name in (GPT2, MARIAN):
        (tmp_path / name).mkdir(parents=True)
        made(name, tmp_path / name)
        (cell,) = (cell for cell in cells if "print(" in cell and f'"{name}"' in cell)
        exec(f"import minitransformer as mt\n{cell.replace(name, str(tmp_path / name))}", {})
        assert len(capsys.readouterr().out) > 2


def test_tables_of_files_and_classes_are_exact_and_notice_what_is_not(monkeypatch, capsys):
    table = script("benchmarks", monkeypatch)
    table.files()
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert "gpt2-xl GPT2 48 1600 1557.6 M 9 honoured, 12 passed over" in rows
    assert any(row.startswith("Olmo-3-7B ") and "model_type is 'olmo3'" in row for row in rows)
    monkeypatch.setattr(
        "sys.argv", ["published.py", "--seeds", "1", "--only", "vit-base-patch16-224"]
    )
    assert table.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 exact"

    def double(ours):
        ours.encoder.norm.eps *= 2

    changed(models.ViT, double, monkeypatch)
    with pytest.raises(ValueError, match="would be lost"):
        table.main()
