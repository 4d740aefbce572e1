"""The built pages in a real browser: whole, legible, light, and usable with a keyboard alone.

Every page is opened once, with every host but our own out of reach: every other page wide and
light, the rest narrow and dark, and one page of each kind in both views. Tests read what was seen.
Who is shut out, which takes as long as all the rest, is asked of one page of each kind, and of all
in `everything`. `test_html.py` checks what needs no browser, links and anchors among it.
"""

import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize
from urllib.parse import quote_plus, unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, TimeoutError, expect
from pypdf import PdfReader

import repository
from printed import write_sheet
from test_html import CHAPTERS, PAGES, SITE

CHAPTER = "chapters/04_attention.html"  # for what all chapters share
VIEWS = {"desktop": (1300, 900, "light"), "phone": (390, 844, "dark")}
OF_EACH_KIND = {
    "index.html",
    CHAPTER,
    "chapters/live.html",
    "chapters/deeper/04_attention.html",
    "chapters/reference/questions.html",
    "chapters/reference/api_layers.html",
}
PATIENCE = 120_000  # milliseconds, for a machine that has other things to do
# axe need not describe what passed, nor fetch the styles again.
VIOLATIONS_ONLY = {"resultTypes": ["violations"], "preload": False}
CONTRAST = "color-contrast"
LARGEST_SEARCH = 1_050_000  # bytes, with the page itself
LARGEST_PAGE = 1_500_000  # bytes on their way to the reader
LARGEST_FIRST_VIEW = 600_000
WITH_MODEL = {"chapters/live.html": 2_000_000}  # it shows a translation at once
MOST_SCREENS = 30  # except pages to look things up in
SCREEN = {"width": 1400, "height": 900}
COMPRESSED = {".css", ".html", ".js", ".json", ".svg", ".xml"}  # as GitHub Pages serves them

SETTING = "() => !document.querySelector('.math') || window.MathJax?.startup?.promise !== undefined"
SET = "async () => { await window.MathJax?.startup?.promise; await document.fonts.ready; }"
ALL_SET = "[...document.querySelectorAll('.math')].every((e) => e.querySelector('mjx-container'))"
ALL_ASKED_FOR = """() => {
    document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
    document.getAnimations().forEach((fading) => fading.finish());
    [...document.images].forEach((image) => { image.loading = "eager"; });
}"""
ALL_THERE = "[...document.images].every((image) => image.complete)"
UNRENDERED = r"""() => {
    const prose = document.querySelector("article").cloneNode(true);
    prose.querySelectorAll("pre, code, script, style, mjx-container").forEach((e) => e.remove());
    const raw = prose.textContent.match(/.{0,20}(\\\(|\\\[|\$\$|\\begin).{0,20}/g) ?? [];
    const empty = [...document.querySelectorAll(".math")].filter(
        (formula) => !formula.querySelector("mjx-container"));
    const wrong = document.querySelectorAll("mjx-merror, [data-mjx-error]");
    return [...raw, ...[...empty, ...wrong].map((formula) => formula.outerHTML.slice(0, 200))];
}"""
STICKS_OUT = """() => {
    const overflow = (box) => getComputedStyle(box).overflowX;
    const scrolls = (box) => /auto|scroll/.test(overflow(box));
    const hides = (box) => overflow(box) === "hidden" && box.clientWidth <= 1;
    const boxes = (e) => scrolls(e) || hides(e);
    const inBox = (e) => e.closest("body") !== e && (boxes(e) || inBox(e.parentElement));
    return [...document.querySelectorAll("article *")]
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !inBox(e.parentElement))
        .map((e) => e.outerHTML.slice(0, 200));
}"""


# In one breath, before anything else on the page can change.
SIZES_WITHOUT_AND_WITH = """(css) => {
    const sizes = () => [...document.querySelectorAll("html, article, article .math")]
        .map((box) => [box.tagName, box.scrollWidth, box.scrollHeight]);
    const style = document.createElement("style");
    style.textContent = css;
    const without = sizes();
    document.head.append(style);
    const withIt = sizes();
    style.remove();
    return [without, withIt];
}"""

# Wider letters, as other fonts may have, and what WCAG 2.2 asks to bear (1.4.12).
WIDER = "article { letter-spacing: 0.12em; word-spacing: 0.16em }"
SETTLED = "() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"

# The theme lets one scroll a box by keyboard 0.3 s after the window or the page has changed.
KEYS_SCROLL = """() => [...document.querySelectorAll("pre")].every(
    (e) => e.tabIndex >= 0 || e.scrollWidth <= e.clientWidth)"""

ONE_OF_EACH_KIND = """() => {
    document.querySelectorAll("mjx-container").forEach((set) => set.replaceWith("formula"));
    for (const list of document.querySelectorAll("article ul"))
        [...list.children].slice(50).forEach((e) => e.remove()); // a list's items are of one kind
    const seen = new Set();
    for (const code of document.querySelectorAll("pre, code, .sig")) {
        const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
        const texts = [];
        while (walker.nextNode()) texts.push(walker.currentNode);
        for (const text of texts) {
            const token = text.parentElement;
            const around = [token, code, code.parentElement.parentElement];
            const kind = around.map((e) => e.className).join();
            if (!seen.has(kind)) text.data = "code"; // axe does not judge single characters
            else if (!token.closest("a")) (token === code ? text : token).remove();
            seen.add(kind);
        }
    }
}"""

# How well a text can be read depends on its colour, size and weight, and on what lies behind it.
TEXT_OF_EACH_LOOK = """() => {
    const behind = new Map();
    const stack = (e) => {
        if (!e) return "";
        if (!behind.has(e)) {
            const style = getComputedStyle(e);
            const own = [style.backgroundColor, style.backgroundImage, style.opacity].join();
            const plain = own === "rgba(0, 0, 0, 0),none,1";
            behind.set(e, stack(e.parentElement) + (plain ? "" : `;${own}`));
        }
        return behind.get(e);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) texts.push(walker.currentNode);
    const looks = texts.map(({ parentElement: e }) => {
        const style = getComputedStyle(e);
        const own = [style.color, style.fontSize, style.fontWeight, style.visibility].join();
        return e.getClientRects().length ? own + stack(e) : "";
    });
    const seen = new Map();
    const hidden = [];
    texts.forEach((text, i) => {
        const before = seen.get(looks[i]) ?? 0;
        if (!looks[i] || before >= 3) {
            hidden.push([text, text.data]);
            text.data = "";
        } else if (text.data.trim().length > 1) seen.set(looks[i], before + 1);
    });
    return hidden;
}"""

SMALLEST_LETTERS = """() => Math.min(...[...document.querySelectorAll("article *")]
    .filter((e) => e.childNodes.length && e.checkVisibility() && !e.closest(".math"))
    .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""

LINES_OF_CODE_CUT = """() => [...document.querySelectorAll(".cell_input pre")]
    .filter((code) => code.scrollWidth > code.clientWidth)
    .map((code) => code.textContent.slice(0, 80))"""

BOXED_THOUGH_THEY_FIT = """() => [...document.querySelectorAll("span.math.wide")]
    .filter((formula) => formula.scrollWidth <= formula.clientWidth)
    .map((formula) => formula.outerHTML.slice(0, 200))"""


WITHOUT_THEIR_BEGINNING = """() => [...document.querySelectorAll("article .math")]
    .filter((formula) => formula.firstElementChild.getBoundingClientRect().left
        < formula.getBoundingClientRect().left - 1)
    .map((formula) => formula.outerHTML.slice(0, 200))"""


LARGER = "mjx-assistive-mml { font-size: 300% }"
LOOKS = {
    "theme": "document.documentElement.dataset.theme",
    "unrendered": UNRENDERED,
    "without their beginning": WITHOUT_THEIR_BEGINNING,
    "sticks out": STICKS_OUT,
    "scrolls": "document.scrollingElement.scrollWidth > innerWidth",
    "boxed": BOXED_THOUGH_THEY_FIT,
    "cut": LINES_OF_CODE_CUT,
    "sizes": f"({SIZES_WITHOUT_AND_WITH})({LARGER!r})",
}
FAULTS = ["unrendered", "without their beginning", "boxed"]
FAULTS += ["sticks out", "scrolls", "sticks out, wider", "scrolls, wider"]


@cache
def weight(path: Path) -> int:
    """The bytes that travel for a file: text travels compressed."""
    content = path.read_bytes()
    return len(gzip.compress(content, 6)) if path.suffix in COMPRESSED else len(content)


@dataclass
class Visit:
    """A page in the browser, what happened while it loaded, and what it showed in each view."""

    page: Page
    address: str
    asked_elsewhere: list[str]
    errors: list[str] = field(default_factory=list)
    loaded: set[Path] = field(default_factory=set)
    first_view: int = 0
    screens: float = 0
    shows: dict[str, dict[str, Any]] = field(default_factory=dict)  # by view, then by what it is

    def weight(self) -> int:
        """The bytes of all that has been loaded so far."""
        return sum(map(weight, self.loaded))

    def turn(self, view: str) -> None:
        """Show the page in this view."""
        width, height, theme = VIEWS[view]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=theme)
        self.page.evaluate(SETTLED)

    def look(self, view: str) -> None:
        """Note what the page shows in this view, and with wider letters."""
        self.turn(view)
        shown = self.shows[view] = {what: self.page.evaluate(look) for what, look in LOOKS.items()}
        wider = self.page.add_style_tag(content=WIDER)
        self.page.evaluate(SETTLED)
        for what in ("sticks out", "scrolls"):
            shown[f"{what}, wider"] = self.page.evaluate(LOOKS[what])
        wider.evaluate("style => style.remove()")


def shut_out(page: Page) -> list[tuple[str, str, list[str]]]:
    """What axe-core calls serious or critical: of contrast, the longest, for one of each look."""
    found = Axe().run(page, options=VIOLATIONS_ONLY | {"rules": {CONTRAST: {"enabled": False}}})
    hidden = page.evaluate_handle(TEXT_OF_EACH_LOOK)
    contrast = Axe().run(page, options=VIOLATIONS_ONLY | {"runOnly": [CONTRAST]})
    hidden.evaluate("texts => texts.forEach(([text, data]) => { text.data = data; })")
    return [
        (rule["id"], rule["help"], [node["html"][:200] for node in rule["nodes"][:5]])
        for rule in (*found.response["violations"], *contrast.response["violations"])
        if rule["impact"] in {"serious", "critical"}
    ]


def offline(context: BrowserContext, site: str) -> list[str]:
    """Let nothing through but our own pages; return the list of what was asked elsewhere."""
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    context.route(lambda url: not url.startswith((f"{site}/", "data:", "blob:")), refuse)
    return asked


@pytest.fixture(scope="module", params=list(enumerate(PAGES)), ids=lambda page: page[1])
def visit(request, browser: Browser, site: str) -> Iterator[Visit]:
    """Each page, loaded and unfolded once, with all its pictures, and looked at."""
    number, address = request.param
    first = list(VIEWS)[number % 2]
    width, height, theme = VIEWS[first]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    context.set_default_timeout(PATIENCE)
    asked = offline(context, site)
    visit = Visit(context.new_page(), address, asked)
    page = visit.page
    page.on("console", lambda said: said.type == "error" and visit.errors.append(said.text))
    page.on("pageerror", lambda error: visit.errors.append(str(error)))
    page.on("requestfailed", lambda failed: visit.errors.append(f"failed: {failed.url}"))

    def note(response) -> None:
        if response.status >= 400:
            visit.errors.append(f"{response.status}: {response.url}")
        elif response.url.startswith(site):
            visit.loaded.add(SITE / unquote(urlsplit(response.url).path).lstrip("/"))

    page.on("response", note)
    page.goto(f"{site}/{address}", wait_until="networkidle")
    page.wait_for_function(SETTING)
    page.evaluate(SET)
    with suppress(TimeoutError):  # on a busy machine MathJax may say so too early
        page.wait_for_function(ALL_SET, timeout=PATIENCE / 4)
    visit.first_view = visit.weight()
    page.set_viewport_size(SCREEN)
    page.evaluate(SETTLED)
    visit.screens = page.evaluate("document.documentElement.scrollHeight") / SCREEN["height"]
    page.evaluate(ALL_ASKED_FOR)
    page.wait_for_function(ALL_THERE)
    for view in VIEWS if address in OF_EACH_KIND else [first]:
        visit.look(view)
    yield visit
    context.close()


# --- every page, in every view ---------------------------------------------------------------


def test_page_loads_little_from_us_alone_and_without_an_error(visit):
    assert visit.errors == []
    assert visit.asked_elsewhere == []
    model = WITH_MODEL.get(visit.address, 0)
    assert visit.first_view <= LARGEST_FIRST_VIEW + model
    assert visit.weight() <= LARGEST_PAGE + model


def test_page_has_no_fault(visit):
    """What only screen readers get takes no room: how large it would be depends on the fonts."""
    for view, shown in visit.shows.items():
        assert shown["theme"] == VIEWS[view][-1]
        assert {what: found for what in FAULTS if (found := shown[what])} == {}
        assert view == "phone" or shown["cut"] == []
        without, with_it = shown["sizes"]
        assert with_it == without


def test_page_is_short(visit):
    assert visit.screens <= MOST_SCREENS or "/reference/" in visit.address


def test_rocket_of_a_chapter_leads_to_colab(visit):
    """With the keyboard; pages that are no notebooks have no rocket."""
    rocket = visit.page.get_by_role("button", name="Launch interactive content")
    if visit.address not in CHAPTERS:
        assert rocket.count() == 0
        return
    rocket.focus()
    visit.page.keyboard.press("Enter")
    link = visit.page.get_by_role("link", name="Colab")
    expect(link).to_be_visible()
    notebook = f"{repository.slug()}/blob/{repository.branch()}/{visit.address[:-5]}.ipynb"
    assert link.get_attribute("href") == f"https://colab.research.google.com/github/{notebook}"


def test_nobody_is_shut_out(visit):
    """The last test of a visit, as it leaves little of the page."""
    visit.page.evaluate(ONE_OF_EACH_KIND)  # thousands look the same, and take minutes
    for view in visit.shows:
        visit.turn(view)
        with suppress(TimeoutError):  # axe says what it is that keys do not reach
            visit.page.wait_for_function(KEYS_SCROLL, timeout=3000)
        assert shut_out(visit.page) == []


# --- what a reader does ----------------------------------------------------------------------


@pytest.fixture
def page(quick, site: str) -> Iterator[Page]:
    """A fresh page without a network, which may use the clipboard; nothing is asked elsewhere."""
    context = quick(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE)
    asked = offline(context, site)
    yield context.new_page()
    assert asked == []


SEARCHED = {
    "why divide by sqrt(d_k)": "why-divide",
    "do I need a causal mask with a KV cache": "mask|cache",
    "why is my loss NaN in float16": "nan|float16|16-bit",
    "encoder-decoder or decoder-only": "decoder-only",
    "how many heads": "how-many-heads",
    "difference between self-attention and cross-attention": "self-attention-(and|or)-cross",
    "why do we need positional encoding": "03_.*#positional-encoding",
    "pre-norm vs post-norm": "pre-norm-or-post-norm",
    "why layer norm instead of batch norm": "why-not-batch-norm",
    "what is a residual connection for": "#the-residual-connection",
    "how does byte pair encoding work": "byte-level-bpe",
    "what is teacher forcing": "09_.*teacher-forcing",
    "label smoothing": "09_.*label-smoothing",
    "why warm up the learning rate": "warm-up",
    "what is a KV cache": "kv-cache",
    "greedy vs beam search": "#beam-search",
    "top-k top-p temperature": "#temperature-top-k",
    "how much memory does training need": "memory-do(es)?",
    "gradient accumulation": "#gradient-accumulation",
    "why multiply embeddings by sqrt(d_model)": "sqrt-d",
    "weight tying": "weight-tying",
    "grouped query attention": "grouped-query-attention",
    "padding mask vs causal mask": "padding-mask",
    "LoRA": "lora",
    "model repeats itself": "why-does-my-model-repeat-itself",
    "perplexity": "perplexity",
}
"""What a reader may type, and what the address of one of the first three sections says."""


@pytest.mark.everything
def test_searches_find_the_section_that_answers(page, site):
    missed = {}
    for words, address in SEARCHED.items():
        page.goto(f"{site}/search.html?q={quote_plus(words)}")
        results = page.locator("#search-results li > a")
        expect(results.first).to_be_visible()
        first = [link.get_attribute("href") for link in results.all()[:3]]
        if not any(re.search(address, found) for found in first):
            missed[words] = first
    assert missed == {}


def test_a_search_by_keyboard_leads_to_the_section(page, site):
    page.goto(f"{site}/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("why divide by sqrt(d_k)")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    page.locator("#search-results li > a").first.click()
    page.wait_for_url("**/chapters/**sqrt-d-k*")
    expect(page.locator("section:target").first).to_be_in_viewport()


def test_a_search_loads_little(page, site):
    loaded = []
    page.on("response", lambda response: loaded.append(len(response.body())))
    page.goto(f"{site}/search.html?q=attention")
    expect(page.locator("#search-results li").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert sum(loaded) <= LARGEST_SEARCH


def test_search_of_a_page_opened_as_a_file(quick):
    page = quick().new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=Cybenko")
    expect(page.locator("#search-results ul.search")).to_contain_text("6 · Feed-forward networks")


def test_copy_button_copies_the_code_of_its_cell(page, site):
    page.goto(f"{site}/{CHAPTER}")
    cell = page.locator(".cell_input:visible", has=page.locator("pre")).nth(2)
    cell.hover()
    cell.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip()
    assert copied.strip() == cell.locator("pre").text_content().strip()


def test_solution_unfolds_with_the_keyboard(page, site):
    page.goto(f"{site}/{CHAPTER}")
    solution = page.locator(".tag_solution details").first
    code = solution.locator("pre").first
    expect(code).to_be_hidden()
    solution.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(code).to_contain_text("# @title Solution")
    expect(code).to_be_visible()
    page.keyboard.press("Space")
    expect(code).to_be_hidden()


def test_first_tab_leads_to_the_text(page, site):
    page.goto(f"{site}/{CHAPTER}")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to main content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_word_of_the_glossary_leads_there(page, site):
    page.goto(f"{site}/{CHAPTER}")
    word = page.locator("a.term-link").first
    assert len(word.get_attribute("title")) > 20
    word.click()
    page.wait_for_url("**/chapters/reference/glossary.html#term-*")
    expect(page.locator("dt:target")).to_be_in_viewport()


def test_questions_are_ranked_by_words(page, site):
    page.goto(f"{site}/chapters/reference/questions.html")
    everything = page.locator("#questions li").count()
    count = page.locator("#question-count")
    expect(count).to_have_text(f"{everything} questions")
    field = page.get_by_label("Words of your question")
    field.fill("why is my loss NaN in float16")
    shown = page.locator("#questions-found li")
    expect(shown.first).to_contain_text("NaN")
    expect(count).to_have_text(f"{shown.count()} of {everything} questions")
    assert shown.count() < everything / 10
    field.fill("why divide by √(d_k)?")
    expect(shown.first).to_contain_text("root of d_k")
    field.fill("")
    expect(page.locator("#questions section li")).to_have_count(everything)


def packed(text: str) -> str:
    """The text without spaces and ligatures."""
    return "".join(normalize("NFKC", text).split())


def test_cheat_sheet_prints_on_one_page(browser, quick, site, tmp_path):
    """All of it, in letters of at least 7 points."""
    write_sheet(browser, tmp_path / "sheet.pdf")
    (printed,) = PdfReader(tmp_path / "sheet.pdf").pages
    assert [round(float(side)) for side in printed.mediabox] == [0, 0, 595, 842]
    said = packed(printed.extract_text())
    page = quick().new_page()
    page.emulate_media(media="print")
    page.goto(f"{site}/chapters/reference/cheat_sheet.html")
    cells = page.locator("article :is(h1, h2, td, th):not(:has(.math))").all_inner_texts()
    assert len(cells) > 150
    assert [cell for cell in cells if packed(cell.strip("#")) not in said] == []
    assert page.evaluate(SMALLEST_LETTERS) * 72 / 96 >= 7


def test_lost_reader_finds_the_way_back_from_any_depth(page, site):
    root = urlsplit(repository.pages_url()).path
    missing = []

    def as_on_github(route: Route) -> None:
        path = SITE / urlsplit(route.request.url).path.removeprefix(root)
        if path.is_file():
            route.fulfill(path=path)
        else:
            missing.append(route.request.url)
            route.fulfill(status=404, path=SITE / "404.html")

    page.route(f"{site}{root}**", as_on_github)
    lost = f"{site}{root}no/such/page.html"
    page.goto(lost)
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    assert missing == [lost]  # and no style, script or picture
    page.get_by_role("link", name="first page").click()
    page.wait_for_url(f"{site}{root}index.html")


def test_text_that_can_hardly_be_read_is_found(page):
    """Also the last of many that look the same but for the fault, or but for its line's ground."""
    for fault in ("", "color: #aaa", "background: #333"):
        rows = "<p>legible text</p>" * 6 + f"<div style='{fault}'><p>the seventh text</p></div>"
        page.set_content(f"<html lang=en><title>x</title><main><h1>A title</h1>{rows}</main>")
        found = shut_out(page)
        assert [rule for rule, *_ in found] == ([CONTRAST] if fault else [])
        assert all("seventh" in node for *_, nodes in found for node in nodes)
