"""Check everything, or what is checked quickly: what `make test` and `make quick` run.

    python tools/check.py test
    python tools/check.py quick    before a commit: at most two minutes

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
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
CORES = os.cpu_count() or 1
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for each process
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
    report: Path | None = field(init=False, default=None)

    def run(self) -> None:
        """Run the command, its output passing through, and count what passed."""
        print(f"\n--- {self.name}: {' '.join(self.command)}", flush=True)
        command = list(self.command)
        if "pytest" in command:
            self.report = REPORTS / f"{self.name.replace(' ', '-')}.xml"
            self.report.unlink(missing_ok=True)
            command.append(f"--junitxml={self.report}")
        started = time.perf_counter()
        environment = os.environ | self.variables
        status = subprocess.run([self.python, *command], cwd=ROOT, env=environment).returncode
        self.seconds = time.perf_counter() - started
        self.count(status)

    def count(self, status: int) -> None:
        """Count the tests in the report; a command without one is one test."""
        if self.report and self.report.exists():
            root = ElementTree.parse(self.report).getroot()
            for test in root.iter("testcase"):
                if {part.tag for part in test} & {"failure", "error"}:
                    self.fell.append(f"{test.get('classname')}::{test.get('name')}")
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
    """The tests of the package and of what the book promises."""
    return Stage(
        "tests", ["-m", "pytest", "-n", "auto", "--ignore=tests/site", *options], ONE_THREAD
    )


def chapters(names: Sequence[str] = (), *, lax: bool = False) -> Stage:
    """Chapters, all when none is named, run again and their outputs compared, unless `lax`.

    The last ones take longest: they begin, so that no core waits for one at the end.
    """
    found = [f"chapters/{name}.ipynb" for name in names] or glob(
        "chapters/**/*.ipynb", root_dir=ROOT, recursive=True
    )
    workers = min(len(found), CORES)
    spread = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    compare = ["--nbval-lax" if lax else "--nbval", *COMPARE]
    command = ["-m", "pytest", *compare, *spread, *sorted(found, reverse=True)]
    return Stage("chapters", command, {"OMP_NUM_THREADS": str(max(1, CORES // workers))})


def quick_stages() -> Iterator[Stage]:
    """Yield the stages to run before a commit: style, types, and the tests that train nothing."""
    yield Stage("ruff check", ["-m", "ruff", "check", "."])
    yield Stage("ruff format", ["-m", "ruff", "format", "--check", "."])
    yield Stage("mypy", ["-m", "mypy"])
    yield tests("-m", "not slow")


def stages() -> Iterator[Stage]:
    """Yield all stages, in order: the quick ones first, the built pages after the build."""
    *style, _ = quick_stages()
    yield from style
    yield tests()
    yield chapters()
    yield Stage("site", ["tools", "book"])
    pages = ["-n", "auto", "--dist", "loadgroup", "tests/site"]
    yield Stage("pages", ["-m", "pytest", *pages], ONE_THREAD)


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


def main() -> int:
    """Run the stages; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["test", "quick"])
    chosen = stages() if parser.parse_args().what == "test" else quick_stages()
    REPORTS.mkdir(parents=True, exist_ok=True)
    finished = []
    for stage in chosen:
        stage.run()
        finished.append(stage)
    print(summary(finished))
    return int(any(stage.failed for stage in finished))


if __name__ == "__main__":
    sys.exit(main())
