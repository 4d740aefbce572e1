"""A Sphinx extension that mends each page of Markdown when it is read; `_config.yml` loads it.

- A quote that begins with a bold line becomes a box. A notebook service shows a chapter's Markdown
  and knows no directives, so chapters write a box as what every reader of Markdown shows well.
- Punctuation stays beside its formula. To a browser a rendered formula is like a picture: it may
  break the line before the full stop that follows.
- A folded cell says what it holds. Its first comment says so where there is one, such as
  `# Show the model and its training`, `# Check: the laws` or `# @title Solution: the mean`.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

OPENING = re.compile(r"[(\[“‘]+$")
CLOSING = re.compile(r"^[.,;:?!)\]”’]+")
TITLE = re.compile(r"# (?:@title )?(Show|Check|Solution)\b:? ?(.*)")


class Markup(SphinxTransform):
    """Makes boxes, binds punctuation to formulas, labels folded cells."""

    default_priority = 400  # when the page is read, and before references are resolved

    def apply(self, **kwargs: object) -> None:
        """Change the page in place."""
        for quote in list(self.document.findall(nodes.block_quote)):
            make_box(quote)
        for formula in list(self.document.findall(nodes.math)):
            bind_punctuation(formula)
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") == "cell_code" and cell.get("hide_mode") is not None:
                label(cell)


def make_box(quote: nodes.block_quote) -> None:
    """Replace a quote whose first paragraph is one bold phrase by a box with that title."""
    first, *text = quote.children
    match [part for part in first.children if part.astext()]:
        case [nodes.strong() as phrase]:
            title = nodes.title("", "", *phrase.children)
            quote.replace_self(nodes.admonition("", title, *text, classes=["warning"]))


def bind_punctuation(formula: nodes.math) -> None:
    """Wrap a formula together with the punctuation that touches it."""
    beside = [None, *formula.parent.children, None]
    place = beside.index(formula)
    opening = split_off(OPENING, beside[place - 1])
    closing = split_off(CLOSING, beside[place + 1])
    if opening or closing:
        together = nodes.inline(classes=["unbroken"])
        formula.replace_self(together)
        together += [nodes.Text(opening), formula, nodes.Text(closing)]


def split_off(mark: re.Pattern[str], text: nodes.Node | None) -> str:
    """Take the mark out of the text beside a formula; return it, or nothing."""
    if not isinstance(text, nodes.Text) or (found := mark.search(text)) is None:
        return ""
    text.parent.replace(text, nodes.Text(text[: found.start()] + text[found.end() :]))
    return found.group()


def label(cell: nodes.container) -> None:
    """Write on a folded cell what it holds."""
    source = next(iter(cell.findall(nodes.literal_block)), nodes.Text(""))
    has_picture = any(True for _ in cell.findall(nodes.image))
    content = content_of(source.astext(), has_picture=has_picture)
    cell["prompt_show"] = f"Show {content}"
    cell["prompt_hide"] = f"Hide {content}"


def content_of(source: str, *, has_picture: bool) -> str:
    """What a folded cell holds, in a few words.

    Example:
        >>> content_of("# @title Solution: the mean", has_picture=False)
        'solution: the mean'
        >>> content_of("import math", has_picture=True)
        'imports'
    """
    if found := TITLE.match(source):
        kind, title = found.groups()
        if kind == "Show":
            return title
        kind = "solution" if kind == "Solution" else "the check"
        return f"{kind}: {title}" if title else kind
    if re.match(r"(#.*\n)*(import|from) ", source):
        return "imports"
    if has_picture:
        return "the plot's code"
    return "the check" if re.search(r"^assert ", source, re.MULTILINE) else "the code"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Markup)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
