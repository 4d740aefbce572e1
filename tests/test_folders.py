"""Imports between the folders run one way, and importing the package has no side effect."""

import re
import subprocess
import sys
from pathlib import Path

import minitransformer

PACKAGE = Path(minitransformer.__file__).parent
ORDER = ["checks", "files", "tokenization", "layers", "inspection", "efficient_attention", "models"]
ORDER += ["fast", "inference", "training", "diagnosis", "planning", "tasks", "plotting", "export"]
ORDER += ["parallel", "exercises"]
"""Folders, and modules beside them: each may import what stands before it."""


def test_imports_run_one_way():
    within = re.compile(r"^ *(?:from|import) minitransformer(?:\.| import )(\w+)", re.MULTILINE)
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if not here.startswith("__"):  # the package as a whole, and its command
            found = within.findall(path.read_text("utf-8"))
            assert {*found} <= {*ORDER[: ORDER.index(here) + 1]}, path


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
