"""What the programs share; that each starts; and that the book shows what is stored."""

import importlib
import itertools
import json
import os
import statistics
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats

from benchmarks import runs
from minitransformer.files import locked

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    f"benchmarks.{path.parent.name}.{path.stem}"
    for path in sorted((ROOT / "benchmarks").glob("*/*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8")
]
FURTHER = {"sentencepiece", "tiktoken", "tiktoken_ext", "transformers", "x_transformers"}
FURTHER |= {"sacrebleu"}
"""What a program may need and the book's environment may lack."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_can_be_asked_for_help(name, monkeypatch, capsys):
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(variable, os.environ.get(variable, "1"))  # programs set some of these
    try:
        program = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in FURTHER:
            pytest.skip(f"{error.name} is not installed")
        raise
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        program.main()
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_intervals_are_student_s():
    ours, theirs = [0.31, 0.28, 0.35, 0.29, 0.4], [0.25, 0.27, 0.3, 0.31, 0.33]
    found = runs.paired(ours, theirs)
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert found["difference"] == pytest.approx(statistics.mean(found["differences"]))
    # Three numbers with mean 2 and deviation 1: 4.303 / √3 = 2.484.
    assert runs.half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)


# --- a line for each run


def key_of(row):
    return row["number"] if row["plan"] == "this" else None


def add_up_to(path, last, torn=b""):
    """What a program does: the runs that are missing, and then an interruption."""
    with runs.appending(path) as append:
        for number in range(last):
            if number not in runs.read_rows(path, key_of):
                append({"number": number, "plan": "this", "text": "× and ü"})
    path.write_bytes(path.read_bytes() + torn)


def test_what_was_interrupted_and_torn_ends_as_what_was_not(tmp_path):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    add_up_to(whole, 5)
    line = whole.read_bytes().splitlines()[-1]
    for last, rest in ((1, b""), (3, line[:9]), (4, line[: line.index("×".encode()) + 1])):
        add_up_to(torn, last, rest)
        assert list(runs.read_rows(torn, key_of)) == list(range(last))
    add_up_to(torn, 5)
    assert torn.read_bytes() == whole.read_bytes()


def test_rows_of_another_plan_and_second_ones_do_not_count(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert runs.read_rows(path, key_of) == {}
    with runs.appending(path) as append:
        for plan, found in (("other", 1), ("this", 2), ("this", 3)):
            append({"number": 0, "plan": plan, "found": found})
    (row,) = runs.read_rows(path, key_of).values()
    assert row["found"] == 2


def test_a_damaged_line_is_told_and_two_do_not_write_one_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"number": \n{}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1, is no run: b'{\"number\": '"):
        runs.read_rows(path, key_of)
    with locked(path), pytest.raises(ValueError, match="being written"), runs.appending(path):
        pass


def test_a_measurement_goes_on_where_it_was_stopped(tmp_path):
    out = tmp_path / "found.json"
    counter = itertools.count()
    stopped = runs.Runs(out, "plan", (1, 2))
    assert stopped.run("first", lambda: {"value": next(counter)}) == {"value": 0}
    other = runs.Runs(out, "another plan")
    assert other.kept["runs"] == {}
    again = runs.Runs(out, "plan", (1, 2))
    found = [again.run(name, lambda: {"value": next(counter)}) for name in ("first", "second")]
    results = again.finish({"found": found})
    assert results["found"] == [{"value": 0}, {"value": 1}]
    assert json.loads(out.read_text(encoding="utf-8")) == results
    assert results["made"]["torch"] in torch.__version__
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


# --- what is stored


@pytest.mark.parametrize("name", ["ablations", "longer", "multi30k", "scaling_law", "speedrun"])
def test_stored_rows_are_of_these_programs(name):
    program = importlib.import_module(f"benchmarks.experiments.{name}")
    path = runs.RESULTS / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = program.read(path)
    rows = found[0] if isinstance(found, tuple) else found
    assert len(rows) == sum(line.get("part") not in ("prediction", "law") for line in lines)


def test_page_on_departures_has_the_table_of_the_runs():
    ablation_table = importlib.import_module("benchmarks.experiments.ablation_table")
    ablations = importlib.import_module("benchmarks.experiments.ablations")
    table = ablation_table.departures(ablations.read(ablations.FILE))
    assert table.count("\n") > 6
    assert table in (ROOT / "chapters" / "reference" / "departures.md").read_text(encoding="utf-8")


def test_records_reach_their_targets():
    speedrun = importlib.import_module("benchmarks.experiments.speedrun")
    rows = speedrun.read(runs.RESULTS / "speedrun.jsonl")
    for name, task in speedrun.TASKS.items():
        ratios = [1.0]
        for number in range(len(task.records)):
            found = speedrun.of_seeds(rows, name, speedrun.RECORD, number)
            if len(found) == len(speedrun.SEEDS):
                assert task.reached(statistics.mean(row["score"] for row in found))
                ratios.append(speedrun.ratio(rows, name, number))
        assert ratios == sorted(ratios, reverse=True)


def test_the_record_of_multi30k_is_what_the_readme_says():
    pytest.importorskip("sacrebleu")
    multi30k = importlib.import_module("benchmarks.experiments.multi30k")
    rows = multi30k.read(runs.RESULTS / "multi30k.jsonl").values()
    found = [row for row in rows if row["recipe"] == "Muon"]
    assert [row["seed"] for row in found] == list(multi30k.SEEDS)
    assert max(row["cpu_seconds"] for row in found) <= 600
    bleu = statistics.mean(row["beam"] for row in found)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"reaches {bleu:.0f} BLEU on\nGerman captions in ten CPU-minutes" in readme
