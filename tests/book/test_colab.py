"""`make colab` passes chapters that run in Colab, and says what is wrong with others.

The kernel is a real one, in the environment of the tests; what pip installs and finds is made up.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

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


@pytest.mark.parametrize(
    ("before", "after", "check", "complaint"),
    [
        (HAS, BROUGHT | {"numpy": "2.1.3"}, None, "torch was 2.11.0 and is gone"),
        (HAS, HAS, None, "the first cell did not install minitransformer"),
        (HAS | BROUGHT, HAS | BROUGHT, None, "the first cell did not install minitransformer"),
        (HAS, HAS | BROUGHT, "a 1 has requirement b>2\n", "a 1 has requirement b>2"),
    ],
)
def test_disturbed_environment_is_noticed(pip, monkeypatch, before, after, check, complaint):
    monkeypatch.setattr(colab, "versions", lambda python: after)
    pip["check"] = check or pip["check"]
    assert complaint in list(colab.disturbed(Path(sys.executable), before))


def test_warnings_fail(chapters, pip, capsys):
    chapters("01_warns", "import warnings\n\nwarnings.warn('old', DeprecationWarning)")
    assert colab.main([]) == 1
    assert "'import warnings' wrote to stderr: " in capsys.readouterr().out


@pytest.fixture
def noticing_pip(tmp_path, monkeypatch):
    """A machine on which each installation warns; what installs a small package in a chapter."""
    links = tmp_path / "links"
    links.mkdir()
    with ZipFile(links / "bells-1.0-py3-none-any.whl", "w") as wheel:
        described = "Metadata-Version: 2.1\nName: bells\nVersion: 1.0\n"
        wheel.writestr("bells-1.0.dist-info/METADATA", described)
        wheel.writestr("bells-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("bells-1.0.dist-info/RECORD", "")
    hidden = (*colab.HIDDEN, "PYTEST_CURRENT_TEST")  # ipykernel shows less where it sees this
    monkeypatch.setattr(colab, "HIDDEN", hidden)
    monkeypatch.setenv("PIP_FIND_LINKS", f"{links} {tmp_path / 'missing'}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    install = "[sys.executable, '-m', 'pip', '--quiet', 'install', '--target', 'here', {!r}]"
    return "import subprocess\nimport sys\n\nsubprocess.run(" + install + ", check=True)"


def test_warnings_of_pip_about_this_machine_pass(chapters, pip, noticing_pip, tmp_path):
    installing = noticing_pip.format("bells")
    python = [sys.executable, "-c", installing]
    noticed = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
    assert "missing' is ignored" in noticed.stderr
    chapters("01_installs", installing, "import os\n\nassert os.listdir('here')")
    assert colab.main([]) == 0


def test_error_of_pip_fails_and_is_told(chapters, pip, capsys, noticing_pip):
    chapters("01_installs", noticing_pip.format("whistles"))
    assert colab.main([]) == 1
    told = capsys.readouterr().out
    assert "No matching distribution found for whistles" in told
    assert "is ignored" not in told
    assert "raised CalledProcessError" in told


@pytest.mark.parametrize("setting", ["PIP_QUIET", "PIP_VERBOSE"])
def test_packages_are_found_however_much_pip_says_here(monkeypatch, setting):
    there = colab.versions(Path(sys.executable))
    monkeypatch.setenv(setting, "3")
    assert colab.versions(Path(sys.executable)) == there
    told = list(colab.disturbed(Path(sys.executable), {"torch": "0.1"}))
    assert f"torch was 0.1 and is {version('torch')}" in told


def test_what_this_machine_has_besides_is_hidden(chapters, pip, monkeypatch):
    for name in colab.HIDDEN:
        monkeypatch.setenv(name, "/somewhere")
    chapters("01_looks", "import os\n\nassert '/somewhere' not in os.environ.values()")
    assert colab.main([]) == 0


def test_dead_kernel_and_endless_cell_fail(chapters, pip, capsys, monkeypatch):
    monkeypatch.setattr(colab, "CELL_TIMEOUT", 5)
    chapters("01_dies", "import os\n\nos._exit(1)")
    chapters("02_hangs", "import time\n\ntime.sleep(60)")
    chapters("03_good", "x = 1")
    assert colab.main([]) == 1
    told = capsys.readouterr().out
    assert "FAILED\n    Kernel died" in told
    assert "FAILED\n    A cell timed out while it was being executed, after 5 seconds." in told
    assert told.endswith("1 passed, 2 failed\n")


def test_first_cell_that_installs_something_else_is_refused():
    nb = new_notebook(cells=[bootstrap_cell()])
    nb.cells[0].source = nb.cells[0].source.replace("git+", "")
    with pytest.raises(ValueError, match=r"the first cell should install from git\+https://"):
        colab.with_wheel(nb, WHEEL)


def test_fresh_environment_finds_what_is_there_and_keeps_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr(colab, "ENVIRONMENT", Path(sys.prefix))
    fresh = colab.fresh_environment(tmp_path)
    there = colab.versions(fresh)
    assert there == colab.versions(Path(sys.executable))
    assert there["torch"] == version("torch")
    assert Path(colab.output_of(fresh, "-c", "import sys; print(sys.prefix)").strip()) == tmp_path


def test_unknown_chapter_is_refused(chapters, pip, capsys):
    with pytest.raises(SystemExit):
        colab.main(["44_attention"])
    assert "there is no 44_attention.ipynb" in capsys.readouterr().err


def test_progress_is_no_warning(chapters, pip, capsys):
    bar = "from tqdm import tqdm\n\nfor step in tqdm(range(3), unit='step'):\n    "
    chapters("01_trains", f"{bar}pass")
    chapters("02_warns", f"{bar}__import__('sys').stderr.write('careful ')")  # between two bars
    assert colab.main([]) == 1
    told = capsys.readouterr().out
    assert "01_trains" in told.partition("passed\n")[0]
    assert "careful" in told
    assert told.endswith("1 passed, 1 failed\n")
