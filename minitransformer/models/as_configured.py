"""Whether a model is what a file would say of it: if another came back, nothing is written.

Built in chapter 9.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.models.registry import (
    check_weights,
    described,
    named_parts,
    named_weights,
    plain_type,
    rebuilt,
)
from minitransformer.tokenization.tokenizer import Tokenizer

__all__ = ["check_as_configured"]

OF_TRAINING = {"training", "dropout", "p", "generator", "backend", "config"}
"""Attributes of modules that may differ from the configuration: evaluation gives the same."""


def check_as_configured(model: Any) -> None:
    """Raise an error unless what is saved of a model would come back as the same model.

    Another table of positions, ε or activation, put in place by hand, would be lost without a
    word; so would a module that was added. A ValueError has the first difference.
    """
    description = described(model)
    try:
        fresh = rebuilt(description, "meta")
        seen = not any(t.is_meta for part in fresh.modules() for t in constants(part).values())
    except (NotImplementedError, RuntimeError):  # it asks for numbers while it is made
        seen = False
    if not seen:
        fresh = rebuilt(description, "cpu")
    parts, expected = dict(named_parts(model)), dict(named_parts(fresh))
    if fresh.config != parts[""].config:
        raise ValueError(
            f"the configuration would not come back: {fresh.config}, not {parts[''].config}"
        )
    for name, part in parts.items():
        check_part(name, part, expected.get(name))
    if missing := sorted(expected.keys() - parts.keys()):
        raise ValueError(f"{missing[0]} is nothing, a part of the model as configured")
    check_weights(fresh, named_weights(model))


def check_part(name: str, part: nn.Module, other: nn.Module | None) -> None:
    """Raise an error unless a part is what is made in its place, its parameters left aside."""
    if other is None or plain_type(other) is not plain_type(part):
        kind = "nothing" if other is None else f"a {type(other).__name__}"
        raise ValueError(
            f"{name} is a {plain_type(part).__name__}, {kind} as configured: it would be lost; a "
            "part of the model belongs into its class, what is around a layer must be registered"
        )
    values, found = constants(other), constants(part)
    plain = {k: v for k, v in vars(other).items() if not k.startswith("_") and k not in OF_TRAINING}
    for key in sorted(values.keys() | plain.keys() | (found.keys() - vars(part).keys())):
        value, has = ({**vars(each), **each._buffers}.get(key) for each in (other, part))
        if isinstance(value, Tensor) and isinstance(has, Tensor):
            same = value.shape == has.shape and torch.equal(value, has.to(value.device))
        else:
            same = not isinstance(value, Tensor) and not isinstance(has, Tensor) and has == value
        if not same:
            raise ValueError(
                f"{name}.{key} is not what the configuration says and would be lost: "
                f"{shown(has)}, expected {shown(value)}"
            )


def constants(part: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module that are no parameters, whether PyTorch knows of them or not."""
    values = {**vars(part), **part._buffers}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shown(value: object) -> str:
    """A value in a line of an error."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def described_for_folder(model: Any) -> dict[str, Any]:
    """The description of a model that goes into a folder, where nothing is around layers."""
    about = described(model)
    if around := about["around"]:
        raise ValueError(
            f"a folder has no place for what is around {', '.join(around)}: merge it into the "
            "layers first (merge_lora), or save a checkpoint"
        )
    return about


def check_come_back(tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise an error unless each tokenizer that is saved would be read as what it is."""
    for side, tokenizer in tokenizers.items():
        kind = type(tokenizer).__name__
        try:
            content = json.loads(json.dumps(tokenizer.to_dict()))
            again = Tokenizer.from_dict(content)
            same = json.loads(json.dumps(again.to_dict())) == content
            if type(again) is not type(tokenizer) or not same:
                raise ValueError(f"read, it is a {type(again).__name__}")
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"tokenizer {side}, a {kind}, cannot be saved: {error}") from error
