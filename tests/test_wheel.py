"""The wheel holds the package, its types and its licence, and asks for little."""

import re
import shutil
import subprocess
import sys
import tomllib
from email.parser import Parser
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest

from minitransformer.show import page_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXTRAS = dict.fromkeys(("huggingface_hub", "sentencepiece", "tokenizers"), "hub")
EXTRAS |= dict.fromkeys(("einops", "matplotlib", "num2words", "pooch"), "book")
EXTRAS |= dict.fromkeys(("ctranslate2", "onnx", "onnxruntime", "onnxscript"), "export")
NEEDED = {"numpy", "regex", "safetensors", "torch", "tqdm"}
MADE = (".*", "_build", "build", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the project, for building leaves files behind."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*MADE))
    # With the setuptools that is there, so that the network is not needed.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", ".", "./copy"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    with ZipFile(path) as opened:
        yield opened


def requirements(wheel):
    """What the wheel asks for: names, and what stands behind them."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    asked = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist")
    return dict(entry.split(">=", 1) for entry in asked)


def test_wheel_holds_the_package_its_command_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "minitransformer").rglob("*.py")
    }
    data = {"minitransformer/py.typed", "minitransformer/tasks/lexicon.txt"}
    data |= {f"minitransformer/page/{file}" for file in (*page_files(), "live.md")}
    assert names == modules | data
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "minitransformer = minitransformer.__main__:main" in wheel.read(name).decode()


def test_wheel_asks_for_no_more_than_it_says(wheel):
    asked = requirements(wheel)
    assert {name for name, rest in asked.items() if "extra" not in rest} == NEEDED
    extras = {name: rest.partition("extra == ")[2] for name, rest in asked.items()}
    assert {name: extra for name, extra in extras.items() if extra} == {
        name: f'"{extra}"' for name, extra in EXTRAS.items()
    }


def test_bounds_are_lower_bounds():
    """`make everywhere` tries exactly these versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = [re.fullmatch(r"([\w-]+)>=[\w.]+", bound)[1] for bound in bounds]
    assert set(names) == NEEDED | EXTRAS.keys()


WITHOUT = """
import sys

sys.modules.update(dict.fromkeys([*sys.argv[1:], "requests"]))  # none can be imported
import minitransformer as mt
import torch
from minitransformer.tasks.multi30k import file_of

letters = mt.CharacterTokenizer.train(["ab"])
sizes = dict.fromkeys(("src_vocab_size", "tgt_vocab_size"), letters.vocab_size)
config = mt.TransformerConfig(**sizes, d_model=8, num_heads=2, d_ff=8)
training = mt.TrainingConfig(steps=2, warmup_steps=1, batch_size=2)
trainer = mt.Trainer(mt.Transformer(config), [("ab", "ba")] * 2, letters, letters, training)
trainer.fit(progress=False)
figure = (torch.ones(1, 1), "a", "b")
for call in (
    lambda: mt.number_in_words(3, "en"),
    lambda: mt.plot_attention(*figure),
    lambda: file_of("train.en"),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""


def test_what_is_needed_is_enough_for_a_training():
    command = [sys.executable, "-c", WITHOUT, *EXTRAS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == [
        f"this takes {name}: pip install 'minitransformer[book]'"
        for name in ("num2words", "matplotlib", "pooch")
    ]
