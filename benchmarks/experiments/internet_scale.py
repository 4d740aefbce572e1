"""What the page *To internet scale* calculates: published runs, failures, pages nearly alike.

python -m benchmarks.experiments.internet_scale          the page's numbers, and its table of runs
python -m benchmarks.experiments.internet_scale --save   simulates first, in seconds, and writes
                                                         the results and the page's two figures

Times are in hours. A cluster fails when one of its devices does, and begins again at its last
checkpoint. Failures are independent, and as likely at any time.
"""

import argparse
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import minitransformer as mt
from benchmarks.runs import RESULTS, write_json
from minitransformer.models import GPT2Config, LlamaConfig

FILE = RESULTS / "internet_scale.json"
FIGURES = Path(__file__).parents[2] / "_static"
DAY, MINUTE = 24.0, 1 / 60

LLAMA_3 = 54 * DAY / 419  # hours between interruptions that nobody planned
DEVICE = LLAMA_3 * 16_384  # of one device of that cluster
CLUSTERS = {1_024: "", 16_384: "7 4", 131_072: "2 3"}  # devices, and how their line is dashed
SAVE, RESTART = 0.5 * MINUTE, 5 * MINUTE
BANDS = {(1, 1): "2 3", (14, 8): "", (450, 20): "7 4"}  # FineWeb's are 14 of 8


class Run(NamedTuple):
    """A training that others published."""

    name: str
    config: Any
    tokens: float
    device: str
    hours: float  # of all devices together
    source: str
    reported: float | None = None  # operations a second and device
    again: bool = False  # those count what checkpointing does twice


def llama(d: int, h: int, n: int, f: int, length: int, **options: Any) -> LlamaConfig:
    """A Llama's configuration from its table."""
    return LlamaConfig(d_model=d, num_heads=h, num_layers=n, d_ff=f, max_len=length, **options)


LLAMA_1 = "https://arxiv.org/abs/2302.13971"
LLAMA_2 = "https://arxiv.org/abs/2307.09288"
CARD = "https://github.com/meta-llama/llama3/blob/main/MODEL_CARD.md"
LLAMA_3_1 = "https://arxiv.org/abs/2407.21783"
OPT = (
    "https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/final_update.md"
)
PATTERSON = "https://arxiv.org/abs/2104.10350"
BLOOM = "https://arxiv.org/abs/2211.05100"
LLM_C = "https://github.com/karpathy/llm.c/discussions/481"
EIGHT = {"num_kv_heads": 8}
SHARED = {"num_kv_heads": 8, "vocab_size": 128_256}
LLAMA_405B = llama(16_384, 128, 126, 53_248, 8192, **SHARED)
WIDE = {"d_model": 12_288, "num_heads": 96, "num_layers": 96, "max_len": 2048}
GPT_3, OPT_175B = GPT2Config(**WIDE), GPT2Config(vocab_size=50_272, **WIDE)
WIDER = {"d_model": 14_336, "num_heads": 112, "num_layers": 70, "max_len": 2048}
BLOOM_176B = GPT2Config(vocab_size=250_880, **WIDER)
GPT_3_HOURS, OPT_HOURS = 10_000 * 14.8 * DAY, 1024 * 33 * DAY
RUNS = [
    Run("GPT-2 124M, llm.c", GPT2Config(), 10e9, "A100", 12, LLM_C, 0.6 * 312e12),
    Run("Llama 7B", llama(4096, 32, 32, 11_008, 2048), 1.0e12, "A100", 82_432, LLAMA_1),
    Run("Llama 65B", llama(8192, 64, 80, 22_016, 2048), 1.4e12, "A100", 1_022_362, LLAMA_1),
    Run("Llama 2 7B", llama(4096, 32, 32, 11_008, 4096), 2e12, "A100", 184_320, LLAMA_2),
    Run(
        "Llama 2 70B", llama(8192, 64, 80, 28_672, 4096, **EIGHT), 2e12, "A100", 1_720_320, LLAMA_2
    ),
    Run("Llama 3 8B", llama(4096, 32, 32, 14_336, 8192, **SHARED), 15e12, "H100", 1.3e6, CARD),
    Run("Llama 3 70B", llama(8192, 64, 80, 28_672, 8192, **SHARED), 15e12, "H100", 6.4e6, CARD),
    Run("Llama 3.1 405B", LLAMA_405B, 15.6e12, "H100", 30.84e6, LLAMA_3_1, 400e12),
    Run("GPT-3 175B", GPT_3, 300e9, "V100", GPT_3_HOURS, PATTERSON),
    Run("OPT 175B", OPT_175B, 300e9, "A100", OPT_HOURS, OPT, 147e12, True),
    Run("BLOOM 176B", BLOOM_176B, 366e9, "A100", 1_082_990, BLOOM, 150e12, True),
]


def planned(run: Run, utilisation: float = 1.0, *, again: bool = False) -> mt.planning.Plan:
    """The plan of a published run on one device; its hours are those of all together."""
    hardware = mt.HARDWARE[run.device]
    return mt.plan(
        run.config, run.tokens, 1, hardware, utilisation=utilisation, checkpointing=again
    )


def row_of(run: Run) -> str:
    """What the page's table says of a run."""
    full = planned(run)
    cells = [
        f"[{run.name}]({run.source})",
        f"{full.parameters / 1e9:.3g}",
        f"{run.tokens / 1e9:,.0f}",
        run.device,
        f"{run.hours:,.0f}",
        f"{full.gpu_hours / run.hours:.0%}".replace("%", " %"),
    ]
    if run.reported is None:
        return "| " + " | ".join(cells) + " | | |"
    there = planned(run, run.reported / mt.HARDWARE[run.device].flops, again=run.again)
    said = f"{run.reported / 1e12:.0f}{' †' if run.again else ''}"
    off = f"{there.gpu_hours / run.hours - 1:+.0%}".replace("%", " %").replace("-", "−")
    return "| " + " | ".join([*cells, said, off]) + " |"


def best_interval(save: float, between: float) -> float:
    """τ = √(2 δ M): work between checkpoints that take δ, where failures come every M."""
    return math.sqrt(2 * save * between)


def lost(interval: float, save: float, restart: float, between: float) -> float:
    """What each hour of work loses, to first order: δ/τ + (τ/2 + R)/M."""
    return save / interval + (interval / 2 + restart) / between


def lost_exactly(interval: float, save: float, restart: float, between: float) -> float:
    """The share of all time that is lost: 1 − τ / H, with H = M eᴿᐟᴹ (e⁽ᵗ⁺ᵟ⁾ᐟᴹ − 1)."""
    needed = between * math.exp(restart / between) * math.expm1((interval + save) / between)
    return 1 - interval / needed


def simulate(
    interval: float, save: float, restart: float, between: float, segments: int, seed: int
) -> float:
    """The share of time that was lost until so many segments of work were saved."""
    generator = random.Random(seed)
    clock, left, to_failure = 0.0, segments, generator.expovariate(1 / between)
    while left:
        needed = interval + save
        while to_failure < needed:
            clock += to_failure
            needed = restart + interval + save
            to_failure = generator.expovariate(1 / between)
        clock, to_failure, left = clock + needed, to_failure - needed, left - 1
    return 1 - segments * interval / clock


def chance(similarity: float, bands: int, rows: int) -> float:
    """1 − (1 − sʳ)ᵇ: the probability that two pages agree in all r hashes of one of b bands."""
    return 1 - (1 - similarity**rows) ** bands


def intervals() -> list[float]:
    """From half a minute to ten hours, evenly on a logarithmic scale."""
    return [MINUTE / 2 * 1200 ** (i / 24) for i in range(25)]


def measured() -> dict[str, Any]:
    """For each cluster the mean of forty simulations at each interval, none like another."""
    shares, seeds = {}, itertools.count()
    for devices in CLUSTERS:
        between = DEVICE / devices
        shares[str(devices)] = [
            sum(simulate(x, SAVE, RESTART, between, 2_000, next(seeds)) for _ in range(40)) / 40
            if lost_exactly(x, SAVE, RESTART, between) < 0.5
            else None
            for x in intervals()
        ]
    return {"date": datetime.now(UTC).date().isoformat(), "lost": shares}


class Chart:
    """Lines with names on two axes, as SVG in the colour of the text around it."""

    def __init__(self, name: str, title: str, text: str, x_name: str, y_name: str) -> None:
        self.parts = [
            f'<svg viewBox="0 0 412 270" role="img" aria-labelledby="{name}-t {name}-d" '
            'style="display:block;max-width:640px;margin:auto" fill="none" stroke="currentColor" '
            'xmlns="http://www.w3.org/2000/svg">',
            f'<title id="{name}-t">{title}</title><desc id="{name}-d">{text}</desc>',
            "<style>.chart{font:12px system-ui,sans-serif;fill:currentColor;stroke:none}</style>",
            '<path d="M45 15V225H390"/>',
            self.text(217, 262, x_name, "middle"),
            self.text(45, 10, y_name, "start"),
        ]

    @staticmethod
    def text(x: float, y: float, words: str, anchor: str) -> str:
        """A few words."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        return f'<text class="chart" {place}>{words}</text>'

    @staticmethod
    def place(x: float, y: float) -> tuple[float, float]:
        """Where a point of the unit square is drawn."""
        return 45 + 345 * x, 225 - 210 * y

    def ticks(self, x: dict[float, str], y: dict[float, str]) -> None:
        """Marks and their names."""
        for at, words in x.items():
            left, top = self.place(at, 0)
            self.parts += [
                f'<path d="M{left:.1f} {top}v5"/>',
                self.text(left, 243, words, "middle"),
            ]
        for at, words in y.items():
            left, top = self.place(0, at)
            self.parts += [
                f'<path d="M{left} {top:.1f}h-5"/>',
                self.text(37, top + 4, words, "end"),
            ]

    def line(self, points: Sequence[tuple[float, float]], dashes: str) -> None:
        """A line through points of the unit square."""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.place(*p) for p in points))
        self.parts.append(f'<path d="M{path}" stroke-width="1.8" stroke-dasharray="{dashes}"/>')

    def label(self, x: float, y: float, words: str, anchor: str = "start") -> None:
        """The name of a line."""
        self.parts.append(self.text(*self.place(x, y), words, anchor))

    def dots(self, points: Iterator[tuple[float, float]]) -> None:
        """A dot at each point of the unit square."""
        for x, y in (self.place(*p) for p in points):
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="currentColor"/>')

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def failures_figure(results: dict[str, Any]) -> str:
    """Lost time over the interval, calculated and simulated."""

    def at(hours: float) -> float:
        return math.log(hours / (MINUTE / 2)) / math.log(1200)

    chart = Chart(
        "failures",
        "Time lost to failures and checkpoints",
        "The share of time that is lost, over the work between two checkpoints, from half a minute "
        "to ten hours. Each of three curves falls, has a flat lowest part and rises. With 1,024 "
        "devices the lowest is 2 percent at about an hour, with 16,384 it is 10 percent at a "
        "quarter of an hour, with 131,072 it is 35 percent at five minutes. Dots, which are "
        "simulations, lie on the curves, which are calculated.",
        "work between two checkpoints",
        "time lost",
    )
    chart.ticks(
        {
            at(x): n
            for x, n in {MINUTE: "1 min", 10 * MINUTE: "10 min", 1: "1 h", 10: "10 h"}.items()
        },
        {0.0: "0", 0.2: "10 %", 0.4: "20 %", 0.6: "30 %", 0.8: "40 %", 1.0: "50 %"},
    )
    fine = [MINUTE / 2 * 1200 ** (i / 240) for i in range(241)]
    for devices, dashes in CLUSTERS.items():
        between = DEVICE / devices
        curve = [(x, lost_exactly(x, SAVE, RESTART, between)) for x in fine]
        chart.line([(at(x), 2 * y) for x, y in curve if y <= 0.5], dashes)
        simulated = zip(intervals(), results["lost"][str(devices)], strict=True)
        chart.dots((at(x), 2 * y) for x, y in simulated if y is not None and y <= 0.5)
    for devices, x, y in ((131_072, 0.22, 0.63), (16_384, 0.33, 0.36), (1_024, 0.6, 0.11)):
        chart.label(x, y, f"{devices:,} devices")
    return str(chart)


def minhash_figure() -> str:
    """The chance of being found over the similarity."""
    chart = Chart(
        "minhash",
        "Which pairs of pages MinHash finds",
        "The chance that two pages are compared, over their similarity from 0 to 1. With one band "
        "of one hash it is the diagonal. With 14 bands of 8 hashes it stays near 0 up to a "
        "similarity of 0.4, passes one half at 0.68 and is above 0.9 from 0.8 on. With 450 bands "
        "of 20 hashes it is steeper still, and passes one half at 0.72.",
        "similarity of two pages",
        "chance of being found",
    )
    ticks = {x / 4: f"{x / 4:g}" for x in range(5)}
    chart.ticks(ticks, ticks)
    for (bands, rows), dashes in BANDS.items():
        points = [i / 200 for i in range(201)]
        chart.line([(s, chance(s, bands, rows)) for s in points], dashes)
    chart.label(0.16, 0.33, "1 band of 1", "middle")
    chart.label(0.53, 0.22, "14 of 8", "end")
    chart.label(0.83, 0.75, "450 of 20")
    return str(chart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--save", action="store_true", help="simulate, and write the files")
    if parser.parse_args().save:
        results = measured()
        write_json(FILE, results)
        for name, figure in (("failures", failures_figure(results)), ("minhash", minhash_figure())):
            (FIGURES / f"{name}.svg").write_text(figure, encoding="utf-8")
    print(*map(row_of, RUNS), sep="\n")
    print(f"one device fails every {DEVICE / DAY / 365.25:.1f} years")
    for devices in CLUSTERS:
        between = DEVICE / devices
        best = best_interval(SAVE, between)
        share = lost_exactly(best, SAVE, RESTART, between)
        print(
            f"{devices:7,} devices: every {between:6.2f} h; best {best / MINUTE:5.1f} min; lost "
            f"for each hour of work {lost(best, SAVE, RESTART, between):.1%} to first order, "
            f"{share / (1 - share):.1%} exactly; of all time {share:.1%}"
        )
    for similarity in (0.3, 0.5, 0.7, 0.75, 0.8, 0.85, 0.9):
        print(f"similarity {similarity}: found in {chance(similarity, 14, 8):.1%}")


if __name__ == "__main__":
    main()
