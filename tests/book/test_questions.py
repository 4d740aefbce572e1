"""The index of questions is that of the deeper pages, and short."""

import re

from questions import PAGE, headings, index

MOST = 450


def test_index_is_that_of_the_pages_and_short():
    assert PAGE.read_text(encoding="utf-8") == index(), "run `python tools/questions.py`"
    asked = re.findall(r"^- \[(.*)\]\(", index(), re.MULTILINE)
    assert len(asked) == len(set(asked)) <= MOST


def test_headings_have_the_addresses_of_the_site():
    found = list(headings("# A `b`\n\n## Why?\n\n### Why?\n"))
    assert found == [(1, "A `b`", "a-b"), (2, "Why?", "why"), (3, "Why?", "why-1")]
