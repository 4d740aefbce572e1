"""Every chapter keeps every rule."""

import pytest

from notebooks import CHAPTERS, name_of, notebooks, read
from rules import RULES, Rule

NOTEBOOKS = notebooks()
LARGEST = 500_000  # bytes


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_chapter_keeps_rule(path, rule: Rule):
    assert list(rule(read(path))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_chapter_is_small(path):
    assert path.stat().st_size <= LARGEST


def test_there_are_chapters():
    assert NOTEBOOKS


def test_chapters_leave_nothing_behind():
    kept = {".ipynb", ".md", ".svg"}
    strays = [path.name for path in CHAPTERS.rglob("*") if path.is_file()]
    assert [name for name in strays if not name.endswith(tuple(kept))] == []
