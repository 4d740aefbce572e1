"""Looking inside a model while it computes: its attention weights, and every tensor's shape.

Built in chapters 4 and 8.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitransformer.layers.attention import ScaledDotProductAttention, attention_weights

__all__ = ["Trace", "TracedTensor", "record_attention", "trace"]


_blocks: dict[nn.Module, tuple[int, bool]] = {}
"""How many blocks evaluate a module at the moment, and in which mode the first one found it."""
_changing = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off inside the block, and back to what they were after it.

    Several threads may evaluate a model, or parts of it, at once: the last one to leave a module
    puts it back in its mode.
    """
    modules = list(model.modules())
    with _changing:
        for module in modules:
            count, mode = _blocks.get(module, (0, module.training))
            _blocks[module] = count + 1, mode
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        with _changing:
            for module in modules:
                count, mode = _blocks.pop(module)
                if count > 1:
                    _blocks[module] = count - 1, mode
                elif module.training != mode:  # to set it takes longer than to look
                    module.training = mode


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the attention weights of every `ScaledDotProductAttention` inside `model`.

    The model computes as before; beside it the formula computes the weights. The last call's stay.

    Args:
        model: any module, called inside the `with` block.

    Yields:
        Weights, (b, h, q, k), by module name, such as "decoder.layers.0.cross_attention".

    Example:
        >>> attention = ScaledDotProductAttention()
        >>> with record_attention(attention) as maps:
        ...     _ = attention(torch.zeros(3, 4), torch.zeros(2, 4), torch.zeros(2, 4))
        >>> {name: tuple(weights.shape) for name, weights in maps.items()}
        {'': (3, 2)}
    """
    maps: dict[str, Tensor] = {}

    def record(
        owner: str, core: ScaledDotProductAttention, args: tuple[Tensor, ...], named: dict[str, Any]
    ) -> None:
        names = ("query", "key", "value", "mask", "bias")
        inputs = dict(zip(names, args, strict=False)) | named
        inputs.pop("value")
        with torch.no_grad():
            maps[owner] = attention_weights(**inputs, scale=core.scale)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, ScaledDotProductAttention):
                hook = partial(record, name.rpartition(".")[0])
                hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        yield maps


class TracedTensor(NamedTuple):
    """A tensor on its way through a model.

    Example:
        >>> TracedTensor("w_1", "Linear", "b s f", (2, 5, 20), 260).axes
        'b s f'
    """

    module: str
    """Name of the module that made it, such as "encoder.layers.0.self_attention.w_q"."""
    kind: str
    """Class of that module."""
    axes: str
    """Its axes in the book's alphabet, such as "b s d"; "?" where a module is not the book's."""
    shape: tuple[int, ...]
    parameters: int
    """How many parameters the module itself holds; a weight used twice counts the first time."""


class Trace(list[TracedTensor]):
    """What `trace` returns: the tensors in the order in which they were made, shown as a table.

    Example:
        >>> Trace([TracedTensor("w_1", "Linear", "b s f", (2, 5, 20), 260)])
        tensor made by  class   axes   shape       parameters
        w_1             Linear  b s f  2 × 5 × 20         260
        sum                                               260
    """

    def __repr__(self) -> str:
        rows = [("tensor made by", "class", "axes", "shape", "parameters")]
        for row in self:
            shape = " × ".join(map(str, row.shape))
            count = f"{row.parameters:,}" if row.parameters else ""
            rows.append((row.module or "the model", row.kind, row.axes, shape, count))
        rows.append(("sum", "", "", "", f"{sum(row.parameters for row in self):,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([*map(str.ljust, row[:-1], widths), row[-1].rjust(widths[-1])]).rstrip()
            for row in rows
        )


WIDTHS = {
    **dict.fromkeys(("SinusoidalPositionalEncoding", "LearnedPositionalEncoding"), "d"),
    **dict.fromkeys(("TokenEmbedding", "LayerNorm", "RMSNorm", "ResidualConnection"), "d"),
    **dict.fromkeys(("w_q", "w_o", "w_2"), "d"),
    **{"w_1": "f", "w_3": "f", "OutputProjection": "v"},
}
"""The last axis of what a module makes, by its class or by its name."""

SIDES = {"Encoder": "s", "EncoderLayer": "s", "Decoder": "t", "DecoderLayer": "t"}
"""The positions that a part of a model works on, when it is traced alone."""

SILENT = (nn.Dropout, nn.Identity)
"""Modules that pass their input on, in evaluation."""


def trace(model: nn.Module, *inputs: Tensor) -> Trace:
    """Run a model and list the shape of every tensor that its modules make on the way.

    Every module without sub-modules is listed, and every attention with what enters it, split
    into heads. The model computes as in evaluation, without gradients, and stays as it was.

    Args:
        model: any module; the axes of the book's own are named: b batch, h head, q query, k key,
            s source, t target, d width, e head width, f inner width, v vocabulary, h' heads of
            keys and values where they are fewer.
        inputs: what to call it with, such as source ids and target ids.

    Returns:
        The tensors in order; printed, or shown by a notebook, they are a table.

    Example:
        >>> from minitransformer.layers.multi_head_attention import MultiHeadAttention
        >>> x, memory = torch.zeros(2, 5, 12), torch.zeros(2, 7, 12)
        >>> trace(MultiHeadAttention(12, 3), x, memory, memory)
        tensor made by  class                      axes     shape          parameters
        w_q             Linear                     b q d    2 × 5 × 12            156
        w_k             Linear                     b k d    2 × 7 × 12            156
        w_v             Linear                     b k d    2 × 7 × 12            156
        attention       queries                    b h q e  2 × 3 × 5 × 4
        attention       keys                       b h k e  2 × 3 × 7 × 4
        attention       values                     b h k e  2 × 3 × 7 × 4
        attention       weights                    b h q k  2 × 3 × 5 × 7
        attention       ScaledDotProductAttention  b h q e  2 × 3 × 5 × 4
        w_o             Linear                     b q d    2 × 5 × 12            156
        sum                                                                       624
    """
    traced: Trace = Trace()
    counted: set[int] = set()
    encoder_done = False

    def side_of(name: str) -> str:
        """The positions a module works on: s, t, or q in what is traced alone."""
        nonlocal encoder_done
        if name.startswith("encoder."):
            encoder_done = True  # what is outside both stacks reads the source first
            return "s"
        if hasattr(model, "encoder"):
            return "t" if encoder_done else "s"
        return "t" if hasattr(model, "decoder") else SIDES.get(type(model).__name__, "q")

    def keys_of(owner: str) -> str:
        side = "s" if owner.endswith("cross_attention") else side_of(owner)
        return "k" if side == "q" else side

    def add(name: str, kind: str, axes: str, tensor: Tensor, parameters: int = 0) -> None:
        axes = axes if len(axes.split()) == tensor.dim() else "?"
        traced.append(TracedTensor(name, kind, axes, tuple(tensor.shape), parameters))

    def made(name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        owner, _, attribute = name.rpartition(".")
        kind, side, keys = type(module).__name__, side_of(name), keys_of(owner)
        width = WIDTHS.get(kind) or WIDTHS.get(attribute)
        axes = f"b {side} {width}" if width else "?"
        if attribute in ("w_k", "w_v"):
            # Fewer heads of keys and values than of queries: h' of them.
            axes = f"b {keys} " + ("d" if output.size(-1) == module.in_features else "h'e")
        elif kind == "ScaledDotProductAttention":
            axes = f"b h {side} e"
            query, key, value = args[:3]
            add(name, "queries", axes, query)
            add(name, "keys", f"b h {keys} e", key)
            add(name, "values", f"b h {keys} e", value)
            add(name, "weights", f"b h {side} {keys}", query[..., :1] @ key[..., :1].mT)
        elif kind == "ALiBi":
            axes = f"h {side} {keys}"
        own = [p for p in module.parameters(recurse=False) if id(p) not in counted]
        counted.update(map(id, own))
        add(name, kind, axes, output, sum(p.numel() for p in own))

    with ExitStack() as hooks, evaluating(model):
        for name, module in model.named_modules():
            kind = type(module).__name__
            if isinstance(module, SILENT) or kind == "RotaryPositionalEncoding":
                continue
            if kind == "ResidualConnection" or not list(module.children()):
                hooks.enter_context(module.register_forward_hook(partial(made, name)))
        model(*inputs)
    return traced
