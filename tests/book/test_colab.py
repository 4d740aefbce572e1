"""`make colab` passes chapters that run in Colab, and says what is wrong with others.

The kernel is a real one, in the environment of the tests; what pip finds is made up.
"""

import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import colab
import notebooks
from notebooks import bootstrap_cell, read, write

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a chapter of these cells, the first one between two states of the packages."""

    def run_chapter(*sources, after):
        for module in (colab, notebooks):
            monkeypatch.setattr(module, "CHAPTERS", tmp_path)
        monkeypatch.setattr(colab, "COLAB", tmp_path / "build")
        listings = iter([{"numpy": "2.1.3"}, after])
        monkeypatch.setattr(colab, "versions", lambda python: next(listings))
        monkeypatch.setattr(colab, "output_of", lambda *_: "No broken requirements found.\n")
        monkeypatch.setattr(colab, "fresh_environment", lambda folder: Path(sys.executable))
        monkeypatch.setattr(colab, "build_wheel", lambda: tmp_path / "a.whl")
        cells = [new_markdown_cell("# Title"), bootstrap_cell(), *map(new_code_cell, sources)]
        write(new_notebook(cells=cells), tmp_path / "01_a.ipynb")
        return colab.main([]), capsys.readouterr().out

    return run_chapter


def test_chapter_that_runs_passes(run, tmp_path):
    cells = ("import os\nassert os.listdir() == []", "print(6 * 7)")
    status, told = run(*cells, after={"numpy": "2.1.3", "minitransformer": "0.1.0"})
    assert (status, told.splitlines()[-1]) == (0, "2 passed, 0 failed")
    ran = read(tmp_path / "build" / "chapters" / "01_a.ipynb")
    assert ran.cells[-1].outputs[0].text == "42\n"


def test_what_would_stop_a_reader_is_told(run):
    warning = "import warnings\n\nwarnings.warn('old', DeprecationWarning)"
    status, told = run(warning, "# a remark\nopen('missing.txt')", after={"numpy": "2.4.6"})
    assert (status, told.splitlines()[-1]) == (1, "0 passed, 2 failed")
    assert "FAILED\n    numpy was 2.1.3 and is 2.4.6\n    the first cell did not install " in told
    assert "'import warnings' wrote to stderr: " in told
    assert "'# a remark' raised FileNotFoundError: [Errno 2] No such file" in told
