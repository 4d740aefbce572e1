"""A batch while it is being written: each token is computed once, in room that is there already."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from minitransformer.decoding import KVCache, prompts_of
from minitransformer.fast.single_position import Product, SinglePositionLayer


class ReservedCache(KVCache):
    """A `KVCache` in memory reserved once, for `torch.cat` copies all that was there each time.

    Args:
        max_len: number of positions to make room for.

    Example:
        >>> cache, new = ReservedCache(max_len=10), torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), tuple(cache.keys.shape)
        ((2, 3, 2, 4), (2, 3, 10, 4))
    """

    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.max_len = max_len
        self.spare: tuple[Tensor, ...] | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the next positions' keys and values, (b, h, q, e); return all so far.

        Raises:
            ValueError: if there is no room left.
        """
        start, end = self.length, self.length + keys.size(-2)
        if end > self.max_len:
            raise ValueError(f"the cache holds {self.max_len} positions, {end} are needed")
        if start == 0:
            b, h, _, e = keys.shape
            self.keys, self.values = (x.new_empty(b, h, self.max_len, e) for x in (keys, values))
        self.keys[:, :, start:end], self.values[:, :, start:end] = keys, values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, (n,) int64, in this order; a row may be taken several times.

        They are copied to a second store, which the next call copies back from.
        """
        old, new, n = (self.keys, self.values), self.spare, rows.size(0)
        if new is None or new[0].size(0) < n:
            new = tuple(x.new_empty(n, *x.shape[1:]) for x in old)
        for x, y in zip(old, new, strict=True):
            filled = slice(self.length)
            torch.index_select(x[:, :, filled], 0, rows, out=y[:n, :, filled])
        self.spare = old
        self.keys, self.values = (y[:n] for y in new)


class CachedTexts:
    """What `WholeTexts` does, with caches: each token goes once through `model.decode`.

    Args:
        model: an encoder-decoder or a decoder-only model.
        ids: sources of the former, prompts of the latter, (b, n), filled on the right.
        bos_id: what the targets of the former begin with.
        max_new_tokens: how many tokens to make room for.
    """

    def __init__(self, model: nn.Module, ids: Tensor, bos_id: int, max_new_tokens: int) -> None:
        self.model = cast(Any, model)
        self.prompt, self.padding = prompts_of(model, ids, bos_id, max_new_tokens)
        self.has_encoder = self.model.config.num_encoder_layers > 0
        positions = self.prompt.size(1) + max_new_tokens - 1
        self.caches = [ReservedCache(positions) for _ in self.model.decoder.layers]
        if self.has_encoder:
            self.memory, self.memory_mask = self.model.encode(ids)

    def __call__(self, tokens: Tensor | None) -> Tensor:
        """Append a token to each row, (rows,), none at first; score what follows, (rows, v)."""
        return self.decode(self.prompt if tokens is None else tokens[:, None])

    def decode(self, ids: Tensor) -> Tensor:
        """Append ids, (rows, n); score what follows the last, (rows, v)."""
        if not self.has_encoder:
            logits = self.model.decode(ids, self.caches, self.padding)
        else:  # in beam search several texts have one source
            num_texts = ids.size(0) // self.memory.size(0)
            memory, mask = (
                x if num_texts == 1 else x.repeat_interleave(num_texts, dim=0)
                for x in (self.memory, self.memory_mask)
            )
            logits = self.model.decode(ids, memory, mask, self.caches)
        return cast(Tensor, logits[:, -1].float())

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""
        for cache in self.caches:
            cache.select(rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
        if sources is not None and self.has_encoder:
            self.memory, self.memory_mask = self.memory[sources], self.memory_mask[sources]


class Decoding(CachedTexts):
    """The same around the modules, for a model that is untouched.

    Keys and values of cross-attention depend on the encoder's output alone: they are computed
    once. In beam search several rows have one source, whose keys and values are there once.

    Args:
        model: an encoder-decoder or a decoder-only model.
        ids: as in `CachedTexts`.
        bos_id: as there.
        max_new_tokens: as there.
    """

    def __init__(self, model: nn.Module, ids: Tensor, bos_id: int, max_new_tokens: int) -> None:
        super().__init__(model, ids, bos_id, max_new_tokens)
        self.embedding = self.model.tgt_embedding if self.has_encoder else self.model.embedding
        layers = self.model.decoder.layers
        self.layers = [SinglePositionLayer(layer) for layer in layers]
        self.score = Product(self.model.output_projection)
        self.memories: list[tuple[Tensor, Tensor]] = []
        self.mask_of_memory: Tensor | None = None
        if self.has_encoder:
            if not bool(self.memory_mask.all()):
                self.mask_of_memory = self.memory_mask
            self.memories = [projected(layer.cross_attention, self.memory) for layer in layers]

    def __call__(self, tokens: Tensor | None) -> Tensor:
        """Append a token to each row, (rows,), none at first; score what follows, (rows, v)."""
        ids = self.prompt if tokens is None else tokens[:, None]
        if ids.size(1) > 1:
            return self.decode(ids)
        start, mask = self.caches[0].length, None
        x = self.model.embed(self.embedding, ids, start, self.padding)[:, 0]
        if self.padding is not None:
            positions = torch.arange(start + 1, device=x.device)
            mask = positions >= self.padding[:, None, None, None]
        for index, layer in enumerate(self.layers):
            memory = self.memories[index] if self.has_encoder else None
            x = layer(x, self.caches[index], mask, memory, self.mask_of_memory)
        return self.score(self.model.decoder.norm(x)).float()

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""
        super().select(rows, sources)
        if sources is not None:
            self.memories = [(keys[sources], values[sources]) for keys, values in self.memories]
            if self.mask_of_memory is not None:
                self.mask_of_memory = self.mask_of_memory[sources]


def projected(attention: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the encoder's output, (b, kv heads, s, e)."""
    keys, values = attention.w_k(memory), attention.w_v(memory)
    return attention.split_heads(keys), attention.split_heads(values)
