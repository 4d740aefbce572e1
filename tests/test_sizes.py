"""A layer with a size below 1 is refused: PyTorch would make one that computes nothing."""

import importlib
import inspect
import pkgutil

import pytest
from torch import nn

import minitransformer

SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 20, "d_k": 4, "d_latent": 5, "vocab_size": 7}
SIZES |= {"num_layers": 2, "max_len": 9, "image_size": 6, "patch_size": 2, "num_channels": 3}
SIZES |= {"num_buckets": 8, "max_distance": 10, "num_kv_heads": 3, "rank": 2}
OTHERS = {"linear": nn.Linear(3, 4), "factor": 0.5, "experts": [nn.Identity(), nn.Identity()]}
STACKS = {"Encoder", "Decoder"}


def layers():
    """The package's modules that are made of sizes, and not of a configuration."""
    found = set()
    for module in pkgutil.walk_packages(minitransformer.__path__, "minitransformer."):
        if "__main__" in module.name or ".exercises" in module.name:  # no layers for users
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(kind) and issubclass(kind, nn.Module):
                ours = kind.__module__.startswith("minitransformer")
                names = inspect.signature(kind).parameters
                if ours and "config" not in names and SIZES.keys() & names.keys():
                    found.add(kind)
    return sorted(found, key=lambda kind: kind.__name__)


CASES = [
    pytest.param(kind, name, id=f"{kind.__name__}-{name}")
    for kind in layers()
    for name in SIZES
    if name in inspect.signature(kind).parameters
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_size_below_1_is_refused(kind, name):
    assert len(CASES) > 35
    wanted = inspect.signature(kind).parameters.keys()
    options = {key: value for key, value in (SIZES | OTHERS).items() if key in wanted}
    if kind.__name__ in STACKS:
        options |= {"d_model": 12, "num_heads": 3, "d_ff": 20}
    kind(**options)
    for size in (0, -3):
        with pytest.raises(ValueError, match=rf"{name} must .*{size}|{size} × "):
            kind(**options | {name: size})
