"""The command line under PyTorch's `torchrun`: one is killed, all restarted, then told to stop."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from helpers import PAIRS, SMALL_JOB
from many import LIMIT, assert_equal_outcome, outcome, together

import minitransformer.__main__ as command_line
from minitransformer import Trainer, TrainingConfig
from minitransformer.parallel import ParallelTrainer, join_processes
from minitransformer.parallel.checkpoints import checkpoints_in, read_state

pytestmark = [pytest.mark.slow, pytest.mark.everything]

STEPS = 103
OPTIONS = ["--checkpoint", "model.safetensors", "--device", "cpu"]
JOB = """
import os, pathlib, signal, sys, time
import torch
from helpers import SMALL_JOB
import minitransformer.__main__ as command_line

def begun_trainer(*arguments):
    trainer = begun(*arguments)
    loss = trainer.loss
    def troubled(rows):
        first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_time and trainer.step == 70 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if not first_time and trainer.step == 75:
            pathlib.Path("restarted").touch()
            time.sleep(0.5)
        return loss(rows)
    trainer.loss = troubled
    return trainer

torch.set_num_threads(1)
begun, command_line.begun_trainer = command_line.begun_trainer, begun_trainer
command_line.JOBS["number-words"] = SMALL_JOB
command_line.main(sys.argv[1:])
"""


@pytest.fixture
def torchrun(tmp_path):
    """The job, a smaller one than the command line's, on two processes."""
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "2", "--monitor-interval", "0.1"]
    command += ["job.py", "train", "--steps", str(STEPS), *OPTIONS]
    path = os.pathsep.join(map(os.path.abspath, [Path(__file__).parent, *sys.path]))
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.communicate()


def to_the_end():
    """What two processes end with that nothing stops."""
    trainer = SMALL_JOB.new_trainer(TrainingConfig(steps=STEPS, warmup_steps=STEPS // 4))
    with join_processes(time_limit=LIMIT) as processes:
        ParallelTrainer(trainer, processes).fit(progress=False)
    return outcome(trainer)


def command(folder):
    """What the command prints on standard output, and on the other, in each of two processes."""
    os.chdir(folder)
    command_line.JOBS["number-words"] = SMALL_JOB
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        command_line.main(["train", "--steps", str(STEPS), *OPTIONS])
    return out.getvalue(), err.getvalue()


def test_killed_then_restarted_then_told_to_stop_it_ends_at_the_same_weights(torchrun, tmp_path):
    deadline = time.monotonic() + 3 * LIMIT
    while not (tmp_path / "restarted").exists():
        assert torchrun.poll() is None, torchrun.communicate()[1]
        assert time.monotonic() < deadline, "it has not restarted"
        time.sleep(0.05)
    torchrun.send_signal(signal.SIGTERM)
    out, err = torchrun.communicate(timeout=LIMIT)
    assert torchrun.returncode != 0
    assert out == ""
    state, _ = read_state(checkpoints_in(tmp_path / "model.shares")[-1])
    assert 75 <= state["step"] < STEPS
    told = re.findall(r"told to stop after step (\d+)", err)
    assert told == [str(state["step"])]  # one process says it
    # The same command goes on; one process prints and draws.
    (out, err), *others = together(2, command, tmp_path)
    assert others == [("", "")]
    assert out.startswith(f"trained {STEPS} steps; saved to model.safetensors\nexact match, held_")
    assert f"step {STEPS} of {STEPS}" in err
    trained = Trainer.resume(tmp_path / "model.safetensors", PAIRS)
    assert_equal_outcome(outcome(trained), together(2, to_the_end)[0])
