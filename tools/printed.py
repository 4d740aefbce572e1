"""The book as one file, and pictures of it: what `make epub` and `make pdf` write, from the site.

    python tools/printed.py epub pdf    build/minitransformer.epub, build/minitransformer.pdf
    python tools/printed.py sheet       build/cheat_sheet.pdf, a page of the site on one of paper
    python tools/printed.py card        _static/social_card.png, from the .svg beside it
    python tools/printed.py film        _static/live.gif: the live page translates a sentence

A browser opens each page and sets its formulas, which then are MathML: e-readers run no scripts.
What only a screen has, such as buttons and folded cells, is left out or unfolded. The PDF is
printed by the same browser from all pages in one.
"""

import argparse
import posixpath
import shutil
import sys
from base64 import b64encode
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from io import BytesIO
from mimetypes import guess_type
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import yaml
from lxml import etree
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Browser, Playwright, Route, ViewportSize, sync_playwright
from playwright.sync_api import Page as PlaywrightPage

import repository

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
EPUB, PDF = Path("build/minitransformer.epub"), Path("build/minitransformer.pdf")
SHEET_PDF = Path("build/cheat_sheet.pdf")
HTML = "{http://www.w3.org/1999/xhtml}"
MATHML = "{http://www.w3.org/1998/Math/MathML}"
TITLE = "minitransformer: the Transformer from scratch"
SHEET = "chapters/reference/cheat_sheet.html"
CARD, FILM = Path("_static/social_card.png"), Path("_static/live.gif")
LIVE = "https://book.example/chapters/live.html"
SENTENCE = "He says that she has brought the child a cake."
FIRST, EACH, LAST = 1500, 1300, 4000  # milliseconds of a frame
PLAYED = 3  # times
PICTURE_ALONE = """
.bd-sidebar-primary, #live-examples, #live-app > details { display: none !important; }
#live-result .later { visibility: hidden; }
#live-app, #live-decoder { padding: 0 8px; }
#live-app { padding-block: 6px; }
#live-input { flex-basis: 27rem !important; }
"""
SYSTEM_S = ("chromium-headless-shell", "chromium", "google-chrome")  # the first is the quickest
NO_BROWSER = "no browser: run `playwright install chromium`, or install your system's Chromium"
TAKE_ARTICLE = """async () => {
  if (window.MathJax?.startup) await MathJax.startup.promise;
  const article = document.querySelector("article.bd-article");
  const formulas = window.MathJax?.startup?.document?.getMathItemsWithin(article) ?? [];
  for (const { math: tex, typesetRoot: formula } of formulas) {
    const math = formula.querySelector("mjx-assistive-mml > math");
    if (formula.hasAttribute("display")) math.setAttribute("display", "block");
    math.setAttribute("alttext", tex.trim());
    for (const mo of math.querySelectorAll("mo"))  // between sin and x, not between sin and (x)
      if (mo.textContent === "\u2061" && !mo.nextElementSibling?.textContent.startsWith("("))
        mo.setAttribute("rspace", "0.17em");
    formula.replaceWith(math);
  }
  for (const part of article.querySelectorAll("svg *")) {
    const { fill, stroke, strokeWidth, fontSize, textAnchor } = getComputedStyle(part);
    Object.assign(part.style, { fill, stroke, strokeWidth, fontSize, textAnchor });
  }
  for (const part of article.querySelectorAll(
    "script, style, form, button, input, canvas, iframe, noscript, .headerlink, summary"))
    part.remove();
  for (const text of article.querySelectorAll("span:not([id], .parameter)"))
    text.replaceWith(...text.childNodes);
  for (const details of article.querySelectorAll("details")) {
    const unfolded = document.createElement("div");
    unfolded.append(...details.childNodes);
    details.replaceWith(unfolded);
  }
  const title = article.querySelector("h1").innerText.trim();
  return [title, new XMLSerializer().serializeToString(article)];
}"""
A4_WIDTH = 658  # of text, in pixels: 210 mm without the margins
SHRINK = """(width) => {
  for (const wide of document.querySelectorAll("math, table")) {
    const { right } = wide.getBoundingClientRect();
    if (right > width) wide.style.fontSize = `${0.95 * width / right}em`;
  }
}"""
STYLE = """
@page { margin: 18mm; }
body { margin: 0; font: 11pt/1.45 serif; color: black; background: white; }
h1 { break-before: page; } h1, h2, h3 { font-family: sans-serif; break-after: avoid; }
pre, code { font: 8.5pt/1.35 monospace; } pre { white-space: pre-wrap; background: #f4f4f4;
  padding: 0.5em; overflow-wrap: anywhere; } p > code { overflow-wrap: anywhere; }
math { font: 0.95em "STIX Two Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
img, svg { max-width: 100%; height: auto; } figure, tr { break-inside: avoid; }
table { border-collapse: collapse; font-size: 9pt; } th, td { border: 1px solid #ccc;
  padding: 0.2em 0.5em; } :is(td, th) > p { margin: 0; }
a { color: #0b57a4; text-decoration: none; }
.admonition { border-left: 3px solid #888; padding-left: 1em; }
.sig, .sig em { font: 8.5pt/1.35 monospace; } .parameter { display: block; margin-left: 2em; }
.admonition-title { font-weight: bold; }
"""


@dataclass
class Page:
    """A page of the site as it is printed."""

    name: str  # chapters/04_attention.html
    title: str
    article: etree._Element

    @property
    def text(self) -> str:
        """The article as XHTML."""
        return etree.tostring(self.article, encoding="unicode")

    def all(self, tag: str) -> Iterator[etree._Element]:
        """The elements of a kind."""
        return self.article.iter(f"{HTML}{tag}")


def names() -> Iterator[str]:
    """The pages of the site, in order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    yield f"{toc['root']}.html"
    for part in toc["parts"]:
        for page in part["chapters"]:
            for entry in (page, *page.get("sections", ())):
                yield f"{entry['file']}.html"


def read(browser: Browser) -> list[Page]:
    """Each page as the browser sets it, in a light theme."""
    pages = []
    tab = browser.new_page(color_scheme="light")
    tab.set_default_timeout(300_000)
    for name in names():
        tab.goto((SITE / name).as_uri())
        title, article = tab.evaluate(TAKE_ARTICLE)
        pages.append(Page(name, title, etree.fromstring(article)))
    tab.close()
    return pages


def with_addresses(pages: list[Page], *, in_one: bool) -> Iterator[Page]:
    """The pages with links that hold in one file, or in files beside each other.

    A link to what is not printed leads to the site.
    """
    known = {page.name for page in pages}
    for page in pages:
        article = deepcopy(page.article)
        for tag in article.iter("{*}*"):
            if in_one and "id" in tag.attrib:
                tag.set("id", mark(page.name, tag.get("id", "")))
            if etree.QName(tag).localname == "a" and "href" in tag.attrib:  # in drawings, too
                tag.set("href", address(page.name, tag.get("href", ""), known, in_one=in_one))
            if tag.tag == f"{HTML}img":
                tag.set("src", target_of(page.name, tag.get("src", "")))
                tag.attrib.pop("loading", None)
        article.set("id", mark(page.name) if in_one else "top")
        yield Page(page.name, page.title, article)


def mark(page: str, place: str = "") -> str:
    """A name for a place in the book, within the 127 bytes that a name in a PDF may have."""
    return f"p{sha256(f'{page}#{place}'.encode()).hexdigest()[:12]}"


def target_of(page: str, link: str) -> str:
    """The path in the site that a relative link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(urlsplit(link).path)))


def address(page: str, link: str, known: set[str], *, in_one: bool) -> str:
    """Where a link leads in print."""
    parts = urlsplit(link)
    if parts.scheme:
        return link
    target = target_of(page, link) if parts.path else page
    if target not in known:
        return f"{repository.pages_url()}{target}"
    if in_one:
        return f"#{mark(target, unquote(parts.fragment))}"
    file = file_name(target)
    return f"{file}#{parts.fragment}" if parts.fragment else file


def file_name(page: str) -> str:
    """The name of a page's file in an EPUB."""
    return page.removesuffix(".html").replace("/", "-") + ".xhtml"


def document(title: str, body: str) -> str:
    """An XHTML document."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" '
        f'lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def write_pdf(browser: Browser, pages: list[Page], path: Path) -> None:
    """Print all pages as one.

    A screen reader gets each formula as one thing, its TeX: with a tag for each sign, such tags
    would be most of the file.
    """
    pages = list(with_addresses(pages, in_one=True))
    for page in pages:
        for math in page.article.iter(f"{MATHML}math"):
            math.attrib.update({"role": "img", "aria-label": math.get("alttext", "")})
    body = "".join(page.text for page in pages)
    merged = SITE / "printed.xhtml"  # beside the pictures
    merged.write_text(document(TITLE, body), encoding="utf-8")
    tab = browser.new_page(color_scheme="light", viewport={"width": A4_WIDTH, "height": 1000})
    tab.set_default_timeout(600_000)
    tab.goto(merged.as_uri())
    tab.evaluate(SHRINK, A4_WIDTH)
    tab.pdf(path=path, format="A4", outline=True, tagged=True, print_background=True)
    merged.unlink()


def write_sheet(browser: Browser, path: Path) -> None:
    """Print the cheat sheet as the site's style sheet has it: one page."""
    tab = browser.new_page(color_scheme="light")
    tab.goto((SITE / SHEET).as_uri())
    tab.evaluate("async () => { await MathJax.startup.promise; await document.fonts.ready; }")
    tab.pdf(path=path, prefer_css_page_size=True, tagged=True)
    tab.close()


def translating(browser: Browser, width: int, theme: Literal["light", "dark"]) -> PlaywrightPage:
    """The live page when it has translated the sentence, in a window of this width."""
    size: ViewportSize = {"width": width, "height": 1000}
    tab = browser.new_page(viewport=size, color_scheme=theme, reduced_motion="reduce")

    def answer(route: Route) -> None:
        file = SITE / unquote(urlsplit(route.request.url).path).lstrip("/")
        route.fulfill(path=file) if file.is_file() else route.abort()

    tab.route("**/*", answer)  # a page that is opened as a file loads no model
    tab.route("**/mathjax/**", lambda route: route.abort())
    tab.goto(LIVE)
    tab.add_style_tag(content=PICTURE_ALONE)
    tab.locator("#live-input").fill(SENTENCE)
    tab.keyboard.press("Enter")
    tab.get_by_text(f"{SENTENCE} →").wait_for()
    tab.locator("#live-input").blur()
    tab.evaluate("document.fonts.ready")
    return tab


def write_film(browser: Browser, path: Path) -> None:
    """Take a picture of the live page at each token that it writes."""
    tab = translating(browser, 1120, "light")
    tokens = tab.locator("#live-result button").all()
    frames = []
    for token in tokens:
        token.dispatch_event("click")  # it is not to be seen yet
        token.blur()
        frames.append(Image.open(BytesIO(tab.locator("#live-app").screenshot())).convert("RGB"))
    colours = frames[-1].quantize(128)
    first, *others = (frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames)
    durations = [FIRST, *[EACH] * (len(frames) - 2), LAST]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=PLAYED - 1)
    tab.close()


def write_card(browser: Browser, path: Path) -> None:
    """Draw the picture that messengers show with a link to the book, and note its source in it.

    Beside the words of the source is the decoder of the live page.
    """
    live = translating(browser, 1440, "dark")
    live.add_style_tag(content="html, #live-app * { --pst-color-background: #00224e !important; }")
    live.locator("#live-result button").last.dispatch_event("click")  # with all that it read
    decoder = b64encode(live.locator("#live-decoder").screenshot()).decode()
    live.close()
    tab = browser.new_page(viewport={"width": 1200, "height": 630})
    drawing = path.with_suffix(".svg")
    tab.goto(drawing.as_uri())
    put = "data => document.querySelector('image').setAttribute('href', data)"
    tab.evaluate(put, f"data:image/png;base64,{decoder}")
    tab.wait_for_timeout(500)  # the picture is decoded
    drawn = Image.open(BytesIO(tab.screenshot())).quantize(128)
    source = PngInfo()
    source.add_itxt("Source", drawing.read_text(encoding="utf-8"), zip=True)
    drawn.save(path, optimize=True, pnginfo=source)
    tab.close()


def write_epub(pages: list[Page], path: Path) -> None:
    """Write an EPUB 3: a page a file, the pictures, and the list of contents."""
    pages = list(with_addresses(pages, in_one=False))
    pictures = sorted({picture.get("src") for page in pages for picture in page.all("img")})
    items, order = [], []
    for page in pages:
        has_math = page.article.find(f".//{MATHML}math") is not None
        math = ' properties="mathml"' if has_math else ""
        name = file_name(page.name)
        items.append(f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"{math}/>')
        order.append(f'<itemref idref="{name}"/>')
    for number, picture in enumerate(pictures):
        kind = guess_type(picture)[0]
        items.append(f'<item id="picture-{number}" href="{picture}" media-type="{kind}"/>')
    links = "".join(f'<li><a href="{file_name(p.name)}">{escape(p.title)}</a></li>' for p in pages)
    contents = f'<nav epub:type="toc"><h1>Contents</h1><ol>{links}</ol></nav>'
    package = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="id">{repository.url()}</dc:identifier><dc:title>{TITLE}</dc:title>'
        "<dc:language>en</dc:language>"
        '<meta property="dcterms:modified">2026-01-01T00:00:00Z</meta></metadata><manifest>'
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        f"{''.join(items)}</manifest><spine>{''.join(order)}</spine></package>\n"
    )
    container = (
        '<?xml version="1.0"?>\n<container version="1.0" '
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
        'full-path="content.opf" media-type="application/oebps-package+xml"/></rootfiles>'
        "</container>\n"
    )
    with ZipFile(path, "w", ZIP_DEFLATED) as book:
        book.writestr("mimetype", "application/epub+zip", ZIP_STORED)  # first, as the format asks
        book.writestr("META-INF/container.xml", container)
        book.writestr("content.opf", package)
        book.writestr("nav.xhtml", document("Contents", contents))
        for page in pages:
            book.writestr(file_name(page.name), document(page.title, page.text))
        for picture in pictures:
            book.write(SITE / picture, picture)


def launched(playwright: Playwright) -> Browser | None:
    """Playwright's own Chromium, or the system's, or none; containers run as root."""
    found = next(filter(None, map(shutil.which, SYSTEM_S)), None)
    if Path(playwright.chromium.executable_path).exists():
        found = None
    elif found is None:
        return None
    options = ["--disable-background-networking", "--disable-component-update"]
    chromium = playwright.chromium
    return chromium.launch(executable_path=found, chromium_sandbox=False, args=options)


def main() -> int:
    """Write what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="+", choices=["epub", "pdf", "sheet", "card", "film"])
    formats = parser.parse_args().formats
    if not (SITE / "index.html").exists():
        print("there is no _build/html: run `make book` first")
        return 1
    (ROOT / "build").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        if (browser := launched(playwright)) is None:
            print(NO_BROWSER)
            return 1
        pages = read(browser) if {"epub", "pdf"} & {*formats} else []
        write = {
            "epub": (EPUB, lambda path: write_epub(pages, path)),
            "pdf": (PDF, lambda path: write_pdf(browser, pages, path)),
            "sheet": (SHEET_PDF, lambda path: write_sheet(browser, path)),
            "card": (CARD, lambda path: write_card(browser, path)),
            "film": (FILM, lambda path: write_film(browser, path)),
        }
        for kind in formats:
            path, write_it = write[kind]
            write_it(ROOT / path)
            print(f"{path}  {(ROOT / path).stat().st_size / 1e6:.2f} MB", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
