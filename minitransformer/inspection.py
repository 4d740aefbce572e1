"""Looking inside a model while it computes: its attention weights.

Built in chapter 4.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.attention import ScaledDotProductAttention, attention_weights

__all__ = ["record_attention"]


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

    Built in chapter 4.
    """
    maps: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, ScaledDotProductAttention):
            owner = name.rpartition(".")[0]

            def record(_: nn.Module, args: Any, named: Any, owner: str = owner) -> None:
                names = ("query", "key", "value", "mask", "bias")
                inputs = dict(zip(names, args, strict=False)) | named
                inputs.pop("value")
                with torch.no_grad():
                    maps[owner] = attention_weights(**inputs)

            handles.append(module.register_forward_pre_hook(record, with_kwargs=True))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()
