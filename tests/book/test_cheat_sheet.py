"""The numbers on the cheat sheet are the package's."""

import re

import pytest
import torch

import minitransformer as mt
from minitransformer.models.gpt2 import GPT2Config
from minitransformer.models.llama import LlamaConfig
from notebooks import CHAPTERS

PAGE = (CHAPTERS / "reference" / "cheat_sheet.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "|" in line
]
BASE = mt.TransformerConfig.base()
BIG_SIZES = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3}
LLAMA_SIZES = {"d_model": 4096, "num_heads": 32, "num_kv_heads": 8, "num_layers": 32}
MODELS = {
    "paper, base": BASE,
    "paper, big": mt.TransformerConfig(
        src_vocab_size=37_000,
        tgt_vocab_size=37_000,
        attention_bias=False,
        share_embeddings=True,
        **BIG_SIZES,
    ),
    "GPT-2 small": GPT2Config(),
    "Llama 3 8B": LlamaConfig(vocab_size=128_256, d_ff=14_336, tie_output=False, **LLAMA_SIZES),
}


def integers(text: str) -> list[int]:
    """The numbers with commas in the text."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+", text)]


def row_of(name: str, columns: int) -> list[str]:
    """The row of a table with so many columns that begins with the name."""
    (row,) = (row for row in ROWS if row[0] == name and len(row) == columns)
    return row


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name):
    _, outside, layer, total = row_of(name, 4)
    config = MODELS[name]
    stack = getattr(config, "num_layers", BASE.num_encoder_layers)
    assert integers(total) == [mt.plan(config, tokens=1).parameters]
    assert integers(outside)[0] + stack * sum(integers(layer)) == integers(total)[0]


def test_base_by_hand():
    said, result = re.search(r"By hand, base: (.*) = (\d+)\.", PAGE.replace("$", "")).groups()
    said = said.replace(r"\cdot", "*").replace(r"\,(", "*(")
    with torch.device("meta"):
        model = mt.Transformer(BASE)
    assert eval(said) == int(result) == sum(p.numel() for p in model.parameters())


def test_sizes():
    for column, config in enumerate(MODELS.values(), start=1):
        width, heads, head_width = row_of("d; heads; e", 5)[column].split("; ")
        assert (int(width), int(heads.split()[0])) == (config.d_model, config.num_heads)
        assert int(head_width) * config.num_heads == config.d_model
        inner = config.d_ff or 4 * config.d_model
        assert row_of("f, activation", 5)[column].startswith(f"{inner}, ")
        (vocabulary,) = integers(row_of("vocabulary", 5)[column])
        assert vocabulary == getattr(config, "tgt_vocab_size", None) or config.vocab_size


def test_cache_and_schedule():
    llama = MODELS["Llama 3 8B"]
    tokens, cached = integers(row_of("KV cache size", 2)[1].split(":", 1)[1])
    width = llama.num_kv_heads * llama.head_width
    assert cached == 2 * llama.num_layers * width * tokens * 2  # 2 bytes each
    peak = mt.training.noam_schedule(4000, d_model=BASE.d_model)
    assert f"peak rate is {peak:.6f}" in PAGE
