"""Many processes are one: the same batches, the same losses, the same weights at the end.

Processes are real, and talk over the loopback. One start of them serves all runs.
"""

from functools import cache

import pytest
import torch
from helpers import assert_same, copying_trainer, refuses
from many import (
    LIMIT,
    NEEDS_FSDP,
    TRAINERS,
    assert_equal_outcome,
    assert_same_outcome,
    letters_trainer,
    outcome,
    together,
    train_all,
)
from torch.torch_version import TorchVersion

from minitransformer.parallel import ParallelTrainer, join_processes
from minitransformer.parallel.layers import compute_again
from minitransformer.parallel.trainer import check_parts

pytestmark = [pytest.mark.slow, NEEDS_FSDP]

BOUND = 1e-5
"""How far a weight may be from the other's after six steps: sums are added up in another order.

Measured: 1.2e-7 at most, and losses 1e-7 of themselves.
"""
PART_4 = {"parts": 4}
RUNS = {
    "copying, ddp": ("copying", {}, "ddp", PART_4),
    "copying, fsdp": ("copying", {}, "fsdp", PART_4),
    "letters, ddp": ("letters", {}, "ddp", PART_4),
    "letters, fsdp": ("letters", {}, "fsdp", PART_4),
    "bf16, ddp": ("copying", {"precision": "bf16"}, "ddp", PART_4),
    "bf16, fsdp": ("copying", {"precision": "bf16"}, "fsdp", PART_4),
    "computed again": ("copying", {}, "fsdp", {**PART_4, "recompute": True}),
    "clipped, ddp": ("copying", {"dropout": 0.0, "max_gradient_norm": 0.1}, "ddp", PART_4),
    "clipped, fsdp": ("copying", {"dropout": 0.0, "max_gradient_norm": 0.1}, "fsdp", PART_4),
    "letters without dropout": ("letters", {"dropout": 0.0}, "fsdp", PART_4),
    "tokens, fsdp": ("tokens", {}, "fsdp", PART_4),
    "adamw, average, fsdp": (
        "copying",
        {"optimizer": "adamw", "weight_decay": 0.1, "ema_decay": 0.9, "max_tokens_per_batch": 13},
        "fsdp",
        PART_4,
    ),
    "accumulated, ddp": (
        "letters",
        {"gradient_accumulation_steps": 4, "max_tokens_per_batch": 11},
        "ddp",
        {},
    ),
    "compiled": ("letters", {"dropout": 0.0}, "fsdp", {**PART_4, "compiled": True}),
}
OF_EACH_ENGINE = ("copying, ddp", "letters without dropout")
EVERYTHING = pytest.mark.everything
WITHOUT_DROPOUT = [
    pytest.param(name, marks=[] if name in OF_EACH_ENGINE else EVERYTHING)
    for name, run in RUNS.items()
    if run[1].get("dropout") == 0.0
]
each_start = pytest.mark.parametrize(
    ("count", "run"),
    [
        pytest.param(n, run, marks=[] if n == 2 and run in OF_EACH_ENGINE else EVERYTHING)
        for run in RUNS
        for n in (2, 4)
        if (n, run) != (4, "compiled")
    ],
)


@pytest.fixture(scope="module")
def outcomes():
    """What a run of RUNS ends with in each of so many processes, which are started once."""

    @cache
    def all_like(count, is_one_of_each):
        return together(
            count,
            train_all,
            {
                name: run
                for name, run in RUNS.items()
                if (name in OF_EACH_ENGINE) == is_one_of_each and (count, name) != (4, "compiled")
            },
        )

    return lambda count, run: [all_of[run] for all_of in all_like(count, run in OF_EACH_ENGINE)]


@each_start
def test_many_processes_are_one(outcomes, run, count):
    bound = 1e-3 if RUNS[run][1].get("precision") == "bf16" else BOUND
    assert_same_outcome(outcomes(count, run)[0], outcomes(1, run)[0], bound)


@each_start
def test_all_processes_end_with_the_same(outcomes, run, count):
    first, *others = outcomes(count, run)
    for other in others:
        assert_equal_outcome(other, first)


@pytest.mark.parametrize("run", WITHOUT_DROPOUT)
def test_without_dropout_they_are_the_plain_trainer(outcomes, run):
    kind, options, *_ = RUNS[run]
    trainer = TRAINERS[kind](**options)
    trainer.fit(progress=False)
    assert_same_outcome(outcomes(2, run)[0], outcome(trainer), BOUND)


@EVERYTHING
@pytest.mark.parametrize(
    ("run", "same"), [("tokens, fsdp", "letters, fsdp"), ("computed again", "copying, fsdp")]
)
def test_tokens_in_a_file_and_layers_computed_again_change_nothing(outcomes, run, same):
    for count in (1, 2, 4):
        assert_equal_outcome(outcomes(count, run)[0], outcomes(count, same)[0])


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["copying", "letters"])
def test_one_process_with_one_part_is_the_plain_trainer(kind, engine):
    plain, trainer = TRAINERS[kind](), TRAINERS[kind]()
    with join_processes() as processes:
        ParallelTrainer(trainer, processes, engine).fit(progress=False)
        found = outcome(trainer)
    if engine == "ddp":
        plain.fit(progress=False)
        assert found[0] == plain.history
    else:  # whose model has hooks, so it is called, and drops elements of padding too
        plain.model.register_forward_hook(lambda *_: None)
        plain.fit(progress=False)
    assert_same_outcome(found, outcome(plain), 1e-6)


# --- the loss of a batch


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["copying", "letters"])
def test_gradient_is_that_of_the_whole_batch(kind, parts):
    """Also where there are more parts than rows, so that some get none."""
    plain, dealt = TRAINERS[kind](dropout=0.0), TRAINERS[kind](dropout=0.0)
    batch = plain.epoch(0)[0]
    expected = plain.train_step(batch)
    with join_processes() as processes:
        found = ParallelTrainer(dealt, processes, parts=parts).train_step(batch)
    assert found == pytest.approx(expected, rel=1e-5)
    for (name, parameter), other in zip(
        plain.model.named_parameters(), dealt.model.parameters(), strict=True
    ):
        assert parameter.grad is not None, name
        assert_same(other.grad, parameter.grad, 1e-6)


@pytest.mark.parametrize("kind", ["copying", "letters"])
@pytest.mark.parametrize("parts", [None, 3])
def test_parts_are_what_the_plain_trainer_accumulates(kind, parts):
    plain, trainer = (TRAINERS[kind](gradient_accumulation_steps=3) for _ in range(2))
    plain.fit(progress=False)
    with join_processes() as processes:
        ParallelTrainer(trainer, processes, parts=parts).fit(progress=False)
    assert_same_outcome(outcome(trainer), outcome(plain), 1e-6)
    assert trainer.history[0]["loss"] == plain.history[0]["loss"]  # the same dropout


def test_recomputed_layer_drops_the_same_elements():
    def gradients(again):
        trainer, calls = letters_trainer(dropout=0.5), []
        layer = trainer.model.decoder.layers[0]
        layer.feed_forward.register_forward_hook(lambda *_: calls.append(1))
        if again:
            compute_again(trainer.model)
        with join_processes() as processes:
            ParallelTrainer(trainer, processes).train_step(trainer.epoch(0)[0])
        return len(calls), [parameter.grad for parameter in trainer.model.parameters()]

    (calls, once), (more_calls, again) = gradients(again=False), gradients(again=True)
    assert (calls, more_calls) == (1, 2)
    for gradient, same in zip(once, again, strict=True):
        assert torch.equal(gradient, same)


def test_group_is_let_go_of_after_the_engine():
    """Else DDP is the last one who has it, and may wait for ever for a thread of it."""
    with join_processes() as processes:
        order = list(vars(ParallelTrainer(copying_trainer(), processes)))
    assert order.index("module") < order.index("group")


# --- errors


def parallel(how, **settings):
    def call():
        with join_processes() as processes:
            ParallelTrainer(copying_trainer(**settings), processes, **how)

    return call


test_what_does_not_go_together_is_refused = refuses(
    (r"in 2 parts, which 4 processes cannot .*; start one of \[1, 2\]", lambda: check_parts(2, 4)),
    (r"in 4 parts, which 3 processes cannot .*; start one of \[1", lambda: check_parts(4, 3)),
    (r"in 6 parts, which 4 processes cannot .*; start one of \[1", lambda: check_parts(6, 4)),
    (
        "parts must be the trainer's gradient_accumulation_steps=3, got 4",
        parallel({"parts": 4}, gradient_accumulation_steps=3),
    ),
    (
        "optimizer='muon' needs whole matrices, .* engine='fsdp' .*; take engine='ddp'",
        parallel({"engine": "fsdp"}, optimizer="muon"),
    ),
    ("engine must be .* got 'mpi'", parallel({"engine": "mpi"})),
    ("limit must be above 0 seconds, got 0", lambda: join_processes(time_limit=0).__enter__()),
)


def differing_trainers():
    with join_processes(time_limit=LIMIT) as processes:
        outcomes = []
        for engine in ("ddp", "fsdp"):
            trainer = letters_trainer(dropout=0.0)
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter *= 1 + processes.rank
            ParallelTrainer(trainer, processes, engine).fit(until=2, progress=False)
            outcomes.append(outcome(trainer))
        try:
            ParallelTrainer(copying_trainer(6 + processes.rank), processes)
        except ValueError as error:
            return outcomes, str(error)


@EVERYTHING
def test_processes_with_different_trainers():
    """Other weights are not taken, neither by DDP nor by FSDP2; other settings are refused."""
    plain = letters_trainer(dropout=0.0)
    plain.fit(2, progress=False)
    for outcomes, message in together(2, differing_trainers):
        for found in outcomes:
            assert_same_outcome(found, outcome(plain), BOUND)
        assert "config must be the same in all processes, got TrainingConfig(steps=" in message
        assert "steps=6" in message
        assert "steps=7" in message


def test_pytorch_too_old_or_without_its_engine_is_told(monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.5.1"))
    message = "engine 'fsdp' needs PyTorch 2.6 or newer, got 2.5.1; engine 'ddp' does not"
    with join_processes() as processes, pytest.raises(ImportError, match=message):
        ParallelTrainer(copying_trainer(), processes, "fsdp")
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(ImportError, match=r"built here without torch\.distributed"):
        join_processes().__enter__()
