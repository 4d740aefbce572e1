"""What nobody writes by hand on the pages is there, and true."""

import json
import re
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

import repository
from cross_links import Book, Term, called, link_terms, modules_used
from pages import from_root, icon_codes
from repository import ROOT
from test_html import CHAPTERS, PAGES, SITE, each_chapter, each_page, soup

# Links to programs and their documentation, which a bibliography does not list.
PROGRAMS = {
    "colab.research.google.com",
    "einops.rocks",
    "github.com",
    "huggingface.co",
    "pytorch.org",
}


def content(page, **meta):
    tags = soup(SITE / page).find_all("meta", attrs=meta)
    assert len(tags) == 1
    return tags[0]["content"]


def prose_links(page):
    """The works that the chapter's prose links to."""
    notebook = json.loads((ROOT / page).with_suffix(".ipynb").read_text(encoding="utf-8"))
    prose = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    links = {unquote(link) for link in re.findall(r"\]\((https?://[^\s)]+)\)", prose)}
    return {link for link in links if urlsplit(link).hostname not in PROGRAMS}


# --- the head --------------------------------------------------------------------------------


@each_page
def test_page_describes_itself(page):
    about = content(page, name="description")
    assert 40 <= len(about) <= 200
    assert about == content(page, property="og:description")
    first_words = about.removesuffix(" …").split()[:5]
    assert " ".join(first_words) in " ".join(soup(SITE / page).article.get_text().split())


def test_descriptions_differ():
    assert len({content(page, name="description") for page in PAGES}) == len(PAGES)


@each_page
def test_page_has_a_card(page):
    title = soup(SITE / page).select_one("article h1").find(string=True)
    assert content(page, property="og:title") == title
    image = content(page, property="og:image")
    assert image.startswith(repository.pages_url())
    card = SITE / image.removeprefix(repository.pages_url())
    assert card.read_bytes()[16:24] == (1200).to_bytes(4, "big") + (630).to_bytes(4, "big")
    assert card.stat().st_size < 100_000


@each_page
def test_page_knows_its_address(page):
    canonical = soup(SITE / page).find("link", rel="canonical")["href"]
    assert canonical == repository.pages_url() + page


def test_sitemap_lists_every_page():
    root = ElementTree.parse(SITE / "sitemap.xml").getroot()
    listed = {
        location.text.removeprefix(repository.pages_url()) for location in root.findall(".//{*}loc")
    }
    assert listed == {"" if page == "index.html" else page for page in PAGES}


# --- bibliography and glossary ---------------------------------------------------------------


def works():
    return soup(SITE / "chapters/reference/bibliography.html").select("article ul > li")


def test_every_cited_work_is_listed():
    listed = {unquote(link["href"]) for work in works() for link in work.find_all("a")}
    cited = set().union(*map(prose_links, CHAPTERS))
    assert cited - listed == set()


def test_every_listed_work_is_cited_where_it_says():
    assert works()
    for work in works():
        chapters = {link["href"] for link in work.select("a.internal")}
        assert chapters, work.get_text()
        outside = {unquote(link["href"]) for link in work.select("a.external")}
        assert all(
            outside & prose_links(f"chapters/reference/{page}") for page in chapters if outside
        )


def test_each_word_of_the_glossary_names_its_chapter():
    entries = soup(SITE / "chapters/reference/glossary.html").select("dl.glossary dd")
    assert len(entries) >= 60
    for entry in entries:
        assert re.search(r"See (chapter \d+|[A-Z][\w ]+)\.$", entry.get_text().strip())
        assert entry.find_all("a")[-1]["href"].replace("..", "chapters", 1) in CHAPTERS


def test_first_use_of_a_word_is_a_link_and_no_other():
    from docutils import nodes

    terms = {
        "mask": Term("term-mask", "Hides.", "chapter 4"),
        "causal mask": Term("term-c", "Hides later.", "chapter 4"),
    }
    title = nodes.title("", "Masks")
    text = "A causal mask, two masks and a mask-like thing; masks."
    tree = nodes.section("", title, nodes.paragraph("", text))
    link_terms(tree, terms, "g.html")
    links = {link.astext(): link["refuri"] for link in tree.findall(nodes.reference)}
    assert links == {"causal mask": "g.html#term-c", "masks": "g.html#term-mask"}
    assert tree.astext().endswith(text)
    assert not list(title.findall(nodes.reference))


# --- the end of a chapter --------------------------------------------------------------------


@each_chapter
def test_chapter_says_what_ran_it(page):
    notebook = json.loads((ROOT / page).with_suffix(".ipynb").read_text(encoding="utf-8"))
    ran = notebook["metadata"]["executed_with"]
    line = soup(SITE / page).select_one(".end-of-chapter .executed").get_text()
    assert f"minitransformer {ran['minitransformer']} and PyTorch {ran['torch']}" in line
    assert ran["date"][:4] in line


def test_chapters_name_their_modules_and_where_they_are_met_again():
    box = soup(SITE / "chapters/04_attention.html").select_one(".end-of-chapter")
    says = "Built here: layers.attention"
    (built,) = (line for line in box.find_all("p") if line.get_text().startswith(says))
    links = {link["href"] for link in built.find_all("a")}
    assert "05_multi_head_attention.html" in links
    assert "04_attention.html" not in links


def test_every_module_that_says_so_is_built_in_a_chapter():
    book = Book.read(ROOT)
    assert "layers.attention" in book.builds["chapters/04_attention"]
    assert "layers.encoder_decoder" in book.builds["chapters/08_encoder_decoder"]
    assert set(book.prose) == {page.removesuffix(".html") for page in CHAPTERS}


def test_a_deeper_page_cites_but_is_not_where_one_meets_a_module():
    page, book = "chapters/deeper/04_attention", Book.read(ROOT)
    assert called(page) == "chapter 4, deeper"
    assert page in book.prose
    assert page not in book.uses
    assert "chapters/04_attention" in book.uses


def test_modules_are_found_by_import_and_by_name():
    code = """
import minitransformer as mt
from minitransformer.training.data import Batch
mt.Transformer, x.Other
"""
    module_of = {"Transformer": "transformer", "Batch": "training.data", "Other": "other"}
    assert modules_used(code, module_of) == {"training.data", "transformer"}


# --- small parts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<a href="a.html">', '<a href="/book/a.html">'),
        ('<script src="_static/a.js">', '<script src="/book/_static/a.js">'),
        ('<html data-content_root="./">', '<html data-content_root="/book/./">'),
        ('<a href="#b">', '<a href="#b">'),
        ('<a href="/book/a.html">', '<a href="/book/a.html">'),
        ('<a href="https://c.org">', '<a href="https://c.org">'),
    ],
)
def test_addresses_of_the_404_page_begin_at_the_root(before, after):
    assert from_root(before, "/book/") == after


def test_icons_are_read_from_the_style_sheet():
    style = r'a{b:c}.fa-bars:before,.fa-navicon:before{content:"\f0c9"}.x:before{content:"\201c"}'
    assert icon_codes(style) == {"fa-bars": 0xF0C9, "fa-navicon": 0xF0C9}
