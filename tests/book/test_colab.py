"""`make colab` passes chapters that run in Colab, and says what is wrong with others.

The kernel is a real one, in the environment of the tests; what pip installs and finds is made up.
"""

import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import colab
import notebooks
import repository
from notebooks import bootstrap_cell, read, write

pytestmark = pytest.mark.slow

HAS = dict.fromkeys(colab.SHOWN, "1.0") | {"torch": "2.11.0", "numpy": "2.1.3"}
BROUGHT = {"minitransformer": "0.1.0", "num2words": "0.5.14"}
WHEEL = Path("minitransformer-0.1.0-py3-none-any.whl").resolve()


@pytest.fixture
def chapters(tmp_path, monkeypatch):
    """Writes a chapter with the first cell and the given ones."""
    monkeypatch.setattr(colab, "ROOT", tmp_path)
    monkeypatch.setattr(colab, "CHAPTERS", tmp_path)
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    monkeypatch.setattr(colab, "COLAB", tmp_path / "build")

    def add(name, *sources):
        cells = [new_markdown_cell("# Title"), bootstrap_cell(), *map(new_code_cell, sources)]
        write(new_notebook(cells=cells), tmp_path / f"{name}.ipynb")

    return add


@pytest.fixture
def pip(monkeypatch):
    """What pip finds before and after the first cell, and its check; a test may change them."""
    said = {"before": HAS, "after": HAS | BROUGHT, "check": "No broken requirements found.\n"}

    def listings():
        yield HAS  # for the line above the table
        while True:
            yield said["before"]
            yield said["after"]

    listing = listings()
    monkeypatch.setattr(colab, "build_wheel", lambda: WHEEL)
    monkeypatch.setattr(colab, "fresh_environment", lambda folder: Path(sys.executable))
    monkeypatch.setattr(colab, "versions", lambda python: next(listing))
    monkeypatch.setattr(
        colab, "output_of", lambda _, *arguments: said.get(arguments[-1], "Python 3.13.0\n")
    )
    return said


def test_chapter_that_runs_passes(chapters, pip, capsys, tmp_path):
    chapters("01_good", "import os\n\nassert os.listdir() == ['01_good.ipynb']", "print(6 * 7)")
    chapters("02_other", "1 / 0")
    assert colab.main(["01_good"]) == 0

    told = capsys.readouterr().out
    assert told.startswith("Python 3.13.0, torch 2.11.0, numpy 2.1.3")
    assert "passed\n\n1 passed, 0 failed\n" in told
    first, listing, printing = read(tmp_path / "build" / "chapters" / "01_good.ipynb").cells[1:]
    on_github = f"git+{repository.url()}"
    assert first.source == bootstrap_cell().source.replace(on_github, WHEEL.as_uri())
    assert listing.outputs == []
    assert printing.outputs[0].text == "42\n"


def test_every_chapter_runs_and_one_that_fails_fails_all(chapters, pip, capsys):
    chapters("01_bad", "x = 1", "# a remark\nopen('missing.txt')", "print('not reached')")
    chapters("02_good", "x = 1")
    assert colab.main([]) == 1

    told = capsys.readouterr().out
    assert "FAILED\n    '# a remark' raised FileNotFoundError: [Errno 2] No such file" in told
    assert told.index("01_bad") < told.index("02_good")
    assert told.endswith("1 passed, 1 failed\n")


def test_version_that_moved_fails(chapters, pip, capsys):
    pip["after"] = HAS | BROUGHT | {"numpy": "2.4.6"}
    chapters("01_moves", "x = 1")
    assert colab.main([]) == 1
    assert "FAILED\n    numpy was 2.1.3 and is 2.4.6\n" in capsys.readouterr().out


def test_warnings_fail(chapters, pip, capsys):
    chapters("01_warns", "import warnings\n\nwarnings.warn('old', DeprecationWarning)")
    assert colab.main([]) == 1
    assert "'import warnings' wrote to stderr: " in capsys.readouterr().out
