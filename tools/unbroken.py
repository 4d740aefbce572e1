"""A Sphinx extension that keeps a formula and the punctuation around it in one line.

For a browser a rendered formula is like a picture: it may break the line before the full stop that
follows.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

OPENING = re.compile(r"[(\[“‘]+$")
CLOSING = re.compile(r"^[.,;:?!)\]”’]+")


def split_off(mark: re.Pattern[str], text: nodes.Node | None) -> str:
    """Take the mark out of the text beside a formula; return it, or nothing."""
    if not isinstance(text, nodes.Text) or (found := mark.search(text)) is None:
        return ""
    text.parent.replace(text, nodes.Text(text[: found.start()] + text[found.end() :]))
    return found.group()


class Unbroken(SphinxTransform):
    """Wraps each formula that punctuation touches, with it."""

    default_priority = 400  # when the page is read

    def apply(self, **kwargs: object) -> None:
        """Change the page in place."""
        for formula in list(self.document.findall(nodes.math)):
            beside = [None, *formula.parent.children, None]
            place = beside.index(formula)
            opening = split_off(OPENING, beside[place - 1])
            closing = split_off(CLOSING, beside[place + 1])
            if opening or closing:
                together = nodes.inline(classes=["unbroken"])
                formula.replace_self(together)
                together += [nodes.Text(opening), formula, nodes.Text(closing)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Unbroken)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
