"""Outputs are compared as numbers: a last digit may move, and nothing else."""

import os
import re
import subprocess
import sys

import pytest
from nbformat import v4, writes

from compare_numbers import difference, differences
from notebooks import ROOT

MAY_MOVE = [
    ("mean -0.013", "mean -0.014"),
    ("3.41        40295", "3.55 40295"),
    ("95.2%", "94.1 %"),
    ("2.31e-02", "2.28e-02"),
    ("[[ 0.1250, -1.5000,  9.9000]", "[[ 0.1250,  -1.5000,  10.0100]"),
    ("[1.0000, -0.0000]", "[1.,  0.0000]"),  # as PyTorch prints what is whole
    ("1e-07", "8e-08"),
    ("−3.5 to +4.25", "−3.6 to +4.30"),
    ("range 0.5-0.7", "range 0.5-0.8"),
    ("1,234.5 s", "1,230.0 s"),
    (".5", ".52"),
]
MAY_NOT = [
    ("LayerNorm 1.0", "RMSNorm 1.0"),
    ("-0.013", "0.013"),
    ("−3.5", "3.5"),
    ("3.41", "3.65"),
    ("1e-07", "1e-08"),
    ("3,720 of 8,956", "3,721 of 8,956"),
    ("id 5", "id -5"),
    ("-inf", "inf"),
    ("0.0000", "nan"),
    ("version 2.13.0", "version 2.14.0"),
    ("95.2%", "95.2"),
    ("[9.9000]", "[9.9000, 1.0000]"),
    ("epsilon", "  epsilon"),
    ("5.", "6."),  # the end of a sentence, or an array's whole number
    ("[1 2]", "[12]"),
    ("h2", "h3"),
    ("0x1f", "0x2f"),
    ("2017-06-12", "2017-06-13"),
    ("0.0", "4.8e-07"),  # noise beside exactly nothing: the cell says which it means
]


def test_last_digit_may_move_and_nothing_else():
    assert [pair for pair in MAY_MOVE if difference(*pair) or difference(*pair[::-1])] == []
    same = [pair for pair in MAY_NOT if not (difference(*pair) and difference(*pair[::-1]))]
    assert same == []
    stored = "loss 0.5\n\nright 7"
    for now in ("right 7\n\nloss 0.5", "loss 0.5\nright 7", "loss 0.5\n\nright 7\n0.5"):
        assert list(differences(stored, now))


def test_tags_of_a_cell_ask_for_more_or_less():
    for stored, now in [("3.41", "3.42"), ("-0.0000", " 0.0000"), ("95.2%", "95.2 %")]:
        assert difference(stored, now, ["exact-numbers"])
    for stored, now in [("40295", "39961"), ("3.41", "4.10"), ("-0.013", "-0.016")]:
        assert not difference(stored, now, ["hide-input", "wide-numbers"])
    for stored, now in [("40295", "4029"), ("3.41", "-3.41"), ("no norm", "norm")]:
        assert difference(stored, now, ["wide-numbers"])


def html(text):
    return v4.new_output("display_data", {"text/html": text, "text/plain": "a table"})


def printed(text):
    return v4.new_output("stream", text=text)


SETUP = """\
class HTML:
    def __init__(self, text):
        self.text = text
    def _repr_html_(self):
        return self.text
    def __repr__(self):
        return "a table"
"""
# What a cell runs, what is stored of it, its tags, and whether it is to pass.
CELLS = [
    (SETUP, None, [], True),
    ("print('loss', 0.501)", printed("loss 0.503\n"), [], True),
    ("print('loss', 0.501)", printed("loss 0.601\n"), [], False),
    ("print(39961)", printed("40295\n"), [], False),
    ("print(39961)", printed("40295\n"), ["wide-numbers"], True),
    ("display(HTML('<td> 9.97</td>'))", html("<td>10.02</td>"), [], True),
    ("display(HTML('<td> 9.97</td>'))", html("<th>9.97</th>"), [], False),
    ("print(7)", printed("8\n"), ["nbval-ignore-output"], True),
    ("pass", printed("8\n"), [], False),
]


@pytest.mark.slow
def test_nbval_compares_so(tmp_path):
    nb = v4.new_notebook()
    for source, output, tags, _ in CELLS:
        cell = v4.new_code_cell(source, metadata={"tags": tags}, execution_count=1)
        cell.outputs = [output] if output else []
        nb.cells.append(cell)
    path = tmp_path / "small.ipynb"
    path.write_text(writes(nb), encoding="utf-8")
    options = ["--nbval", "--nbval-current-env", "--color=no", "-p", "no:cacheprovider", "-rA"]
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", *options, str(path)]
    run = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    outcomes = re.findall(r"^(PASSED|FAILED) \S*::Cell (\d+)", run.stdout, re.M)
    seen = {int(cell): outcome == "PASSED" for outcome, cell in outcomes}
    assert seen == {i: passes for i, (*_, passes) in enumerate(CELLS)}, run.stdout + run.stderr
    assert "line 1: 0.501 is not 0.601 within 5% or 2 units of the last digit\n" in run.stdout
    assert "  stored: loss 0.601\n  now:    loss 0.501\n" in run.stdout
    assert "39961 is not 40295; integers must be the same" in run.stdout
