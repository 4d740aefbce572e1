"""Make virtual environments, for the other tools; needs nothing installed."""

from __future__ import annotations  # so that an older Python can read it

import subprocess
import sys
import sysconfig
from pathlib import Path


def python_in(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    scripts = sysconfig.get_path("scripts", "venv", {"base": str(environment)})
    return Path(scripts, "python.exe" if sys.platform == "win32" else "python")


def make(environment: Path, python: str, *requirements: str) -> None:
    """Make an environment with these requirements, as `pip install` takes them, and check it.

    Args:
        environment: its folder.
        python: the interpreter to make it with.
        requirements: arguments of `pip install`.

    Raises:
        subprocess.CalledProcessError: if a step fails; what it printed says why.
    """
    pip = [str(python_in(environment)), "-m", "pip", "--disable-pip-version-check"]
    # Most modules are never imported here; the others are compiled when they first are.
    install = [*pip, "install", "--no-compile", *requirements]
    for command in ([python, "-m", "venv", str(environment)], install, [*pip, "check"]):
        subprocess.run(command, cwd=Path(__file__).resolve().parent.parent, check=True)
