"""The script that compares published weights with `transformers`, and the page about it."""

import json
import re
from pathlib import Path

import pytest
import torch
from alike import transformers
from tokenizer_kinds import marian_folder, trained

import published
from minitransformer import models

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("name", MADE)
def test_models_of_the_list_are_compared(name, tmp_path, monkeypatch, capsys):
    made(name, tmp_path)
    assert published.main([f"{name}={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ours, theirs = (line[10:] for line in lines if line.startswith(("  ours    ", "  theirs  ")))
    assert ours == theirs
    assert lines[-2:] == ["  the same", "1 of 1 the same"]
    if name == GPT2:  # read as something else, it is not
        read = models.GPT2.from_pretrained

        def reader(*arguments, **options):
            found = read(*arguments, **options)
            found.embedding.scale = 1.1
            return found

        monkeypatch.setattr(models.GPT2, "from_pretrained", reader)
        assert published.main([f"{name}={tmp_path}"]) == 1
        assert "  NOT the same\n0 of 1 the same" in capsys.readouterr().out


def test_page_has_the_list_and_its_cells_run(tmp_path, capsys):
    assert published.main(["--list"]) == 0
    page = PAGE.read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in page
    cells = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name in (GPT2, MARIAN):
        (tmp_path / name).mkdir(parents=True)
        made(name, tmp_path / name)
        (cell,) = (cell for cell in cells if "print(" in cell and f'"{name}"' in cell)
        exec(f"import minitransformer as mt\n{cell.replace(name, str(tmp_path / name))}", {})
        assert len(capsys.readouterr().out) > 2
