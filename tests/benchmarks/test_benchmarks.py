"""The benchmarks import what there is."""

import ast
import importlib
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


def imported(program: Path) -> list[tuple[str, str]]:
    """Module and name of all that a program takes from the package."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("minitransformer")
        for alias in node.names
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_what_it_imports_exists(program):
    for module, name in imported(program):
        found = importlib.import_module(module)
        if not hasattr(found, name):  # a module of a room, then
            importlib.import_module(f"{module}.{name}")
