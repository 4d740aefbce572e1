"""Links inside the book lead somewhere: each file exists, and each heading that is linked to."""

import re
from functools import cache
from pathlib import Path

import pytest

from notebooks import CHAPTERS, ROOT, read
from questions import BLOCK, headings

PAGES = [ROOT / "index.md", *sorted(CHAPTERS.rglob("*.ipynb")), *sorted(CHAPTERS.rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^(```+|~~~+).*?^\1|`[^`\n]*`", re.M | re.S)
WRITTEN = re.compile(r"^\((\S+)\)=|\{#(\S+?)\}|id=\"(\S+?)\"", re.M)


@cache
def prose_of(page: Path) -> str:
    """What the page says, with its blocks of code."""
    if page.suffix == ".ipynb":
        return "\n\n".join(cell.source for cell in read(page).cells if cell.cell_type == "markdown")
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> set[str]:
    """The addresses of the page's headings, as the site makes them, and those it writes itself."""
    text = BLOCK.sub("", prose_of(page))
    written = {next(filter(None, match)) for match in WRITTEN.findall(text)}
    return {address for _, _, address in headings(text)} | written


def broken(page: Path) -> list[str]:
    """The page's links that lead nowhere."""
    wrong = []
    for address, anchor in LINK.findall(CODE.sub("", prose_of(page))):
        target = (page.parent / address).resolve() if address else page
        if not target.exists() or (
            anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors(target)
        ):
            wrong.append(f"{address}#{anchor}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken(page) == []
