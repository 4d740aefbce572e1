"""Run the chapters as a reader in Colab does: what `make colab` calls.

    python tools/colab.py                 every chapter
    python tools/colab.py 04_attention    some of them

`build/colab/environment` has the versions that Colab has. On top of it the first cell, the same in
all chapters, installs the package: from a wheel that is built here, instead of from GitHub. It
passes if no package that was there has moved. A chapter passes if all its cells run, alone in an
empty folder, and none writes to stderr. Outputs are not compared: other versions round differently.
The chapter as it ran is then in `build/colab/chapters`. One runs at a time, with all cores.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

import repository
from environment import python_in
from notebooks import (
    CHAPTERS,
    ROOT,
    bootstrap_cell,
    client_of,
    code_cells,
    name_of,
    notebooks,
    read,
    write,
)

COLAB = ROOT / "build" / "colab"
ENVIRONMENT = COLAB / "environment"

# These would let a chapter find what it does not find in Colab, or hide a figure shown there.
HIDDEN = ("PYTHONPATH", "MPLBACKEND", "MINITRANSFORMER_DATA")
VARIABLES = {name: value for name, value in os.environ.items() if name not in HIDDEN}
PROGRESS = re.compile(r"\d+%\|[^|\r\n]*\| \d+/\d+ \[[^]\r\n]*\]")  # bars are drawn on stderr


def output_of(python: Path, *arguments: str) -> str:
    """What a command of that interpreter prints, whether or not it succeeds."""
    command = [str(python), *arguments]
    return subprocess.run(command, env=VARIABLES, stdout=subprocess.PIPE, text=True).stdout


def fresh_environment(folder: Path) -> Path:
    """Make an environment that sees Colab's packages and keeps its own; return its interpreter."""
    colab, fresh = python_in(ENVIRONMENT), python_in(folder)
    subprocess.run([colab, "-m", "venv", "--without-pip", folder], check=True)
    where = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    Path(output_of(fresh, *where).strip(), "colab.pth").write_text(output_of(colab, *where))
    return fresh


def build_wheel() -> Path:
    """Build the package's wheel; return its path."""
    folder = COLAB / "wheel"
    for leftover in (folder, ROOT / "build" / "lib"):  # setuptools would pack what is in the latter
        shutil.rmtree(leftover, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def versions(python: Path) -> dict[str, str]:
    """The version of each package that the interpreter finds, by name."""
    listed = json.loads(output_of(python, "-m", "pip", "list", "--format=json"))
    return {package["name"].lower(): package["version"] for package in listed}


def installing(python: Path, wheel: Path) -> Iterator[str]:
    """Run the first cell of the chapters; yield what is wrong with the packages then."""
    before = versions(python)
    source = bootstrap_cell().source.replace(f"git+{repository.url()}", wheel.as_uri())
    subprocess.run([python, "-c", source], env=VARIABLES)
    after = versions(python)
    for name, version in before.items():
        if after.get(name) != version:
            yield f"{name} was {version} and is {after.get(name, 'gone')}"
    if "minitransformer" in before or "minitransformer" not in after:
        yield "the first cell did not install minitransformer"
    checked = output_of(python, "-m", "pip", "check").strip()
    if checked != "No broken requirements found.":
        yield from checked.splitlines()


def running(python: Path, chapter: Path) -> Iterator[str]:
    """Run a chapter in an empty folder; yield each error, and what a cell wrote to stderr."""
    nb = read(chapter)
    with TemporaryDirectory() as scratch:
        kernel, alone = Path(scratch, "kernels", "colab"), Path(scratch, "chapter")
        kernel.mkdir(parents=True)
        alone.mkdir()
        command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        description = {"argv": command, "display_name": "Colab", "language": "python"}
        (kernel / "kernel.json").write_text(json.dumps(description))
        found = KernelSpecManager(kernel_dirs=[str(kernel.parent)])
        manager = AsyncKernelManager(kernel_name="colab", kernel_spec_manager=found)
        client = client_of(nb, str(alone), manager)
        quiet = {"IPYTHONDIR": scratch, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # about debuggers
        try:
            client.execute(cleanup_kc=True, env=VARIABLES | quiet)
        except CellExecutionError:
            pass  # it is among the cell's outputs
        except (CellTimeoutError, DeadKernelError) as error:
            yield str(error).strip().splitlines()[0]
    ran = COLAB / "chapters" / chapter.relative_to(CHAPTERS)
    ran.parent.mkdir(parents=True, exist_ok=True)
    write(nb, ran)
    for cell in code_cells(nb):
        first_line = cell.source.split("\n")[0][:60]
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"{first_line!r} raised {output.ename}: {output.evalue}"
            elif output.get("name") == "stderr" and (said := PROGRESS.sub("", output.text).strip()):
                yield f"{first_line!r} wrote to stderr: {said}"


def main(arguments: list[str] | None = None) -> int:
    """Run some chapters, or all; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a chapter, such as 04_attention")
    names = parser.parse_args(arguments).names
    chapters = [CHAPTERS / f"{name}.ipynb" for name in names] or notebooks()
    failed = 0
    with TemporaryDirectory() as scratch:
        python = fresh_environment(Path(scratch))
        tried = {"the first cell": installing(python, build_wheel())}
        tried |= {name_of(chapter): running(python, chapter) for chapter in chapters}
        for name, complaints in tried.items():
            found = list(complaints)
            print(f"{name:<28}{'FAILED' if found else 'passed'}", flush=True)
            for complaint in found:
                print(f"    {complaint}", flush=True)
            failed += bool(found)
    print(f"\n{len(tried) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
