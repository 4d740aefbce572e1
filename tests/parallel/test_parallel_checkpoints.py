"""A training on many processes loses nothing but the steps since its last checkpoint.

Faults are real ones, of real processes on the loopback.
"""

import os
import re
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from helpers import PAIRS, copying_trainer
from many import (
    LIMIT,
    NEEDS_FSDP,
    assert_equal_outcome,
    assert_same_outcome,
    outcome,
    together,
    train_all,
    train_one,
)

from minitransformer import Checkpoint, Trainer
from minitransformer.parallel import ParallelTrainer, checkpoints, gather, join_processes
from minitransformer.training.checkpoint import load_checkpoint

pytestmark = [pytest.mark.slow, NEEDS_FSDP]

EVERYTHING = pytest.mark.everything
BOUND = 1e-5
EVERY = 2  # steps between checkpoints
END = 6


def run(folder, **changes):
    """A run of six steps on some processes, with a checkpoint every two."""
    how = {"parts": 4, "fit": {"callbacks": [Checkpoint(folder, EVERY)]}} | changes
    return ("copying", {}, "fsdp", how)


def until(folder, step, **changes):
    """The same, ended at a step."""
    return run(folder, fit={"callbacks": [Checkpoint(folder, EVERY)], "until": step}, **changes)


def names(folder):
    """What is in a folder, hidden or not."""
    return sorted(os.listdir(folder))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What two processes end with that nothing has stopped."""
    return together(2, train_one, *run(tmp_path_factory.mktemp("straight")))[0]


# --- resume = never stopped


@pytest.mark.parametrize("engine", [pytest.param("ddp", marks=EVERYTHING), "fsdp"])
def test_resuming_equals_never_stopping(tmp_path, engine):
    kind, options, _, how = run(tmp_path / "straight")
    stopped = until(tmp_path / "stopped", 3)[3]
    resumed = run(tmp_path / "stopped")[3]
    cases = {"straight": how, "stopped": stopped, "resumed": resumed}
    cases = {name: (kind, options, engine, case) for name, case in cases.items()}
    found = together(2, train_all, cases)[0]
    assert found["resumed"][0] == found["straight"][0]
    assert_equal_outcome(found["resumed"], found["straight"])
    assert names(tmp_path / "stopped") == ["step-00000004", "step-00000006"]


@EVERYTHING
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4), (4, 2)])
def test_any_number_of_processes_goes_on(tmp_path, straight, before, after):
    together(before, train_one, *until(tmp_path, 3))
    found = together(after, train_one, *run(tmp_path, parts=None))[0]  # as many as it had
    assert_same_outcome(found, straight, BOUND)


@EVERYTHING
def test_either_engine_goes_on_from_the_other(tmp_path):
    """Without dropout; with it, the layers of "ddp" go the fast way, which draws other numbers."""
    found = {}
    for first, second in (("ddp", "fsdp"), ("fsdp", "ddp")):
        for engine, step in ((first, 3), (second, END)):
            trainer = copying_trainer(END, dropout=0.0)
            with join_processes() as processes:
                parallel = ParallelTrainer(trainer, processes, engine)
                parallel.fit(step, checkpoint=tmp_path / first, progress=False)
                found[first] = outcome(trainer)
    assert_same_outcome(found["ddp"], found["fsdp"], BOUND)


# --- the single file, and back


def test_gathered_file_is_what_the_plain_trainer_writes(tmp_path, straight):
    trainer = copying_trainer(END)
    with join_processes() as processes:
        ParallelTrainer(trainer, processes).fit(3, checkpoint=tmp_path / "shares", progress=False)
    trainer.save(tmp_path / "plain")
    gather(tmp_path / "shares", tmp_path / "gathered")
    tensors, state = load_checkpoint(tmp_path / "gathered")
    expected_tensors, expected = load_checkpoint(tmp_path / "plain")
    assert state == expected | {"parts": 1}
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == expected_tensors[name].dtype
        assert torch.equal(tensor, expected_tensors[name]), name


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_training_with_an_average_goes_from_a_file_into_shares_and_back(tmp_path, engine):
    settings = {"dropout": 0.0, "ema_decay": 0.8, "optimizer": "adamw", "weight_decay": 0.1}
    plain, begun = (copying_trainer(END, **settings) for _ in range(2))
    plain.fit(progress=False)
    begun.fit(1, checkpoint=tmp_path / "file", progress=False)
    for until in (3, 5):  # from a file into shares, and from shares into others
        trainer = Trainer.resume(tmp_path / "file", PAIRS)
        with join_processes() as processes:
            parallel = ParallelTrainer(trainer, processes, engine, parts=3)
            parallel.fit(until, checkpoint=tmp_path / "shares", progress=False)
    gather(tmp_path / "shares", tmp_path / "file")
    resumed = Trainer.resume(tmp_path / "file", PAIRS)
    assert resumed.step == 5
    resumed.fit(progress=False)
    assert_same_outcome(outcome(resumed), outcome(plain), BOUND)
    for trainer in (resumed, plain):
        trainer.model = trainer.averaged()
    assert_same_outcome(outcome(resumed), outcome(plain), BOUND)


def test_nothing_to_gather_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        gather(tmp_path, tmp_path / "file")


# --- faults


@dataclass
class Trouble:
    """Something that happens to one process before it computes the loss of its part of a step."""

    rank: int
    step: int
    happens: Callable[[], None]

    def __call__(self, trainer, processes):
        if processes.rank == self.rank:
            seed = trainer.seed

            def troubled(step, part):
                if step == self.step:
                    self.step = None  # once
                    self.happens()
                seed(step, part)

            trainer.seed = troubled


@dataclass
class KilledIn:
    """A process dies at step 4 in a function of `checkpoints`."""

    rank: int
    name: str

    def __call__(self, trainer, processes):
        function = getattr(checkpoints, self.name)

        def die(trainer, *others):
            if trainer.step == 4:
                if self.name == "finish":  # all shares are there, and half of the state
                    (others[1] / "state.json").write_text('{"state": ')
                kill()
            return function(trainer, *others)

        if processes.rank == self.rank:
            setattr(checkpoints, self.name, die)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def hang():
    time.sleep(LIMIT)


def fill_the_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


VAIN = "TimeoutError.*waited for process {} of 2 in vain"
FULL = "OSError.*step-00000004 could not be written by process 1 of 2: .*File too large"
STOPPED = "KeyboardInterrupt.*told to stop after step 3"
DRILLS = {
    "killed in a step": (Trouble(1, 4, kill), [VAIN.format(1), "EOFError"], 2),
    "killed while writing": (KilledIn(0, "finish"), ["EOFError", VAIN.format(0)], 2),
    "killed while sharing": (KilledIn(1, "tensors_of"), [VAIN.format(1), "EOFError"], 2),
    "full disk": (Trouble(1, 4, fill_the_disk), [FULL, FULL], 2),
    "told to stop": (Trouble(1, 3, terminate), [STOPPED, STOPPED], 3),
}
"""What happens, what each of two processes then says, and the step of the last checkpoint."""


@pytest.mark.parametrize(
    "drill",
    [pytest.param(name, marks=EVERYTHING if i else ()) for i, name in enumerate(DRILLS)],
)
def test_trouble_costs_the_steps_since_the_last_checkpoint(tmp_path, straight, drill):
    trouble, messages, saved = DRILLS[drill]
    results = together(2, train_one, *run(tmp_path, trouble=trouble), errors=True)
    for result, message in zip(results, messages, strict=True):
        assert re.search(message, repr(result), re.DOTALL), result
    assert checkpoints.checkpoints_in(tmp_path)[-1].name == f"step-{saved:08d}"
    assert_equal_outcome(together(2, train_one, *run(tmp_path))[0], straight)
    assert names(tmp_path) == ["step-00000004", "step-00000006"]


@EVERYTHING
def test_hanging_process_is_named_after_the_time_limit(tmp_path):
    trouble = Trouble(1, 3, hang)
    for limit in (2, 20, 200):  # where the machine has much else to do, 2 s are short for any step
        hung = run(tmp_path / str(limit), trouble=trouble)
        (error,) = together(2, train_one, *hung, limit, errors=True, wanted=1)
        assert isinstance(error, TimeoutError), error
        if "step 3: " in str(error):
            break
    message = f"process 0 waited for process 1 of 2 in vain, which ended or has hung for {limit} s"
    assert f"step 3: {message}" in str(error)


@EVERYTHING
def test_two_trainings_in_one_folder_are_refused(tmp_path):
    with join_processes() as processes, checkpoints.sole_training(tmp_path / "a", processes):
        for error in together(2, train_one, *run(tmp_path / "a"), errors=True):
            assert isinstance(error, ValueError), error
            assert "a is being written by another training" in str(error)
    assert names(tmp_path) == ["a"]


@EVERYTHING
def test_wrong_number_of_processes_is_refused(tmp_path):
    together(2, train_one, *until(tmp_path, 2, parts=None))
    message = "dealt in 2 parts, which 4 processes cannot share evenly; start one of [1, 2]"
    for error in together(4, train_one, *run(tmp_path, parts=None), errors=True):
        assert isinstance(error, ValueError), error
        assert message in str(error)


def come_or_stay_away():
    if os.environ["RANK"] == "0":
        with join_processes(time_limit=2):
            pass


@EVERYTHING
def test_process_that_never_comes_is_told():
    error, _ = together(2, come_or_stay_away, errors=True)
    assert isinstance(error, TimeoutError), error
    assert "not all 2 processes came within 2 seconds" in str(error)


@pytest.fixture
def saved(tmp_path):
    """One process, and a folder with its checkpoint of step 2."""
    with join_processes() as processes:
        ParallelTrainer(copying_trainer(), processes).fit(2, checkpoint=tmp_path, progress=False)
        yield processes, tmp_path


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "state.json"])
def test_damaged_checkpoint_is_named(saved, name):
    processes, folder = saved
    path = folder / "step-00000002" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    other = ParallelTrainer(copying_trainer(), processes)
    with pytest.raises(ValueError, match=rf"{name} is damaged: its SHA-256 is"):
        other.fit(checkpoint=folder, progress=False)
    with pytest.raises(ValueError, match=rf"{name} is damaged: its SHA-256 is"):
        gather(folder, folder / "file")


@pytest.mark.parametrize(
    ("changes", "parts", "message"),
    [
        ({"seed": 7}, None, r"its training is \{'seed': 5\}, not \{'seed': 7\}"),
        ({"dropout": 0.1}, None, r"its model is \{'dropout': 0.3\}, not \{'dropout': 0.1\}"),
        ({}, 3, "has batches dealt in 1 parts, not in 3"),
    ],
)
def test_checkpoint_of_another_training_is_refused(saved, changes, parts, message):
    processes, folder = saved
    other = ParallelTrainer(copying_trainer(**changes), processes, parts=parts)
    with pytest.raises(ValueError, match=message):
        other.fit(checkpoint=folder, progress=False)
