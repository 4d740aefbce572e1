"""The house has floors: a module builds on those below it, and importing it costs nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOMS

import minitransformer

PACKAGE = Path(minitransformer.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 350  # lines; a longer module is two ideas
A_DOZEN = 12  # modules beside `__init__`; a room with more is two rooms

FLOORS = [
    {
        "_program",
        "case",
        "checks",
        "exercises",
        "files",
        "parallel.processes",
        "progress",
        "published",
        "registry",
    },
    {
        "attention",
        "beam_search",
        "decoding",
        "dropout",
        "efficient_attention.block_mask",
        "efficient_attention.memory",
        "fast.turned",
        "logits_processors",
        "loss",
        "merging",
        "plotting",
        "positional_encoding",
        "published.config",
        "published.tokenizer_files",
        "sampling",
        "schedules",
        "tasks.lexicon",
        "tasks.span_corruption",
        "tokenizer_file",
    },
    {
        "efficient_attention.caches",
        "efficient_attention.in_blocks",
        "efficient_attention.linear",
        "embeddings",
        "export.graphs",
        "fast.dropout",
        "fast.packing",
        "fast.reserved_cache",
        "feed_forward",
        "inspection",
        "layer_norm",
        "published.bert_config",
        "published.t5_config",
        "published.vit_config",
        "rotary",
        "tasks",
        "tasks.inflection",
        "tokenization",
        "training",
    },
    {
        "efficient_attention",
        "laws",
        "models.assembly",
        "models.lora",
        "models.patch_embedding",
        "multi_head_attention",
        "published.rotary_scaling",
    },
    {
        "as_configured",
        "byte_pair_encoding",
        "config",
        "diagnosis",
        "encoder_decoder",
        "fast.attention",
        "published.llama_config",
        "tasks.noun_phrases",
        "words",
    },
    {
        "counting",
        "fast.single_position",
        "model_card",
        "models.t5_layers",
        "parallel.layers",
        "wordpiece",
    },
    {"planner", "pretrained"},
    {"optimizers", "published.tokenizer", "transformer"},
    {"decoder_only", "published.beside"},
    {"fast.decoding", "fast.training", "fast.untouched", "published.weights"},
    {
        "fast",
        "models.bert",
        "models.llama",
        "models.t5",
        "models.vit",
        "published.gpt2_config",
        "published.marian_config",
    },
    {"checkpoint", "data", "export.folder", "models.bert_heads", "models.gpt2", "models.marian"},
    {"export.ctranslate2", "export.relatives", "export.torch_export", "models", "sole_writer"},
    {"export.hugging_face", "export.onnx"},
    {"export"},
    {"exercises.faults", "inference", "tasks.grammar", "tasks.multi30k", "tasks.number_words"},
    {"evaluation", "tasks.text_to_text"},
    {"trainer"},
    {"language_model", "parallel.checkpoints", "parallel.parts", "tasks.jobs"},
    {"parallel.token_file", "parallel.trainer"},
    {"parallel"},
    {"__init__"},
    {"__main__"},
]
FLOOR_OF = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
DOOR = "fast"
THROUGH_THE_DOOR = {"inference", "loss"}
"""Whose `loss` and `generate` take the fast way, which the models look for when called."""
BESIDE = {
    ("export", "models"),
    ("export", "published"),
    ("models", "published"),
}
"""Rooms of which the first knows the second."""


def name_of(path: Path) -> str:
    """How a module is called inside the package; a room by its own name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


each_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


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


def room_of(name: str) -> str:
    """The room that a module lies in; the ten ideas have none."""
    return name.split(".")[0] if name.split(".")[0] in ROOMS else ""


@each_module
def test_module_builds_on_floors_below(path):
    above = [
        name
        for name in imported_modules(path.read_text(encoding="utf-8"))
        if FLOOR_OF[name] >= FLOOR_OF[name_of(path)]
        and not (name == DOOR and name_of(path) in THROUGH_THE_DOOR)
    ]
    assert above == []


@each_module
def test_the_ten_ideas_know_no_room_but_through_the_door(path):
    if name_of(path) in ("__init__", "__main__"):  # the package as a whole, and its command
        return
    for name in imported_modules(path.read_text(encoding="utf-8")):
        is_door = name == DOOR and name_of(path) in THROUGH_THE_DOOR
        here, there = room_of(name_of(path)), room_of(name)
        assert there in ("", here) or is_door or (here, there) in BESIDE


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_one_room(room):
    assert len([path for path in MODULES if room_of(name_of(path)) == room]) <= A_DOZEN + 1


@each_module
def test_module_is_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_every_module_has_a_floor():
    assert {name_of(path) for path in MODULES} == FLOOR_OF.keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import minitransformer", {"__init__"}),
        ("import minitransformer.data", {"data"}),
        ("from minitransformer import Transformer", {"__init__"}),
        ("from minitransformer import data", {"data"}),
        ("from minitransformer.data import Batch", {"data"}),
        ("from minitransformer import fast", {"fast"}),
        ("from minitransformer.fast import serves", {"fast"}),
        ("from minitransformer.fast.packing import Packing", {"fast.packing"}),
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
needless = {"ctranslate2", "matplotlib", "num2words", "onnx", "pooch", "tqdm", "transformers"}
needless &= set(sys.modules) - already
assert not needless, f"imported without need: {needless}"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
