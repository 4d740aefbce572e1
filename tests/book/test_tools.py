"""The tools do what they say, and each rule refuses what it should."""

import ast
import base64
from io import BytesIO

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

import notebooks
from notebooks import (
    bootstrap_cell,
    code_cells,
    from_script,
    normalise,
    read,
    sync_cell,
    to_script,
    with_short_docstrings,
    write,
)
from rules import RULES

ALT = "A line that rises from the origin to the upper right"
RECORD = {"date": "2026-08-01", "minitransformer": "0.1.0", "torch": "2.13.0"}
SOLUTION = {"tags": ["hide-cell", "solution"], "cellView": "form"}


def printed(text):
    return new_output("stream", name="stdout", text=text)


def image():
    Image.new("RGB", (2, 3), "white").save(file := BytesIO(), "png")
    picture = base64.b64encode(file.getvalue()).decode()
    return new_output("display_data", data={"image/png": picture, "text/plain": "<Figure>"})


def chapter(*extra):
    """A small chapter that keeps every rule, with some more cells at its end."""
    cells = [
        new_markdown_cell("# 4 · Attention\n\nWhy $x$ and `y`?"),
        bootstrap_cell(),
        new_markdown_cell("## Build\n\n> **Trap: the title**\n>\n> Text."),
        new_code_cell("print(1)", outputs=[printed("1\n")]),
        new_code_cell("draw()", outputs=[image()], metadata={"mystnb": {"image": {"alt": ALT}}}),
        new_markdown_cell("## Exercises\n\n### Exercise 1 (easy)\n\n```python\n# no heading\n```"),
        new_code_cell("# @title Solution: one\nassert 1 + 1 == 2", metadata=SOLUTION),
        *extra,
    ]
    for cell in code_cells(new_notebook(cells=cells)):
        cell.execution_count = 1
    return normalise(new_notebook(cells=cells, metadata={"executed_with": RECORD}))


def broken_rules(nb):
    return {rule.__name__ for rule in RULES if list(rule(nb))}


# --- rules -----------------------------------------------------------------------------------


def test_good_chapter_keeps_every_rule():
    assert broken_rules(chapter()) == set()


# --- tidying ---------------------------------------------------------------------------------


def test_normalise_leaves_only_what_stays_the_same():
    metadata = {"execution": {"started": "now"}, "tags": ["t"]}
    cells = [
        new_code_cell("x  \n\n", execution_count=7, metadata=metadata),
        new_code_cell("x", execution_count=9),
        new_code_cell("  "),
    ]
    cells[0].outputs = [
        new_output("stream", name="stderr", text="warning"),
        printed("0%\r50%"),
        printed("\r100%\ndone\n"),
        new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}}),
        new_output("execute_result", data={"text/plain": "1"}, execution_count=7),
    ]
    nb = normalise(new_notebook(cells=cells, metadata={"widgets": {}, "authors": []}))

    first, second = nb.cells
    assert set(nb.metadata) == {"kernelspec", "language_info"}
    assert (first.source, first.metadata, first.execution_count) == ("x", {"tags": ["t"]}, 1)
    assert [output.output_type for output in first.outputs] == ["stream", "execute_result"]
    assert first.outputs[0].text == "100%\ndone\n"
    assert first.outputs[1].execution_count == 1
    assert second.execution_count == 2
    assert second.id == f"{first.id}-2"


def test_normalise_again_changes_nothing():
    nb = chapter()
    assert normalise(nb) == nb


# --- scripts ---------------------------------------------------------------------------------


def test_script_and_back_keeps_everything():
    nb = chapter()
    script = to_script(nb)
    assert "find_spec" not in script
    assert from_script(script, previous=nb) == nb


def test_saved_chapter_keeps_outputs_up_to_the_first_change():
    nb = chapter()
    script = to_script(nb).replace("draw()", "draw(2)")
    counts = [cell.execution_count for cell in code_cells(from_script(script, previous=nb))]
    assert counts == [1, 2, None, None]


def test_bootstrap_does_nothing_where_the_package_is(capfd):
    exec(bootstrap_cell().source, {})
    assert capfd.readouterr() == ("", "")


def test_bootstrap_names_the_torch_that_is_there(monkeypatch):
    called = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda command, check: called.append(command))
    exec(bootstrap_cell().source, {})
    import importlib.metadata

    assert called[0][-1] == f"torch=={importlib.metadata.version('torch')}"


# --- the package's code ----------------------------------------------------------------------

MODULE = '''
"""A module."""

__all__ = ["LIMIT", "Pair", "double"]
LIMIT = 3


@cache
def double(x: int) -> int:
    """Twice x, whatever
    x is. Not more.

    Args:
        x: a number.
    """
    return 2 * x  # twice


class Pair:
    """Two numbers.

    They go together.
    """

    def swap(self):
        r"""Turn \\ round."""
        return self


def helper():
    """Not public."""
'''


@pytest.fixture
def package(tmp_path):
    (tmp_path / "module.py").write_text(MODULE, encoding="utf-8")
    return notebooks.public_definitions(tmp_path)


def test_docstrings_become_one_sentence(package):
    assert with_short_docstrings(package["double"]).splitlines() == [
        "@cache",
        "def double(x: int) -> int:",
        '    """Twice x, whatever x is."""',
        "    return 2 * x  # twice",
    ]
    short = with_short_docstrings(package["Pair"])
    assert '    """Two numbers."""\n\n    def swap' in short
    assert 'r"""Turn \\ round."""' in short
    ast.parse(short)


def test_sync_replaces_public_definitions_only(package):
    cell = "import a\n\n\ndef helper(): ...\n\n\n@old\ndef double(x): ...\n\n\ny = double(2)"
    synced = sync_cell(cell, package)
    assert synced.startswith("import a\n\n\ndef helper(): ...\n\n\n@cache\ndef double(x: int)")
    assert synced.endswith("# twice\n\n\ny = double(2)")
    assert "@old" not in synced
    assert sync_cell(synced, package) == synced


# --- running ---------------------------------------------------------------------------------


def test_run_writes_a_chapter_that_runs_and_keeps_one_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    path = tmp_path / "01_good.ipynb"
    write(from_script("# %%\nopen('left-behind', 'w').write('x')\nprint(1)\n# %%\n2"), path)

    assert notebooks.main(["run"]) == 0
    nb = read(path)
    assert [cell.execution_count for cell in nb.cells] == [1, 2, 3]
    assert nb.cells[1].outputs[0].text == "1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["01_good.ipynb"]

    write(from_script("# %%\n1 / 0", previous=nb), path)
    before = path.read_bytes()
    assert notebooks.main(["run", "01_good"]) == 1
    assert path.read_bytes() == before
