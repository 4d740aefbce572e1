"""The index of all questions that the deeper pages answer: writes chapters/reference/questions.md.

    python tools/questions.py

A question is a heading of level 3 below `## Questions`. `tests/book/test_questions.py` calls this
too, so the committed page is never behind.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mdit_py_plugins.anchors.index import slugify

from notebooks import CHAPTERS, read

PAGE = CHAPTERS / "reference" / "questions.md"
HEADING = re.compile(r"^(#{1,4}) (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)

OPENING = """\
# Questions

Each question leads to its answer, on a page beside a chapter. Filter them by a few words, such as
*mask cache* or *NaN float16*.

```{raw} html
<form id="question-filter" role="search" hidden>
  <label for="question-words">Words of your question</label>
  <input id="question-words" type="search" autocomplete="off" spellcheck="false"
    aria-describedby="question-count">
  <output id="question-count" for="question-words"></output>
</form>
<script type="module" src="../../_static/questions.mjs"></script>
```
"""


def prose(page: Path) -> str:
    """What the page says, without code."""
    cells = [cell.source for cell in read(page).cells if cell.cell_type == "markdown"]
    return BLOCK.sub("", "\n\n".join(cells))


def headings(text: str) -> Iterator[tuple[int, str, str]]:
    """Level, text and address of each heading, as the site makes them."""
    found: set[str] = set()
    for marks, heading in HEADING.findall(text):
        slug = first = slugify(re.sub(r"\$[^$]*\$|[`*]", "", heading.strip()))
        again = 0
        while slug in found:
            again += 1
            slug = f"{first}-{again}"
        found.add(slug)
        yield len(marks), heading.strip(), slug


def questions(page: Path) -> Iterator[tuple[str, str]]:
    """The questions that the page answers, with their addresses."""
    inside = False
    for level, heading, slug in headings(prose(page)):
        if level <= 2:
            inside = heading == "Questions"
        elif inside and level == 3:
            yield heading, slug


def index() -> str:
    """The content of the index."""
    parts = [OPENING]
    for page in sorted(CHAPTERS.glob("deeper/*.ipynb")):
        title = next(headings(prose(page)))[1]
        address = f"../{page.relative_to(CHAPTERS).as_posix()}"
        lines = [f"- [{text}]({address}#{slug})" for text, slug in questions(page)]
        if lines:
            parts.append("\n".join([f"## {title}", "", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(index(), encoding="utf-8")
