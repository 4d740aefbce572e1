"""The index of questions is that of the deeper pages, and short."""

from questions import PAGE, headings, index

MOST = 450


def test_index_is_not_behind():
    assert PAGE.read_text(encoding="utf-8") == index(), "run `python tools/questions.py`"


def test_index_is_short():
    assert index().count("\n- ") <= MOST


def test_no_question_stands_twice():
    found = [line for line in index().splitlines() if line.startswith("- ")]
    asked = [line.partition("](")[0] for line in found]
    assert len(found) == len(set(asked))


def test_headings_have_the_addresses_of_the_site():
    text = "# A `b`\n\n## Why?\n\n### Why?\n"
    assert list(headings(text)) == [
        (1, "A `b`", "a-b"),
        (2, "Why?", "why"),
        (3, "Why?", "why-1"),
    ]
