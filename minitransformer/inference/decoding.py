"""A batch of texts while a model decodes them: each step reads one new token, with caches.

Built in chapter 10.
"""

from typing import Any

import torch
from torch import Tensor

from minitransformer.checks import check_padding
from minitransformer.layers.cache import KVCache

__all__ = ["CachedDecoding"]


class CachedDecoding:
    """A batch of texts that a model with `decode` generates, and a cache for each of its layers.

    `ids`, (b, n), padded on the right, are the sources of an encoder-decoder model, whose targets
    begin with `bos_id`, or the prompts of a decoder. Memory is reserved for `max_new_tokens`.
    """

    def __init__(self, model: Any, ids: Tensor, bos_id: int, max_new_tokens: int) -> None:
        check_forward(model)
        self.model = model
        self.source: tuple[Tensor, Tensor | None] | None = None
        self.padding: Tensor | None = None
        if model.config.num_encoder_layers:
            self.prompts = ids.new_full((len(ids), 1), bos_id, dtype=torch.int64)
            memory, mask = model.encode(ids)
            self.source = memory, None if bool(mask.all()) else mask
        else:
            self.prompts, self.padding = padded_left(ids, model.config.pad_id)
        positions = self.prompts.size(1) + max_new_tokens - 1  # the last token is not read
        self.caches = [KVCache(positions) for _ in model.decoder.layers]

    def __call__(self, ids: Tensor) -> Tensor:
        """Read the next ids, (rows, n); score what follows, (rows, v)."""
        if self.source is None:
            logits = self.model.decode(ids, self.caches, self.padding)
        else:
            logits = self.model.decode(ids, *self.source, self.caches)
        for layer, cache in zip(self.model.decoder.layers, self.caches, strict=True):
            if cache.length != self.caches[0].length or not cache.length:
                kind = type(layer.self_attention).__name__
                raise ValueError(f"{kind} cannot decode: its forward kept no keys in its cache")
        return logits[:, -1].float()

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""
        for cache in self.caches:
            cache.select(rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
        if self.source is not None and sources is not None:
            memory, mask = self.source
            self.source = memory[sources], None if mask is None else mask[sources]
            for cache in self.caches:
                cache.memory.select(sources)


def check_forward(model: Any) -> None:
    """Raise an error where `forward` alone was overridden: generation calls `decode`."""
    kinds = type(model).__mro__
    forward, decode = (
        next((kind for kind in kinds if name in vars(kind)), object)
        for name in ("forward", "decode")
    )
    if forward is not decode and issubclass(forward, decode):
        raise ValueError(
            f"{forward.__name__}.forward is not called in generation, which calls decode: "
            f"{decode.__name__}.decode would compute something else; override decode instead"
        )


def padded_left(ids: Tensor, pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Move padding from the right of each row to its left, and count it; None if there is none.

    Ids are (b, n) and so is what is returned; the counts are (b,).
    """
    check_padding("prompts", ids, pad_id)
    lengths = (ids != pad_id).sum(dim=-1)
    if not bool(lengths.all()):
        raise ValueError("every prompt must have at least 1 token, got one with 0")
    longest = int(lengths.max())
    padding = longest - lengths
    columns = torch.arange(longest, device=ids.device) - padding[:, None]
    moved = ids.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, pad_id)
    return moved, padding if bool(padding.any()) else None
