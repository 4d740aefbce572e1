"""The same functions, faster: the room behind `generate`.

What the ten ideas compute plainly is computed here with less work, and what both compute is the
same: tests compare scores and texts on every kind of model. The room has one
door. `generate` asks `decoding_of(model)`. Where a model is exactly what its classes say, it takes
the fast way, else the plain one; a relative that computes something of its own at least has caches.
`with minitransformer.fast.disabled():` is a block in which everything goes the plain way.

| module | what it saves |
| --- | --- |
| `untouched` | nothing: it decides whether a model is what its classes say |
| `decoding` | what earlier tokens have computed |
| `reserved_cache` | room made anew |
| `single_position` | operations between the products of one token |
| `turned` | turning weights for each text |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from minitransformer.fast.decoding import CachedTexts, Decoding
from minitransformer.fast.untouched import is_unheard_relative, is_untouched

__all__ = ["Decoding", "decoding_of", "disabled", "serves"]

_is_open = ContextVar("_is_open", default=True)


@contextmanager
def disabled() -> Iterator[None]:
    """Inside the block everything is computed plainly, module after module, in this thread.

    For whoever reads along, steps through a model with a debugger, or compares.

    Example:
        >>> import minitransformer as mt
        >>> config = mt.TransformerConfig.decoder_only(30, num_layers=2, d_model=12, num_heads=3)
        >>> model, prompt = mt.DecoderOnlyTransformer(config), torch.tensor([[5, 6, 7]])
        >>> fast = mt.generate(model, prompt, max_new_tokens=4)
        >>> with disabled():
        ...     torch.equal(mt.generate(model, prompt, max_new_tokens=4), fast)
        True
    """
    before = _is_open.set(False)
    try:
        yield
    finally:
        _is_open.reset(before)


def decoding_of(model: nn.Module) -> type[CachedTexts] | None:
    """How `generate` may write with caches what the model would; None if only the plain way may."""
    if serves(model):
        return Decoding
    is_open = _is_open.get() and not torch.compiler.is_compiling()
    return CachedTexts if is_open and is_unheard_relative(model) else None


def serves(model: nn.Module) -> bool:
    """Whether the fast way computes what the model would: it is untouched, and nothing forbids."""
    return _is_open.get() and not torch.compiler.is_compiling() and is_untouched(model)
