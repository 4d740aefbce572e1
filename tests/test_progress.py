"""A log gets a line now and then, a terminal a bar."""

import sys
from types import SimpleNamespace

import pytest
from helpers import copying_trainer

from minitransformer import progress
from minitransformer.progress import progress_of


def shown(first, last, seconds_of_a_step, monkeypatch):
    """The steps of which something is shown."""
    clock = iter(seconds_of_a_step * n for n in range(10**6))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress_of(first, last) as show:
        for step in range(first, last + 1):
            show(step, {"step": step, "loss": 1 / (step + 1)})


@pytest.mark.parametrize(
    ("first", "last", "seconds", "steps"),
    [
        (0, 1600, 0.01, [160 * n for n in range(1, 11)]),
        (1200, 1600, 0.01, [1280, 1440, 1600]),
        (0, 3, 0.01, [1, 2, 3]),
        (0, 40, 25, [2, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23, 24, 27, 28, 31, 32, 35, 36, 39, 40]),
    ],
)
def test_log_gets_a_line_for_a_tenth_and_after_a_minute(
    capsys, monkeypatch, first, last, seconds, steps
):
    shown(first, last, seconds, monkeypatch)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"step {n} of {last}: loss {1 / (n + 1):.3g}" for n in steps]


def test_terminal_gets_one_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_of(0, 20) as show:
        for step in range(21):
            show(step, {"step": step, "loss": 1 / (step + 1)})
    drawn = capsys.readouterr().err
    assert drawn.count("\n") == 1
    assert "20/20" in drawn
    assert "loss=0.0476" in drawn


def test_trainer_writes_lines(capsys):
    trainer = copying_trainer(20)
    trainer.fit(progress=False)
    assert capsys.readouterr().err == ""
    copying_trainer(20).fit(evaluate=lambda: {"right": 0.5}, evaluate_every=20)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {n} of 20" for n in range(2, 21, 2)]
    assert lines[-1].endswith("right 0.5")
