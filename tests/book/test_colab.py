"""`make colab` passes a chapter that runs in Colab, and says what is wrong with another.

The kernel is a real one, in the environment of the tests; what pip finds is made up.
"""

import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import colab
import notebooks
from notebooks import bootstrap_cell, read, write

CHAPTERS = {
    "01_good": ["import os\nassert os.listdir() == []", "print(6 * 7)"],
    "02_bad": [
        "import warnings\n\nwarnings.warn('old', DeprecationWarning)",
        "# a remark\nopen('missing.txt')",
    ],
}


@pytest.mark.slow
def test_what_would_stop_a_reader_is_told(tmp_path, monkeypatch, capsys):
    for module in (colab, notebooks):
        monkeypatch.setattr(module, "CHAPTERS", tmp_path)
    monkeypatch.setattr(colab, "COLAB", tmp_path / "build")
    listings = iter([{"numpy": "2.1.3"}, {"numpy": "2.4.6"}])
    monkeypatch.setattr(colab, "versions", lambda python: next(listings))
    monkeypatch.setattr(colab, "output_of", lambda *_: "No broken requirements found.\n")
    monkeypatch.setattr(colab, "fresh_environment", lambda folder: Path(sys.executable))
    monkeypatch.setattr(colab, "build_wheel", lambda: tmp_path / "a.whl")
    for name, sources in CHAPTERS.items():
        cells = [new_markdown_cell("# Title"), bootstrap_cell(), *map(new_code_cell, sources)]
        write(new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    assert colab.main([]) == 1
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "1 passed, 2 failed"
    assert "FAILED\n    numpy was 2.1.3 and is 2.4.6\n    the first cell did not install " in told
    assert "'import warnings' wrote to stderr: " in told
    assert "'# a remark' raised FileNotFoundError: [Errno 2] No such file" in told
    ran = read(tmp_path / "build" / "chapters" / "01_good.ipynb")
    assert ran.cells[-1].outputs[0].text == "42\n"
