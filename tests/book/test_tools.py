"""The tools write notebooks as they say, and run them all or not at all."""

import importlib.metadata

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import notebooks
from notebooks import bootstrap_cell, code_cells, normalise, read, sync, write


def printed(text):
    return new_output("stream", name="stdout", text=text)


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
    assert normalise(nb) == nb


# --- the first cell --------------------------------------------------------------------------


def test_bootstrap_installs_only_where_the_package_is_missing(monkeypatch):
    called = []
    monkeypatch.setattr("subprocess.run", lambda command, check: called.append(command))
    exec(bootstrap_cell().source, {})
    assert called == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(bootstrap_cell().source, {})
    assert called[0][-1] == f"torch=={importlib.metadata.version('torch')}"  # the one there


MODULE = '''
__all__ = ["LIMIT", "double"]
LIMIT = 3


@cache
def double(x: int) -> int:
    """Twice x, whatever
    x is. Not more.

    Args:
        x: a number.
    """
    return 2 * x  # twice
'''
SYNCED = '''\
def helper(): ...


@cache
def double(x: int) -> int:
    """Twice x, whatever x is."""
    return 2 * x  # twice


y = double(2)'''


def test_sync_replaces_public_definitions_and_shortens_their_docstrings(tmp_path):
    (tmp_path / "module.py").write_text(MODULE, encoding="utf-8")
    package = notebooks.public_definitions(tmp_path)
    old = "def helper(): ...\n\n\n@old\ndef double(x): ...\n\n\ny = double(2)"
    tagged, plain = (new_code_cell(old, metadata={"tags": tags}) for tags in (["package"], []))
    nb = sync(new_notebook(cells=[new_markdown_cell("# T"), tagged, plain]), package)
    assert [cell.source for cell in code_cells(nb)] == [SYNCED, old]
    assert sync(nb, package) == nb


@pytest.mark.slow
def test_run_writes_a_chapter_that_runs_and_keeps_one_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    path = tmp_path / "01_good.ipynb"
    cells = ["open('left-behind', 'w').write('x')\nprint(1)", "2"]
    write(new_notebook(cells=[*map(new_code_cell, cells)]), path)

    assert notebooks.main(["run"]) == 0
    nb = read(path)
    assert [cell.execution_count for cell in nb.cells] == [1, 2, 3]
    assert nb.cells[1].outputs[0].text == "1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["01_good.ipynb"]

    write(new_notebook(cells=[new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    assert notebooks.main(["run", "01_good"]) == 1
    assert path.read_bytes() == before
