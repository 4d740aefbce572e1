"""A deeper page is short, and its questions have short answers."""

import re

import pytest

from notebooks import CHAPTERS, name_of, read
from reading_path import words_of

MOST_WORDS = 4_000
MOST_QUESTIONS, LONGEST_ANSWER = 25, 150
PAGES = sorted(CHAPTERS.glob("deeper/*.ipynb"))
each_page = pytest.mark.parametrize("path", PAGES, ids=name_of)


def prose(path) -> str:
    """What the page says, without its cells of code."""
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def answers(text: str) -> dict[str, str]:
    """The page's questions, each a heading of level 3 below `Questions`, with their answers."""
    _, _, questions = text.partition("\n## Questions\n")
    pieces = re.split(r"^### (.+)$", re.split(r"^## ", questions, flags=re.M)[0], flags=re.M)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


@each_page
def test_page_is_short(path):
    text = prose(path)
    assert max(words_of(text), len(text.split())) <= MOST_WORDS  # formulas are read too


@each_page
def test_questions_are_few_and_have_short_answers(path):
    found = answers(prose(path))
    assert len(found) <= MOST_QUESTIONS
    assert {name: n for name, text in found.items() if (n := words_of(text)) > LONGEST_ANSWER} == {}


@each_page
def test_a_question_is_a_question(path):
    assert [name for name in answers(prose(path)) if not name.endswith("?")] == []
