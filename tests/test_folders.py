"""Imports between the folders run one way, and importing the package has no side effect."""

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import minitransformer

PACKAGE = Path(minitransformer.__file__).parent
ORDER = ["checks", "files", "tokenization", "layers", "inspection", "efficient_attention", "models"]
ORDER += ["fast", "inference", "training", "diagnosis", "planning", "tasks", "plotting", "show"]
ORDER += ["export", "parallel", "exercises"]
"""Folders, and modules beside them: each may import what stands before it."""


def test_imports_run_one_way():
    within = re.compile(r"^ *(?:from|import) minitransformer(?:\.| import )(\w+)", re.MULTILINE)
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if not here.startswith("__"):  # the package as a whole, and its command
            found = within.findall(path.read_text("utf-8"))
            assert {*found} <= {*ORDER[: ORDER.index(here) + 1]}, path


def test_modules_import_in_no_circle():
    """Within functions neither."""
    places = {
        path: path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")
    }
    modules = {".".join(place.parts).removesuffix(".__init__"): p for p, place in places.items()}
    line = re.compile(r"^ *from (minitransformer[\w.]*) import \(?\s*(\w+)", re.MULTILINE)
    imports = {}
    for name, path in modules.items():
        found = line.findall(path.read_text("utf-8"))
        imported = {f"{m}.{part}" if f"{m}.{part}" in modules else m for m, part in found}
        imports[name] = imported - {name, "minitransformer"}
    assert sum(map(len, imports.values())) > 200
    TopologicalSorter(imports).prepare()  # or a CycleError, which names the circle


def test_files_of_tests_have_names_of_their_own():
    """As pytest asks for where folders of tests are no packages."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py")]
    assert [name for name in {*names} if names.count(name) > 1] == ["conftest.py"]


def test_import_has_no_side_effect():
    program = """
import random, sys
import numpy, torch
before = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state()
already = set(sys.modules)
import minitransformer
assert before[:2] == (random.getstate(), str(numpy.random.get_state())), "random numbers drawn"
assert torch.equal(before[2], torch.get_rng_state()), "random numbers drawn"
needless = {"ctranslate2", "matplotlib", "num2words", "onnx", "pooch", "tqdm", "transformers"}
needless &= set(sys.modules) - already
assert not needless, f"imported without need: {needless}"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
