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
    "tests/models/test_decoder_only.py",
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
    took: dict[str, float] = field(default_factory=dict)  # seconds of each test, each notebook
    report: Path | None = field(init=False, default=None)
    aside: Thread | None = field(init=False, default=None)
    said: str = field(init=False, default="")

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
        """Call Python, and count what passed."""
        command = list(self.command)
        if "pytest" in command:
            self.report = REPORTS / f"{self.name.replace(' ', '-')}.xml"
            self.report.unlink(missing_ok=True)
            command.append(f"--junitxml={self.report}")
        started = time.perf_counter()
        environment = os.environ | self.variables
        call = [self.python, *command]
        done = subprocess.run(call, cwd=ROOT, env=environment, encoding="utf-8", **streams)
        self.said = done.stdout or ""
        self.seconds = time.perf_counter() - started
        self.count(done.returncode)

    def count(self, status: int) -> None:
        """Count the tests in the report; a command without one is one test."""
        if self.report and self.report.exists():
            root = ElementTree.parse(self.report).getroot()
            for test in root.iter("testcase"):
                within, name = test.get("classname", ""), test.get("name", "")
                if {part.tag for part in test} & {"failure", "error"}:
                    self.fell.append(f"{within}::{name}")
                whole = within if name.startswith("Cell ") else f"{within}::{name}"
                self.took[whole] = self.took.get(whole, 0.0) + float(test.get("time", 0))
            for suite in root.iter("testsuite"):
                tests, failures, errors, skipped = (
                    int(suite.get(kind, 0)) for kind in ("tests", "failures", "errors", "skipped")
                )
                self.failed += failures + errors
                self.skipped += skipped
                self.passed += tests - failures - errors - skipped
        else:
            self.passed = int(status == 0)
        if status != 0:
            self.failed = max(self.failed, 1)  # it may have failed before the first test


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
    found = [f"chapters/{name}.ipynb" for name in names] or sorted(
        glob(
            "chapters/**/*.ipynb" if deeper else "chapters/*.ipynb", root_dir=ROOT, recursive=True
        ),
        key=lambda path: (path.count("/") == 1, path),
        reverse=True,
    )
    workers = min(len(found), CORES)
    spread = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    compare = ["--nbval-lax" if lax else "--nbval", *COMPARE]
    command = ["-m", "pytest", *compare, *spread, *found]
    return Stage("chapters", command, {"OMP_NUM_THREADS": str(max(1, CORES // workers))})


def style() -> Iterator[Stage]:
    """Yield the stages that run nothing of the package."""
    yield Stage("ruff check", ["-m", "ruff", "check", "."])
    yield Stage("ruff format", ["-m", "ruff", "format", "--check", "."])
    yield Stage("mypy", ["-m", "mypy"])


def quick_stages() -> Iterator[Stage]:
    """Yield the stages to run before a commit: style, types, and the tests that train nothing."""
    yield from style()
    yield tests("-m", QUICK)


def stages(*, everything: bool = False) -> Iterator[Stage]:
    """Yield the stages of `make test`, or of `make everything`: the built pages after the build."""
    of_each_kind = [] if everything else ["-m", OF_EACH_KIND]
    site = Stage("site", ["tools", "book"])
    site.begin()  # it needs one core, and so does what comes first
    yield from style()
    yield site
    yield tests(*of_each_kind)
    yield chapters(deeper=everything)
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
        (seconds, f"{stage.name}: {name}")
        for stage in finished
        for name, seconds in stage.took.items()
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
    chosen = quick_stages() if what == "quick" else stages(everything=what == "everything")
    REPORTS.mkdir(parents=True, exist_ok=True)
    finished = []
    for stage in chosen:
        stage.run()
        finished.append(stage)
    print(slowest(finished), summary(finished), sep="\n")
    return int(any(stage.failed for stage in finished))


if __name__ == "__main__":
    sys.exit(main())
