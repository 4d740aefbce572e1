"""Checks of exercises accept every right answer, refuse every wrong one, and say why."""

import contextlib
import re
import subprocess
import sys

import nbformat
import pytest
import torch

from exercises import ROOT, answer_of, exercises, mechanical, outcome, right_answers
from minitransformer.__main__ import main
from minitransformer.exercises import check

ALL = {exercise.name: (chapter, exercise) for chapter, exercise in exercises()}
each = pytest.mark.parametrize("name", ALL)
NO_ANSWERS = (None, ..., [], "text", 3, torch.zeros(0), torch.zeros(2, 3, 4), object())
FEWEST_WRONG = 6
EXPLAINED = 0.6


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where what has been solved is remembered


@each
def test_right_answers_pass(name):
    chapter, exercise = ALL[name]
    answers = right_answers(chapter, exercise)
    assert len(answers) >= 2
    faults = {key: exercise.fault_of(answer) for key, answer in answers.items()}
    assert {key: str(fault) for key, fault in faults.items() if fault} == {}


@each
def test_known_mistakes_are_named(name):
    _, exercise = ALL[name]
    assert len(exercise.mistakes) >= 3
    for text, mistake in exercise.mistakes.items():
        fault = exercise.fault_of(answer_of(exercise, mistake))
        assert fault, text
        pattern = ".*".join(map(re.escape, re.split(r"\{.*?\}", text)))
        assert re.fullmatch(pattern, fault.why, re.DOTALL), (text, fault.why)


@each
def test_changed_answers_are_refused(name):
    chapter, exercise = ALL[name]
    results = [(line, outcome(exercise, answer)) for line, answer in mechanical(chapter, exercise)]
    assert [line for line, result in results if result == "right"] == []
    assert len(results) + len(exercise.mistakes) >= FEWEST_WRONG or not any(exercise.arguments())


@each
def test_what_is_no_answer_is_refused_in_words(name):
    _, exercise = ALL[name]
    for answer in NO_ANSWERS:
        assert str(exercise.fault_of(answer)).startswith("Not yet. "), answer
        assert str(exercise.fault_of(lambda *_, answer=answer: answer)).startswith("Not yet. ")


@each
def test_hints_are_three_and_lead_on(name, capsys):
    _, exercise = ALL[name]
    for _ in range(4):
        exercise.hint()
    *first, last, again = capsys.readouterr().out.splitlines()
    assert [line[:12] for line in (*first, last)] == [f"Hint {n} of 3:" for n in (1, 2, 3)]
    assert again == last


@each
def test_chapter_has_the_exercise_and_its_solution_passes(name):
    call = f"check.{name}("
    cells = [
        cell
        for path in sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and call in cell.source
    ]
    starter, solution = cells
    assert "exercise" in starter.metadata.tags
    assert "solution" in solution.metadata.tags
    assert solution.source.splitlines()[-1].startswith(call)
    said = ["".join(output.get("text", "")) for output in (*starter.outputs, *solution.outputs)]
    assert "Not yet. " in said[0]
    assert "Right: " in said[-1]


def test_most_wrong_answers_are_explained():
    results = [outcome(e, a) for c, e in ALL.values() for _, a in mechanical(c, e)]
    results += [
        outcome(e, answer_of(e, mistake))
        for _, e in ALL.values()
        for mistake in e.mistakes.values()
    ]
    assert results.count("explained") >= EXPLAINED * len(results)


def test_exception_is_shown_at_the_readers_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef window_mask(n, size):\n    row = torch.ones(n)\n    return row[n]\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from mine import window_mask
    finally:
        sys.path.remove(str(tmp_path))
    fault = check.attention.sliding_window.fault_of(window_mask)
    assert fault.seen.startswith("window_mask(n=1, size=1) raises IndexError: ")
    assert fault.why == "It comes up in line 6: return row[n]"


def test_message_names_the_smallest_failing_input_and_both_results():
    fault = check.attention.sliding_window.fault_of(lambda n, size: torch.ones(n, n).tril())
    assert str(fault).splitlines() == [
        "Not yet. window_mask(n=2, size=1) gives at [1, 0] 1, expected False.",
        "This is the causal mask: keys further back than size=1 have to go.",
        "yours:",
        "  [[1.0, 0.0],",
        "   [1.0, 1.0]]",
        "expected:",
        "  [[1, 0],",
        "   [0, 1]]",
    ]


def test_answers_do_not_spoil_the_inputs_they_get():
    def in_place(s):
        s.exp_()
        s /= s.sum()
        return torch.diag(s) - torch.outer(s, s)

    assert check.attention.derivative.fault_of(in_place) is None


SOLVES = """
from minitransformer.exercises import check
check.attention.another_question([0.787, 0.107, 0.107])
window = lambda n, size: [[i - size < j <= i for j in range(n)] for i in range(n)]
check.attention.sliding_window(window)
"""


def test_progress_is_kept_and_two_processes_lose_nothing(capsys):
    runs = [subprocess.Popen([sys.executable, "-c", SOLVES]) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    check.progress()
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("attention: "))
    assert line.startswith("attention: 2 of 5, left: ")
    with contextlib.suppress(AttributeError):
        check.attention.nothing  # noqa: B018
        raise AssertionError("an exercise that is not there")


def test_command_checks_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def window_mask(n, size):\n    ...\n\n\nmy_weights = [0.787, 0.107, 0.107]\n")
    main(["exercises", "attention", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "another_question: Right: my_weights is what it should be."
    assert lines[1] == "sliding_window: Not yet. window_mask(n=1, size=1) returns nothing yet."
    assert lines[2].startswith("attention: 1 of 5, left: ")
