"""A Sphinx extension for what search engines and messengers read, and for lost readers.

- The site's address follows from the repository's: `tools/repository.py` knows it.
- Each page gets a description, its first paragraph, and a card for links to it.
- `sitemap.xml` lists the pages; `404.html` answers where there is none, at any depth.
"""

import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config

import repository

CARD = "_static/social_card.png"
CARD_SAYS = "minitransformer: the Transformer, from nothing. Beside the title, a causal mask."
LONGEST_DESCRIPTION = 200
NOT_FOUND = """\
<h1>Page not found</h1>
<p>There is no page at this address. It may have moved.</p>
<p>The <a href="index.html">first page</a> has the map of all chapters, and the
<a href="search.html">search</a> finds a word in any of them.</p>
"""
RELATIVE = re.compile(r'(?P<attribute>\b(?:href|src|action|data-content_root)=")(?!#|/|[\w+.-]+:)')


def set_address(app: Sphinx, config: Config) -> None:
    """The site's address, unless `_config.yml` gives another one."""
    config.html_baseurl = config.html_baseurl or repository.pages_url()


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Add the description and the card of a page to its head."""
    if not isinstance(tree, nodes.document):
        return  # a page that Sphinx writes, such as the index
    address = app.config.html_baseurl
    about = description(tree)
    properties = {
        "og:type": "website" if page == app.config.root_doc else "article",
        "og:site_name": app.config.html_title,
        "og:title": app.env.titles[page].astext(),
        "og:description": about,
        "og:url": address + file_name(app, page),
        "og:image": address + CARD,
        "og:image:alt": CARD_SAYS,
    }
    names = {"description": about, "twitter:card": "summary_large_image"}
    context["metatags"] += "".join(
        f'\n    <meta {kind}="{name}" content="{escape(content)}" />'
        for kind, group in (("name", names), ("property", properties))
        for name, content in group.items()
    )


def description(tree: nodes.document) -> str:
    """The beginning of the first paragraph that stands on its own."""
    for paragraph in tree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section | nodes.container):
            return textwrap.shorten(paragraph.astext(), LONGEST_DESCRIPTION, placeholder=" …")
    return ""


def file_name(app: Sphinx, page: str) -> str:
    """A page's address below the site's; the first page is the site's own."""
    return "" if page == app.config.root_doc else f"{page}.html"


def not_found(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The page for addresses without one."""
    yield "404", {"title": "Page not found", "body": NOT_FOUND}, "page.html"


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the sitemap, and make the links of the 404 page hold at any depth."""
    if exception or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    address = app.config.html_baseurl
    lines = [
        f"  <url><loc>{escape(address + file_name(app, page))}</loc></url>"
        for page in sorted(app.env.found_docs)
    ]
    Path(app.outdir, "sitemap.xml").write_text(
        "\n".join(
            [
                '<?xml version="1.0" encoding="utf-8"?>',
                '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">',
                *lines,
                "</urlset>\n",
            ]
        ),
        encoding="utf-8",
    )
    lost = Path(app.outdir, "404.html")
    lost.write_text(from_root(lost.read_text("utf-8"), urlsplit(address).path), encoding="utf-8")


def from_root(page: str, root: str) -> str:
    """The page with its relative addresses beginning at the root of the site."""
    return RELATIVE.sub(rf"\g<attribute>{root}", page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what tells others about the pages."""
    app.connect("config-inited", set_address)
    app.connect("html-page-context", describe)
    app.connect("html-collect-pages", not_found)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
