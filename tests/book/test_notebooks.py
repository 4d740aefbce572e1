"""Every chapter keeps every rule."""

import pytest

from notebooks import CHAPTERS, read
from rules import RULES, Rule

NOTEBOOKS = sorted(CHAPTERS.glob("*.ipynb"))
LARGEST = 500_000  # bytes


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_chapter_keeps_rule(path, rule: Rule):
    assert list(rule(read(path))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter_is_small(path):
    assert path.stat().st_size <= LARGEST


def test_there_are_chapters():
    assert NOTEBOOKS


def test_chapters_leave_nothing_behind():
    kept = {".ipynb", ".md", ".svg"}
    strays = [path.name for path in CHAPTERS.iterdir() if path.is_file()]
    assert [name for name in strays if not name.endswith(tuple(kept))] == []
