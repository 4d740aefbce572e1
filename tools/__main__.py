"""What `make` does, as calls of Python, which every system has.

    python tools install       make `.venv`, with the exact versions in requirements.txt
    python tools book          build the site in `_build/html`; a warning fails it
    python tools quick         check style and types, run the tests of what does not train
    python tools test          run one case of each kind, every chapter, every page
    python tools everything    run all cases, the deeper pages too, once more without vector units

`install` comes first by itself. It does nothing while `.venv` is younger than what it is made from.
"""

from __future__ import annotations  # so that an older Python reads as far as the error for it

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
INSTALLED = VENV / "installed"
MADE_FROM = (ROOT / "requirements.txt", ROOT / "pyproject.toml")


def install() -> int:
    """Make the virtual environment, if there is none or an older one."""
    if sys.version_info < (3, 11):  # noqa: UP036, an older one gets this far
        print(f"minitransformer needs Python 3.11 or newer, and {sys.executable} is not that.")
        print("Name one that is: make PYTHON=/path/to/python3.11, or call that one yourself.")
        return 1
    age = INSTALLED.stat().st_mtime if INSTALLED.exists() else 0
    if any(path.stat().st_mtime > age for path in MADE_FROM):
        try:
            environment.make(VENV, sys.executable, "-r", "requirements.txt", "-e", ".")
        except subprocess.CalledProcessError as error:
            return error.returncode
        INSTALLED.touch()
    return 0


def book() -> int:
    """Build the site."""
    command = "from jupyter_book.cli.main import main; main()"  # its package cannot be run by name
    status = run("-c", command, "build", "-n", "-W", "--keep-going", ".")
    if status:  # it must fail the next time too, so Sphinx may not keep the pages it has read
        shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
    else:
        print("The book is in _build/html. Open _build/html/index.html, or run 'make serve'.")
    return status


def run(*arguments: str) -> int:
    """Call the environment's Python; return the exit status."""
    return subprocess.run([str(environment.python_in(VENV)), *arguments], cwd=ROOT).returncode


def main() -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python tools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choices = ["install", "book", "quick", "test", "everything"]
    parser.add_argument("command", metavar="COMMAND", choices=choices)
    command = parser.parse_args().command
    if (status := install()) or command == "install":
        return status
    return book() if command == "book" else run("tools/check.py", command)


if __name__ == "__main__":
    sys.exit(main())
