"""A Sphinx extension: a search for sections by Pagefind; `_config.yml` loads it.

Each section of each page is a separate record, so that a result leads to the place and not to
the top of a long page. `_static/search.mjs` asks; where a page is opened as a file, a browser
loads no module, and Sphinx's own search answers.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from bs4 import BeautifulSoup, Tag
from bs4.filter import SoupStrainer
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

UNREAD = "script, style, .headerlink, .hide, .tag_hide-cell, .tag_hide-input, .cell_output, nav"
# A page that runs code explains; the others are looked up.
CHAPTER, DEEPER, REFERENCE = 1.0, 0.8, 0.2
ARTICLE = SoupStrainer("article", class_="bd-article")


def records(page: Path, site: Path) -> Iterator[str]:
    """Each section of a built page, without its subsections, as a small page with its address."""
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "lxml", parse_only=ARTICLE)
    article = soup.select_one("article.bd-article")
    if article is None or (first := article.find("h1")) is None:
        return
    for part in article.select(UNREAD):
        part.decompose()
    title, name = words(first), page.relative_to(site).as_posix()
    runs = soup.select_one(".cell") is not None
    weight = REFERENCE if not runs else DEEPER if "/deeper/" in name else CHAPTER
    # From the innermost outwards: what a section's own record holds leaves those around it.
    for section in reversed(article.find_all("section")):
        heading = section.find(["h1", "h2", "h3"], recursive=False)
        section.extract()
        if heading is None:
            continue
        heading.extract()
        text = words(section)
        yield (
            f"<html lang=en><body><h1>{escape(words(heading))}</h1>"
            f"<p>{escape(text)}</p>"
            f"<i data-pagefind-meta=page>{escape(title)}</i>"
            f"<i data-pagefind-ignore data-pagefind-meta=address>{name}#{section['id']}</i>"
            f"<i data-pagefind-ignore data-pagefind-meta=weight>{weight}</i>"
        )


def words(part: Tag) -> str:
    """The text of a part, with single spaces, and formulas without what marks them."""
    return " ".join(re.sub(r"\\[()\[\]]", " ", part.get_text(" ")).split())


def write(site: Path) -> None:
    """Write the index into the site's folder `pagefind`."""
    with TemporaryDirectory() as folder:
        found = 0
        for page in sorted([site / "index.html", *site.glob("chapters/**/*.html")]):
            for content in records(page, site):
                found += 1
                Path(folder, f"{found}.html").write_text(content, encoding="utf-8")
        options = ["--site", folder, "--output-path", str(site / "pagefind")]
        options += ["--force-language", "en", "--quiet"]
        subprocess.run([sys.executable, "-m", "pagefind", *options], check=True)
    for part in (site / "pagefind").glob("pagefind-*ui*"):  # its own forms, not used here
        part.unlink()


def index_sections(app: Sphinx, exception: Exception | None) -> None:
    """Index what has been built."""
    if exception is None and isinstance(app.builder, StandaloneHTMLBuilder):
        write(Path(app.outdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the indexing."""
    app.connect("build-finished", index_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
