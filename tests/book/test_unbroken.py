"""No line begins with the full stop of a formula, or ends with its opening bracket."""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from myst_parser.docutils_ import Parser

from unbroken import Unbroken


def read(markdown):
    settings = {"myst_enable_extensions": ["dollarmath"]}
    page = publish_doctree(markdown, parser=Parser(), settings_overrides=settings)
    Unbroken(page).apply()
    return page


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("Since $a$, and so on.", ["a,"]),
        ("It is $a$.", ["a."]),
        ("It (that is, $a$), or not ($b$ too)", ["a),", "(b"]),
        ("($a$)?", ["(a)?"]),
        ("$a$, $b$: *c*", ["a,", "b:"]),
        ("Of $a$ and of *all* $b$", []),
        ("The $a$-th *(b)*", []),
    ],
)
def test_punctuation_stays_with_its_formula(text, together):
    page = read(text)
    assert page.astext() == text.replace("$", "").replace("*", "")
    wrapped = [part for part in page.findall(nodes.inline) if "unbroken" in part["classes"]]
    assert [part.astext() for part in wrapped] == together
    assert len(list(page.findall(nodes.math))) == text.count("$") // 2
