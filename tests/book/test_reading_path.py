"""Each chapter has a path: a first reading that is short, complete, and as long as it says."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from notebooks import ROOT, chapters, name_of, read
from reading_path import MOST_LINES, MOST_WORDS, parts, path_of, words_of

each_chapter = pytest.mark.parametrize("path", chapters(), ids=name_of)
THREE_HOURS = 190  # minutes, about


@each_chapter
def test_path_is_short(path):
    found = path_of(read(path))
    assert found.words <= MOST_WORDS
    assert found.lines <= MOST_LINES


@each_chapter
def test_chapter_is_short(path):
    """With its exercises, and all that it says."""
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    assert max(words_of(prose), len(prose.split())) <= MOST_WORDS  # formulas are read too


@each_chapter
def test_opening_says_how_long_the_path_takes(path):
    nb = read(path)
    (said,) = re.findall(r"The path takes about (\d+) minutes", nb.cells[0].source)
    assert int(said) == path_of(nb).minutes


@each_chapter
def test_path_keeps_what_a_chapter_ends_with(path):
    prose = "\n".join(text for kind, text in parts(read(path)) if kind == "markdown")
    assert re.search(r"^#+ Recap", prose, re.MULTILINE)


def test_index_has_the_three_hour_path():
    index = (ROOT / "index.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"\]\(chapters/(\w+)\.ipynb\) \| (\d+) min \|", index))
    assert said == {path.stem: str(path_of(read(path)).minutes) for path in chapters()}
    ten_ideas = [int(minutes) for name, minutes in said.items() if "01" <= name[:2] <= "10"]
    assert sum(ten_ideas) <= THREE_HOURS


def notebook(*cells):
    """A notebook of prose, and of code given as (source, tags)."""
    return new_notebook(
        cells=[
            new_markdown_cell(cell)
            if isinstance(cell, str)
            else new_code_cell(cell[0], metadata={"tags": list(cell[1])})
            for cell in cells
        ]
    )


def test_exercises_and_further_reading_are_left_out():
    nb = notebook(
        "# Title\n\none two\n\n## First\n\nthree",
        ("x = 1\n\ny = 2", ()),
        "## Exercises\n\n### Exercise 1 (easy)\n\nleft out",
        ("left_out = 1", ()),
        "## Further reading\n\nleft out\n\n## Recap\n\nfour",
    )
    prose = " ".join(text for kind, text in parts(nb) if kind == "markdown")
    assert "left" not in prose
    for word in ("one", "two", "three", "four"):
        assert word in prose
    assert path_of(nb).lines == 2


def test_only_code_that_can_be_seen_counts():
    nb = notebook("# Title", ("a = 1", ("hide-input",)), ("b = 1", ("hide-cell",)), ("c = 1", ()))
    assert [text for kind, text in parts(nb) if kind == "code"] == ["c = 1"]


def test_headings_inside_code_are_none():
    nb = notebook("# Title\n\n```bash\n## Exercises\n```\n\nstill here")
    assert "still here" in next(parts(nb))[1]


@pytest.mark.parametrize(
    ("prose", "words"),
    [
        ("one two, three.", 3),
        ("with $x + y$ inside", 3),
        ("$$a\nb$$", 1),
        ("[a link](https://example.org/x) here", 3),
        ("it's 1,000 words", 3),
        ("![what it shows](picture.svg) seen", 1),
    ],
)
def test_words_are_what_a_reader_reads(prose, words):
    assert words_of(prose) == words
