"""What nobody writes by hand on the pages is there, and true."""

import json
import re
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from docutils import nodes
from PIL import Image
from PIL.ImageSequence import Iterator

import repository
from cross_links import Book, Term, link_terms
from pages import PLAIN_TOKEN
from repository import ROOT
from test_html import CHAPTERS, PAGES, SITE, each_chapter, each_page, soup

LARGEST_HTML = 360_000  # bytes

# Links to programs and their documentation, which a bibliography does not list.
PROGRAMS = {
    "colab.research.google.com",
    "einops.rocks",
    "github.com",
    "huggingface.co",
    "pytorch.org",
}


def notebook_of(page):
    return json.loads((ROOT / page).with_suffix(".ipynb").read_text(encoding="utf-8"))


def prose_links(page):
    """The works that the chapter's prose links to."""
    cells = [cell for cell in notebook_of(page)["cells"] if cell["cell_type"] == "markdown"]
    prose = "\n".join("".join(cell["source"]) for cell in cells)
    links = {unquote(link) for link in re.findall(r"\]\((https?://[^\s)]+)\)", prose)}
    return {link for link in links if urlsplit(link).hostname not in PROGRAMS}


def content(page, **meta):
    (tag,) = soup(SITE / page).find_all("meta", attrs=meta)
    return tag["content"]


@each_page
def test_page_describes_itself_and_has_a_card(page):
    about = content(page, name="description")
    assert 40 <= len(about) <= 200
    assert about == content(page, property="og:description")
    first_words = about.removesuffix(" …").split()[:5]
    assert " ".join(first_words) in " ".join(soup(SITE / page).article.get_text().split())
    title = soup(SITE / page).select_one("article h1").find(string=True)
    assert content(page, property="og:title") == title
    image = content(page, property="og:image")
    assert image == repository.pages_url() + "_static/social_card.png"
    assert content(page, name="twitter:card") == "summary_large_image"
    canonical = soup(SITE / page).find("link", rel="canonical")["href"]
    assert canonical == repository.pages_url() + page


def test_card_is_drawn_from_its_source_and_says_what_the_book_is():
    drawing = (ROOT / "_static" / "social_card.svg").read_text(encoding="utf-8")
    card = Image.open(SITE / "_static" / "social_card.png")
    assert card.size == (1200, 630)
    assert card.text["Source"] == drawing, "run `python tools/printed.py card`"
    title = soup(SITE / "index.html").select_one("article h1").find(string=True)
    assert title in " ".join(re.findall(r"<text[^>]*>([^<]*)", drawing))


def test_film_shows_a_translation_token_by_token():
    path = SITE / "_static" / "live.gif"
    assert path.stat().st_size < 2_000_000
    with Image.open(path) as film:
        frames = [(f.convert("RGB").tobytes(), f.info["duration"]) for f in Iterator(film)]
        pictures, durations = zip(*frames, strict=True)
        assert len(set(pictures)) == len(pictures) == 13  # tokens
        assert 15_000 < sum(durations) < 25_000
        assert film.info["loop"] == 2  # it stops by itself
        image = soup(SITE / "index.html").select_one(".film img")
        assert (int(image["width"]), int(image["height"])) == film.size
    assert "(_static/live.gif)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_sitemap_lists_every_page_and_descriptions_differ():
    root = ElementTree.parse(SITE / "sitemap.xml").getroot()
    listed = {
        location.text.removeprefix(repository.pages_url()) for location in root.findall(".//{*}loc")
    }
    assert listed == {"" if page == "index.html" else page for page in PAGES}
    assert len({content(page, name="description") for page in PAGES}) == len(PAGES)


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


@each_chapter
def test_chapter_says_what_ran_it(page):
    ran = notebook_of(page)["metadata"]["executed_with"]
    line = soup(SITE / page).select_one(".end-of-chapter .executed").get_text()
    assert f"minitransformer {ran['minitransformer']} and PyTorch {ran['torch']}" in line
    assert ran["date"][:4] in line


def test_chapters_name_the_modules_that_they_build():
    book = Book.read(ROOT)
    assert set(book.prose) == {page.removesuffix(".html") for page in CHAPTERS}
    assert "minitransformer.layers.attention" in book.builds["chapters/04_attention"]
    for page, modules in book.builds.items():
        text = soup(SITE / f"{page}.html").select_one(".end-of-chapter").get_text()
        names = [module.removeprefix("minitransformer.") for module in modules]
        assert [name for name in names if f"Built here: {name}." not in text] == []


def test_pages_are_small():
    sizes = {page: (SITE / page).stat().st_size for page in (*PAGES, "genindex.html")}
    assert {page: size for page, size in sizes.items() if size > LARGEST_HTML} == {}


def test_code_without_tags_has_the_colour_of_all_code():
    style = (SITE / "_static" / "pygments.css").read_text(encoding="utf-8")
    rules = re.findall(r"^(\S+ \.highlight) ?\.?(\w*) {[^}]*(?<![-\w])color: (#\w+)", style, re.M)
    colours = {(theme, kind): colour for theme, kind, colour in rules}
    assert len({theme for theme, _ in colours}) == 2
    for theme, kind in colours:
        if PLAIN_TOKEN.fullmatch(f'<span class="{kind}">x</span>'):
            assert colours[theme, kind] == colours[theme, ""]
