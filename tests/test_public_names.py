"""What the package offers: each name once, explained, and shown by an example that runs."""

import importlib
from pathlib import Path

import pytest

import minitransformer as mt

PACKAGE = Path(mt.__file__).parent
FILES = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("[!_]*.py")]
NAMES = [".".join(["minitransformer", *path.with_suffix("").parts]) for path in FILES]
MODULES = [importlib.import_module(name) for name in NAMES]
FOLDERS = sorted({path.parts[0] for path in FILES if len(path.parts) > 1})
PLACES = {"package": mt} | {
    name: importlib.import_module(f"minitransformer.{name}") for name in FOLDERS
}
PLACES = {name: place for name, place in PLACES.items() if hasattr(place, "__all__")}
OBJECTS = {name: getattr(place, name) for place in PLACES.values() for name in place.__all__}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_names_are_in_order_and_occur_once(place):
    names = place.__all__
    assert list(names) == sorted(set(names), key=lambda n: (not n.isupper(), n[0].islower(), n))


@pytest.mark.parametrize("name", OBJECTS)
def test_name_belongs_to_one_module(name):
    owners = [module for module in MODULES if name in getattr(module, "__all__", ())]
    assert [vars(module)[name] is OBJECTS[name] for module in owners] == [True]


def test_the_top_is_small():
    """Completion offers some sixty names and the subpackages; other modules are imported."""
    assert len(mt.__all__) <= 65
    assert {*dir(mt)} - {*mt.__all__} <= {*FOLDERS, "fast"}
    modules = {path.stem for path in FILES}
    assert {name for name in vars(mt) if name[0] != "_"} - modules - {*FOLDERS} <= {*mt.__all__}
