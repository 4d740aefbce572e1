"""A reader's module, a law it has to keep, and the verdict."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minitransformer.exercises.checking import line_of
from minitransformer.exercises.comparing import Difference

NUMBERS = count()


@dataclass(frozen=True)
class Verdict:
    """What came of one law.

    Args:
        name: of the law, and what it is about.
        fault: what is wrong, in words; empty if nothing is.
        counts: whether it is one of those that are counted; others are said only when broken.
        secret: whether not to say what is wrong.
    """

    name: str
    fault: str = ""
    counts: bool = True
    secret: bool = False

    def __str__(self) -> str:
        if not self.fault:
            return f"Right: {self.name}." if self.counts else ""
        return "" if self.secret else f"Not yet: {self.name}. {self.fault}"


def verdict(
    name: str, law: Callable[[Any], None], subject: Any, secret: bool = False, counts: bool = True
) -> Verdict:
    """Try a law, which raises `Difference` where it is broken."""
    try:
        torch.manual_seed(0)
        law(subject)
    except Difference as difference:
        return Verdict(name, str(difference), counts, secret)
    except Exception as error:  # whatever the reader's code raises
        said = f"It raises {type(error).__name__}: {error}"
        return Verdict(name, "\n".join(filter(None, (said, line_of(error)))))
    return Verdict(name, "", counts)


def verdicts_of(laws: Mapping[str, Callable[[Any], None]], subject: Any) -> Iterator[Verdict]:
    """The verdicts of all laws, in order."""
    for name, law in laws.items():
        yield verdict(name, law, subject)


@contextmanager
def loaded(folder: Path, *names: str) -> Iterator[list[ModuleType]]:
    """Import modules of a folder, which may import each other by `from .name` or by name.

    Raises:
        FileNotFoundError: if a file is missing.
        Difference: if a module cannot be imported.
    """
    for name in names:
        if not (folder / f"{name}.py").is_file():
            raise FileNotFoundError(f"there is no {name}.py in {folder}")
    package = ModuleType(f"reader_{next(NUMBERS)}")
    package.__path__ = [str(folder.resolve())]
    sys.modules[package.__name__] = package
    sys.path.insert(0, str(folder.resolve()))
    before = {*sys.modules}
    try:
        yield [import_module(f"{package.__name__}.{name}") for name in names]
    finally:
        sys.path.remove(str(folder.resolve()))
        for name in {*sys.modules} - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder.resolve():
                del sys.modules[name]


def want(condition: bool | Tensor, fault: str) -> None:
    """Raise `Difference` with the fault unless the condition holds."""
    if not condition:
        raise Difference(fault)


def alike(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two tensors have the same shape and the same numbers, up to rounding."""
    for tensor in (one, other):
        want(
            isinstance(tensor, Tensor),
            "It returns nothing yet." if tensor is None else "No tensor.",
        )
    return one.shape == other.shape and torch.allclose(one, other, tolerance, tolerance)


def stirred(model: Any, seed: int = 0, amount: float = 0.05) -> Any:
    """The model with all parameters moved at random, so that none is zero, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator))
    return model.eval()
