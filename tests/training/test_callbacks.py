"""Callbacks come at their steps, in any run, however often it was stopped."""

import math
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import PAIRS, assert_same_weights, copying_trainer, refuses
from test_trainer import assert_same_checkpoints, assert_same_training

import minitransformer as mt
from minitransformer.training import callbacks
from minitransformer.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

SCORES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 1.5, 10: 1.7, 12: 1.6, 14: 1.8, 16: 1.0}
"""The evaluations of a training of 16 steps; with a patience of 3 it ends at step 14."""
RECIPE = {"ema_decay": 0.9, "optimizer": "adamw", "weight_decay": 0.1}


def refusing(trainer, monkeypatch):
    """The trainer, which fails where it trains."""
    monkeypatch.setattr(trainer, "train_step", lambda _: pytest.fail("trained a step"))
    return trainer


def test_hooks_come_in_order_and_may_stop_the_training():
    events = []

    class Log(mt.Callback):
        def begin(self, trainer):
            events.append("begin")

        def after_step(self, trainer):
            events.append(trainer.step)
            trainer.should_stop = trainer.step == 3

        def end(self, trainer):
            events.append("end")

    trainer = copying_trainer(6)
    trainer.fit(callbacks=[Log()], progress=False)
    assert events == ["begin", 1, 2, 3, "end"]
    trainer.fit(4, progress=False)
    assert trainer.step == 4


def test_evaluation_comes_at_its_steps_and_at_the_end_and_does_not_change_training(tmp_path):
    plain, watched = copying_trainer(8, ema_decay=0.8), copying_trainer(8, ema_decay=0.8)
    at, modes = [], []

    def evaluate():
        at.append(watched.step)
        torch.rand(3)
        share = mt.Translator(watched.model, *watched.tokenizers.values()).exact_match(PAIRS)
        watched.model.eval()  # training must not depend on the mode this leaves
        return {"exact": share, "average": watched.trained().held_out_loss(PAIRS)}

    loss = watched.loss
    watched.loss = lambda batch: modes.append(watched.model.training) or loss(batch)
    both = [mt.Evaluate(evaluate, every=3), mt.Evaluate(lambda: {"b": torch.tensor(3)}, every=4)]
    watched.fit(callbacks=both, checkpoint=tmp_path / "model", progress=False)
    assert at == [3, 6, 8]
    history = load_checkpoint(tmp_path / "model")[1]["history"]
    assert [row["step"] for row in history if row.get("average", 0) > 0] == [3, 6, 8]
    assert [row.get("b") for row in history] == [None, None, None, 3.0, None, None, None, 3.0]
    plain.fit(progress=False)
    assert modes == [True] * 8
    assert_same_weights(watched.model, plain.model)


@pytest.mark.parametrize("scores", [None, 0.5, {"a": "much"}, {"a": torch.ones(2)}, {"loss": 1.0}])
def test_other_scores_are_refused_when_they_come(scores):
    trainer = copying_trainer(6)
    with pytest.raises((TypeError, ValueError), match="an evaluation must "):
        trainer.fit(callbacks=[mt.Evaluate(lambda: scores, every=1)], progress=False)
    assert trainer.step == 1


def test_checkpoint_is_saved_at_its_steps_and_at_the_end(tmp_path, monkeypatch):
    trainer, saves, path = copying_trainer(20), [], tmp_path / "model"
    monkeypatch.setattr(trainer, "save", lambda path: saves.append((path, trainer.step)))
    trainer.fit(8, [mt.Checkpoint(path, every=3)], progress=False)
    assert saves == [(path, 3), (path, 6), (path, 8)]


test_impossible_callbacks_are_refused = refuses(
    ("every must be at least 1, got 0", lambda: mt.Evaluate(dict, 0)),
    ("every must be at least 1, got 0", lambda: mt.Checkpoint("a", 0)),
    ("patience must be at least 1, got 0", lambda: mt.EarlyStopping("score", 0)),
    ("what an evaluation returns, got 'loss'", lambda: mt.EarlyStopping("loss")),
)


def test_second_trainer_with_the_same_checkpoint_is_refused(tmp_path, monkeypatch):
    first, second = copying_trainer(6), refusing(copying_trainer(6), monkeypatch)

    def evaluate():
        with pytest.raises(ValueError, match=r"model is being written by another training"):
            second.fit(checkpoint=tmp_path / "model", progress=False)
        return {}

    first.fit(callbacks=[mt.Evaluate(evaluate)], checkpoint=tmp_path / "model", progress=False)
    assert os.listdir(tmp_path) == ["model"]
    with pytest.raises(ValueError, match="model holds another training, of 6 steps, which this"):
        second.fit(checkpoint=tmp_path / "model", progress=False)
    best = mt.EarlyStopping("a", best=str(tmp_path / "best"))
    with pytest.raises(ValueError, match="best is being written by another training, here"):
        second.fit(callbacks=[best], checkpoint=tmp_path / "best", progress=False)


def test_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / ".model.lock").mkdir()  # nobody, root neither, can write a file of that name
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"else")
    trainer = refusing(copying_trainer(6), monkeypatch)
    for name, error, message in (
        ("model", OSError, rf"{re.escape(str(tmp_path / 'model'))} cannot be written: "),
        ("folder", IsADirectoryError, "to be a file, but .*folder is a folder"),
        ("no/model", FileNotFoundError, "the folder of the checkpoint does not exist"),
        ("file", ValueError, "file is no checkpoint of a trainer, and would be replaced"),
    ):
        for asked in (mt.Checkpoint(tmp_path / name), mt.EarlyStopping("a", best=tmp_path / name)):
            with pytest.raises(error, match=message):
                trainer.fit(callbacks=[asked], progress=False)


def test_stopping_needs_what_it_watches():
    trainer = copying_trainer(6)
    both = [mt.Evaluate(lambda: {"other": 1}, every=2), mt.EarlyStopping("score")]
    with pytest.raises(ValueError, match=r"must return 'score' to watch, got \['other'\]"):
        trainer.fit(callbacks=both, progress=False)
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("scores", "patience", "higher", "best", "ends"),
    [
        ((), 1, False, None, False),
        ((3.0, 2.0, 1.0), 1, False, 6, False),
        ((3.0, 2.0, 2.0), 1, False, 4, True),  # as good is not better
        ((3.0, 2.0, 2.5, 2.1), 2, False, 4, True),
        ((3.0, 2.0, 2.5, 1.9), 2, False, 8, False),
        ((3.0, 2.0, 2.5, 2.1, 2.2), None, False, 4, False),
        ((0.1, 0.5, 0.4), 1, True, 4, True),
        ((math.nan, 2.0, math.nan), 2, False, 4, False),
        ((math.nan, 2.0, math.nan, math.nan), 2, False, 4, True),
        ((math.nan, math.nan), 2, True, None, True),
    ],
)
def test_history_says_what_is_best_and_whether_it_ends(scores, patience, higher, best, ends):
    history = [{"step": step, "loss": 1.0} for step in range(1, 2 * len(scores) + 1)]
    for row, score in zip(history[1::2], scores, strict=True):
        row["score"] = score
    stopping = mt.EarlyStopping("score", patience, higher_is_better=higher)
    found = stopping.best_row(history)
    assert (found and found["step"]) == best
    assert stopping.ends(history) == ends


def fit(trainer, folder, patience=3):
    """Train with evaluation, early stopping and two checkpoints."""
    evaluate = mt.Evaluate(lambda: {"score": SCORES[trainer.step], "drawn": torch.rand(1)}, every=2)
    stopping = mt.EarlyStopping("score", patience, folder / "best")
    trainer.fit(callbacks=[evaluate, stopping, mt.Checkpoint(folder / "last", 3)], progress=False)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    trainer = copying_trainer(16, **RECIPE)
    fit(trainer, folder)
    return folder, trainer


def test_it_ends_after_its_patience_and_keeps_the_best(straight):
    folder, trainer = straight
    assert trainer.step == mt.Trainer.resume(folder / "last", PAIRS).step == 14
    best = mt.Trainer.resume(folder / "best", PAIRS)
    assert best.history[-1] == trainer.history[7]
    assert_same_weights(mt.Translator.load(folder / "best").model, best.averaged())


@pytest.mark.parametrize("stop", [1, 3, 4, 8, 13])
@pytest.mark.parametrize("how", ["killed", "Ctrl-C"])
def test_stopped_anywhere_and_resumed_it_ends_the_same(tmp_path, straight, stop, how):
    """A kill loses the steps since the last checkpoint, Ctrl-C nothing."""
    folder, expected = straight
    trainer = copying_trainer(16, **RECIPE)
    train_step = trainer.train_step

    def stopping(batch):
        if trainer.step == stop and how == "killed":
            raise MemoryError
        if trainer.step == stop - 1 and how == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        return train_step(batch)

    trainer.train_step = stopping
    with pytest.raises(MemoryError if how == "killed" else KeyboardInterrupt):
        fit(trainer, tmp_path)
    saved = stop if how == "Ctrl-C" else stop - stop % 3
    if saved:
        trainer = mt.Trainer.resume(tmp_path / "last", PAIRS)
    else:
        trainer = copying_trainer(16, **RECIPE)
        (tmp_path / "best").unlink(missing_ok=True)
    assert trainer.step == saved
    fit(trainer, tmp_path)
    assert_same_training(trainer, expected)
    for name in ("best", "last"):
        assert_same_checkpoints(tmp_path / name, folder / name)


def test_what_has_ended_stays_so_and_goes_on_with_more_patience(tmp_path, straight):
    trainer = mt.Trainer.resume(straight[0] / "last", PAIRS)
    fit(trainer, tmp_path)
    assert trainer.step == 14
    fit(trainer, tmp_path, patience=4)
    assert trainer.step == 16
    assert mt.Trainer.resume(tmp_path / "best", PAIRS).step == 16


def interrupt_at_line(trainer, n, sent):
    """A tracer that sends Ctrl-C at the nth line of ours that runs after step 2."""
    ours = ("trainer.py", "checkpoint.py", "callbacks.py", "files.py", "test_callbacks.py")

    def trace(frame, event, _):
        if Path(frame.f_code.co_filename).name not in ours:
            return None
        if event == "line" and len(trainer.history) >= 2:
            sent.append(event)
            if len(sent) == n:
                signal.raise_signal(signal.SIGINT)
        return trace

    return trace


def test_interrupted_anywhere_and_going_on_equals_never_stopping(tmp_path):
    def fit(trainer, path):
        score = mt.Evaluate(lambda: {"loss_so_far": trainer.history[-1]["loss"]}, every=2)
        stopping = mt.EarlyStopping("loss_so_far", 1)
        trainer.fit(callbacks=[score, stopping], checkpoint=path, progress=False)

    settings = {"warmup_steps": 1, "ema_decay": 0.5}
    straight, interrupted, n = copying_trainer(3, **settings), 0, 1
    fit(straight, tmp_path / "straight")
    lines = [n]
    while len(lines) >= n:  # else it was at its end before the nth line
        trainer, path = copying_trainer(3, **settings), tmp_path / f"{n}"
        lines = []
        sys.settrace(interrupt_at_line(trainer, n, lines))
        try:
            fit(trainer, path)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        for again in (trainer, mt.Trainer.resume(path, PAIRS)):
            fit(again, path)
            assert_same_training(again, straight)
        assert_same_checkpoints(path, tmp_path / "straight")
        n += 151
    assert interrupted > 5


def test_second_signal_acts_at_once():
    trainer, train_step = copying_trainer(6), []

    def evaluate():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            train_step.append(trainer.step)

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(callbacks=[mt.Evaluate(evaluate, every=2)], progress=False)
    assert train_step == [2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def failing(do, at):
    """The same function, which fails when it is called the nth time, for each n of these."""
    calls = iter(range(1, 100))

    def call(*arguments):
        if next(calls) in at:
            raise MemoryError
        return do(*arguments)

    return call


def test_save_and_evaluation_that_failed_are_made_up_for(tmp_path):
    straight, interrupted, calls = copying_trainer(6), copying_trainer(6), []

    def score(trainer):
        calls.append(trainer.step)
        return {"score": trainer.step / 10}

    def fit(trainer, score, until=6):
        evaluate = mt.Evaluate(lambda: score(trainer), every=2)
        trainer.fit(until, [evaluate], checkpoint=tmp_path / "model", progress=False)

    score_at_last = failing(score, (1, 3))
    for until in (4, 5):
        with pytest.raises(MemoryError):
            fit(interrupted, score_at_last, until)
    save = interrupted.save
    interrupted.save = failing(save, (1,))
    with pytest.raises(MemoryError):
        fit(interrupted, score_at_last)
    fit(interrupted, score_at_last)
    assert calls == [2, 4, 6]
    assert mt.Trainer.resume(tmp_path / "model", PAIRS).step == 6
    (tmp_path / "model").unlink()
    fit(straight, score)
    assert_same_training(interrupted, straight)


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
    clock = iter(seconds * n for n in range(10**6))
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    trainer, progress = SimpleNamespace(step=first, until=last), callbacks.Progress()
    progress.begin(trainer)
    for trainer.step in range(first, last + 1):
        trainer.history = [{"step": trainer.step, "loss": 1 / (trainer.step + 1)}]
        progress.after_step(trainer)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"step {n} of {last}: loss {1 / (n + 1):.3g}" for n in steps]


def test_terminal_gets_one_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    copying_trainer(20).fit()
    drawn = capsys.readouterr().err
    assert drawn.count("\n") == 1
    assert "20/20" in drawn
    assert "loss=" in drawn


def test_trainer_writes_lines_unless_told_not_to(capsys):
    copying_trainer(20).fit(progress=False)
    assert capsys.readouterr().err == ""
    copying_trainer(20).fit(callbacks=[mt.Evaluate(lambda: {"right": 0.5}, every=20)])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {n} of 20" for n in range(2, 21, 2)]
    assert lines[-1].endswith("right 0.5")
