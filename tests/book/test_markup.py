"""What a page's Markdown becomes: boxes, and formulas that keep their punctuation."""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from myst_parser.docutils_ import Parser

from markup import Markup


def read(markdown):
    settings = {"myst_enable_extensions": ["dollarmath"]}
    page = publish_doctree(markdown, parser=Parser(), settings_overrides=settings)
    Markup(page).apply()
    return page


def test_bold_line_becomes_the_title_of_a_box():
    before, box, after = read("Before.\n\n> **Trap: `x` and *y***\n>\n> Text.\n\nAfter.")
    title, text = box
    assert isinstance(box, nodes.admonition)
    assert [type(part) for part in title] == [nodes.Text, nodes.literal, nodes.Text, nodes.emphasis]
    texts = [part.astext() for part in (before, title, text, after)]
    assert texts == ["Before.", "Trap: x and y", "Text.", "After."]


@pytest.mark.parametrize("quote", ["> **Bold** words.\n>\n> More.", "> *Words.*", "> - **Item**"])
def test_other_quotes_stay(quote):
    (page,) = read(quote)
    assert isinstance(page, nodes.block_quote)


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("Since $a$, and so on.", ["a,"]),
        ("It (that is, $a$), or not ($b$ too)", ["a),", "(b"]),
        ("($a$)?", ["(a)?"]),
        ("Of $a$ and of *all* $b$", []),
    ],
)
def test_punctuation_stays_with_its_formula(text, together):
    page = read(text)
    assert page.astext() == text.replace("$", "").replace("*", "")
    wrapped = [part for part in page.findall(nodes.inline) if "unbroken" in part["classes"]]
    assert [part.astext() for part in wrapped] == together
