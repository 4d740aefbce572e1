"""A Sphinx extension for the API reference: it writes the pages, and links what docstrings name.

In `chapters/reference/api_*.md`, a block `{api} layers` becomes the modules of that folder that
have public names, in the order of the chapters that build them, so no page changes when a module
is added, renamed or moved.

Docstrings are written to be read as they are. On the page, "chapter 4" links to that chapter, the
name of something public to its entry, and a type of another project to that project's pages.
Their addresses are in `tools/inventories`, in the first and readable version of Sphinx's format,
so that a build needs no network. A name that nothing resolves is a warning, which fails the build.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform

import minitransformer

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = {int(path.name[:2]): path.stem for path in (ROOT / "chapters").glob("[0-9]*.ipynb")}
REFERENCE = "chapters/reference/"
BLOCK = re.compile(r"^```\{api\} (\w+)\n```$", re.MULTILINE)
BUILT_IN = re.compile(r"^Built in chapters? (\d+)", re.MULTILINE)


def modules_of(folder: str) -> list[ModuleType]:
    """The modules of a folder with names that users import, or the module of that name."""
    place = import_module(f"minitransformer.{folder}")
    if not hasattr(place, "__path__"):
        return [place]
    parts = iter_modules(place.__path__, f"{place.__name__}.")
    modules = [import_module(part.name) for part in parts]
    modules = [module for module in modules if hasattr(module, "__all__")]
    if hasattr(place, "__all__"):
        offered = {*place.__all__, *minitransformer.__all__}
        modules = [module for module in modules if offered & {*module.__all__}]
    return sorted(modules, key=first_chapter)


def first_chapter(module: ModuleType) -> int:
    """The number of the chapter that builds the module, after all others where none does."""
    built = BUILT_IN.search(module.__doc__ or "")
    return int(built[1]) if built else len(CHAPTERS)


FOLDERS = {
    part.name: modules_of(part.name)
    for part in iter_modules(minitransformer.__path__)
    if part.name != "__main__"
    and (part.ispkg or hasattr(import_module(f"minitransformer.{part.name}"), "__all__"))
}
"""Folders of the package, and modules beside them, with the modules that have an entry."""
MODULES = [module for modules in FOLDERS.values() for module in modules]
PUBLIC = {
    name: f"{module.__name__}.{name}"
    for module in MODULES
    for name in sorted(module.__all__, key=[*vars(module)].index)
}
"""Each public name, and the name under which it has its entry, in the order of the pages."""

ALIASES = {
    "Axes": "matplotlib.axes.Axes",
    "Figure": "matplotlib.figure.Figure",
    "torch._C.Generator": "torch.Generator",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
}
"""Types by the name that a signature has for them, and the name under which they are documented."""

INHERITED = {"from_pretrained", "save_pretrained"}
"""What has an entry where a class inherits it, too: there a link to the first of them."""

TORCH_MODULE = re.compile(r"torch\.nn\.modules\.\w+\.")
CHAPTER_NUMBER = re.compile(r"\bchapter (\d+)|(?<=\bchapters )(\d+)(?: and (\d+))?")
QUOTED_OR_BAR = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)|\|")
FIELD = re.compile(r"Alias for field number \d+")
BUILT_IN_TYPES = {"None", "bool", "float", "int", "str"}
"""Types that every reader knows: a link on each would be half of a page's links."""
SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)
UNBROKEN = re.compile(r'<span class="pre">([^<]*)</span>')
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>')
PARAMETER = re.compile(r"<dd>(.*?)</dd>")


def entries(folder: str) -> Iterator[str]:
    """The part of a page with the entries of a folder, in Markdown.

    A module's docstring is Markdown, because it may have a table; docstrings of names are not.
    """
    place = import_module(f"minitransformer.{folder}")
    modules = FOLDERS[folder]
    if modules != [place]:
        yield f"{in_markdown(inspect.getdoc(place) or '')}\n"
    for module in modules:
        yield f"## `{module.__name__.removeprefix('minitransformer.')}`\n"
        yield f"{in_markdown(inspect.getdoc(module) or '')}\n"
        yield f"```{{eval-rst}}\n.. automodule:: {module.__name__}\n```\n"


def described_elsewhere() -> Iterator[str]:
    """The classes from which others inherit members without an entry of their own for each."""
    for target in PUBLIC.values():
        if isinstance(cls := resolve_name(target), type):
            for base in cls.__mro__:
                if base.__name__ in PUBLIC or not base.__module__.startswith("minitransformer."):
                    yield base.__name__


def configure(app: Sphinx, config: Config) -> None:
    """Describe what a class inherits from a class without an entry."""
    config.autodoc_default_options["inherited-members"] = ",".join({*described_elsewhere()})


def write_entries(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the entries in place of the blocks that ask for them."""
    if page.startswith(REFERENCE):
        source[0] = BLOCK.sub(lambda block: "\n".join(entries(block[1])), source[0])


def in_markdown(docstring: str) -> str:
    """A module's docstring with the links of Markdown."""

    def as_role(link: re.Match[str]) -> str:
        return f"{{{link[1]}}}`{link[2]}`"

    links = "\n".join(with_links(line, bar="|") for line in docstring.splitlines())
    links = links.replace("``", "`").replace("\\ ", "")
    return re.sub(r":(py:obj|doc):`([^`]+)`", as_role, links)


def with_links(line: str, bar: str = r"\|") -> str:
    """A line of a docstring as reStructuredText."""

    def quoted(match: re.Match[str]) -> str:
        if match[0] == "|":
            return bar
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
    cls = resolve_name(PUBLIC[owner])
    for ancestor in cls.__mro__ if isinstance(cls, type) else ():
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
    if what == "method" and (first := first_place(name, obj)) != name:
        lines[:] = [f"The same as `{first.rsplit('.', 2)[1]}.{obj.__name__}`."]
    if what == "module" or FIELD.fullmatch("".join(lines).strip()):
        lines.clear()  # a module's is in Markdown; a field's without a docstring says nothing
    elif what in ("attribute", "data", "property") and lines:
        # On one line, napoleon takes what stands before a colon for a type.
        lines[:1] = lines[0].replace(": ", ":\n", 1).split("\n")
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[index] = with_links(line)


def first_place(name: str, method: Any) -> str:
    """Where a method is described: where the first class has it of those that inherit it."""
    code = getattr(method, "__func__", method)
    for target in PUBLIC.values() if method.__name__ in INHERITED else ():
        found = getattr(resolve_name(target), method.__name__, None)
        if getattr(found, "__func__", found) is code:
            return f"{target}.{method.__name__}"
    return name


def skip_internal(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what a module offers only within the package, and most of what is inherited."""
    if what == "module":
        return None if name in PUBLIC else True
    owner = getattr(getattr(obj, "fget", obj), "__qualname__", name).partition(".")[0]
    return None if owner in {*PUBLIC, name} or name in INHERITED else True


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
) -> nodes.Element | None:
    """Look for a type under the name of its documentation; `intersphinx`, called next, finds it."""
    if (target := node["reftarget"]) in BUILT_IN_TYPES:
        return contnode
    node["reftarget"] = ALIASES.get(target) or TORCH_MODULE.sub("torch.nn.", target)
    return None


class TargetsOfModules(SphinxTransform):
    """Lets a link to a module lead to its heading, and not below its docstring."""

    default_priority = 200  # before docutils gives the address to what follows

    def apply(self, **kwargs: object) -> None:
        """Change the page in place."""
        for target in list(self.document.findall(nodes.target)):
            if target.get("ismod"):
                target.parent["ids"][:0] = target["ids"]
                target.parent.remove(target)


def mend_signatures(app: Sphinx, page: str, template: str, context: Any, tree: object) -> None:
    """Make lines of a signature's parameters: Sphinx makes them definitions without terms.

    Nor does a tag around each word serve anything there: a third of a page would be such tags.
    """

    def lines(parameters: re.Match[str]) -> str:
        return PARAMETER.sub(r'<span class="parameter">\1</span>', parameters[1])

    def mended(signature: re.Match[str]) -> str:
        return PARAMETERS.sub(lines, UNBROKEN.sub(r"\1", signature[0]))

    if "body" in context:
        context["body"] = SIGNATURE.sub(mended, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in what autodoc and intersphinx do."""
    app.connect("config-inited", configure)
    app.connect("source-read", write_entries)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_internal)
    app.connect("autodoc-process-bases", show_public_bases)
    app.add_transform(TargetsOfModules)
    app.connect("html-page-context", mend_signatures)
    app.connect("missing-reference", find_documented_name, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
