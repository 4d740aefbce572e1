"""A Sphinx extension that links the pages with each other, where nobody should do it by hand.

- A chapter ends on the modules it builds and uses, with the chapters where one meets them again,
  and on the versions that ran it.
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
from notebooks import PACKAGE, public_names

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
    """Which chapter builds, uses and cites what; chapters are named as Sphinx names pages."""

    prose: dict[str, str] = field(default_factory=dict)
    executed_with: dict[str, dict[str, str]] = field(default_factory=dict)
    uses: dict[str, set[str]] = field(default_factory=dict)
    builds: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, package: Path = PACKAGE) -> "Book":
        """Read the chapters and the package."""
        book, module_of = cls(), dict(public_modules(package))
        name_of, folder = {}, root / "chapters"
        for path in [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("*/*.ipynb"))]:
            name = path.relative_to(root).with_suffix("").as_posix()
            notebook = json.loads(path.read_text(encoding="utf-8"))
            name_of[called(name)] = name
            book.prose[name] = "\n".join(sources(notebook, "markdown"))
            book.executed_with[name] = notebook["metadata"].get("executed_with", {})
            if path.parent == folder:  # a deeper page is not where one meets a module
                book.uses[name] = modules_used("\n".join(sources(notebook, "code")), module_of)
        for path in sorted(package.rglob("[!_]*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if built := re.search(r"^Built in chapters? ([\d, and]+)", docstring, re.M):
                for number in re.findall(r"\d+", built[1]):
                    book.builds.setdefault(name_of[f"chapter {number}"], set()).add(
                        module_name(path, package)
                    )
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


def sources(notebook: dict[str, Any], kind: str) -> Iterator[str]:
    """What the cells of one kind say."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == kind:
            yield "".join(cell["source"])


def public_modules(package: Path) -> Iterator[tuple[str, str]]:
    """Each public name of the package, with its module."""
    for path in package.rglob("[!_]*.py"):
        for name in public_names(ast.parse(path.read_text(encoding="utf-8"))):
            yield name, module_name(path, package)


def module_name(path: Path, package: Path) -> str:
    """`layers.attention`."""
    return ".".join(path.relative_to(package).with_suffix("").parts)


def modules_used(code: str, module_of: dict[str, str]) -> set[str]:
    """The modules that the code imports from, by their names, by `mt.name` or `mt.folder.name`."""
    used, modules = set(), set(module_of.values())
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("mt."):
            used.add(module_of.get(node.attr, ""))
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, _, module = node.module.partition(".")
            if package == "minitransformer":
                names = {module_of.get(n.name, "") for n in node.names}
                used |= {module} if module in modules else names
    return used - {""}


# --- the end of a chapter --------------------------------------------------------------------


def link(text: nodes.Node, address: str, **attributes: Any) -> nodes.reference:
    """A link that needs no more resolving."""
    inside = not address.startswith("https:")
    return nodes.reference("", "", text, refuri=address, internal=inside, **attributes)


def listed(items: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    """The items with commas, and "and" before the last one."""
    items = list(items)
    for place, item in enumerate(items):
        if place:
            yield nodes.Text(" and " if place == len(items) - 1 else ", ")
        yield item


def chapter_links(app: Sphinx, page: str, chapters: Iterable[str]) -> Iterator[nodes.Node]:
    """ "chapter 4", or "chapters 4, 5 and 8", each number a link; titles come last."""
    names = {chapter: called(chapter) for chapter in chapters}
    numbered = sum(name.startswith("chapter ") for name in names.values())
    if numbered:
        yield nodes.Text("chapter " if numbered == 1 else "chapters ")
    yield from listed(
        link(nodes.Text(name.removeprefix("chapter ")), app.builder.get_relative_uri(page, chapter))
        for chapter, name in names.items()
    )


def module_link(app: Sphinx, page: str, module: str) -> nodes.reference:
    """A link to the module's entry in the API reference, or to its source where there is none."""
    entry = app.env.get_domain("py").data["modules"].get(f"minitransformer.{module}")
    if entry is None:
        path = f"minitransformer/{module.replace('.', '/')}.py"
        source = f"{repository.url()}/blob/{repository.branch()}/{path}"
        return link(nodes.literal("", module), source)
    address = app.builder.get_relative_uri(page, entry.docname)
    return link(nodes.literal("", module), f"{address}#{entry.node_id}")


def end_of_chapter(app: Sphinx, page: str, book: Book) -> nodes.Node:
    """What the chapter builds and uses, and what ran it."""
    built = book.builds.get(page, set())
    box = nodes.container(classes=["end-of-chapter"])
    for module in sorted(built):
        others = [name for name, used in book.uses.items() if module in used and name != page]
        parts = [nodes.Text("Built here: "), module_link(app, page, module)]
        if others:
            parts += [nodes.Text(", also met in "), *chapter_links(app, page, others)]
        box += nodes.paragraph("", "", *parts, nodes.Text("."))
    elsewhere = set().union(*book.builds.values()) - built
    if used := sorted(book.uses.get(page, set()) & elsewhere):
        modules = listed(module_link(app, page, module) for module in used)
        box += nodes.paragraph("", "", nodes.Text("Used here: "), *modules, nodes.Text("."))
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
        if left and not any(isinstance(above, NOT_PROSE) for above in ancestors(text)):
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


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    """What the node stands in, from inside to outside."""
    while node.parent is not None:
        node = node.parent
        yield node


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
