"""A Sphinx extension that adds links between the pages; `_config.yml` loads it.

- A chapter ends on the modules it builds, and on the versions that ran it.
- The first use of a glossary's word in a chapter leads to the glossary, unless the chapter is the
  one that builds it.
- Each work of the bibliography names the chapters that cite it.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import repository

GLOSSARY = "chapters/reference/glossary"
BIBLIOGRAPHY = "chapters/reference/bibliography"
LINK = re.compile(r"\]\((https?://[^\s)]+)\)")
SHORTEST_TITLE = 20

# Words of the glossary with everyday meanings too: only a reader can tell which one is meant.
EVERYDAY = {"key", "memory", "value"}
NOT_PROSE = (
    nodes.FixedTextElement,
    nodes.literal,
    nodes.math,
    nodes.reference,
    nodes.strong,
    nodes.title,
)


# --- what the book says of itself ------------------------------------------------------------


@dataclass
class Book:
    """Which chapter builds and cites what; chapters are named as Sphinx names pages."""

    prose: dict[str, str] = field(default_factory=dict)
    executed_with: dict[str, dict[str, str]] = field(default_factory=dict)
    builds: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> "Book":
        """Read the chapters, and what the package's modules say of where they are built."""
        book, name_of, folder = cls(), {}, root / "chapters"
        for path in [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("*/*.ipynb"))]:
            name = path.relative_to(root).with_suffix("").as_posix()
            notebook = json.loads(path.read_text(encoding="utf-8"))
            prose = [
                cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"
            ]
            name_of[called(name)] = name
            book.prose[name] = "\n".join("".join(lines) for lines in prose)
            book.executed_with[name] = notebook["metadata"].get("executed_with", {})
        for path in sorted((root / "minitransformer").rglob("[!_]*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
            if built := re.search(r"^Built in chapters? ([\d, and]+)", docstring, re.M):
                for number in re.findall(r"\d+", built[1]):
                    book.builds.setdefault(name_of[f"chapter {number}"], []).append(module)
        return book

    def citing(self, work: nodes.Element) -> list[str]:
        """The chapters that link to a work of the bibliography, or else say its title."""
        links = {unquote(link["refuri"]) for link in work.findall(nodes.reference)}
        parts = [part for part in work.astext().split(". ") if len(part) >= SHORTEST_TITLE]
        return [
            chapter
            for chapter, prose in self.prose.items()
            if links & {unquote(link) for link in LINK.findall(prose)}
            or (not links and any(part in prose for part in parts))
        ]


def called(page: str) -> str:
    """`chapters/04_attention` is called "chapter 4"; one without a number, by its title."""
    name = page.removeprefix("chapters/")
    if "/" in name:
        kind, _, chapter = name.partition("/")
        return f"{called(chapter)}, {kind}"
    number = name.split("_")[0]
    return f"chapter {int(number)}" if number.isdigit() else name.replace("_", " ").capitalize()


# --- the end of a chapter --------------------------------------------------------------------


def link(text: nodes.Node, address: str, **attributes: Any) -> nodes.reference:
    """A link that needs no more resolving."""
    inside = not address.startswith("https:")
    return nodes.reference("", "", text, refuri=address, internal=inside, **attributes)


def chapter_links(app: Sphinx, page: str, chapters: Iterable[str]) -> Iterator[nodes.Node]:
    """ "chapter 4", or "chapters 4, 5 and 8", each number a link; titles come last."""
    names = {chapter: called(chapter) for chapter in chapters}
    numbered = sum(name.startswith("chapter ") for name in names.values())
    if numbered:
        yield nodes.Text("chapter " if numbered == 1 else "chapters ")
    for place, (chapter, name) in enumerate(names.items()):
        if place:
            yield nodes.Text(" and " if place == len(names) - 1 else ", ")
        text = nodes.Text(name.removeprefix("chapter "))
        yield link(text, app.builder.get_relative_uri(page, chapter))


def module_link(app: Sphinx, page: str, module: str) -> nodes.reference:
    """A link to the module's entry in the API reference, or to its source where there is none."""
    text = nodes.literal("", module.removeprefix("minitransformer."))
    entry = app.env.get_domain("py").data["modules"].get(module)
    if entry is None:
        path = f"blob/{repository.branch()}/{module.replace('.', '/')}.py"
        return link(text, f"{repository.url()}/{path}")
    return link(text, f"{app.builder.get_relative_uri(page, entry.docname)}#{entry.node_id}")


def end_of_chapter(app: Sphinx, page: str, book: Book) -> nodes.Node:
    """What the chapter builds, and what ran it."""
    box = nodes.container(classes=["end-of-chapter"])
    for module in book.builds.get(page, ()):
        parts = [nodes.Text("Built here: "), module_link(app, page, module), nodes.Text(".")]
        box += nodes.paragraph("", "", *parts)
    if ran := book.executed_with[page]:
        day = date.fromisoformat(ran["date"])
        box += nodes.paragraph(
            "",
            f"Last executed on {day.day} {day:%B %Y} with minitransformer "
            f"{ran['minitransformer']} and PyTorch {ran['torch']}.",
            classes=["executed"],
        )
    return box


# --- the words of the glossary ---------------------------------------------------------------


@dataclass
class Term:
    """A word of the glossary."""

    anchor: str
    meaning: str
    chapter: str


def glossary(tree: nodes.document) -> dict[str, Term]:
    """The words of the glossary page, in small letters."""
    terms = {}
    for item in tree.findall(nodes.definition_list_item):
        text = " ".join(item.children[-1].astext().split())
        meaning, _, chapter = text.rpartition(" See ")
        for word in item.findall(nodes.term):
            name = word.astext().lower()
            terms[name] = Term(word["ids"][0], meaning, chapter.rstrip("."))
    return terms


def link_terms(tree: nodes.Element, terms: dict[str, Term], address: str) -> None:
    """Make the first use of each word in the prose a link that shows its meaning."""
    left = dict(terms)
    for text in list(tree.findall(nodes.Text)):
        above, prose = text.parent, True
        while above is not None:
            prose &= not isinstance(above, NOT_PROSE)
            above = above.parent
        if left and prose:
            pieces = list(linked(str(text), left, address))
            if len(pieces) > 1:
                text.parent.replace(text, pieces)


def linked(text: str, left: dict[str, Term], address: str) -> Iterator[nodes.Node]:
    """The text in pieces, those words that are left made links, and then no longer left."""
    longest_first = sorted(left, key=len, reverse=True)
    words = "|".join(map(re.escape, longest_first))
    start = 0
    for found in re.finditer(rf"(?<![\w-])({words})s?(?![\w-])", text, re.I):
        term = left.pop(found[1].lower(), None)
        if term:
            yield nodes.Text(text[start : found.start()])
            yield link(
                nodes.Text(found[0]),
                f"{address}#{term.anchor}",
                classes=["term-link"],
                reftitle=term.meaning,
            )
            start = found.end()
    yield nodes.Text(text[start:])


# --- for Sphinx ------------------------------------------------------------------------------


def add_links(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Add what the page needs, when its own links are resolved."""
    book: Book = app.env.book  # type: ignore[attr-defined]
    if page in book.prose:
        if GLOSSARY in app.env.found_docs:
            terms = {
                name: term
                for name, term in glossary(app.env.get_doctree(GLOSSARY)).items()
                if term.chapter != called(page) and name not in EVERYDAY
            }
            link_terms(tree, terms, app.builder.get_relative_uri(page, GLOSSARY))
        next(tree.findall(nodes.section)).append(end_of_chapter(app, page, book))
    elif page == BIBLIOGRAPHY:
        for work in tree.findall(nodes.list_item):
            cited = chapter_links(app, page, book.citing(work))
            work.append(nodes.paragraph("", "", nodes.Text("Cited in "), *cited, nodes.Text(".")))


def pages_to_write_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """All chapters and the bibliography, when what one says changes what others show."""
    glossary_page = Path(app.srcdir, f"{GLOSSARY}.md")
    shown = (
        Book.read(Path(app.srcdir)),
        glossary_page.read_text(encoding="utf-8") if glossary_page.exists() else "",
        sorted(env.get_domain("py").data["modules"]),
    )
    before = getattr(env, "book_shown", None)
    env.book, env.book_shown = shown[0], shown  # type: ignore[attr-defined]
    return [] if shown == before else sorted({*shown[0].prose, BIBLIOGRAPHY} & env.found_docs)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what links the pages."""
    app.connect("env-updated", pages_to_write_again)
    app.connect("doctree-resolved", add_links)
    return {"env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
