"""Models by the names of their classes: what a file says of a model, and the model made of that.

The package's classes go by their names, others by their module's too: "Transformer",
"my_models.Mine".

Built in chapter 9.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

__all__ = ["register"]

Class = TypeVar("Class", bound=type)
CLASSES: dict[str, type] = {}
"""All classes that files may name."""


def register(kind: Class) -> Class:
    """Let checkpoints and folders name a class, which is found again by that name.

    Classes derived from the package's models are registered already. A file can be read wherever
    the module that defines its class has been imported. There are two kinds:

    - a model, any `nn.Module`: made by `kind(config)`, it keeps `config`, a dataclass whose fields
      JSON can hold, of `kind.config_class` or derived from it; what else it keeps for its files is
      in the attributes that `kind.besides` names;
    - a wrapper of one layer of a model, such as `LoRALinear`: made by `kind(layer, **settings)`,
      it keeps `settings`, which JSON can hold.

    It returns the class, so that it can be its decorator.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class LineConfig:
        ...     width: int
        >>> @register
        ... class Line(nn.Module):
        ...     config_class = LineConfig
        ...     def __init__(self, config):
        ...         super().__init__()
        ...         self.config, self.line = config, nn.Linear(config.width, 1)
        >>> rebuilt(described(Line(LineConfig(3))), "cpu").line
        Linear(in_features=3, out_features=1, bias=True)
    """
    CLASSES[name_of(kind)] = kind
    return kind


def name_of(kind: type) -> str:
    """What files call a class."""
    ours = kind.__module__.split(".")[0] == __name__.split(".")[0]
    return kind.__qualname__ if ours else f"{kind.__module__}.{kind.__qualname__}"


def registered(name: str) -> Any:
    """The class of that name, or an error that says how there could be one."""
    if name not in CLASSES:
        raise ValueError(
            f"the class {name} is not known here: import the module that defines it; unless it is "
            "derived from a model of minitransformer, @minitransformer.register goes above it"
        )
    return CLASSES[name]


def plain_type(part: nn.Module) -> type:
    """The class of a module, whatever PyTorch's engines have made of it."""
    kind = type(part)  # FSDP2 derives a class from it
    return kind.__bases__[1] if kind.__bases__[0].__name__ == "FSDPModule" else kind


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters by name, without what `torch.compile` added: a tied one once."""
    return {name.replace("_orig_mod.", ""): p for name, p in model.named_parameters()}


def named_parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, the first one the model itself, without what `torch.compile` added."""
    for name, part in model.named_modules():
        if type(part).__name__ != "OptimizedModule":
            yield ".".join(step for step in name.split(".") if step != "_orig_mod"), part


def described(model: nn.Module) -> dict[str, Any]:
    """What a file says of a model beside its weights: its classes, settings, and what was added.

    Raises:
        TypeError: if JSON cannot hold a setting.
        ValueError: if the model's class is not registered.
    """
    parts = dict(named_parts(model))
    kind, config = plain_type(parts[""]), getattr(parts[""], "config", None)
    if CLASSES.get(name_of(kind)) is not kind:
        raise ValueError(
            f"a {name_of(kind)} cannot be saved, because no file could name its class: write "
            "@minitransformer.register above it (if it was defined twice, make the model again)"
        )
    if not is_dataclass(config) or isinstance(config, type):
        raise ValueError(
            f"a {name_of(kind)} cannot be saved: its config must be a dataclass, got {config!r}"
        )
    content = {
        "class": name_of(kind),
        "config_class": type(config).__name__,
        "model": asdict(config),
        "besides": {name: getattr(parts[""], name) for name in getattr(kind, "besides", ())},
        "around": {
            name: {"class": name_of(plain_type(part)), "settings": part.settings}
            for name, part in parts.items()
            if name and hasattr(part, "settings") and name_of(plain_type(part)) in CLASSES
        },
    }
    return dict(json.loads(json.dumps(content)))  # tuples are lists in a file


def rebuilt(description: Mapping[str, Any], device: torch.device | str) -> Any:
    """The model of a description, with random weights; a ValueError if there is no such class."""
    kind = registered(description["class"])
    config_kind = with_derived(kind.config_class).get(description["config_class"])
    if config_kind is None:
        raise ValueError(
            f"the configuration of a {description['class']} is a {kind.config_class.__name__} or "
            f"derived from it, not a {description['config_class']}"
        )
    config = config_from(config_kind, description["model"])
    # The starting values are drawn in vain, which nobody should notice.
    with torch.random.fork_rng([]), torch.device(device):
        try:
            model = kind(config)
        except TypeError as error:
            raise ValueError(
                f"a {description['class']} cannot be made of its configuration alone: {error}"
            ) from error
        for name, about in description["around"].items():
            layer, around = model.get_submodule(name), registered(about["class"])
            if type(layer) is not around:  # unless the model itself puts it there
                model.set_submodule(name, around(layer, **about["settings"]))
    for name, value in description["besides"].items():
        if getattr(model, name) != value:
            setattr(model, name, value)
    return model


def with_derived(kind: type) -> dict[str, type]:
    """A class and all that are derived from it, by name."""
    below: list[type] = kind.__subclasses__()
    found = {name: k for derived in reversed(below) for name, k in with_derived(derived).items()}
    return found | {kind.__name__: kind}


def config_from(kind: type, content: Mapping[str, Any]) -> Any:
    """A dataclass of what `asdict` and JSON made of it; a ValueError if a setting is not right."""
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(content.keys() - known.keys()):
        raise ValueError(
            "there are settings that this version of minitransformer does not know: "
            f"{', '.join(unknown)}; it knows {', '.join(known)}"
        )
    needed = {k for k, f in known.items() if f.default is MISSING is f.default_factory}
    if missing := sorted(needed - content.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    hints = get_type_hints(kind)
    try:
        return kind(**{name: value_from(hints[name], value) for name, value in content.items()})
    except TypeError as error:
        raise ValueError(str(error)) from error


def value_from(hint: Any, value: Any) -> Any:
    """What JSON holds, as what a field's annotation says: a dataclass, a tuple, a named one."""
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        plain: Any = get_origin(kind) or kind
        if isinstance(value, dict) and is_dataclass(plain):
            return config_from(cast(type, plain), value)
        if isinstance(value, list) and isinstance(plain, type) and issubclass(plain, tuple):
            return plain(*value) if hasattr(plain, "_fields") else tuple(value)
    return value


def check_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise an error if weights are missing or unknown, or have other shapes than the model's."""
    own = named_weights(model)
    names = sorted(own.keys() | weights.keys())
    pairs = {name: (shape_of(weights.get(name)), shape_of(own.get(name))) for name in names}
    if wrong := [name for name, (found, expected) in pairs.items() if found != expected]:
        raise ValueError(
            f"{len(wrong)} of {len(names)} weights do not fit the configuration; the first, "
            "{}, is {}, expected {}".format(wrong[0], *pairs[wrong[0]])
        )


def check_dtype(weights: Mapping[str, Tensor]) -> None:
    """Raise an error unless the weights have one dtype, which is what the model computes in."""
    dtypes = {weight.dtype for weight in weights.values()}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError(
            "weights must have a single floating-point dtype, "
            f"got {', '.join(sorted(map(str, dtypes)))}"
        )


def with_weights(model: Any, weights: Mapping[str, Tensor], device: torch.device | str) -> Any:
    """The model on a device, in the weights' dtype, with these weights."""
    check_weights(model, weights)
    check_dtype(weights)
    model.to(device, next(iter(weights.values())).dtype)
    with torch.no_grad():
        for name, parameter in named_weights(model).items():
            parameter.copy_(weights[name])
    return model


def shape_of(weight: Tensor | None) -> str:
    """What an error says about a weight."""
    return "missing" if weight is None else str((*weight.shape,))
