"""Handouts hold no solutions, and a folder of any submissions becomes a table."""

import csv
import json
import re
from shutil import copytree

import nbformat
import pytest

from exercises import ANSWERS, ROOT
from minitransformer.__main__ import main
from minitransformer.exercises import check
from minitransformer.exercises.projects import write_starter
from minitransformer.exercises.teaching import grade, write_handouts
from minitransformer.exercises.teaching.handouts import EXERCISE, MINUTES, exercises_in

CHAPTERS = ROOT / "chapters"


@pytest.fixture(scope="module")
def handouts(tmp_path_factory):
    """The folder of all handouts."""
    folder = tmp_path_factory.mktemp("teaching") / "handouts"
    write_handouts(folder)
    return folder


def code(path, tag):
    """The cells of code with a tag."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if tag in cell.metadata.get("tags", ())]


def test_handouts_have_all_exercises_and_no_solution(handouts):
    paths = sorted(handouts.iterdir())
    assert [path.stem[3:] for path in paths] == [
        path.stem[3:] for path in sorted(CHAPTERS.glob("[0-9]*.ipynb")) if code(path, "exercise")
    ]
    assert {path.stem[3:] for path in paths} == {*dir(check)}
    for path in paths:
        nb = nbformat.read(path, as_version=4)
        nbformat.validate(nb)
        chapter = CHAPTERS / path.name
        starters = [cell.source for cell in code(chapter, "exercise")]
        assert [cell.source for cell in code(path, "exercise")] == starters
        given = {line for cell in nb.cells for line in cell.source.splitlines()}
        stubs = {line for starter in starters for line in starter.splitlines()}
        solutions = {line for c in code(chapter, "solution") for line in c.source.splitlines()}
        imports = {line for cell in nb.cells[1:3] for line in cell.source.splitlines()}
        assert given & solutions <= stubs | imports
        assert not any(cell.get("outputs") for cell in nb.cells)
        assert "](https" in "".join(given) or "](" not in "".join(given)


def test_each_line_of_a_stub_is_one_of_the_solution_or_of_the_starter(handouts):
    for path in handouts.iterdir():
        known = [*code(CHAPTERS / path.name, "exercise"), *code(CHAPTERS / path.name, "solution")]
        lines = {line for cell in known for line in cell.source.splitlines()}
        found = {line for cell in code(path, "exercise") for line in cell.source.splitlines()}
        assert found <= lines


def test_handouts_say_how_long_they_take(tmp_path, capsys):
    main(["handout", str(tmp_path / "new")])
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("04_attention"))
    assert line.split() == ["04_attention.ipynb", "5", "exercises,", "70", "min"]
    with pytest.raises(SystemExit, match="is there already"):
        main(["handout", str(tmp_path / "new")])
    with pytest.raises(SystemExit, match=r"there are no chapters in .* --chapters"):
        main(["handout", str(tmp_path / "other"), "--chapters", str(tmp_path)])


RIGHT = """
def window_mask(n, size):
    return [[i - size < j <= i for j in range(n)] for i in range(n)]
"""
SUBMITTED = {
    "anna.py": RIGHT + "my_weights = [0.787, 0.107, 0.107]\n",
    "ben.py": "my_weights = [1, 2, 3]\nprint('noise')\n",
    "cleo.py": "raise KeyError('no')\n",
    "dan.py": "while True: pass\n",
    "eve.py": "def something_else(): pass\n",
    "finn.py": "import os\nos._exit(3)\n",
    "gil.py": RIGHT + "def softmax_jacobian(s):\n    while True: pass\n",
    "hal.py": "import sys\nsys.exit()\n",
    "ida.py": "def half(:\n",
}


CELLS = ["%matplotlib inline\n" + RIGHT, "1 / 0", "my_weights = [0.787, 0.107, 0.107]"]
NOTEBOOK = {"cells": [{"cell_type": "code", "source": cell} for cell in CELLS]}
SUBMITTED |= {"jo.ipynb": json.dumps(NOTEBOOK), "kim.ipynb": "no json"}
SOLVED = {"anna": 2, "gil": 1, "jo": 2}
REMARKS = {
    "anna": "",
    "ben": "another_question: Not yet.",
    "cleo": "raises KeyError: 'no'",
    "dan": "stopped after 4 s",
    "eve": "",
    "finn": "ended by itself with status 3",
    "gil": "stopped after 4 s",
    "hal": "raises SystemExit",
    "ida": "raises SyntaxError",
    "jo": "cell 2 raises ZeroDivisionError: division by zero",
    "kim": "is no notebook",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("anna", "cleo", "gil", "jo"), pytest.param((*REMARKS,), marks=pytest.mark.everything)],
)
def test_any_submission_is_a_row(tmp_path, capsys, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    for name, text in SUBMITTED.items():
        if name.partition(".")[0] in names:
            (tmp_path / name).write_text(text, encoding="utf-8")
    main(["grade", "attention", ".", "--seconds", "4", "--csv", "grades.csv"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*names]
    with open("grades.csv", encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    solved = {name: int(row["solved"]) for name, row in rows.items()}
    assert solved == {name: SOLVED.get(name, 0) for name in names}
    for name in names:
        said = rows[name]["remark"]
        assert said.startswith(REMARKS[name]) if REMARKS[name] else not said
    marks = [rows["anna"][key] for key in dir(check.attention)]
    assert marks == ["1" if key in ("another_question", "sliding_window") else "" for key in
                     dir(check.attention)]  # fmt: skip
    assert not (tmp_path / ".solved_exercises").exists()


@pytest.mark.slow
def test_projects_are_graded_by_folder(tmp_path):
    write_starter("bug_hunt", tmp_path / "anna")
    copytree(tmp_path / "anna", tmp_path / "ben")
    path = tmp_path / "ben" / "train.py"
    text = path.read_text(encoding="utf-8")
    mended = text.replace("losses.mean()", "losses.sum() / (targets != PAD).sum()")
    path.write_text(mended, encoding="utf-8")
    (tmp_path / "cleo").mkdir()
    rows = {row.name: row for row in grade("bug_hunt", tmp_path)}
    assert {name: (row.solved, len(row.faults)) for name, row in rows.items()} == {
        "anna": (0, 8), "ben": (1, 8), "cleo": (0, 0),
    }  # fmt: skip
    assert "there is no data.py in" in rows["cleo"].remark
    with pytest.raises(FileNotFoundError, match="there are no submissions in"):
        next(grade("attention", tmp_path))


@pytest.mark.everything
def test_right_answers_get_full_marks(tmp_path):
    """What we call right is right for a grader, too, in a file of a submission."""
    source = (ANSWERS / "answers_attention.py").read_text(encoding="utf-8")
    names = {check.attention.__getattr__(key).function: key for key in dir(check.attention)}
    given = "".join(f"{function} = {key}_1\n" for function, key in names.items())
    (tmp_path / "anna.py").write_text(f"{source}\n{given}", encoding="utf-8")
    (row,) = grade("attention", tmp_path)
    assert row.solved == len(row.faults) == 5


def test_plan_has_the_minutes_of_the_map_and_of_the_handouts():
    page = (CHAPTERS / "reference" / "teaching.md").read_text(encoding="utf-8")
    index = (ROOT / "index.md").read_text(encoding="utf-8")
    reading = dict(re.findall(r"\]\(chapters/(\w+)\.ipynb\) \| (\d+) min \|", index))
    reading = {name[:2]: int(minutes) for name, minutes in reading.items()}
    exercises = {}
    for path in CHAPTERS.glob("[0-9]*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        levels = [EXERCISE.findall(text)[0] for text, _ in exercises_in(cells)]
        exercises[path.name[:2]] = sum(MINUTES[level] for level in levels)
    rows = re.findall(r"^\| \d+ \| ([\d, ]+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert len(rows) > 8
    for chapters, read, solve in rows:
        numbers = [f"{int(number):02}" for number in chapters.split(",")]
        assert int(read) == sum(reading[number] for number in numbers), chapters
        assert int(solve) == sum(exercises[number] for number in numbers), chapters
    taught = {int(number) for chapters, _, _ in rows for number in chapters.split(",")}
    assert taught == {int(number) for number in exercises}
