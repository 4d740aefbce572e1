"""Each chapter and each deeper page is short, and takes as long as it says."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebooks import CHAPTERS, ROOT, chapters, name_of, read
from reading_path import MOST_LINES, MOST_WORDS, parts, path_of, words_of

MOST_WORDS_DEEPER = 4_000
MOST_QUESTIONS = 25
LONGEST_ANSWER = 150
TEN_IDEAS = 440  # minutes: about seven hours

each_chapter = pytest.mark.parametrize("path", chapters(), ids=name_of)
each_deeper_page = pytest.mark.parametrize(
    "path", sorted(CHAPTERS.glob("deeper/*.ipynb")), ids=name_of
)


def prose(path) -> str:
    """What the page says, without its cells of code."""
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


@each_chapter
def test_chapter_is_short(path):
    """Its path, and with its exercises all that it says; formulas are read, too."""
    found = path_of(read(path))
    assert found.words <= MOST_WORDS
    assert found.lines <= MOST_LINES
    assert max(words_of(prose(path)), len(prose(path).split())) <= MOST_WORDS


@each_chapter
def test_chapter_says_how_long_it_takes_and_ends_with_a_recap(path):
    nb = read(path)
    (said,) = re.findall(r"The path takes about (\d+) minutes", nb.cells[0].source)
    assert int(said) == path_of(nb).minutes
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


def test_exercises_further_reading_and_hidden_code_are_not_on_the_path():
    nb = new_notebook(
        cells=[
            new_markdown_cell("# Title\n\none\n\n```bash\n## Exercises\n```\n\n## First\n\ntwo"),
            new_code_cell("x = 1\n\ny = 2"),
            new_code_cell("hidden = 1", metadata={"tags": ["hide-input"]}),
            new_markdown_cell("## Exercises\n\n### Exercise 1 (easy)\n\nleft out"),
            new_code_cell("left_out = 1"),
            new_markdown_cell("## Further reading\n\nleft out\n\n## Recap\n\nthree"),
        ]
    )
    text = " ".join(text for kind, text in parts(nb) if kind == "markdown")
    assert re.findall("one|two|three|left", text) == ["one", "two", "three"]
    assert [source for kind, source in parts(nb) if kind == "code"] == ["x = 1\n\ny = 2"]
    assert path_of(nb).lines == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("with $x + y$ inside", 3),
        ("$$a\nb$$", 1),
        ("[a link](https://example.org/x) here", 3),
        ("it's 1,000 words", 3),
        ("![what it shows](picture.svg) seen", 1),
    ],
)
def test_words_are_what_a_reader_reads(text, words):
    assert words_of(text) == words
