"""The numbers of the page *To internet scale* are those of its program, and hold when tried."""

import math
import random
import re
from pathlib import Path

import pytest

import minitransformer as mt
from benchmarks.experiments import internet_scale as scale
from benchmarks.runs import read_json

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "chapters" / "reference" / "internet_scale.md").read_text(encoding="utf-8")


# --- published runs -------------------------------------------------------------------------------


def test_plan_takes_the_published_hours():
    """At the reported speed; where none is reported, the hours imply a possible one."""
    assert sum(bool(run.reported) for run in scale.RUNS) == 4
    for run in scale.RUNS:
        assert 0.18 < scale.planned(run).gpu_hours / run.hours < 0.65, run.name
        if not run.reported:
            continue
        utilisation = run.reported / mt.HARDWARE[run.device].flops
        there = scale.planned(run, utilisation, again=run.again)
        assert there.gpu_hours == pytest.approx(run.hours, rel=0.12), run.name


def test_operations_are_those_that_teams_counted():
    runs = {run.name: run for run in scale.RUNS}
    opt, gpt3 = runs["OPT 175B"], runs["GPT-3 175B"]
    twice = scale.planned(opt, again=True).gpu_hours * 3600 * mt.HARDWARE["A100"].flops
    assert twice == pytest.approx(4.30e23, rel=0.005)
    assert scale.planned(gpt3).flops == pytest.approx(1.03 * 3.14e23, rel=0.005)
    assert mt.plan(scale.planned(gpt3).parameters, 300e9).flops == pytest.approx(3.14e23, rel=0.005)


def test_throughput_of_llama_65b():
    """Its paper: 380 tokens a second and device, 1.4e12 tokens on 2,048 devices, 21 days."""
    run = next(run for run in scale.RUNS if run.name == "Llama 65B")
    full = scale.planned(run)
    utilisation = 380 * full.flops_per_token / mt.HARDWARE["A100"].flops
    there = mt.plan(run.config, 1.4e12, 2048, mt.HARDWARE["A100"], utilisation=utilisation)
    assert there.days == pytest.approx(21, rel=0.02)
    assert there.gpu_hours == pytest.approx(run.hours, rel=0.02)


def test_page_has_the_table_and_its_example_prints_what_it_says(capsys):
    rows = [line for line in PAGE.splitlines() if line.count(" | ") >= 6 and "](" in line]
    assert rows == [scale.row_of(run) for run in scale.RUNS]
    code, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.S).groups()
    exec(compile(code, "page", "exec"), {})
    assert capsys.readouterr().out == printed


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "save", "restart", "between"),
    [(0.5, 0.02, 0.1, 3.1), (2.0, 0.01, 0.0, 5.0), (0.1, 0.05, 0.3, 0.4)],
)
def test_simulation_agrees_with_the_formula(interval, save, restart, between):
    runs = [scale.simulate(interval, save, restart, between, 3000, seed) for seed in range(4)]
    exact = scale.lost_exactly(interval, save, restart, between)
    assert sum(runs) / 4 == pytest.approx(exact, abs=0.02)


def test_first_order_is_the_limit_of_rare_failures():
    for between, within in ((1e3, 5e-3), (1e5, 5e-4)):
        interval = scale.best_interval(0.01, between)
        share = scale.lost_exactly(interval, 0.01, 0.1, between)
        first_order = scale.lost(interval, 0.01, 0.1, between)
        assert first_order == pytest.approx(share / (1 - share), rel=within)


@pytest.mark.parametrize("between", [0.4, 3.1, 49.5])
def test_best_interval_is_best(between):
    best = scale.best_interval(scale.SAVE, between)

    def exact(interval):
        return scale.lost_exactly(interval, scale.SAVE, scale.RESTART, between)

    assert all(exact(best) < exact(best * other) for other in (0.5, 0.7, 1.5, 2.0))
    saving, repeating = scale.SAVE / best, best / 2 / between
    assert saving == pytest.approx(repeating)
    assert saving + repeating == pytest.approx(math.sqrt(2 * scale.SAVE / between))


def test_figures_are_those_of_the_results():
    results = read_json(scale.FILE)
    figures = {"failures": scale.failures_figure(results), "minhash": scale.minhash_figure()}
    for name, figure in figures.items():
        assert (scale.FIGURES / f"{name}.svg").read_text(encoding="utf-8") == figure


def test_minhash_finds_as_many_as_the_formula_says():
    """Sets of one similarity, random functions, bands: counted."""
    generator = random.Random(0)
    bands, rows, pairs = 5, 3, 3000
    found = 0
    for _ in range(pairs):  # 12 elements in both, 4 in each alone: similarity 12 / 20
        ranks = [[generator.random() for _ in range(20)] for _ in range(bands * rows)]
        alike = [min(r[:16]) == min(r[4:]) for r in ranks]
        found += any(all(alike[band * rows : (band + 1) * rows]) for band in range(bands))
    expected = scale.chance(12 / 20, bands, rows)
    assert found / pairs == pytest.approx(expected, abs=4 * math.sqrt(0.25 / pairs))
    for similarity, said in ((0.5, "0.5 is found in 5 %"), (0.75, "77 %"), (0.85, "99 %")):
        assert f"{scale.chance(similarity, 14, 8):.0%}".replace("%", " %") in said
        assert said in " ".join(PAGE.split())
