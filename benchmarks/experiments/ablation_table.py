"""What `ablations.py` has found so far, as Markdown: differences to the baseline, paired by seeds.

python -m benchmarks.experiments.ablation_table
python -m benchmarks.experiments.ablation_table --departures   the table of that page

Below zero a setting's loss is lower than the baseline's. A loss is in nats a token, held out; where
vocabularies differ, in nats a character. Behind each mean difference stands its 95 % interval
(Student's, over seeds), with a star where that excludes zero: of twenty settings without any effect
one would have it.

- at ×1: both at the baseline's rate.
- at the best: each at the best rate of its own selection. "border": no further one was tried.
- halfway: the same runs after half of the steps, when their rate has not fallen yet.
- right: what is written without a mistake (of "text" next tokens guessed), in points of 100.
- other sign: how many single seeds would have said the opposite, of the runs at the best.
- beyond its parts: of a setting that joins others, what is left of its difference after the
  differences of these, each alone and at its best, have been taken away.

The page's table has losses as multiples of the baseline's, both at their best rates, with intervals
(of the logarithms); and behind them how many more of 100 texts are right, likewise.
"""

import argparse
import math
import statistics
from collections.abc import Sequence

from benchmarks.experiments.ablation_settings import (
    BASELINE,
    BASELINES,
    FACTORS,
    Setting,
    settings_of,
)
from benchmarks.experiments.ablations import (
    FILE,
    FURTHER,
    RATES,
    SEEDS,
    SELECTION_SEEDS,
    Rows,
    best_rate,
    read,
)
from benchmarks.runs import half_width, markdown

Values = dict[int, float | None]
"""By seed; none where the run did not end."""
END, HALFWAY = -1, 2  # places in a row's looks
NAMES = {"number-words": "number words", "grammar": "grammar", "text": "text"}
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


def values(
    rows: Rows, task: str, name: str, rate: float, measure: str = "loss", at: int = END
) -> Values:
    """What the runs of a setting gave."""
    found = {seed: rows.get((task, name, rate, seed)) for seed in SEEDS}
    return {
        seed: row["looks"][at][measure] if row["outcome"] == "ended" else None
        for seed, row in found.items()
        if row
    }


def combined(*terms: tuple[int, Values]) -> list[float | None]:
    """Sums of weights times values, for each seed that all have."""
    seeds = sorted(set.intersection(*(set(of) for _, of in terms)))
    sums: list[float | None] = []
    for seed in seeds:
        numbers = [(weight, of[seed]) for weight, of in terms]
        known = [weight * value for weight, value in numbers if value is not None]
        sums.append(sum(known) if len(known) == len(terms) else None)
    return sums


def cell(differences: Sequence[float | None], digits: int = 3, scale: float = 1.0) -> str:
    """The mean with its interval; or how many runs did not end, for then there is none."""
    numbers = [scale * number for number in differences if number is not None]
    if len(numbers) < len(differences):
        return f"{len(differences) - len(numbers)} of {len(differences)} did not end"
    if len(numbers) < 2:
        return "–"
    mean, half = statistics.mean(numbers), half_width(numbers)
    star = "*" if abs(mean) > half else ""
    low, high = (f"{end:+.{digits}f}" for end in (mean - half, mean + half))
    return f"{mean:+.{digits}f} [{low}, {high}]{star}"


def other_sign(differences: Sequence[float | None]) -> str:
    """How many single seeds would have said the opposite of their mean."""
    numbers = [number for number in differences if number is not None]
    if not numbers or len(numbers) < len(differences):
        return "–"
    mean = statistics.mean(numbers)
    return f"{sum(number * mean < 0 for number in numbers)} of {len(numbers)}"


def is_selected(rows: Rows, task: str, name: str) -> bool:
    """Whether the best rate of a setting is known."""
    rates = [*RATES, *filter(None, [FURTHER.get(best_rate(rows, task, name, RATES))])]
    return all((task, name, rate, seed) in rows for rate in rates for seed in SELECTION_SEEDS)


def line(rows: Rows, task: str, setting: Setting) -> list[str]:
    """The cells of a setting."""
    measure = "per_character" if setting.factor == "vocabulary" else "loss"
    name, best = setting.name, best_rate(rows, task, setting.name)
    base = values(rows, task, BASELINE.name, 1.0, measure)
    at_one = combined((1, values(rows, task, name, 1.0, measure)), (-1, base))
    cells = [name, cell(at_one), "?", "–", "–", "–", "–"]
    if is_selected(rows, task, name) and is_selected(rows, task, BASELINE.name):
        rates = ((1, name, best), (-1, BASELINE.name, best_rate(rows, task, BASELINE.name)))
        end, halfway, right = (
            combined(*((sign, values(rows, task, of, rate, *what)) for sign, of, rate in rates))
            for what in ((measure, END), (measure, HALFWAY), ("right", END))
        )
        cells[2] = f"×{best:g}" + (", border" if best in FURTHER.values() else "")
        cells[3:7] = [cell(end), cell(halfway), cell(right, 1, 100), other_sign(end)]
    return cells


def beyond_its_parts(rows: Rows, task: str, setting: Setting) -> list[float | None]:
    """By seed, the difference of a joined setting without those of its parts."""
    names = [setting.name, *setting.parts, BASELINE.name]
    if not all(is_selected(rows, task, name) for name in names):
        return []
    found = [values(rows, task, name, best_rate(rows, task, name)) for name in names]
    weights = [1, *(-1 for _ in setting.parts), len(setting.parts) - 1]
    return combined(*zip(weights, found, strict=True))


def baseline_lines(rows: Rows, task: str) -> list[list[str]]:
    """The baseline at each rate."""
    found = []
    base = values(rows, task, BASELINE.name, 1.0)
    for rate in sorted({*RATES, *FURTHER.values()}):
        losses = values(rows, task, BASELINE.name, rate)
        right = values(rows, task, BASELINE.name, rate, "right")
        ended = [loss for loss in losses.values() if loss is not None]
        if not ended:
            continue
        share = statistics.mean(value for value in right.values() if value is not None)
        change = "" if rate == 1.0 else cell(combined((1, losses), (-1, base)))
        numbers = [f"{statistics.mean(ended):.3f}", f"{share:.1%}"]
        found.append([f"×{rate:g}", f"{len(ended)} of {len(losses)}", *numbers, change])
    return found


def report(rows: Rows) -> str:
    """All that is known."""
    parts = []
    for task in BASELINES:
        peak = BASELINES[task]["training"]["peak_learning_rate"]
        best = best_rate(rows, task, BASELINE.name)
        said = f"its best rate is ×{best:g}" if is_selected(rows, task, BASELINE.name) else ""
        header = ["rate", "runs that ended", "loss", "right", "difference to ×1"]
        parts.append(f"## {task}\n\nThe baseline; ×1 is {peak:g}. {said}".rstrip())
        parts.append(markdown(header, baseline_lines(rows, task)))
        for factor in FACTORS:
            settings = [
                setting
                for setting in settings_of(task, factor)
                if any(key[:2] == (task, setting.name) for key in rows)
            ]
            if not settings:
                continue
            header = ["setting", "at ×1", "best", "at the best", "halfway", "right"]
            lines = [line(rows, task, setting) for setting in settings]
            parts.append(f"### {task}: {factor}")
            parts.append(markdown([*header, "other sign"], lines))
            joint = [s for s in settings if s.parts]
            if joint:
                lines = [[s.name, cell(beyond_its_parts(rows, task, s))] for s in joint]
                parts.append(markdown(["setting", "beyond its parts"], lines))
    hours = sum(row["cpu_seconds"] for row in rows.values()) / 3600
    ended = sum(row["outcome"] == "ended" for row in rows.values())
    parts.append(f"{len(rows)} runs, of which {ended} ended, in {hours:.2f} CPU hours.")
    return "\n\n".join(parts)


def departure(rows: Rows, task: str, name: str) -> str:
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


def departures(rows: Rows) -> str:
    """The table of the page on departures, which has it as it is printed."""
    header = ["changed alone", *NAMES.values()]
    lines = [[said, *(departure(rows, task, of) for task in NAMES)] for of, said in DETAILS.items()]
    return markdown(header, [line for line in lines if set(line[1:]) != {"–"}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--departures", action="store_true", help="the table of that page")
    rows = read(FILE)
    print(departures(rows) if parser.parse_args().departures else report(rows))


if __name__ == "__main__":
    main()
