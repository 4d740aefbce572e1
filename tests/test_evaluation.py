"""What was held out is measured as defined; a training ends where its history says."""

import math
import signal

import pytest
import torch
import torch.nn.functional as F
from helpers import PAIRS, copying_trainer
from test_trainer import assert_same_checkpoints, assert_same_training

from minitransformer import (
    EarlyStopping,
    Trainer,
    Translator,
    collate,
    encode_pairs,
    load_checkpoint,
)

# --- the loss of what was held out


def expected_loss(trainer, pairs):
    batch = collate(encode_pairs(pairs, *trainer.tokenizers.values()))
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(batch.src, batch.tgt_input)
    return F.cross_entropy(logits.transpose(1, 2), batch.tgt_output, ignore_index=0).item()


@pytest.mark.parametrize("batch_size", [1, 3, 4, 64])
def test_held_out_loss_is_the_mean_over_tokens_in_any_batches(batch_size):
    trainer = copying_trainer()
    found = Translator(trainer.model, *trainer.tokenizers.values()).held_out_loss(
        iter(PAIRS), batch_size=batch_size
    )
    assert found == pytest.approx(expected_loss(trainer, PAIRS), rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_measuring_leaves_the_model_as_it_is(training):
    trainer = copying_trainer()
    trainer.model.train(training)
    before = torch.get_rng_state()
    first, second = (
        Translator(trainer.model, *trainer.tokenizers.values()).held_out_loss(PAIRS)
        for _ in range(2)
    )
    assert first == second
    assert trainer.model.training == training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_held_out_loss_of_nothing_is_refused():
    trainer = copying_trainer()
    with pytest.raises(ValueError, match="pairs must hold at least 1 pair, got 0"):
        Translator(trainer.model, *trainer.tokenizers.values()).held_out_loss([])
    with pytest.raises(ValueError, match="10 examples and batch_size=0"):
        Translator(trainer.model, *trainer.tokenizers.values()).held_out_loss(PAIRS, batch_size=0)
    with pytest.raises(TypeError, match="pairs must be of two texts each, but number 0 is 'a'"):
        Translator(trainer.model, *trainer.tokenizers.values()).held_out_loss(["a"])


# --- when to end


def history_of(*scores):
    """A history whose every second step was evaluated."""
    rows = [{"step": step, "loss": 1.0} for step in range(1, 2 * len(scores) + 1)]
    for row, score in zip(rows[1::2], scores, strict=True):
        row["score"] = score
    return rows


@pytest.mark.parametrize(
    ("scores", "patience", "higher", "best", "ends"),
    [
        ((), 1, False, None, False),
        ((3.0,), 1, False, 2, False),
        ((3.0, 2.0, 1.0), 1, False, 6, False),
        ((3.0, 2.0, 2.0), 1, False, 4, True),  # as good is not better
        ((3.0, 2.0, 2.5), 2, False, 4, False),
        ((3.0, 2.0, 2.5, 2.1), 2, False, 4, True),
        ((3.0, 2.0, 2.5, 1.9), 2, False, 8, False),
        ((3.0, 2.0, 2.5, 2.1, 2.2), None, False, 4, False),
        ((0.1, 0.5, 0.4), 1, True, 4, True),
        ((0.1, 0.5, 0.4), 1, False, 2, True),
        ((math.nan, 2.0, math.nan), 2, False, 4, False),
        ((math.nan, 2.0, math.nan, math.nan), 2, False, 4, True),
        ((math.nan, math.nan), 2, True, None, True),
    ],
)
def test_history_says_what_is_best_and_whether_it_ends(scores, patience, higher, best, ends):
    history = history_of(*scores)
    stopping = EarlyStopping("score", patience, higher_is_better=higher)
    found = stopping.best_row(history)
    assert (found and found["step"]) == best
    assert stopping.ends(history) == ends


@pytest.mark.parametrize("patience", [0, -3])
def test_no_patience_is_refused(patience):
    with pytest.raises(ValueError, match=f"patience must be at least 1, got {patience}"):
        EarlyStopping("score", patience)


@pytest.mark.parametrize("name", ["loss", "learning_rate", "step"])
def test_what_every_step_has_is_not_watched(name):
    with pytest.raises(ValueError, match=f"a number that evaluate returns, got '{name}'"):
        EarlyStopping(name)


def test_stopping_needs_what_it_watches(tmp_path):
    trainer = copying_trainer(6)
    with pytest.raises(ValueError, match="stopping watches 'score', but evaluate is None"):
        trainer.fit(stopping=EarlyStopping("score"), progress=False)
    message = r"evaluate must return 'score', which is watched, got \['other'\]"
    with pytest.raises(ValueError, match=message):
        trainer.fit(
            stopping=EarlyStopping("score"),
            evaluate=lambda: {"other": 1},
            evaluate_every=2,
            progress=False,
        )
    assert trainer.step == 2
    assert "other" not in trainer.history[-1]


def test_best_and_last_are_two_files(tmp_path):
    trainer, path = copying_trainer(6), tmp_path / "model"
    stopping = EarlyStopping("score", best=str(path))
    with pytest.raises(ValueError, match=r"must be two files, got .*model"):
        trainer.fit(stopping=stopping, evaluate=dict, checkpoint=path, progress=False)


def test_missing_folder_of_the_best_is_told_before_the_first_step(tmp_path):
    trainer, stopping = copying_trainer(6), EarlyStopping("score", best=tmp_path / "no" / "best")
    with pytest.raises(FileNotFoundError, match="the folder of the checkpoint does not exist"):
        trainer.fit(stopping=stopping, evaluate=dict, progress=False)
    assert trainer.step == 0


# --- a training that ends early

SCORES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 1.5, 10: 1.7, 12: 1.6, 14: 1.8, 16: 1.0}
"""The evaluations of a training of 16 steps; with a patience of 3 it ends at step 14."""


def fit(trainer, folder, until=None, patience=3, evaluate=None):
    stopping = EarlyStopping("score", patience, folder / "best")
    return trainer.fit(
        until,
        evaluate=evaluate or (lambda: {"score": SCORES[trainer.step]}),
        evaluate_every=2,
        checkpoint=folder / "last",
        checkpoint_every=3,
        stopping=stopping,
        progress=False,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    trainer = copying_trainer(16, average=0.9, optimizer="adamw", weight_decay=0.1)
    fit(trainer, folder)
    return folder, trainer


@pytest.mark.slow
def test_it_ends_after_its_patience_and_keeps_the_best(straight):
    folder, trainer = straight
    assert trainer.step == 14
    assert Trainer.resume(folder / "last", PAIRS).step == 14
    assert load_checkpoint(folder / "best")[1]["history"][-1] == trainer.history[7]
    best = Trainer.resume(folder / "best", PAIRS)
    assert best.step == 8
    model = Translator.load(folder / "best").model
    expected = best.averaged()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, expected.get_parameter(name)), name


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 7, 8, 9, 11, 13])
def test_stopped_by_force_and_resumed_it_ends_the_same(tmp_path, straight, stop):
    folder, expected = straight
    trainer = copying_trainer(16, average=0.9, optimizer="adamw", weight_decay=0.1)
    train_step = trainer.train_step

    def killed(batch):
        if trainer.step == stop:
            raise KeyboardInterrupt
        return train_step(batch)

    trainer.train_step = killed
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, tmp_path)
    if stop < 3:  # before the first checkpoint
        trainer.train_step = train_step
    else:
        trainer = Trainer.resume(tmp_path / "last", PAIRS)
        assert trainer.step == stop - stop % 3
    fit(trainer, tmp_path)
    assert_same_training(trainer, expected)
    for name in ("best", "last"):
        assert_same_checkpoints(tmp_path / name, folder / name)


@pytest.mark.slow
def test_what_has_ended_stays_so_and_goes_on_with_more_patience(tmp_path, straight):
    trainer = Trainer.resume(straight[0] / "last", PAIRS)
    fit(trainer, tmp_path)
    assert trainer.step == 14
    fit(trainer, tmp_path, patience=4)
    assert trainer.step == 16
    assert Trainer.resume(tmp_path / "best", PAIRS).step == 16


@pytest.mark.slow
@pytest.mark.parametrize("patience", [3, None])
def test_interrupted_save_of_the_best_is_made_up_for(tmp_path, patience, monkeypatch):
    trainer = copying_trainer(16)
    save, interrupted = trainer.save, []

    def interrupting(path):
        if path.name == "best" and trainer.step == 8 and not interrupted:
            interrupted.append(path)
            signal.raise_signal(signal.SIGINT)
        save(path)

    monkeypatch.setattr(trainer, "save", interrupting)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, tmp_path, patience=patience)
    assert Trainer.resume(tmp_path / "best", PAIRS).step == 4
    fit(trainer, tmp_path, patience=patience)
    assert trainer.step == (14 if patience else 16)
    assert Trainer.resume(tmp_path / "best", PAIRS).step == (8 if patience else 16)


@pytest.mark.slow
def test_evaluating_the_average_changes_nothing(tmp_path):
    plain, watched = (copying_trainer(6, average=0.8) for _ in range(2))
    plain.fit(progress=False)
    tokenizers = watched.tokenizers.values()
    fit(
        watched,
        tmp_path,
        evaluate=lambda: {
            "score": Translator(watched.averaged(), *tokenizers).held_out_loss(PAIRS)
        },
    )
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, watched.model.get_parameter(name)), name
    assert watched.history[-1]["score"] > 0
