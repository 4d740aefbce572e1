"""A Sphinx extension for the API reference: what docstrings and signatures name becomes links.

Docstrings are written to be read as they are. On the page, "chapter 4" links to that chapter, the
name of something public to its entry, and a type of another project to that project's pages.
Their addresses are in `tools/inventories`, in the first and readable version of Sphinx's format,
so that a build needs no network. A name that nothing resolves is a warning, which fails the build.
"""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = {int(path.name[:2]): path.stem for path in (ROOT / "chapters").glob("[0-9]*.ipynb")}
MODULES = [
    import_module(name)
    for page in sorted((ROOT / "chapters" / "reference").glob("api*.md"))
    for name in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
]
"""The modules that have an entry."""
PUBLIC = {name: f"{module.__name__}.{name}" for module in MODULES for name in module.__all__}
"""Each public name, and the name under which it has its entry."""

ALIASES = {
    "Axes": "matplotlib.axes.Axes",
    "Figure": "matplotlib.figure.Figure",
    "torch._C.Generator": "torch.Generator",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
}
"""Types by the name that a signature has for them, and the name under which they are documented."""

TORCH_MODULE = re.compile(r"torch\.nn\.modules\.\w+\.")
CHAPTER_NUMBER = re.compile(r"\bchapter (\d+)|(?<=\bchapters )(\d+)(?: and (\d+))?")
QUOTED_OR_BAR = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)|\|")
FIELD = re.compile(r"Alias for field number \d+")
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>')
PARAMETER = re.compile(r"<dd>(.*?)</dd>")


def with_links(line: str) -> str:
    """A line of a docstring as reStructuredText."""

    def quoted(match: re.Match[str]) -> str:
        if match[0] == "|":
            return r"\|"
        name, following = match[1], match[2]
        if target := entry_of(name):
            link = f":py:obj:`{name} <{target}>`"
        else:
            link = f":py:obj:`{name}`" if name.startswith("torch.") else f"``{name}``"
        return rf"{link}\ {following}" if following else link

    def chapter(match: re.Match[str]) -> str:
        return re.sub(r"(?:chapter )?(\d+)", lambda m: link_to(m[0], int(m[1])), match[0])

    return CHAPTER_NUMBER.sub(chapter, QUOTED_OR_BAR.sub(quoted, line))


def entry_of(name: str) -> str | None:
    """The full name of something public, or of an attribute of it, where that has its entry."""
    owner, _, attribute = name.partition(".")
    if owner not in PUBLIC:
        return None
    if not attribute:
        return PUBLIC[owner]
    for ancestor in resolve_name(PUBLIC[owner]).__mro__:
        if attribute in vars(ancestor):
            return f"{PUBLIC.get(ancestor.__name__, PUBLIC[owner])}.{attribute}"
    return None


def link_to(text: str, number: int) -> str:
    """A link to a chapter, as reStructuredText; the text itself where it is not written yet."""
    return f":doc:`{text} </chapters/{CHAPTERS[number]}>`" if number in CHAPTERS else text


def prepare_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn a docstring into reStructuredText, in place; its examples stay as they are."""
    if FIELD.fullmatch("".join(lines).strip()):
        lines.clear()  # what Python says of a field without a docstring says nothing
    elif what == "attribute" and lines:
        # On one line, napoleon takes what stands before a colon for a type.
        lines[:1] = lines[0].replace(": ", ":\n", 1).split("\n")
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[index] = with_links(line)


def skip_unexported(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a module offers to others of the package only."""
    return True if what == "module" and name not in PUBLIC else None


def show_public_bases(app: Sphinx, name: str, obj: Any, options: Any, bases: list[Any]) -> None:
    """Name, in place of a class that has no entry, the first of its ancestors that has one."""
    for index, base in enumerate(bases):
        while getattr(base, "__module__", "").startswith("minitransformer."):
            if base.__name__ in PUBLIC:
                break
            base = base.__base__
        bases[index] = base


def find_documented_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> None:
    """Look for a type under the name of its documentation; `intersphinx`, called next, finds it."""
    target = node["reftarget"]
    node["reftarget"] = ALIASES.get(target) or TORCH_MODULE.sub("torch.nn.", target)


def mend_parameters(app: Sphinx, page: str, template: str, context: Any, tree: object) -> None:
    """Make lines of a signature's parameters: Sphinx makes them definitions without terms."""

    def lines(parameters: re.Match[str]) -> str:
        return PARAMETER.sub(r'<span class="parameter">\1</span>', parameters[1])

    if "body" in context:
        context["body"] = PARAMETERS.sub(lines, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in what autodoc and intersphinx do."""
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_unexported)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("html-page-context", mend_parameters)
    app.connect("missing-reference", find_documented_name, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
