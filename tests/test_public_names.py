"""What the package offers: each name once, explained, and shown by an example that runs."""

import ast
import doctest
import inspect
import re
import sys
from pathlib import Path

import pytest

import minitransformer as mt

PACKAGE = Path(mt.__file__).parent
MODULES = [sys.modules[f"minitransformer.{path.stem}"] for path in PACKAGE.glob("[!_]*.py")]
OBJECTS = {name: getattr(mt, name) for name in mt.__all__}
CALLABLES = [name for name, value in OBJECTS.items() if callable(value)]
each_callable = pytest.mark.parametrize("name", CALLABLES)


def examples(docstring):
    """The code of a docstring's examples."""
    return "\n".join(example.source for example in doctest.DocTestParser().get_examples(docstring))


def names_in_examples():
    """Every name that some example of the package uses."""
    found = set()
    for module in (mt, *MODULES):
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            tree = ast.parse("".join(example.source for example in test.examples))
            found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found


def test_names_are_in_order_and_occur_once():
    assert list(mt.__all__) == sorted(
        set(mt.__all__), key=lambda n: (not n.isupper(), n[0].islower(), n)
    )


@pytest.mark.parametrize("name", mt.__all__)
def test_name_belongs_to_one_module(name):
    owners = [module for module in MODULES if name in getattr(module, "__all__", ())]
    assert [vars(module)[name] is OBJECTS[name] for module in owners] == [True]


def test_nothing_else_is_in_sight():
    """What `help` and completion offer: the public names and the modules."""
    modules = {path.stem for path in PACKAGE.glob("[!_]*.py")}
    offered = {name for name in vars(mt) if not name.startswith("_")}
    assert offered - modules <= set(mt.__all__)


@each_callable
def test_name_is_explained(name):
    docstring = inspect.getdoc(OBJECTS[name]) or ""
    assert docstring.split("\n")[0].endswith((".", ":"))
    if inspect.getmodule(OBJECTS[name]).__name__ != "minitransformer.plotting":
        assert re.search(r"Built in chapter \d", docstring)


@pytest.mark.parametrize("name", mt.__all__)
def test_name_is_used_by_an_example(name):
    assert name in names_in_examples()


def test_tour_shows_the_way_and_names_every_module():
    tour = mt.__doc__
    for step in ("Trainer", "translate", "save_pretrained", "load_translator"):
        assert step in examples(tour)
    public = {path.stem for path in PACKAGE.glob("[!_]*.py")}
    assert public == set(re.findall(r"`(\w+)`", tour.partition("| --- |")[2]))


@pytest.mark.parametrize(
    ("docstring", "code"), [("Text.\n\n>>> f(1)\n2\n", "f(1)\n"), ("`f(1)` is 2.", "")]
)
def test_examples_are_found(docstring, code):
    assert examples(docstring) == code
