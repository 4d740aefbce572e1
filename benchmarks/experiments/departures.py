"""What each detail does on which the paper, its code and this book differ: the page's table.

python -m benchmarks.experiments.departures

It trains nothing: `ablations.py` has trained the settings, and this prints their held-out losses as
multiples of the baseline's, both at their best rates, with 95 % intervals (Student's, of the
logarithms, over five seeds, paired); and behind them how many more of 100 texts are right ("text":
next tokens), likewise; "*" where ×1, or 0, lies outside. `chapters/reference/departures.md` holds
the table as it is printed, and a test compares them.
"""

import argparse
import math
import statistics

from benchmarks.experiments.ablation_settings import BASELINE
from benchmarks.experiments.ablation_table import END, cell, combined, is_selected, values
from benchmarks.experiments.ablations import FILE, SEEDS, Rows, best_rate, read
from benchmarks.runs import half_width, markdown

TASKS = {"number-words": "number words", "grammar": "grammar", "text": "text"}
DETAILS = {
    "post-norm": "post-norm",
    "post-norm, final norm": "post-norm, and a norm at the end",
    "no final norm": "no norm at the end of a stack",
    "RMSNorm": "RMSNorm",
    "no attention biases": "no biases in attention",
    "dropout inside too": "dropout of 0.1 inside, too",
    "embeddings times 1": "embeddings not times √d",
    "untied output": "output not tied",
    "one table of three": "one table of three",
    "sines, then cosines": "sines, then cosines",
    "PyTorch's start": "PyTorch's start",
    "smoothing 0": "no label smoothing",
    "smoothing 0.1": "label smoothing of 0.1",
    "no warm-up": "no warm-up",
    "post-norm, no warm-up": "post-norm, no warm-up",
}
"""Settings, and what the page calls them."""


def factor(rows: Rows, task: str, name: str) -> str:
    """Loss and right texts beside the baseline's, with intervals; "–" where they are not known."""
    if not all(is_selected(rows, task, of) for of in (name, BASELINE.name)):
        return "–"
    rates = [(of, best_rate(rows, task, of)) for of in (name, BASELINE.name)]
    ours, base = (
        {
            seed: None if loss is None else math.log(loss)
            for seed, loss in values(rows, task, of, rate, at=END).items()
        }
        for of, rate in rates
    )
    found = combined((1, ours), (-1, base))
    ratios = [ratio for ratio in found if ratio is not None]
    if len(found) < len(SEEDS):
        return "–"
    if len(ratios) < len(found):
        return "did not end"
    mean, half = statistics.mean(ratios), half_width(ratios)
    low, middle, high = (math.exp(mean + side * half) for side in (-1, 0, 1))
    digits = 2 if half > 0.02 else 3
    star = "" if low < 1 < high else "*"
    right, usual = (values(rows, task, of, rate, "right") for of, rate in rates)
    points = cell(combined((1, right), (-1, usual)), 1, 100)
    return f"×{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]{star}, {points}"


def table(rows: Rows) -> str:
    """The table of the page, as Markdown."""
    header = ["changed alone", *TASKS.values()]
    lines = [[said, *(factor(rows, task, of) for task in TASKS)] for of, said in DETAILS.items()]
    return markdown(header, [line for line in lines if set(line[1:]) != {"–"}])


def main() -> None:
    """Print it."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(table(read(FILE)))


if __name__ == "__main__":
    main()
