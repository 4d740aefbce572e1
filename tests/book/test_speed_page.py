"""The tables of the page about speed are those of the results file, to the last digit."""

import copy
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def speed_page():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import speed_page

        yield speed_page
        sys.modules.pop("speed_page")


@pytest.fixture
def results(speed_page):
    return json.loads(speed_page.RESULTS.read_text(encoding="utf-8"))


@pytest.fixture
def page(speed_page):
    return speed_page.PAGE.read_text(encoding="utf-8")


def test_page_says_what_was_measured(speed_page, page, results):
    assert page == speed_page.rendered(page, results), "run `python benchmarks/speed_page.py`"


def test_every_part_is_on_the_page_once(speed_page, page):
    assert sorted(speed_page.marked(page)) == sorted(speed_page.PARTS)
    assert page.count("<!-- end -->") == len(speed_page.PARTS)


def test_every_row_is_in_one_table(speed_page, page, results):
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    for name, row in results["rows"].items():
        short = name.removeprefix("step, ").replace("decoder only, ", "").replace(" x ", " × ")
        found = [line for line in tables if line.startswith(f"| {short} |")]
        assert len(found) == (row["group"] != "attention"), name
        for line in found:
            assert all(f" {ratio:.2f} |" in line for ratio in row["ratios"].values())


def test_another_measurement_changes_its_row_alone(speed_page, page, results):
    other = copy.deepcopy(results)
    (name, *_) = (name for name, row in results["rows"].items() if row["group"] == "generation")
    other["rows"][name]["ratios"] = {"Marian sdpa": 1.87}  # inside the span of the summary
    before, after = page.splitlines(), speed_page.rendered(page, other).splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert any(line.startswith(f"| {name} |") and "1.87" in line for line in changed)
    assert all("1.87" in line or "In short" in line for line in changed)


def test_rows_of_another_day_are_told_apart(speed_page, results):
    (name, *_) = results["rows"]
    for row in results["rows"].values():
        row["conditions"] = "one day"
    assert speed_page.conditions(results) == "*one day.*"
    results["rows"][name]["conditions"] = "another day"
    assert "*training: another day.*" in speed_page.conditions(results)
    assert "one day.*" in speed_page.conditions(results)


def test_results_are_written_with_the_page(speed_page, page, results, tmp_path, monkeypatch):
    monkeypatch.setattr(speed_page, "PAGE", tmp_path / "speed.md")
    monkeypatch.setattr(speed_page, "RESULTS", tmp_path / "speed.json")
    speed_page.PAGE.write_text(page, encoding="utf-8")
    speed_page.save(results)
    assert json.loads(speed_page.RESULTS.read_text(encoding="utf-8")) == results
    assert speed_page.PAGE.read_text(encoding="utf-8") == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speed.json", "speed.md"]
