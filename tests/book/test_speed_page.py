"""The tables of the page about speed are those of the results file, to the last digit."""

import copy

import pytest

from benchmarks.runs import read_json
from benchmarks.speed import page as speed_page


@pytest.fixture
def results():
    return read_json(speed_page.RESULTS)


@pytest.fixture
def page():
    return speed_page.PAGE.read_text(encoding="utf-8")


def test_page_says_what_was_measured(page, results):
    assert page == speed_page.rendered(page, results), "run `python -m benchmarks.speed.page`"
    assert sorted(speed_page.marked(page)) == sorted(speed_page.PARTS)
    assert page.count("<!-- end -->") == len(speed_page.PARTS)


def test_every_row_is_in_one_table(page, results):
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    for name, row in results["rows"].items():
        short = name.removeprefix("step, ").replace("decoder only, ", "").replace(" x ", " × ")
        found = [line for line in tables if line.startswith(f"| {short} |")]
        assert len(found) == (row["group"] != "attention"), name
        for line in found:
            assert all(f" {ratio:.2f} |" in line for ratio in row["ratios"].values())


def test_another_measurement_changes_its_row_alone(page, results):
    other = copy.deepcopy(results)
    (name, *_) = (name for name, row in results["rows"].items() if row["group"] == "generation")
    other["rows"][name]["ratios"] = {"Marian sdpa": 1.87}
    before, after = page.splitlines(), speed_page.rendered(page, other).splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert any(line.startswith(f"| {name} |") and "1.87" in line for line in changed)
    assert all("1.87" in line or "In short" in line for line in changed)


def test_rows_of_another_day_are_told_apart(results):
    (name, *_) = results["rows"]
    for row in results["rows"].values():
        row["conditions"] = "one day"
    assert speed_page.conditions(results) == "*one day.*"
    results["rows"][name]["conditions"] = "another day"
    assert "*training: another day.*" in speed_page.conditions(results)
