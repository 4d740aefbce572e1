"""Projects by name: their starters, and how a folder is checked."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from minitransformer.exercises.projects import bug_hunt, dates, language_model
from minitransformer.exercises.projects.laws import Verdict
from minitransformer.files import new_folder

__all__ = ["PROJECTS", "check_project", "write_starter"]

STARTERS = Path(__file__).parent / "starters"
PROJECTS: dict[str, Callable[[Path], Iterator[Verdict]]] = {
    "bug_hunt": bug_hunt.verdicts,
    "dates": dates.verdicts,
    "language_model": language_model.verdicts,
}
"""What gives the verdicts on a folder, one by one, by the project's name."""
DATA: dict[str, Callable[[Path], None]] = {
    "dates": dates.write_pairs,
    "language_model": language_model.write_text,
}
"""What writes a project's training data into a folder."""


def write_starter(name: str, folder: Path) -> None:
    """Write the files that a project begins with into a new folder.

    Raises:
        FileExistsError: if the folder is there and not empty.
    """
    with new_folder(folder) as unfinished:
        for path in sorted((STARTERS / name).glob("[!_]*.py")):
            shutil.copy(path, unfinished)
        if name in DATA:
            DATA[name](unfinished)


def check_project(name: str, folder: Path, hints: int = 0) -> bool:
    """Print what is right and wrong in a folder; whether all is right.

    Args:
        name: of the project.
        folder: with the reader's files.
        hints: how much to say of the bugs that are left, in the project `bug_hunt`.
    """
    verdicts = []
    for verdict in PROJECTS[name](folder):
        verdicts.append(verdict)
        if str(verdict):
            print(verdict, flush=True)
    counted = [verdict for verdict in verdicts if verdict.counts]
    left = [verdict.name for verdict in counted if verdict.secret and verdict.fault]
    print(f"{name}: {sum(not verdict.fault for verdict in counted)} of {len(counted)}")
    for line in bug_hunt.hints(left, hints):
        print(line)
    return not any(verdict.fault for verdict in verdicts)
