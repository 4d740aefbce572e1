"""Outputs are compared as numbers: a last digit may move, and nothing else."""

import os
import re
import subprocess
import sys
from itertools import chain

import pytest
from nbformat import v4, writes

from compare_numbers import difference, differences
from notebooks import ROOT

TABLE = """\
output            mean      deviation   after 24
------------------------------------------------
no norm           -0.013        3.41        40295
LayerNorm          0.000        1.00         1.02

3,720 of 8,956 parameters, 95.2% right; loss 2.31e-02, id 5, chapter 7
tensor([[ 0.1250, -1.5000,  9.9000],
        [ 1.0000,  0.0000, -0.0000]])
epsilon 1e-07, nan, -inf, version 2.13.0, −3.5 to +4.25, range 0.5-0.7
"""


def fell(old, new, tags=(), output=TABLE):
    assert old in output
    changed = output.replace(old, new)
    assert changed != output
    return list(differences(output, changed, tags))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-0.013", "-0.014"),
        ("3.41", "3.55"),
        ("1.02", "0.99"),
        ("95.2%", "94.1%"),
        ("95.2%", "95.2 %"),
        ("2.31e-02", "2.28e-02"),
        (" 9.9000", "10.0100"),  # and as wide
        ("[[ 0.1250, -1.5000,  9.9000]", "[[ 0.1250,  -1.5000,  10.0100]"),
        ("         1.02", "  1.02"),
        ("-0.0000", " 0.0000"),
        ("1.0000,  0.0000", "1.,  0."),  # as PyTorch prints what is whole
        ("1.0000,", "0.9998,"),
        ("1e-07", "8e-08"),
        ("−3.5", "−3.6"),
        ("+4.25", "+4.30"),
        ("0.5-0.7", "0.5-0.8"),
    ],
)
def test_last_digit_may_move(old, new):
    assert fell(old, new) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LayerNorm", "RMSNorm"),
        ("no norm", "No norm"),
        ("-0.013", "0.013"),
        ("−3.5", "3.5"),
        ("[ 1.0000", "[-1.0000"),
        ("3.41", "34.1"),
        ("3.41", "0.34"),
        ("3.41", "3.65"),
        ("2.31e-02", "2.31e-03"),
        ("2.31e-02", "2.31e+02"),
        ("1e-07", "1e-06"),
        ("1e-07", "1e-08"),
        ("40295", "39961"),
        ("3,720", "3,721"),
        ("id 5", "id 6"),
        ("chapter 7", "chapter 8"),
        ("id 5", "id -5"),
        ("nan", "0.5"),
        ("nan", "inf"),
        ("-inf", "inf"),
        ("0.0000", "nan"),
        ("2.13.0", "2.14.0"),
        ("95.2%", "95.2"),
        ("95.2%", "9.52%"),
        ("9.9000]", "9.9000, 1.0000]"),
        ("no norm           -0.013        3.41        40295\n", ""),
        ("LayerNorm          0.000        1.00         1.02\n", "\n"),
        ("epsilon", "\nepsilon"),
        ("2.13.0", "2.13.0\n1.0"),
        ("epsilon", "  epsilon"),
    ],
)
def test_everything_else_falls(old, new):
    assert fell(old, new)


def test_order_of_lines_counts():
    lines = TABLE.split("\n")
    for i in range(len(lines) - 1):
        swapped = [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        if not lines[i].startswith("---"):  # a rule and what stands below differ anyway
            assert list(differences(TABLE, "\n".join(swapped)))


def test_order_of_columns_counts():
    assert fell("0.1250, -1.5000", "-1.5000, 0.1250")


@pytest.mark.parametrize(
    ("stored", "now"),
    [
        ("0.1 m", "0.3 m"),
        ("100.0%", "95.0%"),
        ("31%", "33%"),
        ("{24: '1.70'}", "{24: '1.72'}"),
        ("x=9.97|", "x=10.02|"),
        ("loss  9.97 after", "loss 10.02 after"),
        ("1,234.5 s", "1,230.0 s"),
        ("3.5x", "3.6x"),
        (".5", ".52"),
        ("[1. 2.]", "[0.9999999 2.0000001]"),
        ("0.30000000000000004", "0.3"),
    ],
)
def test_measured(stored, now):
    assert difference(stored, now) == difference(now, stored) == ""


@pytest.mark.parametrize(
    ("stored", "now"),
    [
        ("0.1 m", "0.4 m"),
        ("0.10 m", "0.13 m"),
        ("100.0%", "94.0%"),
        ("5.", "6."),  # the end of a sentence, or an array's whole number
        ("[1. 2.]", "[1. 3.]"),
        ("[1 2]", "[12]"),
        ("1 2", "1.2"),
        ("h2", "h3"),
        ("v1.50", "v1.51"),
        ("3e8f", "3e9f"),
        ("0x1f", "0x2f"),
        ("2017-06-12", "2017-06-13"),
        ("007", "07.5"),
        ("1/3", "2/3"),
        ("0.0", "4.8e-07"),  # noise beside exactly nothing: the cell says which it means
    ],
)
def test_not_the_same(stored, now):
    assert difference(stored, now)
    assert difference(now, stored)


def test_exact_numbers():
    for old, new in [("3.41", "3.42"), ("-0.0000", " 0.0000"), ("95.2%", "95.2 %")]:
        assert fell(old, new, ["exact-numbers"])
    assert not list(differences(TABLE, TABLE, ["exact-numbers"]))


def test_wide_numbers():
    for old, new in [("40295", "39961"), ("3.41", "4.10"), ("-0.013", "-0.016")]:
        assert not fell(old, new, ["hide-input", "wide-numbers"])
    for old, new in [("40295", "4029"), ("id 5", "id 7"), ("3.41", "-3.41"), ("no norm", "norm")]:
        assert fell(old, new, ["wide-numbers"])


def test_message_shows_both_lines_and_the_number():
    (moved,) = fell("3.41", "3.91")
    assert moved == (
        "line 3: 3.91 is not 3.41 within 5% or 2 units of the last digit\n"
        "  stored: no norm           -0.013        3.41        40295\n"
        "  now:    no norm           -0.013        3.91        40295"
    )
    (counted,) = fell("40295", "39961")
    assert "line 3: 39961 is not 40295; integers must be the same\n" in counted
    (reworded,) = fell("LayerNorm", "RMSNorm")
    assert "line 4: the text differs\n" in reworded
    lines, first = fell("------------------------------------------------\n", "")
    assert lines == "9 lines, 10 are stored"
    assert first.startswith("line 2: the text differs\n")


def html(text):
    return v4.new_output("display_data", {"text/html": text, "text/plain": "a table"})


def result(text):
    return v4.new_output("execute_result", {"text/plain": text}, execution_count=1)


def printed(text):
    return v4.new_output("stream", text=text)


# What a cell runs, what is stored of it, its tags, and whether it is to pass.
CELLS = [
    ("print('loss', 0.501)", printed("loss 0.503\n"), [], True),
    ("print('loss', 0.501)", printed("lost 0.501\n"), [], False),
    ("print('loss', 0.501)", printed("loss 0.601\n"), [], False),
    ("print('loss', 0.501)", printed("loss 0.502\n"), ["exact-numbers"], False),
    ("print(39961)", printed("40295\n"), [], False),
    ("print(39961)", printed("40295\n"), ["wide-numbers"], True),
    ("[0.25, 7]", result("[0.26, 7]"), [], True),
    ("[0.25, 7]", result("[0.25, 8]"), [], False),
    ("print(0.5); print(0.6)", printed("0.5\n"), [], False),
    ("show(HTML('<td> 9.97</td>'))", html("<td>10.02</td>"), [], True),
    ("show(HTML('<td> 9.97</td>'))", html("<th>9.97</th>"), [], False),
    ("print(7)", printed("8\n"), ["nbval-ignore-output"], True),
    ("pass", printed("8\n"), [], False),
]
SETUP = """\
class HTML:
    def __init__(self, text):
        self.text = text
    def _repr_html_(self):
        return self.text
    def __repr__(self):
        return "a table"
def show(x):
    display(x)
"""


@pytest.mark.slow
def test_nbval_compares_so(tmp_path):
    nb = v4.new_notebook(cells=[v4.new_code_cell(SETUP, execution_count=1)])
    for source, output, tags, _ in CELLS:
        metadata = {"tags": tags}
        cell = v4.new_code_cell(source, outputs=[output], metadata=metadata, execution_count=1)
        nb.cells.append(cell)
    path = tmp_path / "small.ipynb"
    path.write_text(writes(nb), encoding="utf-8")
    options = ["--nbval", "--nbval-current-env", "--color=no", "-p", "no:cacheprovider", "-rA"]
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", *options, str(path)]
    run = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    outcomes = re.findall(r"^(PASSED|FAILED) \S*::Cell (\d+)", run.stdout, re.M)
    seen = {int(cell): outcome for outcome, cell in outcomes}
    expected = ["PASSED" if good else "FAILED" for good in chain([True], (c[-1] for c in CELLS))]
    assert [seen.get(i) for i in range(len(expected))] == expected, run.stdout + run.stderr
    assert "0.501 is not 0.601 within 5% or 2 units of the last digit\n" in run.stdout
    assert "  stored: loss 0.601\n  now:    loss 0.501\n" in run.stdout
    assert "39961 is not 40295; integers must be the same" in run.stdout
