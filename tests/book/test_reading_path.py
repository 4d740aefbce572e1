"""The project stays small enough to be read; each page is short, and takes as long as it says."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebooks import CHAPTERS, ROOT, chapters, name_of, read
from reading_path import MOST_LINES, MOST_WORDS, parts, path_of, words_of
from sizes import LONGEST, MOST, definitions, lines_in

MOST_WORDS_DEEPER = 4_000
MOST_QUESTIONS = 25
LONGEST_ANSWER = 150
TEN_IDEAS = 440  # minutes: about seven hours

each_chapter = pytest.mark.parametrize("path", chapters(), ids=name_of)
each_deeper_page = pytest.mark.parametrize(
    "path", sorted(CHAPTERS.glob("deeper/*.ipynb")), ids=name_of
)


def test_folders_and_definitions_are_short_enough():
    lines = {folder: lines_in(folder) for folder in MOST}
    assert {folder: count for folder, count in lines.items() if not 0 < count <= MOST[folder]} == {}
    found = {name: count for name, count in definitions() if name in LONGEST}
    assert found.keys() == LONGEST.keys()
    assert {name: count for name, count in found.items() if count > LONGEST[name]} == {}


def prose(path):
    """What the page says, without its cells of code."""
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


@each_chapter
def test_chapter_is_short_and_says_how_long_it_takes(path):
    """Its path, and with its exercises all that it says; formulas are read, too."""
    nb = read(path)
    found = path_of(nb)
    assert found.words <= MOST_WORDS
    assert found.lines <= MOST_LINES
    assert max(words_of(prose(path)), len(prose(path).split())) <= MOST_WORDS
    (said,) = re.findall(r"The path takes about (\d+) minutes", nb.cells[0].source)
    assert int(said) == found.minutes
    on_the_path = "\n".join(text for kind, text in parts(nb) if kind == "markdown")
    assert re.search(r"^#+ Recap", on_the_path, re.MULTILINE)


def test_index_says_how_long_the_chapters_take():
    index = (ROOT / "index.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"\]\(chapters/(\w+)\.ipynb\) \| (\d+) min \|", index))
    assert said == {path.stem: str(path_of(read(path)).minutes) for path in chapters()}
    ten_ideas = [int(minutes) for name, minutes in said.items() if "01" <= name[:2] <= "10"]
    assert sum(ten_ideas) <= TEN_IDEAS


@each_deeper_page
def test_deeper_page_is_short_and_answers_few_questions_briefly(path):
    text = prose(path)
    assert max(words_of(text), len(text.split())) <= MOST_WORDS_DEEPER
    _, _, questions = text.partition("\n## Questions\n")
    pieces = re.split(r"^### (.+)$", re.split(r"^## ", questions, flags=re.M)[0], flags=re.M)
    answers = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    assert len(answers) <= MOST_QUESTIONS
    assert [question for question in answers if not question.endswith("?")] == []
    assert [q for q, answer in answers.items() if words_of(answer) > LONGEST_ANSWER] == []


def test_exercises_and_hidden_code_are_not_on_the_path_and_a_formula_is_a_word():
    cells = [
        new_markdown_cell("# Title\n\none $x + y$\n\n```bash\n## Exercises\n```\n\n## First"),
        new_code_cell("x = 1\n\ny = 2"),
        new_code_cell("hidden = 1", metadata={"tags": ["hide-input"]}),
        new_markdown_cell("## Exercises\n\n### Exercise 1 (easy)\n\nleft out"),
        new_code_cell("left_out = 1"),
        new_markdown_cell("## Recap\n\n[a link](https://example.org/x) ![a picture](a.svg)"),
    ]
    found = path_of(new_notebook(cells=cells))
    assert found.lines == 2
    assert found.words == len(
        ["Title", "one", "formula", "bash", "Exercises", "First", "Recap", "a", "link"]
    )
