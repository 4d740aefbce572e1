"""The speedrun: Muon is PyTorch's, records change what they name, runs go on after any stop."""

import doctest
import json
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from minitransformer import TextPair, Trainer

FOLDER = Path(__file__).parent.parent / "benchmarks"
MODULES = ("muon", "speedrun", "speedrun_records", "speedrun_training", "torch_transformer")
TINY = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 2}
TINY |= {"d_ff": 20, "norm_first": True, "max_len": 32}


@pytest.fixture(scope="module")
def modules():
    """The files, as modules, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield {name: __import__(name) for name in MODULES}


@pytest.fixture
def program(modules):
    return modules["speedrun"]


@pytest.fixture
def records(modules):
    return modules["speedrun_records"]


@pytest.fixture
def training(modules):
    return modules["speedrun_training"]


@pytest.fixture
def tiny(modules, records, training, monkeypatch):
    """A task of a few pairs and steps, of which next to nothing is learned."""

    def pairs(seed):
        letters = "abcdefgh"
        drawn = torch.randint(8, (30, 5), generator=torch.Generator().manual_seed(seed)).tolist()
        texts = [" ".join(letters[i] for i in row[: 2 + row[0] % 4]) for row in drawn]
        found = [TextPair(text, text[::-1]) for text in texts]
        return {"train": found, "held_out": found[:6]}

    short = {"steps": 6, "warmup_steps": 2, "batch_size": 4}
    task = records.Task(
        "tiny",
        0.5,
        (
            records.Record("baseline", "", short),
            records.Record("the package", "", {"library": "ours"}),
            records.Record("Muon", "", {"optimizer": "muon", "steps": 5}),
            records.Record("no dropout", "", {"dropout": 0.0}),
        ),
    )
    monkeypatch.setattr(training, "SIZES", TINY)
    monkeypatch.setitem(training.SPLITS, "tiny", pairs)
    for name in list(records.TASKS):
        monkeypatch.delitem(records.TASKS, name)
    monkeypatch.setitem(records.TASKS, "tiny", task)
    return task


# --- Muon


def matrices(*shapes):
    """Parameters of these shapes, drawn anew from one seed."""
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


SHAPES = ((6, 6), (6, 9), (6, 6), (9, 6), (6, 9))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_is_that_of_pytorch(modules, decay):
    ours, theirs, begun = (matrices(*SHAPES) for _ in range(3))
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": decay}
    optimizers = modules["muon"].Muon(ours, **options), torch.optim.Muon(theirs, **options)
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, start in zip(ours, theirs, begun, strict=True):
        moved = (other - start).norm()
        assert (one - other).norm() < 0.03 * moved  # both round products to eight bits


def test_matrices_of_a_stack_do_not_mix(modules):
    orthogonalise = modules["muon"].orthogonalise
    stack = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = orthogonalise(stack, dtype=torch.float64)
    alone = [orthogonalise(matrix, dtype=torch.float64) for matrix in stack]
    torch.testing.assert_close(together, torch.stack(alone))
    turned = orthogonalise(stack.mT, dtype=torch.float64)
    torch.testing.assert_close(turned, together.mT)


def test_orthogonalise_keeps_directions_and_evens_out_lengths(modules):
    generator = torch.Generator().manual_seed(1)
    u, _ = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=generator))
    v, _ = torch.linalg.qr(torch.randn(11, 7, dtype=torch.float64, generator=generator))
    values = torch.tensor([5.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.2], dtype=torch.float64)
    found = u.T @ modules["muon"].orthogonalise(u * values @ v.T, dtype=torch.float64) @ v
    assert ((found.diagonal() > 0.6) & (found.diagonal() < 1.25)).all()
    assert (found - found.diagonal().diag()).abs().max() < 1e-9


def test_zero_gradients_move_nothing(modules):
    (matrix,) = matrices((4, 6))
    before = matrix.detach().clone()
    matrix.grad = torch.zeros(4, 6)
    modules["muon"].Muon([matrix]).step()
    assert torch.equal(matrix, before)


def test_examples(modules):
    found = doctest.testmod(modules["muon"])
    assert found.failed == 0 < found.attempted


def test_muon_is_for_matrices(modules):
    with pytest.raises(ValueError, match=r"Muon is for matrices, got shape \(3,\)"):
        modules["muon"].Muon([nn.Parameter(torch.zeros(3))])


# --- recipes


def test_records_are_diffs(records):
    for task in records.TASKS.values():
        assert len({record.name for record in task.records}) == len(task.records)
        numbers = range(1, len(task.records))
        recipes = [task.recipe(number) for number in range(len(task.records))]
        assert recipes[0].library == "torch"
        assert recipes[0].optimizer == "adam"
        assert recipes[1] == replace(recipes[0], library="ours")
        for number in numbers:
            before, after = asdict(recipes[number - 1]), asdict(recipes[number])
            changed = {name for name in after if after[name] != before[name]}
            assert changed == task.records[number].changes.keys() != set()
        seen = [recipe.steps * recipe.batch_size for recipe in recipes]
        assert seen == sorted(
            seen, reverse=True
        )  # what a diff may cost in steps, it saves in pairs


def test_effects_have_the_length_of_the_last(records, tiny):
    last = tiny.recipe(3)
    assert tiny.alone(1) == replace(tiny.recipe(1), steps=5)
    assert tiny.alone(3) == replace(tiny.recipe(1), steps=5, dropout=0.0)
    assert tiny.without(2) == replace(last, optimizer="adam")
    assert tiny.without(1) == replace(last, library="torch")


# --- training


def test_torch_and_ours_start_alike(training, tiny):
    recipe = replace(tiny.recipe(0), dropout=0.0)
    trainers = [
        training.new_trainer("tiny", replace(recipe, library=name), 1) for name in ("torch", "ours")
    ]
    losses = [t.loss(t.epoch(0)[0]).item() for t in trainers]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    copy = training.as_ours(trainers[0].model, recipe)
    for one, other in zip(copy.parameters(), trainers[1].model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_weight_has_one_optimiser(training, tiny):
    for name in ("adam", "muon"):
        recipe = replace(tiny.recipe(3), optimizer=name, embedding_rate=2.0)
        trainer = training.new_trainer("tiny", recipe, 0)
        groups = [g for o in trainer.optimizer.optimizers for g in o.param_groups]
        found = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(found) == sorted(id(p) for p in trainer.model.parameters())
        trainer.train_step(trainer.epoch(0)[0])
        embedding = trainer.model.src_embedding.weight
        rates = {g["lr"] for g in groups if any(p is embedding for p in g["params"])}
        assert rates == {2 * trainer.history[0]["learning_rate"]}


def test_own_optimiser_without_own_rates_is_the_trainers(training, tiny):
    trainers = [training.new_trainer("tiny", tiny.recipe(3), 0) for _ in range(2)]
    recipe = replace(tiny.recipe(3), optimizer="adam")
    trainers[0].optimizer = training.optimizers_of(recipe, trainers[0].model)
    trainers[1].optimizer = Trainer(
        trainers[1].model,
        trainers[1].texts,
        *trainers[1].tokenizers.values(),
        trainers[1].config,
    ).optimizer
    for trainer in trainers:
        trainer.fit(progress=False)
    pairs = zip(*(trainer.model.parameters() for trainer in trainers), strict=True)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs)


def test_the_line_ends_at_zero(training):
    config = training.LinearConfig(steps=50, warmup_steps=10, peak_learning_rate=0.5)
    rates = [config.learning_rate(step, 12) for step in range(1, 51)]
    assert rates[9] == max(rates) == 0.5
    falls = [after - before for before, after in pairwise(rates[9:])]
    assert rates[-1] == pytest.approx(-falls[0])
    assert falls == pytest.approx([falls[0]] * 40)


def test_starts_and_norms(training, tiny):
    plain = training.new_model(tiny.recipe(1), (9, 9), 0).eval()
    zero = training.new_model(replace(tiny.recipe(1), zero_start=True), (9, 9), 0).eval()
    normed = training.new_model(replace(tiny.recipe(1), qk_norm=True), (9, 9), 0)
    x = torch.randn(2, 5, 12)
    assert torch.equal(zero.encoder.layers[0](x), x)
    assert not torch.equal(plain.encoder.layers[0](x), x)
    assert all(layer.self_attention.norm_q is not None for layer in normed.decoder.layers)
    assert all(layer.cross_attention.norm_q is None for layer in normed.decoder.layers)


def test_batches_of_phases(training, tiny):
    recipe = replace(tiny.recipe(1), steps=8, first_batch_size=2, short_first=0.25)
    trainer = training.new_trainer("tiny", recipe, 0)
    median = sorted(len(e.src) + len(e.tgt) for e in trainer.examples)[15]
    sizes, lengths = [], []
    for batch in trainer.batches():
        trainer.train_step(batch)
        sizes.append(len(batch))
        lengths.append(max(len(e.src) + len(e.tgt) for e in batch))
    assert trainer.step == 8
    assert max(sizes[:4]) == 2  # the last of a pass may be smaller
    assert max(sizes[4:]) == 4
    assert max(lengths[:2]) <= median


def test_mean_of_weights(training, tiny):
    trainer = training.new_trainer("tiny", replace(tiny.recipe(1), average=0.8), 0)
    weight = trainer.model.tgt_embedding.weight
    mean = weight.detach().clone()
    for batch in trainer.epoch(0)[:3]:
        trainer.train_step(batch)
        mean = 0.8 * mean + 0.2 * weight.detach()
    assert not torch.allclose(weight, mean)
    trainer.finish()
    assert torch.allclose(weight, mean, atol=1e-6)


# --- runs, file and table


def test_what_happens_evenly(program):
    for steps, times in ((7, 3), (12, 12), (100, 24), (5, 24)):
        due = [step for step in range(1, steps + 1) if program.is_due(step, steps, times)]
        assert len(due) == min(steps, times)
        assert due[-1] == steps


def test_paces_are_of_all_lengths(program):
    batches = [[([0] * length, [0])] for length in (5, 1, 4, 2, 3, 9)]
    found = [len(batch[0][0]) for batch in program.of_all_lengths(batches, 3)]
    assert found == [2, 4, 9]
    assert len(list(program.of_all_lengths(batches, 24))) == 24


def test_runs_go_on(program, tiny, tmp_path, monkeypatch, capsys):
    file = tmp_path / "runs.jsonl"
    monkeypatch.setattr(program, "PACES", 2)
    monkeypatch.setattr(program, "SEEDS", (0, 1))
    threads = torch.get_num_threads()
    call = ["speedrun.py", "tiny", "--effects", "1", "--out", str(file)]
    for seeds in (["0"], ["0", "1"]):
        monkeypatch.setattr(sys, "argv", [*call, "--seeds", *seeds])
        program.main()
        file.write_bytes(file.read_bytes() + b'{"torn')
    torch.set_num_threads(threads)
    rows = program.read(file)
    assert len(rows) == 2 * 4 + 2 * 3
    for row in rows.values():
        assert row["cost"] == pytest.approx(row["cpu_seconds"] / row["baseline_step"], abs=1.0) or (
            row["cpu_seconds"] < 1
        )
        assert row["looks"][-1][0] == row["steps"]
        assert row["looks"][-1][2] == row["nats"] > 0
    baseline = program.of_seeds(rows, "tiny", "record", 0)
    assert [row["seed"] for row in baseline] == [0, 1]
    assert {row["cost"] for row in baseline} == {6.0}
    assert program.ratio(rows, "tiny", 0) == 1.0
    assert program.ratio({}, "tiny", 2) is None
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*call[:1], "--table", "--out", str(file)])
    program.main()
    printed = capsys.readouterr().out
    assert printed.count("\n| 0 | baseline | 6 |") == 1
    assert printed.count("| no dropout |") == 2


def test_damaged_lines_are_named(program, tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text('{"task": "tiny"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1, is no run"):
        program.read(file)


def test_the_file_is_of_these_recipes(program, records):
    for row in program.read(program.FILE).values():
        assert program.plan_of(records.Recipe(**row["recipe"])) == row["plan"]
        assert row["looks"][-1][0] == row["steps"] == row["recipe"]["steps"]
        assert json.dumps(row["score"]) != "NaN"
        assert 0 <= row["score"] <= 1


def test_records_that_count_reach_the_target(program, records):
    rows = program.read(program.FILE)
    for name, task in records.TASKS.items():
        best = 1.0
        for number in range(len(task.records)):
            found = program.of_seeds(rows, name, program.RECORD, number)
            if len(found) == len(program.SEEDS):
                assert sum(row["score"] for row in found) / len(found) >= task.target
                assert program.ratio(rows, name, number) <= best
                best = program.ratio(rows, name, number)
