"""The tools do what they say, and each rule refuses what it should."""

import ast
import base64
from datetime import date
from io import BytesIO

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

import notebooks
from notebooks import (
    bootstrap_cell,
    code_cells,
    execute,
    from_script,
    normalise,
    read,
    recorded,
    sync,
    sync_cell,
    to_script,
    with_bootstrap,
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


def shown(output, source="x", **metadata):
    return new_code_cell(source, outputs=[output], metadata=metadata)


# --- rules -----------------------------------------------------------------------------------


def test_good_chapter_keeps_every_rule():
    assert broken_rules(chapter()) == set()


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("plain_python", new_code_cell("!pip install x")),
        ("plain_python", new_code_cell("%matplotlib inline")),
        ("clean_outputs", shown(new_output("error", ename="E", evalue="", traceback=[]))),
        ("clean_outputs", shown(printed("saved /tmp/model.safetensors"))),
        ("clean_outputs", shown(printed("in C:\\Users\\me"))),
        ("clean_outputs", shown(printed("<function f at 0x7f0a12c4e5d0>"))),
        (
            "clean_outputs",
            shown(new_output("display_data", data={"text/html": "<b>/tmp/x</b>"})),
        ),
        ("figures_described", shown(image())),
        ("figures_described", shown(image(), mystnb={"image": {"alt": "a plot"}})),
        ("figures_described", new_markdown_cell("![](map.svg)")),
        ("reads_well_raw", new_markdown_cell("```{note}\nText.\n```")),
        ("reads_well_raw", new_markdown_cell("See {ref}`there`.")),
        ("reads_well_raw", new_markdown_cell("(there)=\n## Here")),
        ("reads_well_raw", new_markdown_cell("$$\nx\n$$ (formula)")),
        ("reads_well_raw", new_markdown_cell("See [](09_training.ipynb).")),
        ("reads_well_raw", new_markdown_cell(":::{tip}\nText.\n:::")),
        ("reads_well_raw", new_markdown_cell("> **Trap: the title**\n> Text.")),
        ("reads_well_raw", new_markdown_cell("> **Trap: the title** Text.\n>\n> More.")),
        ("reads_well_raw", new_markdown_cell("> **Trap: the title**\n>\n> Text.\nAfter it.")),
        ("headings_nest", new_markdown_cell("# A second title")),
        ("headings_nest", new_markdown_cell("## Section\n\n#### Too deep")),
        ("exercises_solved", new_markdown_cell("### Exercise 2")),
        ("exercises_solved", new_markdown_cell("### Exercise 2\n\n### Exercise 3")),
        ("exercises_solved", new_code_cell("# @title Solution: two\nx = 1", metadata=SOLUTION)),
        ("exercises_solved", new_code_cell("assert True", metadata=SOLUTION)),
        (
            "exercises_solved",
            new_code_cell("# @title Solution: two\nassert True", metadata={"tags": ["solution"]}),
        ),
        ("exempt_outputs_proven", shown(printed("3.2 s"), tags=["nbval-ignore-output"])),
        ("exempt_outputs_proven", shown(printed("3.2 s"), "# NBVAL_IGNORE_OUTPUT\nx")),
        ("exempt_outputs_proven", shown(printed("3.2 s"), tags=["nbval-skip"])),
    ],
)
def test_rule_refuses(rule, cell):
    assert broken_rules(chapter(cell)) == {rule}


@pytest.mark.parametrize(
    "cells",
    [
        [shown(image(), tags=["nbval-ignore-output"], mystnb={"image": {"alt": ALT}})],
        [shown(printed("3.2 s"), "assert x", tags=["nbval-ignore-output"])],
        [shown(printed("3.2 s"), tags=["nbval-ignore-output"]), new_code_cell("assert x")],
        [new_markdown_cell("> **Trap: x**\n>\n> Text.\n\nMore.\n\n> Words, quoted.")],
        [new_markdown_cell("$$\nx = [a](b)\n$$\n\n![" + ALT + "](x.svg)")],
        [new_markdown_cell("### A\n\n#### B\n\n## C")],
    ],
)
def test_rules_allow(cells):
    assert broken_rules(chapter(*cells)) == set()


def test_rules_refuse_missing_bootstrap():
    nb = chapter()
    nb.cells.pop(1)
    assert "begins_with_bootstrap" in broken_rules(nb)


def test_rules_refuse_changed_bootstrap():
    nb = chapter()
    nb.cells[1].source += "\nprint('welcome')"
    assert "begins_with_bootstrap" in broken_rules(nb)


def test_rules_refuse_second_bootstrap():
    nb = chapter()
    nb.cells.append(nb.cells[1])
    assert "begins_with_bootstrap" in broken_rules(nb)


def test_rules_refuse_missing_title():
    nb = chapter()
    nb.cells.pop(0)
    assert "headings_nest" in broken_rules(nb)


def test_rules_refuse_unexecuted_cells():
    nb = chapter()
    nb.cells[3].execution_count = None
    assert "executed_in_order" in broken_rules(normalise(nb))


def test_rules_refuse_chapters_without_outputs():
    nb = chapter()
    for cell in code_cells(nb):
        cell.outputs = []
    assert broken_rules(nb) == {"executed_in_order"}


@pytest.mark.parametrize("name", ["stderr", "stdout"])
def test_rules_refuse_stderr_and_progress_bars(name):
    nb = chapter()
    nb.cells[3].outputs = [new_output("stream", name=name, text="50%\r100%\n")]
    assert broken_rules(nb) == {"normalised", "clean_outputs"}


def test_rules_refuse_other_kernels():
    nb = chapter()
    nb.metadata.kernelspec = {"name": "my-kernel", "display_name": "Mine", "language": "python"}
    assert broken_rules(nb) == {"normalised"}


@pytest.mark.parametrize("what", RECORD)
def test_record_of_the_run_is_whole(what):
    nb = chapter()
    del nb.metadata.executed_with[what]
    assert broken_rules(nb) == {"says_what_ran_it"}


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


def test_normalise_gives_no_outputs_to_cells_that_did_not_run():
    nb = normalise(new_notebook(cells=[new_code_cell("x"), new_code_cell("y", execution_count=5)]))
    assert [cell.execution_count for cell in nb.cells] == [None, 1]


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


def test_new_chapter_gets_its_bootstrap_cell_after_the_title():
    nb = from_script("# %% [markdown]\n# # Title\n\n# %%\nx = 1\n")
    assert [cell.source.split("\n")[0] for cell in nb.cells] == [
        "# Title",
        bootstrap_cell().source.split("\n")[0],
        "x = 1",
    ]
    assert with_bootstrap(nb) == nb


def test_saved_code_is_formatted():
    assert from_script("# %%\nx = [1,\n2]\n").cells[1].source == "x = [1, 2]"


def test_saving_what_is_not_python_is_refused():
    with pytest.raises(ValueError, match="Failed to parse"):
        from_script("# %%\nx = = 1\n")


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


def test_public_definitions(package):
    assert package.keys() == {"Pair", "double"}
    assert package["double"].startswith("@cache\ndef double")


def test_name_public_twice_is_refused(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(MODULE, encoding="utf-8")
    with pytest.raises(ValueError, match=r"public in two modules, the second is b\.py"):
        notebooks.public_definitions(tmp_path)


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


def test_sync_touches_tagged_cells_only(package):
    tagged = new_code_cell("class Pair: ...", metadata={"tags": ["package"]})
    nb = sync(new_notebook(cells=[tagged, new_code_cell("class Pair: ...")]), package)
    assert "Two numbers." in nb.cells[0].source
    assert nb.cells[1].source == "class Pair: ..."


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


def test_run_records_versions_and_the_day_of_the_first_run_that_gave_this(monkeypatch):
    versions = {"minitransformer": "0.2.0", "torch": "2.14.0+cpu"}
    monkeypatch.setattr(notebooks, "version", versions.__getitem__)
    nb = chapter()
    day = RECORD["date"]

    today = recorded(nb, previous=nb).metadata.executed_with  # other versions than nb's
    assert today == {
        "date": date.today().isoformat(),
        "minitransformer": "0.2.0",
        "torch": "2.14.0",
    }

    versions.update(minitransformer="0.1.0", torch="2.13.0+cpu")
    assert recorded(nb, previous=nb).metadata.executed_with.date == day
    nb.cells[3].outputs = [printed("2\n")]
    assert recorded(nb, previous=chapter()).metadata.executed_with.date != day


def test_run_stops_at_an_error():
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(new_notebook(cells=[new_code_cell("1 / 0")]))
