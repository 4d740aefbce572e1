"""A Sphinx extension that silences another one.

Jupyter Book always loads sphinx-thebe, which puts a script and the address of a content delivery
network into every page, also where no button uses them. Our pages need no network.
"""

from sphinx.application import Sphinx
from sphinx_thebe import init_thebe_core, update_thebe_context


def setup(app: Sphinx) -> dict[str, bool]:
    """Disconnect what sphinx-thebe, loaded before, would add to each page."""
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler in (init_thebe_core, update_thebe_context):
                app.disconnect(listener.id)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
