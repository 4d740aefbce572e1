"""The chapters' exercises as notebooks without solutions."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from minitransformer.files import new_folder

CHAPTERS = Path(__file__).parents[3] / "chapters"
SITE = "https://minitransformer.github.io/minitransformer/chapters/"
MINUTES = {"easy": 5, "medium": 15, "hard": 30}
"""What to plan for an exercise; estimates, not measurements."""
EXERCISE = re.compile(r"^### Exercise \d+.*\((\w+)\)$", re.MULTILINE)

Cell = dict[str, Any]


def write_handouts(folder: Path, chapters: Path | None = None) -> list[tuple[str, int, int]]:
    """Write a notebook for each chapter with exercises into a new folder.

    Args:
        folder: a new or empty one.
        chapters: the folder `chapters` of a copy of the book's repository; that of the checkout
            this package is installed from, if left out.

    Returns:
        For each notebook its name, the number of its exercises, and minutes to plan for them.

    Raises:
        FileNotFoundError: if the chapters are not there.
    """
    chapters = CHAPTERS if chapters is None else chapters
    paths = sorted(chapters.glob("[0-9]*.ipynb"))
    if not paths:
        raise FileNotFoundError(
            f"there are no chapters in {chapters}: the wheel has none; clone the book's repository "
            "and name its folder with --chapters"
        )
    written = []
    with new_folder(folder) as unfinished:
        for path in paths:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            exercises = list(exercises_in(notebook["cells"]))
            if exercises:
                levels = [EXERCISE.findall(text)[0] for text, _ in exercises]
                minutes = sum(MINUTES[level] for level in levels)
                notebook["cells"] = handout(path.stem, notebook["cells"], exercises, minutes)
                text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
                (unfinished / path.name).write_text(text, encoding="utf-8")
                written.append((path.name, len(exercises), minutes))
    return written


def exercises_in(cells: list[Cell]) -> Iterator[tuple[str, Cell]]:
    """The text of each exercise, from its heading on, and the cell to begin with."""
    for before, cell in pairwise(cells):
        if "exercise" in cell["metadata"].get("tags", ()):
            text = "".join(before["source"])
            yield text[[found.start() for found in EXERCISE.finditer(text)][-1] :], cell


def handout(name: str, cells: list[Cell], exercises: list[tuple[str, Cell]], minutes: int) -> Any:
    """The cells of one: title, the chapter's installation and imports, and the exercises."""
    title = "".join(cells[0]["source"]).splitlines()[0]
    yours = [
        markdown(
            f"{title}: exercises\n\nThe chapter is at {SITE}{name}.html. Plan about {minutes} "
            "minutes for all exercises. Each ends in a check, which says in words what is wrong. "
            "What the chapter builds is in the package, `mt`.",
            "title",
        )
    ]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    imports = [cell for cell in code if "import minitransformer as mt" in "".join(cell["source"])]
    yours += [emptied(code[0]), *map(emptied, imports[:1])]
    for number, (text, cell) in enumerate(exercises, 1):
        level = EXERCISE.findall(text)[0]
        text = text.replace(f"({level})", f"({level}, {MINUTES[level]} minutes)", 1)
        text = re.sub(r"\]\((?!https?:|#)([\w/]+)\.ipynb", rf"]({SITE}\1.html", text)
        yours += [markdown(text, f"exercise-{number}"), emptied(cell)]
    return yours


def emptied(cell: Cell) -> Cell:
    """A cell of code without its outputs."""
    return cell | {"outputs": [], "execution_count": None}


def markdown(text: str, name: str) -> Cell:
    """A cell of text."""
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text}
