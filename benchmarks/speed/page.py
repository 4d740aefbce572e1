"""The tables of chapters/reference/speed.md, written from results/speed.json and engines.json.

python -m benchmarks.speed.page     writes them into the page

`libraries.py` does so too when it has measured, `engines.py` does not. What stands between
`<!-- speed: NAME -->` and `<!-- end -->` on the page is `PARTS[NAME]` of the results; all else is
written by hand.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.runs import RESULTS as FOLDER
from benchmarks.runs import read_json, write_json
from minitransformer.files import replacing

Row = dict[str, Any]
"""Of one kind of work: "group", "ratios" by library, "limit" (a share, or None), "conditions"."""
Results = dict[str, Any]
"""What speed.json holds: "rows" by their names, and the "memory" of attention, in MB."""

ENGINES, RESULTS = FOLDER / "engines.json", FOLDER / "speed.json"
PAGE = Path(__file__).parents[2] / "chapters" / "reference" / "speed.md"
MARKED = re.compile(r"(<!-- speed: (\w+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
DECODER_ONLY = "decoder only, "


def rows_of(results: Results, *groups: str, decoder_only: bool = False) -> dict[str, Row]:
    """The rows of these groups whose models are decoders only, or are not."""
    return {
        name.removeprefix("step, "): row
        for name, row in results["rows"].items()
        if row["group"] in groups and (DECODER_ONLY in name) == decoder_only
    }


def table(first: str, rows: dict[str, Row]) -> str:
    """A column for the share of the limit, if there is one, and one for each library."""
    others = list(dict.fromkeys(other for row in rows.values() for other in row["ratios"]))
    has_limit = any(row["limit"] is not None for row in rows.values())
    head = [first, *["limit"] * has_limit, *others]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name, row in rows.items():
        ratios = [row["ratios"].get(other) for other in others]
        cells = [name.replace(DECODER_ONLY, "").replace(" x ", " × ")]
        if has_limit:
            cells.append(f"{100 * row['limit']:.0f} %")
        cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def span(rows: dict[str, Row], *others: str) -> str:
    """From the smallest ratio to the greatest, to these libraries or to all."""
    ratios = [
        ratio
        for row in rows.values()
        for other, ratio in row["ratios"].items()
        if not others or other in others
    ]
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return low if low == high else f"{low} to {high}"


def summary(results: Results) -> str:
    """What the tables come to."""
    steps = span(rows_of(results, "training", "multi30k"))
    decoder_steps = span(rows_of(results, "training", decoder_only=True))
    writing = rows_of(results, "generation") | rows_of(results, "generation", decoder_only=True)
    return (
        f"In short, the others take {steps} times as long as ours for a training step of an "
        f"encoder-decoder, {decoder_steps} for one of a decoder-only model, and {span(writing)} "
        f"for decoding (Hugging Face's `transformers`)."
    )


def attention(results: Results) -> str:
    """One row, and its memory, as a sentence."""
    (row,) = rows_of(results, "attention").values()
    memory = results["memory"]
    return (
        "**Attention**, causal, over 8,192 positions: PyTorch's fused function, with its causal "
        f"flag, is {row['ratios']['formula']:.1f} times as fast as chapter 4's formula, and needs "
        f"{memory['ours']:.0f} MB of further memory instead of {memory['formula']:.0f}."
    )


def conditions(results: Results) -> str:
    """How the rows were measured; which, if not all alike."""
    groups: dict[str, list[str]] = {}
    for row in results["rows"].values():
        found = groups.setdefault(row["conditions"], [])
        if row["group"] not in found:
            found.append(row["group"])
    if len(groups) == 1:
        return f"*{next(iter(groups))}.*"
    return "\n\n".join(f"*{', '.join(names)}: {how}.*" for how, names in groups.items())


def engines(_: Results) -> str:
    """The table of the engines, and how it was measured."""
    results = read_json(ENGINES)
    return f"{table('text', results['rows'])}\n\n{conditions(results)}"


PARTS: dict[str, Callable[[Results], str]] = {
    "summary": summary,
    "translation": lambda results: table("step", rows_of(results, "training", "multi30k")),
    "language": lambda results: table("step", rows_of(results, "training", decoder_only=True)),
    "writing": lambda results: table("text", rows_of(results, "generation")),
    "continuing": lambda results: table("text", rows_of(results, "generation", decoder_only=True)),
    "attention": attention,
    "tokenization": lambda results: table("work", rows_of(results, "tokenization")),
    "conditions": conditions,
    "engines": engines,
}


def rendered(page: str, results: Results) -> str:
    """The page with every marked part as these results have it."""
    return MARKED.sub(lambda m: m[1] + PARTS[m[2]](results) + m[3], page)


def marked(page: str) -> Iterator[str]:
    """The names of the marked parts."""
    return (found[2] for found in MARKED.finditer(page))


def save(results: Results) -> None:
    """Write the results, and the page from them."""
    write_json(RESULTS, results)
    page = rendered(PAGE.read_text(encoding="utf-8"), results)
    with replacing(PAGE) as new:
        new.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    save(read_json(RESULTS))
