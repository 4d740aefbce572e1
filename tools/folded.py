"""A Sphinx extension by which folded cells say what they hold: a solution, imports, a plot's code.

The cell's first comment says it where there is one: `# Show the model and its training`,
`# Check: the laws`, `# @title Solution: the memory is a set`. The rest shows in the code.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

TITLE = re.compile(r"# (?:@title )?(Show|Check|Solution)\b:? ?(.*)")


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


class Folded(SphinxTransform):
    """Labels each folded cell with what it holds."""

    default_priority = 400  # when the page is read

    def apply(self, **kwargs: object) -> None:
        """Change the page in place."""
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") != "cell_code" or cell.get("hide_mode") is None:
                continue
            source = next(iter(cell.findall(nodes.literal_block)), nodes.Text(""))
            has_picture = any(True for _ in cell.findall(nodes.image))
            content = content_of(source.astext(), has_picture=has_picture)
            cell["prompt_show"], cell["prompt_hide"] = f"Show {content}", f"Hide {content}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(Folded)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
