"""The house has floors: a module builds on those below it, and importing it costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minitransformer

PACKAGE = Path(minitransformer.__file__).parent
MODULES = sorted(PACKAGE.glob("*.py"))
LONGEST = 300  # lines; a longer module is two ideas

FLOORS = [
    {"checks", "files"},
    {
        "attention",
        "beam_search",
        "dropout",
        "lexicon",
        "merging",
        "plotting",
        "positional_encoding",
        "sampling",
        "tokenizer_file",
        "training",
    },
    {"packing"},
    {
        "embeddings",
        "feed_forward",
        "inflection",
        "inspection",
        "layer_norm",
        "multi_head_attention",
        "tokenization",
    },
    {"byte_pair_encoding", "config", "encoder_decoder", "noun_phrases"},
    {"fast_decoding", "model_card", "wordpiece"},
    {"pretrained"},
    {"transformer"},
    {"decoder_only"},
    {"untouched"},
    {"checkpoint", "data", "decoding"},
    {"grammar", "inference", "multi30k", "number_words"},
    {"trainer"},
    {"language_model"},
    {"__init__"},
    {"__main__"},
]
FLOOR_OF = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)


def imported_modules(source: str) -> set[str]:
    """The package's modules that the source imports, anywhere, for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: write imports from the package in full")
            if node.module == "minitransformer":
                found |= {f"minitransformer.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    ours = {name.partition(".")[2] for name in found if name.split(".")[0] == "minitransformer"}
    return {name if name in FLOOR_OF else "__init__" for name in ours}


@each_module
def test_module_builds_on_floors_below(path):
    above = [
        name
        for name in imported_modules(path.read_text(encoding="utf-8"))
        if FLOOR_OF[name] >= FLOOR_OF[path.stem]
    ]
    assert above == []


@each_module
def test_module_is_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_every_module_has_a_floor():
    assert {path.stem for path in MODULES} <= FLOOR_OF.keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import minitransformer", {"__init__"}),
        ("import minitransformer.data", {"data"}),
        ("from minitransformer import Transformer", {"__init__"}),
        ("from minitransformer import data", {"data"}),
        ("from minitransformer.data import Batch", {"data"}),
        ("if TYPE_CHECKING:\n    from minitransformer.trainer import Trainer", {"trainer"}),
        ("def f():\n    from minitransformer.plotting import plot", {"plotting"}),
        ("from minitransformer import Transformer, data", {"__init__", "data"}),
        ("import data, torch", set()),
    ],
)
def test_imports_are_found(source, found):
    assert imported_modules(source) == found


def test_relative_imports_are_refused():
    with pytest.raises(ValueError, match="line 1"):
        imported_modules("from .data import Batch")


def test_import_has_no_side_effect():
    program = """
import random, sys
import numpy, torch
before = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state()
already = set(sys.modules)
import minitransformer
assert before[:2] == (random.getstate(), str(numpy.random.get_state())), "random numbers drawn"
assert torch.equal(before[2], torch.get_rng_state()), "random numbers drawn"
needless = {"matplotlib", "num2words", "pooch", "tqdm"} & (set(sys.modules) - already)
assert not needless, f"imported without need: {needless}"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
