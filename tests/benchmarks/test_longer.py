"""The measurement of longer numbers: nothing longer is trained on, settings change what they name,
and runs go on after any interruption."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import minitransformer as mt
from minitransformer.files import locked

FOLDER = Path(__file__).parents[2] / "benchmarks"
number_words = mt.number_words


@pytest.fixture(scope="module")
def program():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import longer

        yield longer


@pytest.fixture(scope="module")
def splits():
    """The main job's numbers, fewer of them."""
    return number_words(3, num_train=2_000, num_held_out=60)


@pytest.fixture
def tiny(program, monkeypatch):
    """A recipe that learns nothing, of few numbers."""

    def few(seed, **options):
        return number_words(seed, num_train=150, num_held_out=6, **options)

    shape = {"d_model": 16, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 24}
    training = {"steps": 3, "batch_size": 4, "warmup_steps": 2}
    monkeypatch.setattr(program.mt, "number_words", few)
    monkeypatch.setitem(program.RECIPES, "usual", program.Recipe(5, shape, training))
    program.data_of.cache_clear()
    yield
    program.data_of.cache_clear()


def named(program, name):
    """The setting of that name."""
    return next(setting for setting in program.SETTINGS if setting.name == name)


@pytest.fixture(scope="module")
def data(program, splits):
    """Twenty pairs, encoded."""
    pairs = splits["train"][:20]
    src, tgt = program.words_and_subwords(pairs)
    return program.Data(splits, pairs, {"src": src, "tgt": tgt}, mt.encode_pairs(pairs, src, tgt))


def fake_row(program, setting, seed, right, recipe="usual"):
    """What a run would have written."""
    return {
        "recipe": recipe,
        "setting": setting.name,
        "seed": seed,
        "plan": program.plan_of(recipe, setting),
        "right": dict.fromkeys(program.SPLITS, right),
        "next": right,
    }


def write(path, *rows):
    """A file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_longer_falls_in_two_parts(program, splits):
    longest = program.most_words(splits["train"])
    assert longest == 7
    assert {program.word_count(pair.src) > longest for pair in splits["longer"]} == {True, False}


# --- models and positions


def test_settings_change_what_they_name(program, tiny, data):
    for setting in program.SETTINGS:
        trainer = program.new_trainer(program.RECIPES["usual"], setting, 1, data)
        assert trainer.model.config.positional_encoding == setting.positions
        assert trainer.model.config.d_model == 16
        assert trainer.spread == setting.spread
        for stack, has in ((trainer.model.encoder, True), (trainer.model.decoder, setting.decoder)):
            attention = stack.layers[0].self_attention
            assert (attention.rotary is not None) == (has and setting.positions == "rotary")
            assert (attention.position_bias is not None) == (has and setting.positions == "alibi")


def test_usual_recipe_is_the_main_job(program, data):
    trainer = program.new_trainer(program.RECIPES["usual"], named(program, "usual"), 0, data)
    job = replace(
        program.JOBS["number-words"],
        splits=lambda _: {"train": data.texts},
        tokenizers=lambda _: tuple(data.tokenizers.values()),
    ).new_trainer(mt.TrainingConfig())
    assert trainer.config == job.config
    assert trainer.examples == job.examples
    assert trainer.model.config == job.model.config
    for ours, theirs in zip(trainer.model.parameters(), job.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_spread_positions_are_in_order_and_only_for_the_step(
    program, tiny, data, monkeypatch, positions
):
    setting = program.Setting("s", positions=positions, spread=30)
    trainer = program.new_trainer(program.RECIPES["usual"], setting, 1, data)
    whole = [table.clone() for _, table in program.tables(trainer.model)]
    assert whole
    used = []

    def loss(batch):
        used.append([table.clone() for _, table in program.tables(trainer.model)])
        return mt.Trainer.loss(trainer, batch)

    monkeypatch.setattr(trainer, "loss", loss)
    trainer.fit(progress=False)
    for (_, now), before in zip(program.tables(trainer.model), whole, strict=True):
        assert torch.equal(now, before)
    drawn = []
    for tables in used:
        for table, before in zip(tables, whole, strict=True):
            places = [int((before == row).all(1).nonzero()) for row in table]
            assert places == sorted(set(places))
            assert max(places) < 30
        drawn.append(places)
    assert len({tuple(places) for places in drawn}) == len(drawn) == 3


def test_without_spread_nothing_is_drawn(program, tiny, data):
    trainer = program.new_trainer(program.RECIPES["usual"], named(program, "usual"), 1, data)
    usual = mt.Trainer(
        mt.Transformer(trainer.model.config, torch.Generator().manual_seed(1)),
        data.texts,
        *trainer.tokenizers.values(),
        trainer.config,
    )
    assert trainer.fit(progress=False) == usual.fit(progress=False)


# --- the file and the table


def test_program_goes_on_where_it_was_stopped(program, tiny, tmp_path, monkeypatch, capsys):
    path = tmp_path / "longer.jsonl"
    command = ["longer.py", "--recipe", "usual", "--out", str(path)]
    command += ["--only", "usual", "shown, spread", "--seeds"]
    monkeypatch.setattr(sys, "argv", [*command, "0"])
    program.main()
    first = path.read_text(encoding="utf-8")
    path.write_text(first + '{"recipe": "us', encoding="utf-8")  # torn by an interruption
    monkeypatch.setattr(sys, "argv", [*command, "0", "1"])
    program.main()
    text = path.read_text(encoding="utf-8")
    assert text.startswith(first)
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(row["setting"], row["seed"]) for row in rows] == [
        ("usual", 0),
        ("shown, spread", 0),
        ("usual", 1),
        ("shown, spread", 1),
    ]
    for row in rows:
        assert row["right"].keys() == set(program.SPLITS)
        assert row["steps"] == 3
        assert 0 <= row["next"] <= 1
        assert row["longest"]["train"][0] <= 7
        assert (row["both"] > 0) == (row["setting"] != "usual")
    assert rows[1]["changes"] == {"numbers": program.SHOWN, "spread": program.ROOM}
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command, "0", "1", "--list"])
    program.main()
    assert "seed" not in capsys.readouterr().out


def test_rows_of_another_plan_do_not_count(program, tmp_path):
    path, usual = tmp_path / "longer.jsonl", named(program, "usual")
    other = replace(usual, spread=3)
    write(path, fake_row(program, usual, 0, 0.5) | {"plan": program.plan_of("usual", other)})
    assert program.read(path) == {}
    write(path, fake_row(program, usual, 0, 0.5))
    rows = program.read(path)
    assert list(rows) == [("usual", "usual", 0)]
    left = list(program.remaining(rows, "usual", (0, 1), ("usual",)))
    assert left == [(usual, 1)]
    assert len(list(program.remaining(rows, "main", (0, 1), ("usual",)))) == 2


def test_damaged_line_is_told(program, tmp_path):
    path = tmp_path / "longer.jsonl"
    path.write_text('{"recipe": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1, is no run"):
        program.read(path)


def test_two_programs_do_not_write_one_file(program, tiny, tmp_path, monkeypatch):
    path = tmp_path / "longer.jsonl"
    monkeypatch.setattr(sys, "argv", ["longer.py", "--recipe", "usual", "--out", str(path)])
    with locked(path), pytest.raises(ValueError, match="is being written"):
        program.main()


def test_table_has_means_and_intervals(program):
    usual = named(program, "usual")
    rows = {
        ("usual", "usual", seed): fake_row(program, usual, seed, right)
        for seed, right in enumerate((0.2, 0.4))
    }
    text = program.table(rows, "usual")
    assert "| usual | 2 | 30.0% [0.0, 100.0] |" in text
    assert "usual" not in program.table(rows, "main")
    assert program.cell([0.4]) == "40.0%"
    assert program.cell([None]) == "–"
    # 12.7062 and 2.7764 are Student's for one and four degrees of freedom
    assert program.cell([0.5, 0.51, 0.52, 0.53, 0.54]) == "52.0% [50.0, 54.0]"


# --- what the rows say


def test_names_are_distinct(program):
    names = [setting.name for setting in program.SETTINGS]
    assert len(set(names)) == len(names)
    for setting in program.SETTINGS:
        assert setting.name == "usual" or program.changes_of(setting)
