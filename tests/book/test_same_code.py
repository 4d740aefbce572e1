"""The chapters and the package are the same code, in both directions."""

import ast
import re

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from notebooks import (
    CHAPTERS,
    PACKAGE,
    chapters,
    name_of,
    notebooks,
    public_definitions,
    public_names,
    read,
)
from same_code import bare, defines_none, differing

each_notebook = pytest.mark.parametrize("path", notebooks(), ids=name_of)
each_chapter = pytest.mark.parametrize("path", chapters(), ids=name_of)


@pytest.fixture(scope="module")
def public() -> dict[str, str]:
    """What the package defines."""
    return public_definitions()


@pytest.fixture(scope="module")
def modules() -> list[ast.Module]:
    """The modules of the package."""
    return [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]


def built_in(chapter: int, modules: list[ast.Module]) -> list[ast.Module]:
    """The modules whose docstring says that this chapter builds them."""
    built_here = re.compile(rf"Built in chapter {chapter}\b")
    return [module for module in modules if built_here.search(ast.get_docstring(module) or "")]


@each_notebook
def test_chapter_defines_what_the_package_keeps(path, public):
    assert differing(read(path), public) == []


@each_notebook
def test_package_cells_define_something_public(path, public):
    assert defines_none(read(path), public) == []


@each_chapter
def test_chapter_names_what_its_modules_offer(path, modules):
    number = path.stem.split("_")[0]
    kept = built_in(int(number), modules) if number.isdigit() else []
    # Chapter 0 stands before the ten ideas, and 16 measures what the others built: neither keeps
    # code, and one without a number keeps none.
    assert kept or number in ("00", "16") or not number.isdigit()
    pages = CHAPTERS.rglob(path.name)
    said = set(re.findall(r"\w+", "\n".join(c.source for page in pages for c in read(page).cells)))
    offered = [names for module in kept if (names := set(public_names(module)))]
    assert [names for names in offered if not said & names] == []


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("def f(x): return x", 'def f(x: int) -> int:\n    """Doc."""\n    return x'),
        ("def f(x):\n    y = x\n    return y", "def f(x):\n    y: int = x\n    return y"),
        ("def f(): pass", 'def f():\n    """Doc."""\n    pass'),
        ("class A:\n    x: int = 1", 'class A:\n    """Doc."""\n    x: float = 1'),
        ("class A:\n    def f(self): return 1", "class A:\n    def f(self) -> int: return 1"),
        ("def f(): return 1  # why", "def f():\n    # because\n    return 1"),
    ],
)
def test_same(here, there):
    assert bare(here) == bare(there)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("def f(x): return x", "def f(x): return -x"),
        ("def f(x): return x", "def f(x=1): return x"),
        ("def f(x): return x", "@cache\ndef f(x): return x"),
        ("class A:\n    x = 1", "class A:\n    x: int = 1"),
        ("class A:\n    x: int", "class A:\n    y: int"),
        ("class A: pass", "class A(B): pass"),
        ("def f(x): return x", 'def f(x): return "Doc." and x'),
    ],
)
def test_not_same(here, there):
    assert bare(here) != bare(there)


def test_drift_is_found_in_any_cell():
    package = {"double": "def double(x):\n    return 2 * x", "Unit": "class Unit:\n    one = 1"}
    agreed = new_code_cell(package["double"], metadata={"tags": ["package"]})
    drifted = new_code_cell("class Unit:\n    one = 2", metadata={"tags": ["solution"]})
    idle = new_code_cell("x = 1", metadata={"tags": ["package"]})

    assert differing(new_notebook(cells=[agreed, drifted, idle]), package) == ["Unit"]
    assert defines_none(new_notebook(cells=[agreed, drifted, idle]), package) == ["x = 1"]
