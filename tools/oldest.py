"""Print the oldest versions that the package says it works with: a requirements file for pip.

    python tools/oldest.py > oldest.txt

They are the lower bounds in `pyproject.toml`. `make oldest` runs the tests with them.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWER_BOUND = re.compile(r"([\w-]+)>=([\w.]+)")


def versions(path: Path = ROOT / "pyproject.toml") -> list[str]:
    """The exact requirement that each lower bound begins with, extras included."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    found = []
    for bound in [*project["dependencies"], *(bound for extra in extras for bound in extra)]:
        match = LOWER_BOUND.fullmatch(bound)
        if not match:
            raise ValueError(f"{bound!r} is no lower bound, such as 'torch>=2.5'")
        found.append("==".join(match.groups()))
    return found


if __name__ == "__main__":
    print(*versions(), sep="\n")
