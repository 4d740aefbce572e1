"""What the package offers: each name once, explained, and shown by an example that runs."""

import ast
import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from helpers import ROOMS

import minitransformer as mt

PACKAGE = Path(mt.__file__).parent
FILES = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("[!_]*.py")]
NAMES = [".".join(["minitransformer", *path.with_suffix("").parts]) for path in FILES]
MODULES = [importlib.import_module(name) for name in NAMES]
PLACES = {
    "package": mt,
    "models": mt.models,
    "efficient_attention": mt.efficient_attention,
    "export": mt.export,
    "parallel": mt.parallel,
}
PUBLIC = [name for place in PLACES.values() for name in place.__all__]
OBJECTS = {name: getattr(place, name) for place in PLACES.values() for name in place.__all__}
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


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_names_are_in_order_and_occur_once(place):
    names = place.__all__
    assert list(names) == sorted(set(names), key=lambda n: (not n.isupper(), n[0].islower(), n))


def test_no_two_places_have_the_same_name():
    assert len(set(PUBLIC)) == len(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_name_belongs_to_one_module(name):
    owners = [module for module in MODULES if name in getattr(module, "__all__", ())]
    assert [vars(module)[name] is OBJECTS[name] for module in owners] == [True]


def test_nothing_else_is_in_sight():
    """What `help` and completion offer: the public names, the modules and the rooms."""
    modules = {path.parts[0].removesuffix(".py") for path in FILES}
    offered = {name for name in vars(mt) if not name.startswith("_")}
    assert offered - modules <= set(mt.__all__)


@each_callable
def test_name_is_explained(name):
    docstring = inspect.getdoc(OBJECTS[name]) or ""
    assert docstring.split("\n")[0].endswith((".", ":"))
    module = inspect.getmodule(OBJECTS[name]).__name__
    built_in_none = (
        "minitransformer.plotting",
        "minitransformer.export.",
        "minitransformer.fast.",
        "minitransformer.parallel.",
        "minitransformer.published.tokenizer",
    )
    if not module.startswith(built_in_none):
        assert re.search(r"Built in chapter \d", docstring)


@pytest.mark.parametrize("name", PUBLIC)
def test_name_is_used_by_an_example(name):
    assert name in names_in_examples()


def test_tour_shows_the_way():
    for step in ("Trainer", "translate", "save_pretrained", "load_translator"):
        assert step in examples(mt.__doc__)


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_map_of_a_room_names_every_module(room):
    there = sys.modules["minitransformer" + ("." + room if room else "")]
    public = {path.stem for path in FILES if path.parent == Path(room)}
    named = set(re.findall(r"`(\w+)`", there.__doc__.partition("| --- |")[2]))
    assert named == (public if room else public | set(ROOMS))


@pytest.mark.parametrize(
    ("docstring", "code"), [("Text.\n\n>>> f(1)\n2\n", "f(1)\n"), ("`f(1)` is 2.", "")]
)
def test_examples_are_found(docstring, code):
    assert examples(docstring) == code
