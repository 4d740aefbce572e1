"""Checks of exercises accept every right answer, refuse every wrong one, and say why."""

import contextlib
import re
import subprocess
import sys
import threading
import time
from functools import cache
from itertools import repeat

import nbformat
import pytest
import torch

from exercises import ROOT, answer_of, exercises, mechanical, outcome, right_answers
from minitransformer.__main__ import main
from minitransformer.exercises import check, checking
from minitransformer.exercises.explaining import Wrong, explain

ALL = {exercise.name: (chapter, exercise) for chapter, exercise in exercises()}
each = pytest.mark.parametrize("name", ALL)
NO_ANSWERS = (None, ..., [], "text", 3, torch.zeros(0), torch.zeros(2, 3, 4), object())
FEWEST_WRONG = 6
EXPLAINED = 0.75


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where what has been solved is remembered


@cache
def outcomes(name):
    """What becomes of each changed right answer, computed once."""
    chapter, exercise = ALL[name]
    return [(line, outcome(exercise, answer)) for line, answer in mechanical(chapter, exercise)]


@cache
def code_cells():
    """Those of all chapters, read once."""
    notebooks = map(nbformat.read, sorted((ROOT / "chapters").glob("[0-9]*.ipynb")), repeat(4))
    return [cell for book in notebooks for cell in book.cells if cell.cell_type == "code"]


@each
def test_right_answers_pass(name):
    chapter, exercise = ALL[name]
    answers = right_answers(chapter, exercise)
    assert len(answers) >= 2
    faults = {key: exercise.fault_of(answer) for key, answer in answers.items()}
    assert {key: str(fault) for key, fault in faults.items() if fault} == {}


@pytest.mark.slow
@each
def test_known_mistakes_are_named(name):
    _, exercise = ALL[name]
    assert len(exercise.mistakes) >= 3
    for text, mistake in exercise.mistakes.items():
        fault = exercise.fault_of(answer_of(exercise, mistake))
        assert fault, text
        pattern = ".*".join(map(re.escape, re.split(r"\{.*?\}", text)))
        assert re.fullmatch(pattern, fault.why, re.DOTALL), (text, fault.why)


@pytest.mark.slow
@each
def test_changed_answers_are_refused(name):
    _, exercise = ALL[name]
    results = outcomes(name)
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
    starter, solution = (cell for cell in code_cells() if call in cell.source)
    assert "exercise" in starter.metadata.tags
    assert "solution" in solution.metadata.tags
    assert solution.source.splitlines()[-1].startswith(call)
    said = ["".join(output.get("text", "")) for output in (*starter.outputs, *solution.outputs)]
    assert "Not yet. " in said[0]
    assert "Right: " in said[-1]


@pytest.mark.slow
def test_most_wrong_answers_are_explained():
    """Known mistakes are all explained, which `test_known_mistakes_are_named` asserts."""
    results = [result for name in ALL for _, result in outcomes(name)]
    known = sum(len(exercise.mistakes) for _, exercise in ALL.values())
    assert results.count("explained") + known >= EXPLAINED * (len(results) + known)


def never_returns(*_):
    while True:
        pass


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 0.3)
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # as if no debugger were attached


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", ["attention.sliding_window", "larger.norm_of_shards"])
def test_endless_loop_ends_in_a_message(name):
    """The second one runs the reader's function in threads."""
    fault = ALL[name][1].fault_of(never_returns)
    assert fault.seen.endswith(" did not return within 0.3 seconds.")
    assert fault.why.startswith("Is there a loop that never ends? It comes up in line ")
    assert threading.active_count() < 5


@pytest.mark.usefixtures("_impatient")
def test_endless_loop_is_stopped_outside_the_main_thread():
    faults = []
    exercise = check.attention.sliding_window
    thread = threading.Thread(target=lambda: faults.append(exercise.fault_of(never_returns)))
    thread.start()
    thread.join(timeout=60)
    assert "did not return" in faults[0].seen


@pytest.mark.usefixtures("_impatient")
def test_loop_that_is_endless_for_a_later_input_only_costs_the_explanation():
    fault = check.attention.sliding_window.fault_of(
        lambda n, size: torch.zeros(1, 1) if n == 1 else never_returns()
    )
    assert fault.seen == "window_mask(n=1, size=1) gives at [0, 0] 0, expected True."
    assert fault.why == ""


@pytest.mark.usefixtures("_impatient")
def test_time_limit_ends_with_its_block():
    with checking.time_limit(0.2):
        pass
    time.sleep(0.4)  # an exception that came late would come here


def test_long_and_empty_messages_are_replaced():
    def calls_itself(n, size):
        return calls_itself(n, size)

    def raises(error):
        def answer(n, size):
            raise error

        return answer

    fault_of = check.attention.sliding_window.fault_of
    call = "window_mask(n=1, size=1) raises "
    assert fault_of(calls_itself).seen == (
        f"{call}RecursionError: it calls itself again and again without an end."
    )
    memory = "the result needs more memory than there is."
    assert fault_of(raises(MemoryError())).seen == f"{call}MemoryError: {memory}"
    huge = fault_of(lambda n, size: torch.empty(2**60))
    assert huge.seen == f"{call}RuntimeError: {memory}"
    long = fault_of(raises(ValueError("x" * 1000 + "\nand more")))
    assert len(long.seen) == len(call) + len("ValueError: ") + 200
    assert fault_of(raises(SystemExit("done"))).seen == f"{call}SystemExit: done"


def scores(query, key):
    return query @ key.mT / query.size(-1) ** 0.5


ROWS = [
    tuple(torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in sizes)
    for sizes in ((1, 1), (2, 3), (3, 5))
]
PAIRS = [(2, 3), (3, 5), (7, 4), (4, 9)]
MIXED = [(2, 3), (7, 4), (3, 5), (4, 3), (5, 9), (9, 8)]
RELATED = [
    (lambda q, k: -scores(q, k), scores, ROWS[1:], "All signs are the other way round."),
    (lambda q, k: 3 * scores(q, k), scores, ROWS[1:], "Yours is 3 times that: is there a scale"),
    (lambda q, k: scores(k, q), scores, ROWS[1:], "The numbers are right, with the last two axes"),
    (lambda q, k: scores(q, k).exp(), scores, ROWS[1:], "Yours is e to the power of the right"),
    (lambda q, k: scores(q, k).flip(0), scores, ROWS[1:], "Axis 0 is reversed."),
    (lambda q, k: scores(q, k).softmax(0), lambda q, k: scores(q, k).softmax(1), ROWS[1:],
     "Each row has to add up to 1"),
    (lambda q, k: (2 * scores(q, k)).softmax(1), lambda q, k: scores(q, k).softmax(1), ROWS,
     "These are the weights for scores 2 times as large"),
    (lambda q, k: scores(q, k).sum(0), scores, ROWS[1:], "Yours is the sum of the right result"),
    (lambda q, k: scores(q, k)[:, 1:], scores, ROWS[1:], "What there is, is right; the first 1"),
    (lambda q, k: (q @ k.mT).softmax(1) @ k, lambda q, k: scores(q, k).softmax(1) @ k, ROWS,
     "This is the right result for q times the root of its width, not for q."),
    (lambda q, k: scores(q, k).triu(), scores, ROWS[1:], "Only numbers below the diagonal are"),
    (lambda q, k: q.sum(1).cos(), lambda q, k: (q @ k[0]).cos(), ROWS[1:],
     "Yours stays the same when k changes; the right result does not."),
    (lambda d, f: 2 * d * f, lambda d, f: 2 * d * f + d, PAIRS, "For every input yours is d less"),
    (lambda d, f: d * f, lambda d, f: d * d * f, PAIRS, "For every input yours is 1 / d times"),
    (lambda d, f: 2 * d * f + f, lambda d, f: 2 * d * f + d, PAIRS, "This is the right result wi"),
    (lambda d, f: (2 * d + f) ** 0.5, lambda d, f: 2.0 * d + f, PAIRS,
     "For every input the right result is the square of yours."),
    (lambda d, f: d * f, lambda d, f: d * f + 7 * max(f - d, 0), MIXED,
     "It is right except where d < f."),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "right", "inputs", "sentence"), RELATED)
def test_what_both_results_have_in_common_is_said(mine, right, inputs, sentence):
    names = list(right.__code__.co_varnames)
    wrong = Wrong(mine, right, names, inputs, 0, 1e-4)
    failing = [not wrong.same(*both) for both in zip(wrong.found, wrong.expected, strict=True)]
    assert explain(Wrong(mine, right, names, inputs, failing.index(True), 1e-4)).startswith(
        sentence
    )


def test_unrelated_results_are_not_explained():
    wrong = Wrong(
        lambda d, f: d**3 % 5 + 0.37, lambda d, f: 2.0 * d * f, ["d", "f"], PAIRS, 0, 1e-4
    )
    assert explain(wrong) == "Yours stays the same when f changes; the right result does not."
    wrong = Wrong(
        lambda q, k: q.cos() @ k.sin().mT, lambda q, k: scores(q, k), ["q", "k"], ROWS[1:], 0, 1e-4
    )
    assert explain(wrong) == ""


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
from minitransformer.exercises import check, checking
from minitransformer.exercises.explaining import Wrong, explain
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
