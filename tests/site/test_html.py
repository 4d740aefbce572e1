"""The built pages: complete, and without a dead link.

`make test` builds them first; by hand, `make book` does.
"""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

import repository
from printed import names
from repository import ROOT

SITE = ROOT / "_build" / "html"
ERRATA = SITE / "chapters" / "reference" / "errata.html"
NO_PROSE = {"pre", "code", "script", "style", "svg"}

PAGES = [*names()]
each_page = pytest.mark.parametrize("page", PAGES)
CHAPTERS = [page for page in PAGES if (ROOT / page).with_suffix(".ipynb").exists()]
each_chapter = pytest.mark.parametrize("page", CHAPTERS)


@pytest.fixture(autouse=True, scope="module")
def built():
    if not (SITE / "index.html").exists():
        pytest.fail("there is no _build/html: run `make book` first", pytrace=False)


@cache
def soup(path: Path) -> BeautifulSoup:
    """The page, parsed."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "lxml")


@cache
def anchors(path: Path) -> set[str]:
    """What a link may point at inside the page."""
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', path.read_text(encoding="utf-8")))


# --- pages -----------------------------------------------------------------------------------


@each_page
def test_page_has_one_title_a_language_and_described_images(page):
    found = soup(SITE / page)
    assert len(found.select("h1")) == 1
    assert found.html["lang"] == "en"
    images = found.select("img:not(.logo__image)")  # the logo is beside its name
    assert [str(tag) for tag in images if not tag.get("alt")] == []


@each_page
def test_no_markup_is_left_in_the_text(page):
    prose = " ".join(
        text
        for text in soup(SITE / page).article.find_all(string=True)
        if not any(parent.name in NO_PROSE or is_code(parent) for parent in text.parents)
    )
    assert re.findall(r".{0,30}(?:\$|:::|\{\w+\}`|\*\*).{0,30}", prose) == []


def is_code(tag) -> bool:
    """Whether this is a formula or a signature."""
    return not {"math", "sig"}.isdisjoint(tag.get("class", ()))


def test_folded_cells_say_what_they_hold():
    labels = [
        label.get_text()
        for page in CHAPTERS
        for label in soup(SITE / page).select("details.hide .collapsed")
    ]
    assert len(labels) > 100
    assert [label for label in labels if "code cell" in label] == []
    assert {"Show imports", "Show the plot's code", "Show the check"} <= set(labels)


# --- links -----------------------------------------------------------------------------------


def leads_somewhere(page: Path, address: str) -> bool:
    """Whether the address is outside, or a file of the site with the anchor it names."""
    parts = urlsplit(address)
    if parts.netloc or parts.scheme in {"data", "mailto", "javascript"}:
        return True
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file() or SITE not in target.parents:
        return False
    return (
        not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in anchors(target)
    )


@each_page
def test_links_lead_somewhere(page):
    addresses = [
        tag[attribute]
        for attribute in ("href", "src")
        for tag in soup(SITE / page).find_all(attrs={attribute: True})
    ]
    assert [address for address in addresses if not leads_somewhere(SITE / page, address)] == []


@pytest.mark.parametrize("address", ["nowhere.html", "#nowhere", "chapters/", "../../x.html"])
def test_dead_link_is_found(address):
    assert not leads_somewhere(SITE / "index.html", address)


@pytest.mark.parametrize("page", [*PAGES, "genindex.html"])  # a search has no footer
def test_page_leads_to_the_errata(page):
    links = soup(SITE / page).select("footer.bd-footer-content a[href]")
    paths = [unquote(urlsplit(link["href"]).path) or Path(page).name for link in links]
    assert ERRATA in [(SITE / page).parent.joinpath(path).resolve() for path in paths]


@each_chapter
def test_chapter_opens_in_colab_and_sets_formulas_by_our_own_mathjax(page):
    notebook = f"{repository.slug()}/blob/{repository.branch()}/{page.removesuffix('.html')}.ipynb"
    links = {tag["href"] for tag in soup(SITE / page).find_all("a", href=True)}
    assert f"https://colab.research.google.com/github/{notebook}" in links
    sources = [tag["src"] for tag in soup(SITE / page).find_all("script", src=True)]
    (mathjax,) = (source for source in sources if "mathjax" in source.lower())
    assert (SITE / page).parent.joinpath(urlsplit(mathjax).path).resolve().is_file()
