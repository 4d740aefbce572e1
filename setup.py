"""Puts the live page into the wheel, for `python -m minitransformer show`.

All that does not need a program is in pyproject.toml.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FILES = (  # as in minitransformer/show.py
    "live/*.mjs",
    "live/live.css",
    "explorables/elements.mjs",
    "explorables/beam_tree.mjs",
    "explorables/explorables.css",
)


class WithPage(build_py):
    """Copies the page into `minitransformer/page`; an editable installation uses `_static`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        page = Path(self.build_lib) / "minitransformer" / "page"
        static = ROOT / "_static"
        copies = {page / path.relative_to(static): path for f in FILES for path in static.glob(f)}
        for copy, path in {**copies, page / "live.md": ROOT / "chapters" / "live.md"}.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(path), str(copy))


setup(cmdclass={"build_py": WithPage})
