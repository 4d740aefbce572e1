"""The chapters and the package are the same code, in both directions.

Definitions are compared by what they do: their syntax trees without docstrings and annotations.
"""

import ast
import re

import pytest
from nbformat import NotebookNode

from notebooks import (
    CHAPTERS,
    PACKAGE,
    Definition,
    chapters,
    code_cells,
    definitions,
    name_of,
    notebooks,
    public_definitions,
    public_names,
    read,
    tags,
)


class Bare(ast.NodeTransformer):
    """Remove docstrings and annotations, and nothing that Python acts on.

    `x: int = 1` in a function is `x = 1`. In a class body the annotation itself makes a
    dataclass field, so there it stays, emptied.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        body = [
            statement
            for statement in without_docstring(node)
            if not isinstance(statement, ast.AnnAssign) or statement.value is not None
        ]
        node.body = body or [ast.Pass()]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = without_docstring(node) or [ast.Pass()]
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                statement.annotation = ast.Constant(...)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        is_field = isinstance(node.annotation, ast.Constant) and node.annotation.value is ...
        if is_field or node.value is None:
            return self.generic_visit(node)
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value))


def without_docstring(node: Definition) -> list[ast.stmt]:
    """The body after the docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def bare(source: str) -> str:
    """What the definition does, as text one can compare and read."""
    stripped = Bare().visit(ast.parse(source))
    return ast.dump(ast.fix_missing_locations(stripped), indent=1)


def wrong(nb: NotebookNode, package: dict[str, str]) -> list[str]:
    """Public names that the notebook defines otherwise, and `package` cells that define none."""
    found = []
    for cell in code_cells(nb):
        public = {name: d for name, d in definitions(cell.source).items() if name in package}
        found += [name for name, d in public.items() if bare(ast.unparse(d)) != bare(package[name])]
        if "package" in tags(cell) and not public:
            found.append(cell.source.split("\n")[0])
    return found


@pytest.fixture(scope="module")
def public() -> dict[str, str]:
    """What the package defines."""
    return public_definitions()


@pytest.fixture(scope="module")
def modules() -> list[ast.Module]:
    """The modules of the package."""
    return [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]


@pytest.mark.parametrize("path", notebooks(), ids=name_of)
def test_chapter_defines_what_the_package_keeps(path, public):
    assert wrong(read(path), public) == []


@pytest.mark.parametrize("path", chapters(), ids=name_of)
def test_chapter_names_what_its_modules_offer(path, modules):
    number = path.stem.split("_")[0]
    built_here = re.compile(rf"Built in chapter {int(number) if number.isdigit() else '-'}\b")
    kept = [module for module in modules if built_here.search(ast.get_docstring(module) or "")]
    # Chapter 0 comes before the ten ideas, and 16 measures what the others built: neither keeps
    # code, and one without a number keeps none.
    assert kept or number in ("00", "16") or not number.isdigit()
    pages = CHAPTERS.rglob(f"{number}_*.ipynb" if number.isdigit() else path.name)
    said = set(re.findall(r"\w+", "\n".join(c.source for page in pages for c in read(page).cells)))
    offered = [names for module in kept if (names := set(public_names(module)))]
    assert [names for names in offered if not said & names] == []
