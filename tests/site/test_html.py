"""The built pages: complete, readable without the network, and without a dead link.

`make test` builds them first; by hand, `make book` does.
"""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

import repository
from repository import ROOT

SITE = ROOT / "_build" / "html"
ERRATA = SITE / "chapters" / "reference" / "errata.html"
NO_PROSE = {"pre", "code", "script", "style", "svg"}
GENERATED = ["genindex.html", "search.html"]  # Sphinx writes them, without a title

LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}


def toc_pages() -> list[str]:
    """The pages that `_toc.yml` lists, without a suffix."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = (page for part in toc["parts"] for page in part["chapters"])
    listed = ((page, *page.get("sections", ())) for page in pages)
    return [toc["root"], *(page["file"] for group in listed for page in group)]


PAGES = [f"{page}.html" for page in toc_pages()]
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


def is_external(address: str) -> bool:
    """Whether the address leaves the site."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "ftp"}


# --- pages -----------------------------------------------------------------------------------


@each_page
def test_page_has_one_title_a_language_and_described_images(page):
    found = soup(SITE / page)
    titles = found.select("h1:not(#jb-print-docs-body *)")  # that one is for printing
    assert len(titles) == 1
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


# --- without the network ---------------------------------------------------------------------


def loaded_from_elsewhere(page: BeautifulSoup) -> list[str]:
    """What a browser would fetch from another site to show the page."""
    loads = [
        str(tag)
        for name, attribute in LOADED.items()
        for tag in page.find_all(name)
        if is_external(tag.get(attribute, "")) and "canonical" not in tag.get("rel", ())
    ]
    styles = " ".join(tag.get_text() for tag in page.find_all("style"))
    scripts = " ".join(tag.get_text() for tag in page.find_all("script"))
    in_styles = re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", styles)
    in_scripts = re.findall(r"[\"']((?:https?:)?//[^\"']+\.(?:m?js|css|woff2?))", scripts)
    return loads + in_styles + in_scripts


@pytest.mark.parametrize("page", [*PAGES, *GENERATED])
def test_page_loads_nothing_from_elsewhere(page):
    assert loaded_from_elsewhere(soup(SITE / page)) == []


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="//cdn.example.org/a.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
        "<style>@import 'https://fonts.example.org/a';</style>",
        '<script>load("https://cdn.example.org/a.js")</script>',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(markup):
    assert loaded_from_elsewhere(BeautifulSoup(markup, "lxml"))


def test_styles_load_nothing_from_elsewhere():
    fetched = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")
    styles = [path for path in SITE.rglob("*.css") if fetched.search(path.read_text("utf-8"))]
    assert styles == []


# --- links -----------------------------------------------------------------------------------


def leads_somewhere(page: Path, address: str) -> bool:
    """Whether the address is outside, or a file of the site with the anchor it names."""
    parts = urlsplit(address)
    if is_external(address) or parts.scheme in {"data", "mailto", "javascript"}:
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
