"""Every public object pickles and copies: the workers of other processes get it in that way.

The objects are those that the examples in the docstrings make.
"""

import copy
import doctest
import importlib
import inspect
import pickle
import pkgutil
import sys
from contextlib import suppress
from functools import cached_property
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minitransformer as mt

PARTS = ("export", "plotting", "tasks", "__main__")  # behind extras, or words and programs
NOT_MADE = {
    **dict.fromkeys(
        ("Case", "Tokenizer", "PublishedConfig", "DecoderConfig", "Stacked"), "a base class"
    ),
    **dict.fromkeys(("Pretrained", "Published", "Resumable", "TextModel"), "a base class"),
    **dict.fromkeys(("Callback", "SpecialTokens", "TokenizerFile"), "a base class"),
    **dict.fromkeys(("Evaluate", "Exercise", "Chapter"), "holds any function"),
    "CachedDecoding": "texts while they are written",
    **dict.fromkeys(("PeakMemory", "Processes", "ParallelTrainer"), "belongs to its process"),
}
ALSO = """
mt.LayerNorm(4), mt.RMSNorm(4), mt.layers.ResidualConnection(4), mt.TokenEmbedding(6, 4)
mt.OutputProjection(4, 6), mt.SinusoidalPositionalEncoding(4), mt.ScaledDotProductAttention()
mt.TrainingConfig(), mt.inference.GenerationConfig(), mt.training.ParameterRule("adam", 0.1)
"""


def public_classes() -> dict[str, type]:
    """The package's public classes, by module and name."""
    found = {}
    for module in pkgutil.walk_packages(mt.__path__, "minitransformer."):
        if module.name.split(".")[1] in PARTS:
            continue
        content = importlib.import_module(module.name)
        for name in getattr(content, "__all__", ()):
            kind = getattr(content, name)
            if inspect.isclass(kind) and kind.__module__ == module.name and name not in NOT_MADE:
                found[f"{module.name}.{name}"] = kind
    return found


CLASSES = public_classes()


@pytest.fixture(scope="module")
def objects() -> dict[type, Any]:
    """An object of each public class: the first that the examples make."""
    found: dict[type, Any] = {}
    kinds = {*CLASSES.values()}

    def keep(frame: FrameType, event: str, value: Any) -> None:
        """Called wherever a function begins or returns: keep what is made or returned."""
        if event == "return":
            made = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else value
            if type(made) in kinds:
                found.setdefault(type(made), made)

    sys.setprofile(keep)
    exec(ALSO, {"mt": mt})
    for kind in CLASSES.values():
        module = inspect.getmodule(kind)
        for documented in (kind, *vars(module).values()):
            if getattr(documented, "__module__", "") == module.__name__:
                names = dict(vars(module))
                with suppress(Exception):  # that the examples are right, is tested elsewhere
                    for example in doctest.DocTestParser().get_examples(inspect.getdoc(documented)):
                        exec(example.source, names)
    sys.setprofile(None)
    return found


def content(thing: Any, seen: frozenset[int] = frozenset()) -> Any:
    """What a thing holds, as plain values that can be compared."""
    kind = type(thing)
    if id(thing) in seen:
        return kind
    seen |= {id(thing)}
    if isinstance(thing, Tensor | np.ndarray):
        return kind, str(thing.dtype), repr(thing.tolist())  # in which nan equals nan
    if isinstance(thing, torch.Generator):
        return kind, content(thing.get_state())
    if isinstance(thing, torch.optim.Optimizer):
        return kind, content(thing.state_dict(), seen)
    if isinstance(thing, nn.Module):
        names = [name for name, _ in thing.named_parameters()]  # what is tied stays tied
        return kind, thing.training, names, content(dict(thing.state_dict()), seen)
    if isinstance(thing, dict):
        return kind, {key: content(value, seen) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return kind, [content(part, seen) for part in thing]
    if kind.__module__.startswith("minitransformer") and hasattr(thing, "__dict__"):
        kept = {
            name: value
            for name, value in vars(thing).items()
            if not isinstance(inspect.getattr_static(kind, name, None), cached_property)
        }
        return kind, content(kept, seen)
    return kind, thing if kind.__eq__ is not object.__eq__ else None


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", CLASSES)
def test_object_travels(name, travel, objects):
    thing = objects[CLASSES[name]]
    assert content(travel(thing)) == content(thing)
