"""The benchmark of Multi30k: recipes, runs that go on after any stop, and the table."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minitransformer import TextPair, TrainingConfig
from minitransformer.tasks.recipes import FAST

FOLDER = Path(__file__).parents[2] / "benchmarks"
pytest.importorskip("sacrebleu")  # which the package does not need
TINY = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 2}
TINY |= {"d_ff": 20, "norm_first": True, "positional_encoding": "rotary", "max_len": 64}


@pytest.fixture(scope="module")
def program():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield __import__("multi30k")


@pytest.fixture
def pairs():
    letters = "abcdefgh"
    drawn = torch.randint(8, (12, 5), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [" ".join(letters[i] for i in row[: 2 + row[0] % 4]) for row in drawn]
    return [TextPair(text, text[::-1]) for text in texts]


@pytest.fixture
def recipe(program):
    """A recipe that learns next to nothing."""
    training = {"steps": 3, "batch_size": 4, "warmup_steps": 1, "optimizer": "muon"}
    return program.Recipe(264, 263, training, TINY, zero_start=True)


def test_vocabularies_are_shared_or_not(program, recipe, pairs):
    apart = program.new_trainer(recipe, 0, pairs)
    joint = program.new_trainer(replace(recipe, src_tokens=None), 0, pairs)
    config = apart.model.config
    assert (config.src_vocab_size, config.tgt_vocab_size) == (264, 263)
    assert not config.share_embeddings
    assert joint.model.config.share_embeddings
    assert joint.tokenizers["src"] is joint.tokenizers["tgt"]


def test_layers_that_start_at_zero_are_identity(program, recipe, pairs):
    x = torch.randn(2, 5, 12)
    for zero_start in (False, True):
        trainer = program.new_trainer(replace(recipe, zero_start=zero_start), 0, pairs)
        assert torch.equal(trainer.model.eval().encoder.layers[0](x), x) == zero_start


def test_the_command_has_the_record(program, pairs):
    record = program.new_trainer(program.RECIPES["Muon"], 7, pairs)
    job = replace(FAST["multi30k"], splits=lambda seed: {"train": pairs})
    command = job.new_trainer(TrainingConfig(seed=7, **job.settings))
    assert command.config == record.config
    assert command.model.config == record.model.config
    weights = command.model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in record.model.state_dict().items())


def test_runs_go_on(program, recipe, pairs, tmp_path, monkeypatch, capsys):
    file = tmp_path / "runs.jsonl"
    splits = {"train": pairs, "val": pairs[:3], program.TEST: pairs[3:6]}
    monkeypatch.setattr(program, "multi30k", lambda src, tgt: splits)
    monkeypatch.setattr(program, "RECIPES", {"tiny": recipe})
    threads = torch.get_num_threads()
    for seeds in (["3"], ["3", "4"]):
        call = ["multi30k.py", "--recipes", "tiny", "--seeds", *seeds, "--out", str(file)]
        monkeypatch.setattr(sys, "argv", call)
        program.main()
        file.write_bytes(file.read_bytes() + b'{"torn')
    torch.set_num_threads(threads)
    rows = program.read(file)
    assert [(row["recipe"], row["seed"], row["steps"]) for row in rows] == [
        ("tiny", 3, 3),
        ("tiny", 4, 3),
    ]
    assert all(0 <= row[what] <= 100 for row in rows for what in ("greedy", "beam"))
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["multi30k.py", "--table", "--out", str(file)])
    program.main()
    assert capsys.readouterr().out.count("\n| tiny | 3 | ") == 1
    monkeypatch.setattr(program, "RECIPES", {"tiny": replace(recipe, alpha=0.6)})
    assert program.read(file) == []  # what another plan has found does not count


def test_the_table_has_means_and_intervals(program):
    name, steps = next(iter(program.RECIPES)), 7
    row = {"recipe": name, "steps": steps, "cpu_seconds": 9.6, "nats": 2.0, "greedy": 30.0}
    table = program.table([row | {"beam": beam} for beam in (35.0, 36.0, 37.0)])
    # Of three numbers the interval is 4.303 standard deviations by the root of three.
    expected = f"| {name} | 7 | at most 10 | 3 | 2.00 ± 0.00 | 30.00 ± 0.00 | 36.00 ± 2.48 |"
    assert table.splitlines()[-1] == expected
    assert program.table([row | {"beam": 35.0}]).endswith("| 2.00 | 30.00 | 35.00 |")


def test_damaged_lines_are_named(program, tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({"recipe": "Adam"}) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 1, is no run"):
        program.read(file)


def test_the_file_is_of_these_recipes(program):
    rows = program.read(program.FILE)
    assert len({(row["recipe"], row["seed"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["steps"] == program.RECIPES[row["recipe"]].training["steps"]
        assert row["signature"] == program.BLEU.get_signature().format(short=True)


def test_the_record_keeps_its_budget(program):
    found = [row for row in program.read(program.FILE) if row["recipe"] == "Muon"]
    assert {row["seed"] for row in found} == set(program.SEEDS)
    assert all(row["cpu_seconds"] <= program.BUDGET for row in found)
    assert sum(row["beam"] for row in found) / len(found) >= program.GOAL
