"""Check everything: what `make test` runs. Exits with 1 if anything failed.

Each stage runs, whatever became of the one before. The summary counts tests; a stage that is
not a test run counts as one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
CORES = os.cpu_count() or 1


@dataclass
class Stage:
    """A command, and what came of it."""

    name: str
    command: list[str]
    threads: int | None = None  # for each process of the stage
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    report: Path | None = field(init=False, default=None)

    def run(self) -> None:
        """Run the command, its output passing through, and count what passed."""
        print(f"\n--- {self.name}: {' '.join(self.command)}", flush=True)
        command, environment = list(self.command), dict(os.environ)
        if "pytest" in command:
            self.report = REPORTS / f"{self.name.replace(' ', '-')}.xml"
            self.report.unlink(missing_ok=True)
            command.append(f"--junitxml={self.report}")
        if command[0] != "make":
            command = [sys.executable, "-m", *command]
        if self.threads:
            environment["OMP_NUM_THREADS"] = str(self.threads)

        started = time.perf_counter()
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        self.seconds = time.perf_counter() - started
        self.count(status)

    def count(self, status: int) -> None:
        """Count the tests in the report; a command without one is one test."""
        if self.report and self.report.exists():
            for suite in ElementTree.parse(self.report).getroot().iter("testsuite"):
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


def stages() -> Iterator[Stage]:
    """Yield the stages, in order: the quick ones first, the built pages after the build."""
    yield Stage("ruff check", ["ruff", "check", "."])
    yield Stage("ruff format", ["ruff", "format", "--check", "."])
    yield Stage("mypy", ["mypy"])
    yield Stage("tests", ["pytest", "-n", "auto", "--ignore=tests/site"], threads=1)
    # The last chapters take longest: they begin, so that no core waits for one at the end.
    if chapters := sorted(glob("chapters/*.ipynb", root_dir=ROOT), reverse=True):
        workers = min(len(chapters), CORES)
        compare = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300"]
        one_worker_each = ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        yield Stage(
            "chapters",
            ["pytest", *compare, *one_worker_each, *chapters],
            threads=max(1, CORES // workers),
        )
    yield Stage("site", ["make", "--no-print-directory", "book"])
    yield Stage("pages", ["pytest", "-n", "auto", "--dist", "loadgroup", "tests/site"], threads=1)


def summary(finished: list[Stage]) -> str:
    """A table of the stages, and the totals."""
    row = "{:<14}{:<8}{:>8}{:>8}{:>9}{:>9}"
    lines = ["", row.format("stage", "", "passed", "failed", "skipped", "seconds")]
    for stage in finished:
        result, seconds = "FAILED" if stage.failed else "ok", f"{stage.seconds:.1f}"
        counts = (stage.passed, stage.failed, stage.skipped)
        lines.append(row.format(stage.name, result, *counts, seconds))
    passed, failed = sum(s.passed for s in finished), sum(s.failed for s in finished)
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def main() -> int:
    """Run the stages; return the exit status."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    finished = []
    for stage in stages():
        stage.run()
        finished.append(stage)
    print(summary(finished))
    return int(any(stage.failed for stage in finished))


if __name__ == "__main__":
    sys.exit(main())
