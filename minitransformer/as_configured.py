"""Whether a model is what its configuration says, so that it comes back as it was saved.

Built in chapter 9.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["check_as_configured"]

OF_TRAINING = {"training", "dropout", "p", "generator", "backend", "config", "kept"}
"""Attributes of modules that may differ from the configuration: evaluation gives the same."""


def check_as_configured(model: Any) -> None:
    """Raise an error unless a model made anew from the configuration would compute the same.

    Only parameters are saved. Another table of positions, ε or activation, put in place by hand,
    would be lost without a word.

    Raises:
        ValueError: at the first part that differs, with both values.
    """
    with torch.device("meta"), torch.random.fork_rng([]):
        fresh = type(model)(model.config)
    expected, seen = dict(fresh.named_modules()), set()
    for name, part in model.named_modules():
        if type(part).__name__ == "OptimizedModule":  # what `torch.compile` made of a part,
            continue
        name = ".".join(step for step in name.split(".") if step != "_orig_mod")  # and has inside
        seen.add(name)
        other = expected.get(name)
        if type(other) is not type(part):
            kind = "nothing" if other is None else f"a {type(other).__name__}"
            raise ValueError(f"{name} is a {type(part).__name__}, {kind} as configured")
        for key, value in vars(other).items():
            if key.startswith("_") or key in OF_TRAINING:
                continue
            found = vars(part).get(key)
            if isinstance(value, Tensor) and isinstance(found, Tensor):
                same = value.shape == found.shape and torch.equal(value, found.to(value.device))
            else:
                same = found == value
            if not same:
                raise ValueError(
                    f"{name}.{key} is not what the configuration says and would be lost: "
                    f"{describe(found)}, expected {describe(value)}"
                )
    if missing := sorted(expected.keys() - seen):
        raise ValueError(f"{missing[0]} is nothing, a part of the model as configured")


def describe(value: object) -> str:
    """A value in a line of an error."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
