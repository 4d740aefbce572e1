"""A table of what is solved in a folder of submissions, each tried in a process of its own.

The submissions run with your rights: grade what you do not trust in a container.
"""

import csv
import faulthandler
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minitransformer.exercises.checking import check
from minitransformer.exercises.projects import PROJECTS

__all__ = ["GRADED", "grade", "write_csv"]

GRADED = (*dir(check), *PROJECTS)
SECONDS = {name: 1200 if name in PROJECTS else 60 for name in GRADED}
MISSING = "missing"
MODULE = "minitransformer.exercises.teaching.grading"
PATHS = (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))
SECONDS_TO_START = 120


@dataclass
class Graded:
    """One submission: for each exercise or law what is wrong, empty where nothing is."""

    name: str
    faults: dict[str, str] = field(default_factory=dict)
    remark: str = ""

    @property
    def solved(self) -> int:
        """How many are right."""
        return sum(not fault for fault in self.faults.values())

    def __str__(self) -> str:
        marks = "".join("." if x == MISSING else "-" if x else "+" for x in self.faults.values())
        return f"{self.name:<24}{self.solved:>3} of {len(self.faults)}  {marks:<12}  {self.remark}"


def grade(what: str, folder: Path, seconds: float | None = None) -> Iterator[Graded]:
    """Grade the submissions in a folder, in the order of their names.

    Args:
        what: a chapter's name, whose submissions are files .py or .ipynb, or a project's, whose
            submissions are folders.
        folder: the submissions; each is called as its file.
        seconds: after which a submission is stopped; 60, or 1200 for a project, if left out.

    Raises:
        FileNotFoundError: if there are none.
    """
    project = what in PROJECTS
    found = sorted(
        path
        for path in folder.glob("[!._]*")
        if (path.is_dir() if project else path.suffix in (".py", ".ipynb"))
    )
    if not found:
        kind = "folders" if project else "files .py or .ipynb"
        raise FileNotFoundError(f"there are no submissions in {folder}, which would be {kind}")
    names = [path.stem for path in found]
    for path in found:
        name = path.stem if names.count(path.stem) == 1 else path.name
        yield graded(name, what, path.resolve(), SECONDS[what] if seconds is None else seconds)


def graded(name: str, what: str, path: Path, seconds: float) -> Graded:
    """Try one in another process, which writes a line for each verdict, and stop it in time."""
    keys = [] if what in PROJECTS else getattr(check, what).exercises
    result = Graded(name, dict.fromkeys(keys, MISSING))
    with TemporaryDirectory() as place:
        lines, late = Path(place) / "verdicts.jsonl", Path(place) / "stopped"
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, what, str(path), str(lines), str(late), str(seconds)],
            cwd=place,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, PATHS))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds + SECONDS_TO_START)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            stop(process)
        written = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
        stopped = status is None or (late.exists() and late.stat().st_size > 0)
    done = False
    for line in written:
        key, fault = json.loads(line)
        if key == "done":
            done = True
        elif key:
            result.faults[key] = fault
        else:
            result.remark = fault
    if stopped and not done:
        result.remark = f"stopped after {seconds:g} s"
    elif not done:
        result.remark = f"ended by itself with status {status}"
    elif not result.remark:
        wrong = [(key, x) for key, x in result.faults.items() if x not in ("", MISSING)]
        result.remark = "".join(f"{key}: {x.splitlines()[0]}" for key, x in wrong[:1])
    return result


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End it and what it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def write_csv(rows: list[Graded], path: Path) -> None:
    """Write the table: a column for each exercise, with 1, 0, or nothing where it is missing."""
    keys = list(dict.fromkeys(key for row in rows for key in row.faults))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "solved", "of", *keys, "remark"])
        for row in rows:
            found = [row.faults.get(key, MISSING) for key in keys]
            marks = ["" if fault == MISSING else int(not fault) for fault in found]
            writer.writerow([row.name, row.solved, len(keys), *marks, row.remark])


# --- in the other process --------------------------------------------------------------------


def answers_in(path: Path) -> tuple[dict[str, Any], str]:
    """What a file defines, and what it raised; cells of a notebook are run whatever others do."""
    if path.suffix == ".py":
        try:
            return runpy.run_path(str(path)), ""
        except (Exception, SystemExit) as error:
            return {}, f"raises {type(error).__name__}: {error}"
    defined: dict[str, Any] = {"__name__": "__main__"}
    remark = ""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (KeyError, ValueError) as error:
        return {}, f"is no notebook: {error}"
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            source = "\n".join("" if line.startswith(("%", "!")) else line for line in lines)
            try:
                exec(compile(source, f"cell {number}", "exec"), defined)
            except (Exception, SystemExit) as error:
                remark = remark or f"cell {number} raises {type(error).__name__}: {error}"
    return defined, remark


def verdicts_on(what: str, path: Path) -> Iterator[tuple[str, str]]:
    """Each exercise and its fault, and what is to be remarked under the name ""."""
    if what in PROJECTS:
        try:
            for verdict in PROJECTS[what](path):
                if verdict.counts or verdict.fault:
                    yield verdict.name, verdict.fault
        except Exception as error:
            yield "", f"raises {type(error).__name__}: {error}"
        return
    sys.path.insert(0, str(path.parent))
    mine, remark = answers_in(path)
    if remark:
        yield "", remark
    for name, exercise in getattr(check, what).exercises.items():
        if exercise.function in mine:
            yield name, str(exercise.fault_of(mine[exercise.function]) or "")


def main() -> None:
    """Write the verdicts on one submission, a line each, and last that it is done."""
    what, path, lines, late, seconds = sys.argv[1:]
    with open(lines, "w", encoding="utf-8") as file, open(late, "w", encoding="utf-8") as watch:
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=watch)
        for line in chain(verdicts_on(what, Path(path)), [("done", "")]):
            file.write(json.dumps(line) + "\n")
            file.flush()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
