"""A quote under a bold line becomes a box; every other quote stays one."""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from myst_parser.docutils_ import Parser

from boxes import Boxes


def read(markdown):
    page = publish_doctree(markdown, parser=Parser())
    Boxes(page).apply()
    return page


def test_bold_line_becomes_the_title_of_a_box():
    page = read("Before.\n\n> **Trap: `x` and *y***\n>\n> Text.\n>\n> - A list.\n\nAfter.")
    before, box, after = page
    assert (before.astext(), after.astext()) == ("Before.", "After.")
    assert isinstance(box, nodes.admonition)
    assert box["classes"] == ["warning"]
    title, text, items = box
    assert isinstance(title, nodes.title)
    assert title.astext() == "Trap: x and y"
    assert [type(part) for part in title] == [nodes.Text, nodes.literal, nodes.Text, nodes.emphasis]
    assert (text.astext(), items.astext()) == ("Text.", "A list.")
    assert not list(page.findall(nodes.block_quote))


@pytest.mark.parametrize(
    "quote", ["> Words.", "> **Bold** words.\n>\n> More.", "> *Words.*\n>\n> More.", "> - **Item**"]
)
def test_other_quotes_stay(quote):
    (page,) = read(quote)
    assert isinstance(page, nodes.block_quote)
