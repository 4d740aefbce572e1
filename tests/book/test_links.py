"""Links inside the book lead somewhere: each file exists, and each heading that is linked to."""

import re
from functools import cache
from pathlib import Path

import pytest
from mdit_py_plugins.anchors.index import slugify

from notebooks import CHAPTERS, ROOT, read

PAGES = [ROOT / "index.md", *sorted(CHAPTERS.rglob("*.ipynb")), *sorted(CHAPTERS.rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^(```+|~~~+).*?^\1|`[^`\n]*`", re.M | re.S)
WRITTEN = re.compile(r"^\((\S+)\)=|\{#(\S+?)\}|id=\"(\S+?)\"", re.M)


@cache
def prose(page: Path) -> str:
    """What the page says, without code."""
    if page.suffix == ".ipynb":
        cells = [cell.source for cell in read(page).cells if cell.cell_type == "markdown"]
        return CODE.sub("", "\n\n".join(cells))
    return CODE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The addresses of the page's headings, as the site makes them, and those it writes itself."""
    if page.suffix == ".ipynb":
        cells = [cell.source for cell in read(page).cells if cell.cell_type == "markdown"]
        text = re.sub(r"^(```+|~~~+).*?^\1", "", "\n\n".join(cells), flags=re.M | re.S)
    else:
        text = re.sub(
            r"^(```+|~~~+).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S
        )
    found: set[str] = set()
    for heading in re.findall(r"^#{1,4} (.+)$", text, re.M):
        slug = first = slugify(re.sub(r"\$[^$]*\$|[`*]", "", heading.strip()))
        again = 0
        while slug in found:
            again += 1
            slug = f"{first}-{again}"
        found.add(slug)
    return found | {next(filter(None, match)) for match in WRITTEN.findall(text)}


def broken(page: Path) -> list[str]:
    """The page's links that lead nowhere."""
    wrong = []
    for address, anchor in LINK.findall(prose(page)):
        target = (page.parent / address).resolve() if address else page
        if not target.exists() or (
            anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors(target)
        ):
            wrong.append(f"{address}#{anchor}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    assert broken(page) == []
