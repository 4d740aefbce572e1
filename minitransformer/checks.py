"""What does not fit together is refused, with an error that names what was given and expected.

Checks that look at numbers, not shapes, are left out where there are none, so that models can be
compiled, exported and mapped (`vmap`).

Built in chapters 3, 4 and 9.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from numbers import Integral
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor


def library(name: str, extra: str) -> Any:
    """A library of one of the package's extras; an ImportError that names the extra without it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"this takes {name.partition('.')[0]}: pip install 'minitransformer[{extra}]'"
        ) from error


def known(condition: Tensor) -> bool | None:
    """A condition's value; None where it has none yet: in a trace, a CUDA graph or `vmap`."""
    is_captured = condition.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_captured or torch.compiler.is_compiling() or torch._C._is_tracing():
        return None
    try:
        return bool(condition)
    except RuntimeError:  # so says `vmap`, and every tensor without content
        return None


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Inside, products keep the dtype of their factors: `torch.autocast` would round scores."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def check_instance(name: str, x: object, kind: type) -> None:
    """Raise an error unless x is of that type."""
    if not isinstance(x, kind):
        raise TypeError(f"{name} must be of type {kind.__name__}, got {type(x).__name__}")


def check_at_least_1(**numbers: int | None) -> None:
    """Raise an error that names the first of some numbers below 1; None is none."""
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def check_axes(**vectors: Tensor) -> None:
    """Raise an error unless tensors are vectors at positions, (..., n, e)."""
    for name, x in vectors.items():
        if x.dim() < 2:
            raise ValueError(
                f"{name} must have at least 2 axes, positions and width, got shape {(*x.shape,)}"
            )


def texts_of(name: str, texts: Any) -> Iterator[str]:
    """Several texts, one by one; a TypeError, at once, for one, whose letters would be texts."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        got = "a single str" if isinstance(texts, str) else repr(texts)
        raise TypeError(f"{name} must be an iterable of texts, got {got}")

    def checked() -> Iterator[str]:
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be of type str, but number {index} is {text!r}")
            yield text

    return checked()


def check_vocab_size(vocab_size: int | None, tokens: Sequence[str]) -> None:
    """Raise an error unless a vocabulary has room for the tokens that training starts with."""
    if vocab_size is not None and vocab_size < len(tokens):
        raise ValueError(
            f"vocab_size must be at least {len(tokens)}, the number of tokens before any is "
            f"learned, got {vocab_size}"
        )


def check_schedule(step: int, warmup_steps: int, total_steps: int) -> None:
    """Raise an error unless the warm-up ends before the training does."""
    if step < 0 or not 0 <= warmup_steps < total_steps:
        raise ValueError(
            "step must be at least 0 and warmup_steps at least 0 and below total_steps, "
            f"got step={step}, warmup_steps={warmup_steps}, total_steps={total_steps}"
        )


def check_types(config: Any) -> None:
    """Raise an error unless every field of a dataclass is of the type that it is annotated with.

    An integer is a float too, but True is no number. NumPy's integers become Python's.
    """
    for name, hint in get_type_hints(type(config)).items():
        value, kinds = getattr(config, name), get_args(hint) or (hint,)
        if get_origin(hint) is Literal and value not in kinds:
            raise ValueError(f"{name} must be {' or '.join(map(repr, kinds))}, got {value!r}")
        if get_origin(hint) in (Literal, ClassVar, tuple):
            continue
        if isinstance(value, Integral) and not isinstance(value, int):
            value = int(value)
            object.__setattr__(config, name, value)  # it is frozen
        fits = isinstance(value, (*kinds, int) if float in kinds else kinds)
        if not fits or (isinstance(value, bool) and bool not in kinds):
            names = ("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise TypeError(f"{name} must be {' or '.join(names)}, got {value!r}")


def check_mask(mask: object, *kinds: type) -> None:
    """Raise an error unless it is a tensor, "causal", of one of some other kinds, or None."""
    if mask is None or isinstance(mask, (Tensor, *kinds)):
        return
    if isinstance(mask, str) and mask == "causal":
        return
    known = ", ".join(["a boolean tensor", *(f"a {kind.__name__}" for kind in kinds)])
    error = ValueError if isinstance(mask, str) else TypeError
    raise error(f"mask must be {known} or 'causal', got {mask!r}")


def check_causal(num_queries: int, num_keys: int) -> None:
    """Raise an error where the first queries would see nothing."""
    if num_queries > num_keys:
        raise ValueError(
            f"num_queries must not exceed num_keys, got {num_queries} queries, {num_keys} keys"
        )


def check_attention(
    query: Tensor, key: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
) -> None:
    """Raise an error that names both numbers when query, key, mask and bias do not fit."""
    check_axes(query=query, key=key)
    for name, x in (("query", query), ("key", key)):
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {x.dtype}")
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query and key must have the same width, got {query.size(-1)} and {key.size(-1)}"
        )
    if mask is not None and mask.dtype != torch.bool:
        advice = (
            "zeros and ones become one by `mask == 1` where 1 means may be attended, "
            "and by `mask == 0` where 1 means hidden"
        )
        if known((mask < 0).any()):
            advice = "an additive mask (0 and -inf) becomes one by `mask == 0`"
        raise TypeError(
            f"mask must be boolean with True = may be attended, got {mask.dtype}; {advice}"
        )
    if bias is not None and not bias.is_floating_point():
        raise TypeError(
            f"bias must be floating point, to be added to the scores, got {bias.dtype}; "
            "a boolean tensor with True = may be attended is a mask"
        )
    scores = (*broadcast(query=query, key=key), query.size(-2), key.size(-2))
    for name, part in (("mask", mask), ("bias", bias)):
        shape = () if part is None else tuple(part.shape)
        pairs = zip(reversed(shape), reversed(scores), strict=False)  # the last axes are the same
        if len(shape) > len(scores) or any(size not in (1, wanted) for size, wanted in pairs):
            raise ValueError(
                f"{name} of shape {shape} does not broadcast to scores of shape {scores}"
            )


def check_values(key: Tensor, value: Tensor) -> None:
    """Raise an error unless there is a value for each key."""
    check_axes(key=key, value=value)
    if key.size(-2) != value.size(-2):
        raise ValueError(
            f"key and value must have as many positions, got {key.size(-2)} and {value.size(-2)}"
        )
    broadcast(key=key, value=value)


def broadcast(**tensors: Tensor) -> torch.Size:
    """The axes before the last two that two tensors have together."""
    x, y = (x.shape for x in tensors.values())
    try:  # broadcast_shapes is slow
        return x[:-2] if x[:-2] == y[:-2] else torch.broadcast_shapes(x[:-2], y[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"{' and '.join(tensors)} must have the same axes before the last two, "
            f"got shapes {(*x,)} and {(*y,)}"
        ) from error


def check_attention_settings(dropout: float, backend: str) -> None:
    """Raise an error unless there is such an attention."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if backend not in ("reference", "sdpa"):
        raise ValueError(f"backend must be 'reference' or 'sdpa', got {backend!r}")


def check_loss(
    name: str, scored: Tensor, targets: Tensor, vocab_size: int, smoothing: float, pad_id: int
) -> None:
    """Raise an error unless there is a loss of these targets: one for each vector of `scored`."""
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    check_targets(scored[..., 0], targets, vocab_size, pad_id, name=f"{name}[..., 0]")


def check_targets(
    ids: Tensor, targets: Tensor, vocab_size: int, pad_id: int, *, name: str = "ids"
) -> None:
    """Raise an error unless there is a target for each id, and one that is not padding."""
    check_instance(name, ids, Tensor)
    check_instance("targets", targets, Tensor)
    if ids.shape != targets.shape:
        raise ValueError(
            f"{name} and targets must have the same shape, "
            f"got {(*ids.shape,)} and {(*targets.shape,)}"
        )
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be int64, got {targets.dtype}")
    real = targets != pad_id
    if known(real.any()) is False:
        raise ValueError(f"all {targets.numel()} targets are padding (id {pad_id})")
    outside = real & ((targets < 0) | (targets >= vocab_size))
    # On a GPU to ask would be to wait for it; there CUDA itself asserts.
    if targets.device.type == "cpu" and known(outside.any()):
        raise ValueError(
            f"target {int(targets[outside][0])} lies outside the vocabulary of {vocab_size} tokens"
        )


def check_ids(name: str, ids: Tensor) -> None:
    """Raise an error unless ids are a non-empty (b, length)."""
    check_instance(name, ids, Tensor)
    if ids.dim() != 2 or 0 in ids.shape:
        raise ValueError(
            f"{name} must have shape (b, length), both at least 1, got {(*ids.shape,)}"
        )


def check_padding(name: str, ids: Tensor, pad_id: int, *, may_begin: bool = False) -> None:
    """Raise an error unless rows, (b, length), are filled on the right only.

    Where it `may_begin`, pad_id is no padding if all rows begin with it, as those of T5 do.
    """
    if torch.compiler.is_compiling():  # what is traced would be for rows of some lengths only
        return
    is_padding = ids == pad_id
    is_wrong = is_padding[:, :-1] & ~is_padding[:, 1:]
    if may_begin:
        is_wrong[:, :1] &= ~is_padding[:, 0].all()
    if known(is_wrong.any()):
        raise ValueError(
            f"{name} must be filled on the right only, got pad_id={pad_id} before other ids"
        )


def check_rows(src_ids: Tensor, tgt_ids: Tensor) -> None:
    """Raise an error unless there is a source for each target."""
    check_ids("src_ids", src_ids)
    check_ids("tgt_ids", tgt_ids)
    if src_ids.size(0) != tgt_ids.size(0):
        raise ValueError(
            "src_ids and tgt_ids must have as many rows, "
            f"got {src_ids.size(0)} and {tgt_ids.size(0)}"
        )
