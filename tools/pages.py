"""A Sphinx extension that finishes each page of the site; `_config.yml` loads it.

- Its address: that of the repository's GitHub Pages. Its head: a description, which is its first
  paragraph, and a card for messengers. Beside the pages: `sitemap.xml`, and `404.html`, whose links
  hold at any depth.
- What it loads: MathJax in parts; no tags around code that looks like all code; a font of the icons
  shown, and not a script with all of Font Awesome's; the search's index on the search page alone;
  figures when they come near.
- What Jupyter Book would do otherwise: load a script from another host (sphinx-thebe), and not copy
  `_static` where no page has changed.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import imagesize
from docutils import nodes
from fontTools import subset
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config
from sphinx_thebe import init_thebe_core, update_thebe_context

import repository

CARD = "_static/social_card.png"
CARD_SAYS = "minitransformer: the Transformer from scratch. Beside the title, a decoder at work."
LONGEST_DESCRIPTION = 200
NOT_FOUND = """\
<h1>Page not found</h1>
<p>There is no page at this address. It may have moved.</p>
<p>The <a href="index.html">first page</a> has the map of all chapters, and the
<a href="search.html">search</a> finds a word in any of them.</p>
"""
RELATIVE = re.compile(r'(?P<attribute>\b(?:href|src|action|data-content_root)=")(?!#|/|[\w+.-]+:)')

MATHJAX = ["input/tex", "output/chtml", "a11y/assistive-mml"]  # MathML is for screen readers
UNUSED_SCRIPT = re.compile(
    r"<script[^>]*/?(?:fontawesome|language_data|searchindex|searchtools)\.js\b[^>]*></script>"
)
PLAIN_TOKEN = re.compile(r'<span class="(?:n|nn|nx|p|pm|w)">([^<]*)</span>')  # looks as all code
IMAGE = re.compile(r'<img (?=[^>]*?src="(?P<address>[^"]*)")')
ICON = re.compile(r"\bfa-[a-z0-9-]+")
ICON_RULE = re.compile(r'(?P<names>[^{}]*)\{content:"\\(?P<code>[0-9a-f]+)"\}')
PRIVATE = re.compile("[\ue000-\uf8ff]")  # where icon fonts keep their characters
ICON_FONTS = ["fa-solid-900", "fa-brands-400"]


def configure(app: Sphinx, config: Config) -> None:
    """Set the site's address, unless `_config.yml` gives one, and the parts of MathJax in use."""
    config.html_baseurl = config.html_baseurl or repository.pages_url()
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = {"loader": {"load": MATHJAX}}


# --- the head --------------------------------------------------------------------------------


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
    """The beginning of the first paragraph that is not part of something else."""
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


def from_root(page: str, root: str) -> str:
    """The page with its relative addresses beginning at the root of the site."""
    return RELATIVE.sub(rf"\g<attribute>{root}", page)


# --- what is loaded --------------------------------------------------------------------------


def lighten(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Let the page's images wait, drop needless tags, let its template drop needless scripts."""
    context["without_unused_scripts"] = partial(UNUSED_SCRIPT.sub, "")
    if "body" in context and isinstance(app.builder, StandaloneHTMLBuilder):
        sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}

        def waiting(image: re.Match[str]) -> str:
            return f"<img {waits(sources.get(Path(image['address']).name))}"

        context["body"] = IMAGE.sub(waiting, PLAIN_TOKEN.sub(r"\1", context["body"]))


def waits(picture: Path | None) -> str:
    """The attributes of an image that loads when it comes near, and until then keeps its place."""
    if picture is None or picture.suffix != ".png":
        return 'loading="lazy" '
    width, height = imagesize.get(picture)
    return f'loading="lazy" width="{width}" height="{height}" '


def write_icons(site: Path) -> None:
    """Cut the icon fonts down to what the pages and the theme show."""
    static = site / "_static"
    theme = (static / "styles/pydata-sphinx-theme.css").read_text(encoding="utf-8")
    book = (static / "styles/sphinx-book-theme.css").read_text(encoding="utf-8")
    codes = icon_codes(theme)
    script = static / "scripts/pydata-sphinx-theme.js"  # it shows some, too
    pages = [path.read_text(encoding="utf-8") for path in [script, *site.rglob("*.html")]]
    names = {name for page in pages for name in ICON.findall(page)}
    shown = {codes[name] for name in names if name in codes}
    shown |= set(map(ord, PRIVATE.findall(theme)))
    shown |= {int(rule["code"], 16) for rule in ICON_RULE.finditer(book)}
    (static / "icons").mkdir(exist_ok=True)
    for name in ICON_FONTS:
        options = subset.Options(flavor="woff")
        font = subset.load_font(static / f"vendor/fontawesome/webfonts/{name}.ttf", options)
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=shown)
        cutter.subset(font)
        subset.save_font(font, static / f"icons/{name}.woff", options)


def icon_codes(style: str) -> dict[str, int]:
    """The character of each icon, from the theme's style sheet."""
    return {
        name: int(rule["code"], 16)
        for rule in ICON_RULE.finditer(style)
        for name in ICON.findall(rule["names"])
    }


# --- for Sphinx ------------------------------------------------------------------------------


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write the sitemap and the icons, and mend the links of the 404 page."""
    if exception or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    site, address = Path(app.outdir), app.config.html_baseurl
    addresses = (escape(address + file_name(app, page)) for page in sorted(app.env.found_docs))
    sitemap = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">',
        *(f"  <url><loc>{location}</loc></url>" for location in addresses),
        "</urlset>\n",
    ]
    (site / "sitemap.xml").write_text("\n".join(sitemap), encoding="utf-8")
    lost = site / "404.html"
    lost.write_text(from_root(lost.read_text("utf-8"), urlsplit(address).path), encoding="utf-8")
    write_icons(site)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what finishes pages, and disconnect sphinx-thebe, which is loaded before."""
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler in (init_thebe_core, update_thebe_context):
                app.disconnect(listener.id)
    app.connect("config-inited", configure)
    app.connect("env-get-outdated", lambda app, *_: [app.config.root_doc])  # so `_static` is copied
    app.connect("html-page-context", describe)
    app.connect("html-page-context", lighten)
    app.connect("html-collect-pages", not_found)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
