"""Run the tests and the chapters under what differs between machines: what `make everywhere` runs.

    python tools/everywhere.py                       every place, hours
    python tools/everywhere.py scalar abroad         some places
    python tools/everywhere.py --only tests scalar   not the chapters
    python tools/everywhere.py --chapters 04_attention,07_layer_norm avx2

A training never gives the same digits on another processor, a page of Turkish settings lowers an I
to another letter, a home folder may be closed. What the book claims must hold there too. The table
at the end says what fell where; the exit status is 1 if anything did.

| place | what is different there |
| --- | --- |
| here | nothing: the machine as it is |
| scalar | a processor without vector units, one thread |
| avx2 | a processor that has AVX2 and no more, two threads |
| avx512 | a processor that has AVX-512, four threads |
| abroad | Turkish, Kathmandu's time, another order of sets, folders with spaces and umlauts |
| bare | no language but C, Newfoundland's time, another order of sets, a home that is read-only |
| python3.12, python3.13 | that version of Python, with the exact versions of the book |
| oldest | the oldest versions that the package supports (the lower bounds in pyproject.toml) |
| newest | the newest versions there are |

The last four need that Python (`python3.12` on the path) and make an environment each in
`build/everywhere`, the first time. With other versions than ours the outputs of chapters are not
compared: their cells must run, and their assertions hold.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

import check
import environment
from check import ROOT, Stage

# The tests whose numbers depend on the processor: layers, loss, training, decoding.
NUMERICAL = (
    "efficient_attention/test_[!b]*.py",
    "inference/test_*.py",
    "layers/test_*.py",
    "models/test_transformer.py",
    "test_fast.py",
    "training/test_loss.py",
    "training/test_optimizers.py",
    "training/test_trainer.py",
)
ENVIRONMENTS = ROOT / "build" / "everywhere"
TESTERS = [
    *("hypothesis", "ipykernel", "nbval", "pytest<9.2", "pytest-xdist", "PyYAML", "sacrebleu"),
    *("scikit-learn", "setuptools>=77", "tokenizers"),
]


@dataclass(frozen=True)
class Place:
    """A kind of machine.

    Attributes:
        variables: of the environment.
        capability: what PyTorch must say of the processor there, or the place is not to be had.
        python: another interpreter, by its name.
        requirements: what to install for it, as `pip install` takes it; none: as in `.venv`.
    """

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    capability: str = ""
    python: str = ""
    requirements: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether the versions there are those of the book."""
        return not self.requirements or "requirements.txt" in self.requirements


# What each kernel runs first: by itself PyTorch takes no more threads than there are cores.
STARTUP = "import os, torch; torch.set_num_threads(int(os.environ['OMP_NUM_THREADS']))"


def processor(
    capability: str, onednn: str, mkl: str, threads: int, scratch: Path
) -> dict[str, str]:
    """The variables that keep PyTorch and its libraries from what a processor could do more."""
    startup = scratch / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "threads.py").write_text(STARTUP, encoding="utf-8")
    return {
        "IPYTHONDIR": str(scratch / "ipython"),
        "ATEN_CPU_CAPABILITY": capability,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "OMP_NUM_THREADS": str(threads),
        # There may be more threads than cores. In capitals Turkish would take it for another word.
        "OMP_WAIT_POLICY": "passive",
    }


def places(scratch: Path) -> list[Place]:
    """All places; homes lie in the folder `scratch`."""
    foreign, closed = scratch / "Zuhause für Zoë", scratch / "closed"
    temporary = foreign / "vorläufig hier"
    temporary.mkdir(parents=True)
    closed.mkdir(mode=0o555)
    if os.access(closed, os.W_OK):  # nothing is closed to root, except what is no real folder
        closed = Path("/proc")
    abroad = {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "1"}
    bare = {"LC_ALL": "C", "TZ": "America/St_Johns", "PYTHONHASHSEED": "2"}
    pinned = ("-r", "requirements.txt", "-e", ".")
    newest = ("--upgrade", "-e", ".[book,export]", *TESTERS)
    return [
        Place("here"),
        Place("scalar", processor("default", "SSE41", "SSE4_2", 1, scratch), "DEFAULT"),
        Place("avx2", processor("avx2", "AVX2", "AVX2", 2, scratch), "AVX2"),
        Place("avx512", processor("avx512", "AVX512_CORE", "AVX512", 4, scratch), "AVX512"),
        Place("abroad", abroad | {"HOME": str(foreign), "TMPDIR": str(temporary)}),
        # No UTF-8 unless a program asks for it. What draws and runs pages needs somewhere to write.
        Place(
            "bare",
            bare
            | {"HOME": str(closed), "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
            | {"JUPYTER_RUNTIME_DIR": str(scratch / "runtime"), "IPYTHONDIR": str(scratch / "own")}
            | {"MPLCONFIGDIR": str(scratch / "fonts")},
        ),
        Place("python3.12", python="python3.12", requirements=pinned),
        Place("python3.13", python="python3.13", requirements=pinned),
        Place("oldest", python="python3.11", requirements=(*oldest(), "-e", ".", *TESTERS)),
        Place("newest", python="python3.13", requirements=newest),
    ]


def oldest() -> list[str]:
    """The lower bounds in `pyproject.toml`, as exact requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [bound.replace(">=", "==") for group in groups for bound in group]


def missing(place: Place) -> str:
    """Why a place cannot be tried on this machine; empty where it can."""
    if place.python and not runs(place.python):
        return f"there is no {place.python}"
    if locale := place.variables.get("LC_ALL"):
        ask = f"import locale; locale.setlocale(locale.LC_ALL, {locale!r})"
        if subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode:
            return f"the locale {locale} is not installed"
    if place.capability:
        ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
        variables = os.environ | place.variables
        command = [sys.executable, "-c", ask]
        there = subprocess.run(command, env=variables, capture_output=True, text=True).stdout
        if there.strip() != place.capability:
            return f"the processor is {there.strip()}, not {place.capability}"
    return ""


def runs(python: str) -> bool:
    """Whether there is such an interpreter; a command of that name may be an empty shell."""
    return bool(shutil.which(python)) and not subprocess.run([python, "-c", ""]).returncode


def interpreter(place: Place) -> str:
    """The interpreter of the place, its environment made if there is none."""
    if not place.python:
        return sys.executable
    folder = ENVIRONMENTS / place.name
    installed = folder / "installed"  # what was asked for
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    wanted = "\n".join((place.python, *place.requirements, pins))
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        environment.make(folder, place.python, *place.requirements)
        installed.write_text(wanted, encoding="utf-8")
    return str(environment.python_in(folder))


def stages(place: Place, only: str, names: list[str]) -> Iterator[Stage]:
    """Yield what runs in a place: the tests, then the chapters of these names, or all."""
    tests, chapters = check.tests(), check.chapters(names, lax=not place.is_ours)
    if place.capability:
        files = [path for pattern in NUMERICAL for path in glob(f"tests/{pattern}", root_dir=ROOT)]
        tests.command += ["-m", check.OF_EACH_KIND, *files]
    elif not place.is_ours:  # what the book promises needs the book's versions
        tests.command += ["minitransformer", "tests", "--ignore=tests/book"]
    if not place.is_ours:  # old libraries warn
        tests.command += ["-W", "default", "--disable-warnings"]
    for stage in (tests, chapters):
        if only in ("", stage.name):
            stage.name = f"{place.name} {stage.name}"
            stage.variables = stage.variables | place.variables
            stage.python = interpreter(place)
            yield stage


def main(arguments: list[str] | None = None) -> int:
    """Go to some places, or to all; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", metavar="PLACE", help="all, when left out")
    parser.add_argument("--only", choices=["tests", "chapters"], default="")
    parser.add_argument("--chapters", default="", help="their names, with commas between")
    chosen = parser.parse_args(arguments)
    check.REPORTS.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        there = {place.name: place for place in places(Path(scratch))}
        if unknown := [name for name in chosen.places if name not in there]:
            parser.error(f"there is no place {unknown[0]!r}; there are {', '.join(there)}")
        finished, left_out = [], []
        for name in chosen.places or there:
            place = there[name]
            if reason := missing(place):
                left_out.append(f"{name} could not be tried: {reason}")
                continue
            names = chosen.chapters.split(",") if chosen.chapters else []
            for stage in stages(place, chosen.only, names):
                # The first time it lists the fonts, and says so on a page when that takes long.
                fonts = [stage.python, "-c", "import matplotlib.font_manager"]
                subprocess.run(fonts, env=os.environ | stage.variables, capture_output=True)
                stage.run()
                finished.append(stage)
    for stage in finished:
        for test in stage.fell:
            print(f"{stage.name} fell: {test}")
    print(check.summary(finished), *left_out, sep="\n")
    return int(any(stage.failed for stage in finished))


if __name__ == "__main__":
    sys.exit(main())
