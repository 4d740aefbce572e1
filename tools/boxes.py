"""A Sphinx extension that makes boxes of the quotes that begin with a bold line.

A notebook service shows a chapter's Markdown and knows no directives. So a box is written there as
what every reader of Markdown shows well, a quote:

    > **Trap: the title**
    >
    > What goes wrong, and what catches it.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class Boxes(SphinxTransform):
    """Turns each quote whose first paragraph is one bold phrase into a box with that title."""

    default_priority = 400  # when the page is read, and before references are resolved

    def apply(self, **kwargs: object) -> None:
        """Change the page in place."""
        for quote in list(self.document.findall(nodes.block_quote)):
            first, *text = quote.children
            match [part for part in first.children if part.astext()]:
                case [nodes.strong() as phrase]:
                    title = nodes.title("", "", *phrase.children)
                    quote.replace_self(nodes.admonition("", title, *text, classes=["warning"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Boxes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
