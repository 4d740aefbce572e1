"""Run the chapters as a reader in Colab does: what `make colab` calls.

    python tools/colab.py                 every chapter
    python tools/colab.py 04_attention    some of them

`build/colab/environment` has the versions that Colab has. Each chapter starts from those, alone in
an empty folder, and its first cell installs the package: from a wheel that is built here, instead
of from GitHub. A chapter passes if all its cells run, none of them writes to stderr, and no package
that was there has moved. Of pip only errors count: its warnings tell of the machine's settings, and
what it did to the packages is looked at afterwards. Outputs are not compared: other versions round
differently. The chapter as it ran is then in `build/colab/chapters`.

One chapter runs at a time, with all cores: some of them measure time.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

import repository
from environment import python_in
from notebooks import (
    CELL_TIMEOUT,
    CHAPTERS,
    ROOT,
    code_cells,
    is_bootstrap,
    name_of,
    notebooks,
    read,
    write,
)

COLAB = ROOT / "build" / "colab"
ENVIRONMENT = COLAB / "environment"
SHOWN = ("torch", "numpy", "matplotlib", "ipython", "ipykernel")  # versions worth a line

# These would let a chapter find what it does not find in Colab, or hide a figure shown there.
HIDDEN = ("PYTHONPATH", "MPLBACKEND", "MINITRANSFORMER_DATA")


# A progress bar is drawn on stderr, and worries nobody.
PROGRESS = re.compile(r"\d+%\|[^|\r\n]*\| \d+/\d+ \[[^]\r\n]*\]")


@dataclass
class Run:
    """A chapter, and what came of running it."""

    chapter: str
    seconds: float
    complaints: list[str]

    def __str__(self) -> str:
        """A row of the table, and below it what failed."""
        result = "FAILED" if self.complaints else "passed"
        row = f"{self.chapter:<28}{self.seconds:>8.1f}  {result}"
        return "\n".join([row, *self.complaints]).replace("\n", "\n    ")


# --- the environment -------------------------------------------------------------------------


def variables() -> dict[str, str]:
    """The environment variables, as far as a chapter may see them; pip as talkative as it is."""
    seen = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return seen | {"PIP_QUIET": "0", "PIP_VERBOSE": "0"}  # this machine may have set it otherwise


def output_of(python: Path, *arguments: str) -> str:
    """What a command of that interpreter prints, whether or not it succeeds."""
    command = [str(python), *arguments]
    return subprocess.run(command, env=variables(), stdout=subprocess.PIPE, text=True).stdout


def fresh_environment(folder: Path) -> Path:
    """Make an environment that sees Colab's packages and keeps its own; return its interpreter."""
    colab, fresh = python_in(ENVIRONMENT), python_in(folder)
    subprocess.run([colab, "-m", "venv", "--without-pip", folder], check=True)
    where = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    Path(output_of(fresh, *where).strip(), "colab.pth").write_text(output_of(colab, *where))
    return fresh


def versions(python: Path) -> dict[str, str]:
    """The version of each package that the interpreter finds, by name."""
    listed = json.loads(output_of(python, "-m", "pip", "list", "--format=json"))
    return {package["name"].lower(): package["version"] for package in listed}


def disturbed(python: Path, before: dict[str, str]) -> Iterator[str]:
    """Yield how the packages differ from what one more package should have made of them."""
    after = versions(python)
    for name, version in before.items():
        if after.get(name) != version:
            yield f"{name} was {version} and is {after.get(name, 'gone')}"
    if "minitransformer" in before or "minitransformer" not in after:
        yield "the first cell did not install minitransformer"
    checked = output_of(python, "-m", "pip", "check").strip()
    if checked != "No broken requirements found.":
        yield from checked.splitlines()


def build_wheel() -> Path:
    """Build the package's wheel; return its path."""
    folder = COLAB / "wheel"
    for leftover in (folder, ROOT / "build" / "lib"):  # setuptools would pack what is in the latter
        shutil.rmtree(leftover, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


# --- a chapter -------------------------------------------------------------------------------


def with_wheel(nb: NotebookNode, wheel: Path) -> NotebookNode:
    """The notebook without outputs, its first cell installing from the wheel."""
    on_github = f"git+{repository.url()}"
    first, *_ = code_cells(nb)
    if not is_bootstrap(first) or on_github not in first.source:
        raise ValueError(f"the first cell should install from {on_github}:\n{first.source}")
    first.source = first.source.replace(on_github, wheel.as_uri())
    for cell in code_cells(nb):
        cell.outputs, cell.execution_count = [], None
    return nb


def kernel_of(python: Path, folder: Path) -> AsyncKernelManager:
    """A kernel that this interpreter will run; its description lies in the folder."""
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    description = {"argv": command, "display_name": "Colab", "language": "python"}
    (folder / "colab").mkdir(parents=True)
    (folder / "colab" / "kernel.json").write_text(json.dumps(description))
    described = KernelSpecManager(kernel_dirs=[str(folder)])
    return AsyncKernelManager(kernel_name="colab", kernel_spec_manager=described)


def worries(nb: NotebookNode) -> Iterator[str]:
    """Yield what a reader would stop at: each error, and what went to stderr."""
    for cell in code_cells(nb):
        first_line = cell.source.split("\n")[0][:60]
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{first_line!r} raised {output.ename}: {output.evalue}"
            elif output.get("name") == "stderr" and (said := PROGRESS.sub("", output.text).strip()):
                yield f"{first_line!r} wrote to stderr: {said}"


def run(chapter: Path, wheel: Path) -> Run:
    """Run one chapter, in an environment and a folder of its own."""
    started = time.perf_counter()
    nb = with_wheel(read(chapter), wheel)
    with TemporaryDirectory() as scratch:
        python = fresh_environment(Path(scratch, "environment"))
        before = versions(python)
        alone = Path(scratch, "chapter")
        alone.mkdir()
        write(nb, alone / chapter.name)
        client = NotebookClient(
            nb,
            kernel_of(python, Path(scratch, "kernels")),
            timeout=CELL_TIMEOUT,
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str(alone)}},
        )
        own = {
            "IPYTHONDIR": scratch,
            "PIP_QUIET": "1",  # and the first cell's --quiet leave pip its errors
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no word of debuggers
        }
        complaints = []
        try:
            client.execute(cleanup_kc=True, env=variables() | own)
        except CellExecutionError:
            pass  # worries() finds it in the cell's output
        except (CellTimeoutError, DeadKernelError) as error:
            complaints.append(str(error).strip().splitlines()[0])
        complaints += [*worries(nb), *disturbed(python, before)]
    ran = COLAB / "chapters" / chapter.relative_to(CHAPTERS)
    ran.parent.mkdir(parents=True, exist_ok=True)
    write(nb, ran)
    return Run(name_of(chapter), time.perf_counter() - started, complaints)


# --- the command line ------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run some chapters, or all; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a chapter, such as 04_attention")
    names = parser.parse_args(arguments).names
    chapters = [CHAPTERS / f"{name}.ipynb" for name in names] or notebooks()
    for chapter in chapters:
        if not chapter.exists():
            parser.error(f"there is no {chapter.relative_to(ROOT)}")

    (COLAB / "chapters").mkdir(parents=True, exist_ok=True)
    wheel, colab = build_wheel(), python_in(ENVIRONMENT)
    there = versions(colab)
    shown = [output_of(colab, "--version").strip(), *(f"{name} {there[name]}" for name in SHOWN)]
    print(", ".join(shown))
    print(f"\n{'chapter':<28}{'seconds':>8}", flush=True)
    failed = 0
    for chapter in chapters:
        done = run(chapter, wheel)
        print(done, flush=True)
        failed += bool(done.complaints)
    print(f"\n{len(chapters) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
