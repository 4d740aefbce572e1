"""The tables of the page about speed are those of the results file, to the last digit."""

from benchmarks.runs import read_json
from benchmarks.speed import page as speed_page


def test_page_says_what_was_measured_and_every_row_is_in_one_table():
    page = speed_page.PAGE.read_text(encoding="utf-8")
    results = read_json(speed_page.RESULTS)
    assert page == speed_page.rendered(page, results), "run `python -m benchmarks.speed.page`"
    tables = [line for line in page.splitlines() if line.startswith("| ")]
    for name, row in results["rows"].items():
        short = name.removeprefix("step, ").replace("decoder only, ", "").replace(" x ", " × ")
        found = [line for line in tables if line.startswith(f"| {short} |")]
        assert len(found) == (row["group"] != "attention"), name
        for line in found:
            assert all(f" {ratio:.2f} |" in line for ratio in row["ratios"].values())
