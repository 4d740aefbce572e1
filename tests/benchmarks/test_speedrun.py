"""The speedrun: records change what they name, and runs go on after any stop."""

import json
import statistics
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from minitransformer import TextPair, TrainingConfig, next_token_loss
from minitransformer.tasks.recipes import FAST

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = ("speedrun", "speedrun_records", "speedrun_training", "torch_transformer")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shakespeare = pytest.mark.skipif(
    not (SHARED / "tinyshakespeare" / "input.txt").exists(),
    reason="needs ../shared/data/tinyshakespeare beside the project",
)
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
    monkeypatch.setitem(training.SHAPES, "tiny", TINY)
    monkeypatch.setitem(training.SPLITS, "tiny", pairs)
    for name in list(records.TASKS):
        monkeypatch.delitem(records.TASKS, name)
    monkeypatch.setitem(records.TASKS, "tiny", task)
    return task


# --- recipes


def test_records_are_diffs(records):
    for task in records.TASKS.values():
        assert len({record.name for record in task.records}) == len(task.records)
        numbers = range(1, len(task.records))
        recipes = [task.recipe(number) for number in range(len(task.records))]
        assert recipes[0].library == "torch"
        assert recipes[0].optimizer == "adam"
        assert recipes[1] == replace(recipes[0], library="ours", steps=recipes[1].steps)
        for number in numbers:
            before, after = asdict(recipes[number - 1]), asdict(recipes[number])
            changed = {name for name in after if after[name] != before[name]}
            assert changed == task.records[number].changes.keys() != set()


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
    copy = training.as_ours(trainers[0].model)
    for one, other in zip(copy.parameters(), trainers[1].model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_recipe_names_what_the_package_names(training, tiny):
    recipe = replace(tiny.recipe(3), ema_decay=0.8, schedule="linear", label_smoothing=0.05)
    trainer = training.new_trainer("tiny", recipe, 7)
    given, found = asdict(recipe), asdict(trainer.config)
    assert found["seed"] == 7
    assert {name: found[name] for name in found if name in given} == {
        name: given[name] for name in given if name in found
    }
    assert given.keys() - found.keys() == {
        *("library", "target_tokens", "dropout", "d_model", "num_heads", "d_ff"),
        *("positional_encoding", "zero_start"),
    }
    assert trainer.model.config.dropout == recipe.dropout


def test_the_command_has_the_record_of_grammar(records, training, monkeypatch):
    few = {
        "train": [TextPair("a dog runs", "ein Hund rennt"), TextPair("dogs run", "Hunde rennen")]
    }
    monkeypatch.setitem(training.SPLITS, "grammar", lambda seed: few)
    training.splits_of.cache_clear()
    training.tokenizers_of.cache_clear()
    task = records.TASKS["grammar"]
    record = training.new_trainer("grammar", task.recipe(len(task.records) - 1), 7)
    job = replace(FAST["grammar"], splits=lambda seed: few)
    command = job.new_trainer(TrainingConfig(seed=7, **job.settings))
    training.splits_of.cache_clear()
    training.tokenizers_of.cache_clear()
    assert command.config == record.config
    assert command.model.config == record.model.config
    weights = command.model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in record.model.state_dict().items())


def test_layers_that_start_at_zero_are_identity(training, tiny):
    x = torch.randn(2, 5, 12)
    for zero_start in (False, True):
        recipe = replace(tiny.recipe(1), zero_start=zero_start)
        model = training.new_model("tiny", recipe, (9, 9), 0).eval()
        assert torch.equal(model.encoder.layers[0](x), x) == zero_start


# --- a text


@pytest.fixture
def plays(training, monkeypatch):
    """A short text in place of Shakespeare, and a small model of it."""
    letters = torch.randint(5, (900,), generator=torch.Generator().manual_seed(1)).tolist()
    text = "".join("abcde"[i] for i in letters)
    held_out = [text[i : i + 7] for i in range(0, 60, 6)]
    splits = {"train": [text], "held_out": held_out}
    monkeypatch.setitem(training.SPLITS, "plays", lambda seed: splits)
    shape = TINY | {"num_encoder_layers": 0, "share_embeddings": True, "max_len": 64}
    monkeypatch.setitem(training.SHAPES, "plays", shape)
    return splits


def test_torch_and_ours_read_alike(records, training, plays):
    recipe = records.Recipe(dropout=0.0, steps=4, warmup_steps=2, batch_size=3)
    trainers = [
        training.new_trainer("plays", replace(recipe, library=name), 1)
        for name in ("torch", "ours")
    ]
    for _ in range(2):
        losses = [t.loss(t.epoch(0)[0]).item() for t in trainers]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
        for trainer in trainers:
            trainer.train_step(trainer.epoch(0)[0])
    model = trainers[0].model
    tokenizers = tuple(trainers[0].tokenizers.values())
    nats = training.held_out_nats(model, plays["held_out"], tokenizers)
    assert nats == pytest.approx(training.score_of(model, plays["held_out"], tokenizers), abs=1e-5)
    # One row more counts as much as each other, in a batch of its own or not.
    one = training.held_out_nats(model, plays["held_out"][:1], tokenizers)
    many = training.held_out_nats(model, plays["held_out"][:1] * 130, tokenizers)
    assert one == pytest.approx(many, abs=1e-5)


def test_a_model_sees_nothing_of_what_comes(records, training, plays):
    model = training.new_trainer("plays", records.Recipe(dropout=0.0), 1).model.eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    other = ids.clone()
    other[0, 3:] = 6
    targets = torch.where(torch.arange(5) < 3, ids, 0)  # of the first three alone
    losses = [next_token_loss(model, x, targets).item() for x in (ids, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_loss_is_fallen_to(records):
    loss, share = records.TASKS["shakespeare"], records.TASKS["grammar"]
    assert [loss.reached(score) for score in (1.87, 1.88, 1.89)] == [True, True, False]
    assert [share.reached(score) for score in (0.979, 0.98, 0.981)] == [False, True, True]
    assert [loss.shown(1.8774), share.shown(0.98126)] == ["1.877", "98.13%"]


def test_shakespeare_is_checked(training, monkeypatch, tmp_path):
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    (folder / "input.txt").write_text("To be", encoding="utf-8")
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"input\.txt is damaged"):
        training.shakespeare()


@needs_shakespeare
def test_shakespeare_is_cut(training, monkeypatch):
    monkeypatch.setenv("MINITRANSFORMER_DATA", str(SHARED))
    splits = training.shakespeare()
    (train,), held_out = splits["train"], splits["held_out"]
    assert len(train) == 1_003_854
    assert {len(row) for row in held_out} == {65}
    assert len(held_out) == (1_115_394 - len(train) - 1) // 64
    assert all(row[-1] == after[0] for row, after in pairwise(held_out))


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


def test_a_text_is_run(program, records, plays, tmp_path, monkeypatch, capsys):
    short = {"steps": 6, "warmup_steps": 2, "batch_size": 2}
    ours = records.Record("the package", "", {"library": "ours", "steps": 5})
    task = records.Task("plays", 9.0, (records.Record("baseline", "", short), ours))
    monkeypatch.setitem(records.TASKS, "plays", task)
    monkeypatch.setattr(program, "PACES", 2)
    file, threads = tmp_path / "runs.jsonl", torch.get_num_threads()
    call = ["speedrun.py", "plays", "--seeds", "0", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", call)
    program.main()
    torch.set_num_threads(threads)
    first, second = program.read(file).values()
    assert first["cost"] == 6.0
    assert second["cost"] > 0
    for row in (first, second):
        assert row["score"] == pytest.approx(row["nats"], abs=1e-3)  # fewer rows than `HELD_OUT`
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*call, "--table"])
    program.main()
    shown = f"| 0 | baseline | 6 | {first['score']:.3f} ({first['score']:.3f}) | 1 | 6 | 1.00 |"
    assert shown in capsys.readouterr().out


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
        assert 0 <= row["score"] <= (4.2 if row["task"] == "shakespeare" else 1)


def test_records_that_count_reach_the_target(program, records):
    rows = program.read(program.FILE)
    for name, task in records.TASKS.items():
        best = 1.0
        for number in range(len(task.records)):
            found = program.of_seeds(rows, name, program.RECORD, number)
            if len(found) == len(program.SEEDS):
                assert task.reached(statistics.mean(row["score"] for row in found))
                assert program.ratio(rows, name, number) <= best
                best = program.ratio(rows, name, number)


def test_a_plan_is_what_differs(program, records):
    plain = records.Recipe()
    assert program.plan_of(plain) == program.plan_of(replace(plain, d_ff=512))
    plans = {program.plan_of(replace(plain, d_ff=width)) for width in (128, 256, 512)}
    assert len(plans) == 3
