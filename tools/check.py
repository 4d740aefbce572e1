"""Check the book and the package: what `make quick`, `make test` and `make everything` run.

    python tools/check.py quick         before a commit: style, types, what trains nothing
    python tools/check.py test          one case of each kind, every chapter, every page
    python tools/check.py everything    all cases, the deeper pages, a plainer processor

Exits with 1 if anything failed.

Each stage runs, whatever became of the one before. The summary counts tests; a stage that is
not a test run counts as one.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from subprocess import PIPE, STDOUT
from threading import Thread
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
CORES = os.cpu_count() or 1
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for each process
OF_EACH_KIND = "not everything"  # marks, as pytest takes them
QUICK = f"{OF_EACH_KIND} and not slow"
SLOWEST = 20
ON_SECOND_DEVICE = [
    "tests/models/test_transformer.py",
    "tests/training/test_optimizers.py",
    "tests/inference/test_sampling.py",
]
COMPARE = ("--nbval-current-env", "--nbval-cell-timeout=900")


@dataclass
class Stage:
    """A command, and what came of it."""

    name: str
    command: list[str]  # what Python is called with
    variables: dict[str, str] = field(default_factory=dict)  # of its environment, beside ours
    python: str = sys.executable
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    fell: list[str] = field(default_factory=list)  # the tests that failed
    took: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of each test
    aside: Thread | None = None
    said: str = ""

    def begin(self) -> None:
        """Run the command aside: beside other stages, its output kept until `run` is called."""
        self.aside = Thread(target=self.call, kwargs={"stdout": PIPE, "stderr": STDOUT})
        self.aside.start()

    def run(self) -> None:
        """Run the command, its output passing through, or wait for it if it runs aside."""
        print(f"\n--- {self.name}: {' '.join(self.command)}", flush=True)
        if self.aside is None:
            self.call()
        else:
            self.aside.join()
            print(self.said, flush=True)

    def call(self, **streams: Any) -> None:
        """Call Python, and count what passed; a command that is no test run is one test."""
        command = [self.python, *self.command]
        report = REPORTS / f"{self.name.replace(' ', '-')}.xml"
        report.unlink(missing_ok=True)
        if "pytest" in command:
            command.append(f"--junitxml={report}")
        started = time.perf_counter()
        environment = os.environ | self.variables
        done = subprocess.run(command, cwd=ROOT, env=environment, encoding="utf-8", **streams)
        self.seconds = time.perf_counter() - started
        self.said = done.stdout or ""
        if report.exists():
            self.count(report)
        else:
            self.passed = int(done.returncode == 0)
        if done.returncode:
            self.failed = max(self.failed, 1)  # it may have failed before the first test

    def count(self, report: Path) -> None:
        """Count the tests in a report of pytest."""
        for test in ElementTree.parse(report).getroot().iter("testcase"):
            within, name = test.get("classname", ""), test.get("name", "")
            results = {part.tag for part in test}
            if results & {"failure", "error"}:
                self.fell.append(f"{within}::{name}")
            elif "skipped" in results:
                self.skipped += 1
            else:
                self.passed += 1
            whole = within if name.startswith("Cell ") else f"{within}::{name}"
            self.took[whole] += float(test.get("time", 0))
        self.failed = len(self.fell)


def tests(*options: str) -> Stage:
    """The tests of the package and of what the book promises.

    One process has all tests of a file, because they share what is expensive to make.
    """
    spread = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    return Stage("tests", ["-m", "pytest", *spread, "--ignore=tests/site", *options], ONE_THREAD)


def chapters(names: Sequence[str] = (), *, lax: bool = False, deeper: bool = True) -> Stage:
    """Notebooks, all when none is named, run again and their outputs compared, unless `lax`.

    The last chapters take longest: they begin, so that no core waits for one at the end.
    """
    pages = "chapters/**/*.ipynb" if deeper else "chapters/*.ipynb"
    found = [f"chapters/{name}.ipynb" for name in names] or sorted(
        glob(pages, root_dir=ROOT, recursive=True),
        key=lambda path: (path.count("/") == 1, path),
        reverse=True,
    )
    workers = min(len(found), CORES)
    spread = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    compare = ["--nbval-lax" if lax else "--nbval", *COMPARE]
    command = ["-m", "pytest", *compare, *spread, *found]
    return Stage("chapters", command, {"OMP_NUM_THREADS": str(max(1, CORES // workers))})


def style() -> list[Stage]:
    """The stages that run nothing of the package."""
    return [
        Stage("ruff check", ["-m", "ruff", "check", "."]),
        Stage("ruff format", ["-m", "ruff", "format", "--check", "."]),
        Stage("mypy", ["-m", "mypy"]),
    ]


def stages(what: str) -> Iterator[Stage]:
    """Yield the stages of `quick`, `test` or `everything`: the built pages after the build."""
    if what == "quick":
        *ruff, mypy = style()
        mypy.begin()  # it needs one core, and so does what comes first
        yield from [*ruff, tests("-m", QUICK), mypy]
        return
    everything = what == "everything"
    of_each_kind = [] if everything else ["-m", OF_EACH_KIND]
    site = Stage("site", ["tools", "book"])
    site.begin()  # it needs one core, and so does what comes first
    yield from [*style(), site, tests(*of_each_kind), chapters(deeper=everything)]
    if everything:
        yield Stage("printed", ["tools/printed.py", "epub", "pdf", "sheet"])
    pages = ["-n", "auto", "--dist", "loadgroup", "tests/site", *of_each_kind]
    yield Stage("pages", ["-m", "pytest", *pages], ONE_THREAD)
    if everything:
        yield from second_device()
        yield Stage("scalar", ["tools/everywhere.py", "--only", "tests", "scalar"])


def second_device() -> Iterator[Stage]:
    """Yield the tests on a second device made of the CPU (`tests/second_device.py`)."""
    on_it = ["tests/test_device.py", "--device", "second"]
    yield Stage("second device", ["-m", "pytest", "-q", *on_it], ONE_THREAD)
    # Tied parameters cannot change their dtype there, and a target is not looked at, as on a GPU.
    on_it = [*ON_SECOND_DEVICE, "--default-device", "second", "-m", QUICK]
    on_it += ["-k", "not another_dtype and not targets_that_are_no_tokens"]
    yield Stage("tests there", ["-m", "pytest", "-q", *on_it], ONE_THREAD)
    yield Stage("chapters there", ["tests/on_second_device.py"], ONE_THREAD)


def summary(finished: list[Stage]) -> str:
    """A table of the stages, and the totals."""
    row = "{:<20}{:<8}{:>8}{:>8}{:>9}{:>9}"
    lines = ["", row.format("stage", "", "passed", "failed", "skipped", "seconds")]
    for stage in finished:
        result, seconds = "FAILED" if stage.failed else "ok", f"{stage.seconds:.1f}"
        counts = (stage.passed, stage.failed, stage.skipped)
        lines.append(row.format(stage.name, result, *counts, seconds))
    passed, failed = sum(s.passed for s in finished), sum(s.failed for s in finished)
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def slowest(finished: list[Stage]) -> str:
    """A table of the tests and notebooks that took longest."""
    took = [
        (stage.took[name], f"{stage.name}: {name}") for stage in finished for name in stage.took
    ]
    rows = [f"{seconds:>9.1f}  {name}" for seconds, name in sorted(took, reverse=True)[:SLOWEST]]
    return "\n".join(["", f"{'seconds':>9}  the slowest", *rows])


def main() -> int:
    """Run the stages; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["quick", "test", "everything"])
    what = parser.parse_args().what
    REPORTS.mkdir(parents=True, exist_ok=True)
    finished = []
    for stage in stages(what):
        stage.run()
        finished.append(stage)
    print(slowest(finished), summary(finished), sep="\n")
    return int(any(stage.failed for stage in finished))


if __name__ == "__main__":
    sys.exit(main())
