"""A Sphinx extension that copies `_static` at each build, also when no page has changed.

Where no page is out of date Sphinx ends early, and a changed style or script would not be seen.
"""

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Take the first page for out of date, always."""
    app.connect("env-get-outdated", lambda app, *_: [app.config.root_doc])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
