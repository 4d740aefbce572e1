"""The comparison of chapter 13: pairs of runs by seed, and a file of the shape that it says."""

import json
import statistics
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def program():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import t5

        yield t5


def test_differences_are_paired_by_seed(program):
    runs = {
        "shared": {"a": {"loss": [1.0, 2.0, 4.0]}, "b": {"loss": [3.0, 3.0, 3.0]}},
        "own": {"a": {"loss": [2.0, 2.5, 4.0]}, "b": {"loss": [3.0, 2.0, 2.5]}},
    }
    a, b, both = program.compared(runs, "shared", "own")
    assert (a["task"], b["task"], both["task"]) == ("a", "b", "all")
    assert a["differences"] == [-1.0, -0.5, 0.0]
    assert both["differences"] == [-0.5, 0.25, 0.25]
    half = 4.303 * statistics.stdev(a["differences"]) / 3**0.5
    assert (a["low"], a["high"]) == pytest.approx((-0.5 - half, -0.5 + half))
    assert not a["excludes_zero"]


@pytest.fixture(scope="module")
def seed(program):
    """The data of a seed, in small."""
    return program.Seed(0, program.QUICK_TRAINING, program.QUICK_FEW, True)


def test_plain_texts_are_sentences_that_no_few_pairs_hold(program, seed):
    few = seed.few["pairs"]
    translate = seed.tasks["translate"]["train"]
    texts = seed.plain_texts()
    assert texts
    assert not any(text.startswith(("translate:", "summarise:")) for text in texts)
    rest = {text.removeprefix("translate: ") for pair in translate[few:] for text in pair}
    rest |= {p.src.removeprefix("summarise: ") for p in seed.tasks["summary"]["train"][few:]}
    assert set(texts) <= rest


def test_models_of_a_seed_start_alike(seed):
    first, second = seed.fresh(), seed.fresh()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.slow
def test_quick_run_writes_the_file(program, tmp_path, monkeypatch):
    out = tmp_path / "t5.json"
    options = ["t5.py", "--quick", "--seeds", "0", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", options)
    trained = []
    run = program.Seed.run
    monkeypatch.setattr(
        program.Seed, "run", lambda seed, *what: trained.append(what) or run(seed, *what)
    )
    program.main()
    results = json.loads(out.read_text(encoding="utf-8"))
    assert results["made"]["quick"]
    assert not out.with_suffix(".partial.json").exists()
    tasks = results["tasks"]
    assert len(trained) == 2 * (1 + 2 * len(tasks) + 3 * len(program.FEW_TASKS))
    for kind in program.KINDS:
        names = program.FEW_TASKS if kind.startswith("few") else tasks
        assert list(results["runs"][kind]) == list(names)
        assert all(len(row["loss"]) == 2 for row in results["runs"][kind].values())
    rows = [(row["first"], row["second"]) for row in results["comparisons"]]
    assert list(dict.fromkeys(rows)) == program.COMPARISONS


def test_one_seed_is_refused(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["t5.py", "--seeds", "0"])
    with pytest.raises(SystemExit):
        program.main()
    assert "2 to 10, got 1" in capsys.readouterr().err
