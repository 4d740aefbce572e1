"""Compare a reader's result with the right one, and show values in few characters."""

import inspect
import math
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

MOST_NUMBERS = 40
"""Tensors with more are not shown whole."""


class Difference(Exception):  # noqa: N818, it is no error
    """The reader's result is not the expected one.

    Args:
        seen: how they differ.
        why: what the reader can do about it, if that is known.
    """

    def __init__(self, seen: str, why: str = "") -> None:
        super().__init__(seen)
        self.why = why


def copied(value: Any) -> Any:
    """The value with tensors of its own, so that code that works in place spoils nothing."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, nn.Module):
        return deepcopy(value)
    if isinstance(value, tuple | list):
        return type(value)(copied(part) for part in value)
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value


def compare(found: Any, expected: Any, tolerance: float) -> None:
    """Raise `Difference` if they differ by more than their containers, kinds and rounding."""
    if found is ... or (found is None and expected is not None):
        raise Difference("returns nothing yet.")
    if isinstance(expected, tuple) and not isinstance(found, Tensor):
        if not isinstance(found, tuple | list) or len(found) != len(expected):
            raise Difference(f"gives {brief(found)}, expected {len(expected)} results.")
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            try:
                compare(one, other, tolerance)
            except Difference as difference:
                raise Difference(f"({place + 1}. result) {difference}") from None
    elif isinstance(expected, Tensor):
        compare_tensors(found, expected, tolerance)
    elif isinstance(expected, float):
        if not is_number(found) or not math.isclose(
            found, expected, rel_tol=tolerance, abs_tol=tolerance
        ):
            raise Difference(f"gives {brief(found)}, expected {expected:.5g}.")
    elif (
        float(found) != expected
        if isinstance(expected, int) and is_number(found)
        else getattr(found, "shape", ()) or found != expected  # no tensor or array can be it
    ):
        raise Difference(f"gives {brief(found)}, expected {brief(expected)}.")


def compare_tensors(found: Any, expected: Tensor, tolerance: float) -> None:
    """The same for a tensor, or what can be made one: an array, a list of numbers."""
    try:
        found = torch.as_tensor(found).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise Difference(
            f"gives {brief(found)}, expected a tensor {tuple(expected.shape)}."
        ) from None
    if found.shape != expected.shape:
        shapes = f"{tuple(found.shape)}, expected {tuple(expected.shape)}"
        raise Difference(f"has the shape {shapes}.")
    ours, theirs = found.to(torch.float64), expected.to(torch.float64)
    alike = torch.isclose(ours, theirs, tolerance, tolerance, equal_nan=True)
    if not alike.all():
        place = tuple((~alike).nonzero()[0].tolist())
        numbers = f"{number(found, place)}, expected {number(expected, place)}"
        where = f" at {list(place)}" if place else ""
        raise Difference(f"gives{where} {numbers}.")


def is_number(value: Any) -> bool:
    """Whether it is one, perhaps in a tensor or an array."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def number(tensor: Tensor, place: tuple[int, ...]) -> str:
    """One entry, as the expected kind of number."""
    value = tensor[place].item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def brief(value: Any) -> str:
    """A value in few characters; of a tensor its shape, of a configuration what is set."""
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if inspect.isfunction(value):
        return value.__name__
    if isinstance(value, tuple | list) and any(isinstance(x, tuple | list | Tensor) for x in value):
        inner = ", ".join(map(brief, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if is_dataclass(value) and not isinstance(value, type):
        named = {part.name: getattr(value, part.name) for part in fields(value)}
        changed = [part.name for part in fields(value) if part.default != named[part.name]]
        return f"({', '.join(f'{name}={named[name]!r}' for name in changed)})"
    if isinstance(value, dict) and len(value) > 1:
        return f"{{{len(value)} entries}}"
    text = f"{value:.7g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def both(found: Any, expected: Any) -> str:
    """Both results whole, where they are small tensors."""
    if not isinstance(expected, Tensor) or not 1 < expected.numel() <= MOST_NUMBERS:
        return ""
    try:
        found = torch.as_tensor(found).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return ""
    if found.shape != expected.shape:
        return ""
    return f"yours:\n{rows(found)}\nexpected:\n{rows(expected)}"


def rows(tensor: Tensor) -> str:
    """A tensor's numbers, a line for each row."""
    text = str((tensor.int() if tensor.dtype == torch.bool else tensor).tolist())
    if tensor.is_floating_point():
        table = tensor.reshape(-1, tensor.size(-1)).tolist()
        text = str([[round(x, 3) for x in row] for row in table])
    return "  " + text.replace("], [", "],\n   [")
