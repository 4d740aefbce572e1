"""Every notebook keeps every rule: each takes a notebook and yields what is wrong with it.

What the builder of the site warns about, and what ruff finds in cells, is no rule here.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from nbformat import NotebookNode

from notebooks import (
    CHAPTERS,
    code_cells,
    name_of,
    normalise,
    notebooks,
    read,
    tags,
    with_bootstrap,
)

SHORTEST_ALT_TEXT = 20
LARGEST = 500_000  # bytes of a file

ABSOLUTE_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|tmp|Users|content)/|[A-Z]:\\\w)")
MEMORY_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
READS_BADLY_RAW = {
    "a directive fence, ```{...}": re.compile(r"^\s*(?:```+|~~~+)\{", re.M),
    "a fence of colons, :::": re.compile(r"^[ >]*:::", re.M),
    "a box with text beside its title": re.compile(r"^> \*\*Trap\b(?!.*\*\*\n>\n> )", re.M),
    "a box without an empty line after it": re.compile(r"^>.*\n(?=[^>\n])", re.M),
    "a role, such as {ref}`...`": re.compile(r"\{[\w:+-]+\}`"),
    "a target, (label)=": re.compile(r"^\([\w-]+\)=", re.M),
    "a labelled formula, $$ (label)": re.compile(r"\$\$[ \t]*\([\w:-]+\)"),
    "a link without text, [](...)": re.compile(r"(?<!!)\[\]\("),
}


def normalised(nb: NotebookNode) -> Iterator[str]:
    """The notebook is as `tools/notebooks.py` writes it."""
    if nb != normalise(with_bootstrap(nb)):
        yield "not normalised: run `python tools/notebooks.py normalise`"


def executed_in_order(nb: NotebookNode) -> Iterator[str]:
    """Every code cell ran, once, from top to bottom, and something came out."""
    counts = [cell.execution_count for cell in code_cells(nb)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}: run `make notebooks`"
    if not any(cell.outputs for cell in code_cells(nb)):
        yield "no cell has an output"


def clean_outputs(nb: NotebookNode) -> Iterator[str]:
    """No output tells of the machine it ran on, or of something that went wrong."""
    for cell in code_cells(nb):
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"{first_line(cell)!r} shows {output.get('name', 'an error')}"
            for text in texts(output):
                if ABSOLUTE_PATH.search(text):
                    yield f"{first_line(cell)!r} shows an absolute path: {text[:80]!r}"
                if MEMORY_ADDRESS.search(text):
                    yield f"{first_line(cell)!r} shows a memory address: {text[:80]!r}"
                if "\r" in text:
                    yield f"{first_line(cell)!r} shows a carriage return: {text[:80]!r}"


def figures_described(nb: NotebookNode) -> Iterator[str]:
    """Each figure has a caption, and says in words what it shows, to those who cannot see it."""
    for cell in code_cells(nb):
        if any(is_image(output) for output in cell.outputs):
            about = cell.metadata.get("mystnb", {})
            alt = about.get("image", {}).get("alt", "")
            if len(alt.strip()) < SHORTEST_ALT_TEXT:
                yield f"{first_line(cell)!r} draws, with the alt text {alt!r} (mystnb.image.alt)"
            if not about.get("figure", {}).get("caption"):
                yield f"{first_line(cell)!r} draws, and has no caption (mystnb.figure.caption)"
    for cell in markdown_cells(nb):
        for alt in re.findall(r"!\[(.*?)\]\(", cell.source):
            if len(alt.strip()) < SHORTEST_ALT_TEXT:
                yield f"an image has the alt text {alt!r}"


def reads_well_raw(nb: NotebookNode) -> Iterator[str]:
    """Prose makes sense where directives are shown as they are written, as in Colab."""
    for cell in markdown_cells(nb):
        for what, pattern in READS_BADLY_RAW.items():
            if pattern.search(cell.source):
                yield f"{first_line(cell)!r} has {what}"


def exercises_solved(nb: NotebookNode) -> Iterator[str]:
    """Each exercise has a folded solution that ran and that checks itself."""
    unsolved: str | None = None
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            for _, heading in headings(cell):
                if unsolved:
                    yield f"{unsolved!r} has no cell tagged `solution`"
                unsolved = heading if re.match(r"Exercise\b", heading) else None
        elif "solution" in tags(cell):
            unsolved = None
            if "hide-cell" not in tags(cell) or cell.metadata.get("cellView") != "form":
                yield f"{first_line(cell)!r} is not folded (tag hide-cell, cellView form)"
            if not cell.source.startswith("# @title Solution: "):
                yield f"{first_line(cell)!r} should be `# @title Solution: ...`"
            if cell.execution_count is None or not asserts(cell):
                yield f"{first_line(cell)!r} is not proven by an assert that ran"
    if unsolved:
        yield f"{unsolved!r} has no cell tagged `solution`"


def exempt_outputs_proven(nb: NotebookNode) -> Iterator[str]:
    """What is not compared when the chapter runs again is asserted, here or in the next cell."""
    cells = code_cells(nb)
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        if "nbval-skip" in tags(cell) or re.search(r"#\s*(NBVAL_|PYTEST_VALIDATE)", cell.source):
            yield f"{first_line(cell)!r}: only the tag nbval-ignore-output is in use here"
        if "nbval-ignore-output" in tags(cell):
            only_images = all(is_image(output) for output in cell.outputs)
            if not (only_images or asserts(cell) or (following and asserts(following))):
                yield f"{first_line(cell)!r} is not compared, and nothing asserts what it shows"


def first_line(cell: NotebookNode) -> str:
    """The cell's first line: enough to find it."""
    return cell.source.split("\n")[0][:60]


def markdown_cells(nb: NotebookNode) -> list[NotebookNode]:
    """The notebook's prose."""
    return [cell for cell in nb.cells if cell.cell_type == "markdown"]


def headings(cell: NotebookNode) -> list[tuple[int, str]]:
    """Level and text of the cell's headings; what stands in a code fence is none."""
    prose = re.sub(r"^(```+|~~~+).*?^\1", "", cell.source, flags=re.M | re.S)
    return [(len(marks), text) for marks, text in re.findall(r"^(#+) +(.*)$", prose, re.M)]


def texts(output: NotebookNode) -> Iterator[str]:
    """What the output says, in whatever form."""
    yield output.get("text", "")
    for kind, data in output.get("data", {}).items():
        if isinstance(data, str) and kind.startswith("text/"):
            yield data


def is_image(output: NotebookNode) -> bool:
    """Whether the output is a figure."""
    return any(kind.startswith("image/") for kind in output.get("data", ()))


def asserts(cell: NotebookNode) -> bool:
    """Whether the cell asserts something."""
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cell.source)))


RULES = [
    normalised,
    executed_in_order,
    clean_outputs,
    figures_described,
    reads_well_raw,
    exercises_solved,
    exempt_outputs_proven,
]


@pytest.mark.parametrize("path", notebooks(), ids=name_of)
def test_notebook_keeps_every_rule(path):
    nb = read(path)
    assert [f"{rule.__name__}: {wrong}" for rule in RULES for wrong in rule(nb)] == []
    assert path.stat().st_size <= LARGEST


def test_chapters_leave_nothing_behind():
    """But for the names of solved exercises, which are a reader's."""
    found = (path for path in CHAPTERS.rglob("*") if ".solved_exercises" not in path.parts)
    strays = [path.name for path in found if path.is_file()]
    assert [name for name in strays if not name.endswith((".ipynb", ".md", ".svg"))] == []
