"""Run and tidy the chapters: what `make notebooks` and those who write chapters call.

    python tools/notebooks.py sync 04_attention    copy the package's code into `package` cells
    python tools/notebooks.py run 04_attention     sync, format, run from a clean kernel, tidy
    python tools/notebooks.py normalise 04_attention
    python tools/notebooks.py run deeper/04_attention   the page beside it

Each takes every notebook, in order, when none is named. A command that fails says why and leaves
the file as it was. To edit a notebook as a script, use `jupytext` (see CONTRIBUTING.md).
"""

import argparse
import ast
import base64
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import date
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from PIL import Image

import repository

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
PACKAGE = ROOT / "minitransformer"

CELL_TIMEOUT = 600
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_METADATA = ("cellView", "mystnb", "tags")
NOTEBOOK_METADATA = ("executed_with",)

# Naming the torch that is there makes pip keep it: a notebook service's own build fits its GPU.
BOOTSTRAP = """\
# Where the package is missing, as in Colab, install it; the torch already there stays as it is.
import importlib.util

if importlib.util.find_spec("minitransformer") is None:
    import subprocess
    import sys
    from importlib.metadata import distributions

    torch = [f"torch=={found.version}" for found in distributions(name="torch")]
    package = "minitransformer[book] @ git+{url}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", package, *torch], check=True)
    importlib.invalidate_caches()"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


# --- reading and writing ---------------------------------------------------------------------


def chapters() -> list[Path]:
    """The chapters, in order."""
    return sorted(CHAPTERS.glob("*.ipynb"))


def notebooks() -> list[Path]:
    """The chapters, in order, then the pages beside them."""
    return [*chapters(), *sorted(CHAPTERS.glob("*/*.ipynb"), reverse=True)]


def name_of(path: Path) -> str:
    """What the command line calls a notebook: 04_attention, or deeper/04_attention."""
    return path.relative_to(CHAPTERS).with_suffix("").as_posix()


def read(path: Path) -> NotebookNode:
    """Read a notebook."""
    return nbformat.read(path, as_version=4)


def write(nb: NotebookNode, path: Path) -> None:
    """Write a notebook in one step: the file is the old one or the new one, never half of it."""
    nbformat.validate(nb)
    unfinished = path.with_suffix(".ipynb.part")
    nbformat.write(nb, unfinished)
    os.replace(unfinished, path)


def tags(cell: NotebookNode) -> list[str]:
    """The cell's tags."""
    return cell.metadata.get("tags", [])


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    """The notebook's code cells, in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


# --- the first cell --------------------------------------------------------------------------


def bootstrap_cell() -> NotebookNode:
    """The first code cell of every chapter."""
    source = BOOTSTRAP.replace("{url}", repository.url())
    return new_code_cell(source, id="bootstrap", metadata={"tags": ["remove-cell"]})


def is_bootstrap(cell: NotebookNode) -> bool:
    """Whether the cell is the first code cell that the tools write, in any version of it."""
    return "remove-cell" in tags(cell) and 'find_spec("minitransformer")' in cell.source


def with_bootstrap(nb: NotebookNode) -> NotebookNode:
    """The notebook with today's bootstrap cell right after its title, and no other one."""
    nb = nbformat.from_dict(nb)
    previous = next((cell for cell in nb.cells if is_bootstrap(cell)), None)
    bootstrap = bootstrap_cell()
    if previous and previous.source == bootstrap.source:
        bootstrap = previous  # keeps its execution count
    nb.cells = [cell for cell in nb.cells if not is_bootstrap(cell)]
    after_title = int(bool(nb.cells) and nb.cells[0].cell_type == "markdown")
    nb.cells.insert(after_title, bootstrap)
    return nb


# --- the package's code in the chapter -------------------------------------------------------


def public_names(module: ast.Module) -> list[str]:
    """The names in the module's `__all__`."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []


def definitions(source: str) -> dict[str, Definition]:
    """The functions and classes that the source defines at its top level, by name."""
    return {node.name: node for node in ast.parse(source).body if isinstance(node, Definition)}


def public_definitions(package: Path = PACKAGE) -> dict[str, str]:
    """The source of each public function and class of the package, by name."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        defined = definitions(source)
        for name in public_names(ast.parse(source)):
            if name not in defined:
                continue  # a constant, or a name that the module passes on
            if name in found:
                raise ValueError(f"{name!r} is public in two modules, the second is {path.name}")
            first, last = lines_of(defined[name])
            found[name] = "\n".join(source.splitlines()[first:last])
    return found


def lines_of(node: Definition) -> tuple[int, int]:
    """The half-open range of line indices of a definition, decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first - 1, node.end_lineno or node.lineno


def with_short_docstrings(source: str) -> str:
    """The source with each docstring reduced to its first sentence: the chapter says the rest."""
    lines = source.splitlines()
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Definition)]
    for node in sorted(documented, key=lambda node: -node.lineno):
        if docstring := ast.get_docstring(node):
            statement = node.body[0]
            indent = " " * statement.col_offset
            sentence = first_sentence(docstring)
            quotes = 'r"""' if "\\" in sentence else '"""'
            replaced = slice(statement.lineno - 1, statement.end_lineno)
            lines[replaced] = [f'{indent}{quotes}{sentence}"""']
    return "\n".join(lines)


def first_sentence(docstring: str) -> str:
    """The first line of a docstring, or its first sentence where that takes several lines."""
    first_line, _, rest = docstring.partition("\n")
    if not rest.strip() or rest.startswith("\n"):
        return first_line
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


def sync(nb: NotebookNode, package: Mapping[str, str]) -> NotebookNode:
    """The notebook with the package's code for the names that its cells tagged `package` define."""
    nb = nbformat.from_dict(nb)
    for cell in code_cells(nb):
        if "package" not in tags(cell):
            continue
        lines = cell.source.splitlines()
        for name, node in reversed(definitions(cell.source).items()):
            if name in package:
                first, last = lines_of(node)
                lines[first:last] = with_short_docstrings(package[name]).splitlines()
        cell.source = "\n".join(lines)
    return nb


# --- running ---------------------------------------------------------------------------------


def client_of(nb: NotebookNode, folder: str, *kernel: Any) -> NotebookClient:
    """What runs a notebook's cells in a folder, from the first; its old outputs are gone."""
    for cell in code_cells(nb):
        cell.outputs, cell.execution_count = [], None
    options: dict[str, Any] = {"timeout": CELL_TIMEOUT, "record_timing": False}
    options |= {"extra_arguments": ["--log-level=ERROR"]}
    return NotebookClient(nb, *kernel, resources={"metadata": {"path": folder}}, **options)


def execute(nb: NotebookNode) -> NotebookNode:
    """The notebook run from a clean kernel, in an empty directory that is then removed."""
    nb = nbformat.from_dict(nb)
    nb.metadata.kernelspec = NotebookNode(KERNEL)
    with TemporaryDirectory() as directory:
        client_of(nb, directory).execute()
    return nb


def recorded(nb: NotebookNode, previous: NotebookNode) -> NotebookNode:
    """The notebook, fresh from a run, with the versions that ran it and the day.

    Where the run brought nothing new the day stays: the same run gives the same bytes.
    """
    nb = nbformat.from_dict(nb)
    torch = version("torch").partition("+")[0]  # without the build: 2.13.0+cpu
    day = previous.metadata.get("executed_with", {}).get("date", "")
    nb.metadata.executed_with = NotebookNode(
        date=day, minitransformer=version("minitransformer"), torch=torch
    )
    if nb != previous:
        nb.metadata.executed_with.date = date.today().isoformat()
    return nb


# --- tidying ---------------------------------------------------------------------------------


def formatted(nb: NotebookNode) -> NotebookNode:
    """The notebook with its code laid out by ruff, before it runs and not after."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "chapters/chapter.ipynb"]
    done = subprocess.run(
        ruff, input=nbformat.writes(nb), cwd=ROOT, capture_output=True, encoding="utf-8"
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return nbformat.reads(done.stdout, as_version=4)


def normalise(nb: NotebookNode) -> NotebookNode:
    """The notebook without what differs from run to run: the same run gives the same bytes."""
    nb = nbformat.from_dict(nb)
    nb.nbformat, nb.nbformat_minor = 4, 5
    kept = {key: nb.metadata[key] for key in NOTEBOOK_METADATA if key in nb.metadata}
    nb.metadata = NotebookNode(kept, kernelspec=dict(KERNEL), language_info={"name": "python"})
    nb.cells = [cell for cell in nb.cells if cell.source.strip()]
    for cell in nb.cells:
        cell.source = "\n".join(line.rstrip() for line in cell.source.strip("\n").split("\n"))
        kept = {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata}
        cell.metadata = NotebookNode(kept)
        cell.pop("attachments", None)
    for cell, name in zip(nb.cells, cell_ids(nb), strict=True):
        cell.id = name

    executed = [cell for cell in code_cells(nb) if cell.execution_count is not None]
    for count, cell in enumerate(executed, start=1):
        cell.execution_count = count
        cell.outputs = list(tidy_outputs(cell.outputs, count))
    return nb


def cell_ids(nb: NotebookNode) -> Iterator[str]:
    """An id for each cell that follows from what the cell says."""
    seen: dict[str, int] = {}
    for cell in nb.cells:
        if is_bootstrap(cell):
            yield "bootstrap"  # the same even when the repository moves
            continue
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


def tidy_outputs(outputs: list[NotebookNode], count: int) -> Iterator[NotebookNode]:
    """The outputs that readers should see: one piece of text instead of many, no progress bars."""
    printed: NotebookNode | None = None
    for output in outputs:
        is_widget = any("widget" in kind for kind in output.get("data", ()))
        if is_widget or output.get("name") == "stderr":
            continue
        if output.output_type != "stream":
            if "execution_count" in output:
                output.execution_count = count
            if "image/png" in output.get("data", ()):
                output.data["image/png"] = small_png(output.data["image/png"])
            printed = None
        elif printed:
            printed.text = last_state(printed.text + output.text)
            continue
        else:
            printed = output
            output.text = last_state(output.text)
        yield output


def small_png(encoded: str) -> str:
    """The picture with a palette of 32 colours: a chart looks the same at a quarter of the size."""
    with Image.open(BytesIO(base64.b64decode(encoded))) as picture:
        if picture.mode == "P":
            return encoded
        # An octree keeps rare colours too, as those of a map's cells.
        method, dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE
        palette = picture.convert("RGB").quantize(32, method=method, dither=dither)
    file = BytesIO()
    palette.save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def last_state(text: str) -> str:
    """What is left on a line that was overwritten: the text after its last carriage return."""
    return re.sub(r"[^\n]*\r(?!\n)", "", text).replace("\r\n", "\n")


# --- the command line ------------------------------------------------------------------------


def perform(command: str, chapter: Path) -> None:
    """Do one command to one chapter."""
    previous = read(chapter)
    nb = previous if command == "sync" else with_bootstrap(previous)
    if command != "normalise":
        nb = sync(nb, public_definitions())
    if command != "sync":
        nb = formatted(nb)
    nb = normalise(execute(nb) if command == "run" else nb)
    write(recorded(nb, previous) if command == "run" else nb, chapter)


def main(arguments: list[str] | None = None) -> int:
    """Run one command on some chapters; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["sync", "run", "normalise"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a chapter, such as 04_attention")
    chosen = parser.parse_args(arguments)
    for name in chosen.names or map(name_of, notebooks()):
        chapter = CHAPTERS / f"{name.removeprefix('chapters/').removesuffix('.ipynb')}.ipynb"
        if not chapter.exists():
            parser.error(f"there is no {chapter.relative_to(ROOT)}")
        started = time.perf_counter()
        try:
            perform(chosen.command, chapter)
        except (CellExecutionError, ValueError) as error:
            print(f"{error}\n{name_of(chapter)}: stopped, nothing written", file=sys.stderr)
            return 1
        print(f"{name_of(chapter)}  {time.perf_counter() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
