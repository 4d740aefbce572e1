"""A Sphinx extension that makes the pages light to load.

- Formulas: MathJax in parts, without its menu, and with MathML for screen readers.
- Icons: a font of the few that are shown, and not a script with all of Font Awesome's.
- Search: its index is loaded by the search page alone.
- Figures: loaded when they come near, in a place of their size.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import imagesize
from fontTools import subset
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config

MATHJAX = ["input/tex", "output/chtml", "a11y/assistive-mml"]
UNUSED_SCRIPT = re.compile(
    r"<script[^>]*/?(?:fontawesome|language_data|searchindex|searchtools)\.js\b[^>]*></script>"
)
IMAGE = re.compile(r'<img (?=[^>]*?src="(?P<address>[^"]*)")')
ICON = re.compile(r"\bfa-[a-z0-9-]+")
ICON_RULE = re.compile(r'(?P<names>[^{}]*)\{content:"\\(?P<code>[0-9a-f]+)"\}')
PRIVATE = re.compile("[\ue000-\uf8ff]")  # where icon fonts keep their characters
ICON_FONTS = ["fa-solid-900", "fa-brands-400"]


def choose_mathjax(app: Sphinx, config: Config) -> None:
    """Load the parts of MathJax that we use, in place of one file with all of them."""
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = {"loader": {"load": MATHJAX}}


def lighten(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Let the page's images wait, and give its template the means to drop scripts."""
    context["without_unused_scripts"] = partial(UNUSED_SCRIPT.sub, "")
    if "body" in context and isinstance(app.builder, StandaloneHTMLBuilder):
        sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}

        def waiting(image: re.Match[str]) -> str:
            return f"<img {waits(sources.get(Path(image['address']).name))}"

        context["body"] = IMAGE.sub(waiting, context["body"])


def waits(picture: Path | None) -> str:
    """The attributes of an image that loads when it comes near, and until then keeps its place."""
    if picture is None or picture.suffix != ".png":
        return 'loading="lazy" '
    width, height = imagesize.get(picture)
    return f'loading="lazy" width="{width}" height="{height}" '


def write_icons(app: Sphinx, exception: Exception | None) -> None:
    """Cut the icon fonts down to what the pages and the theme show."""
    if exception or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    static = Path(app.outdir, "_static")
    styles = [(static / f"styles/{name}-theme.css") for name in ("pydata-sphinx", "sphinx-book")]
    pydata, book = (path.read_text(encoding="utf-8") for path in styles)
    codes = icon_codes(pydata)
    shown = {codes[name] for name in icons_shown(Path(app.outdir)) if name in codes}
    shown |= set(map(ord, PRIVATE.findall(pydata)))
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


def icons_shown(site: Path) -> Iterator[str]:
    """The names of the icons in the pages, and in the script that shows some."""
    script = site / "_static/scripts/pydata-sphinx-theme.js"
    for path in [script, *site.rglob("*.html")]:
        yield from ICON.findall(path.read_text(encoding="utf-8"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what makes pages light."""
    app.connect("config-inited", choose_mathjax)
    app.connect("html-page-context", lighten)
    app.connect("build-finished", write_icons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
