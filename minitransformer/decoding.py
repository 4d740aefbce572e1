"""A batch while it is being decoded, and the cache of keys and values that makes it cheap.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1
(auto-regressive decoding).
"""

from typing import Any, cast

import torch
from torch import Tensor

from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.fast_decoding import Product, SinglePositionLayer
from minitransformer.transformer import Transformer, check_ids
from minitransformer.untouched import is_own, is_untouched, uncompiled

__all__ = ["KVCache"]


class KVCache:
    """Keys and values that one layer need not compute twice.

    Self-attention's grow by one position a step, in memory reserved once. Those of
    cross-attention depend on the encoder's output alone, so they are there from the start.

    Args:
        max_len: number of positions to make room for.
        memory: projected keys and values of the encoder's output, each (b, h, s, e), where the
            layer has cross-attention.

    Example:
        >>> cache = KVCache(max_len=10)
        >>> new = torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), cache.length
        ((2, 3, 2, 4), 2)

    Built in chapter 10.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, max_len: int, memory: tuple[Tensor, Tensor] | None = None) -> None:
        self.max_len = max_len
        self.memory = memory
        self.length = 0
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

    @classmethod
    def for_decoder(cls, model: Transformer, memory: Tensor, max_len: int) -> "list[KVCache]":
        """A cache for each decoder layer of `model`, given the encoder's output, (b, s, d)."""
        layers: Any = model.decoder.layers
        return [cls(max_len, layer.cross_attention.keys_values(memory, memory)) for layer in layers]

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


class Decoding:
    """A batch while it is being decoded: what a model must know to score the next tokens.

    Each step scores as `model(...)` would score the whole text, in the fastest way that is right:
    around the modules where they are untouched; through the layers and their caches where
    somebody listens to a part; and by `model(...)` itself where something has been exchanged.

    Args:
        model: an encoder-decoder or a decoder-only model.
        ids: sources of the former, prompts of the latter, (b, n), filled on the right.
        bos_id: what the targets of the former begin with.
        max_new_tokens: how many tokens to make room for.
    """

    def __init__(
        self,
        model: Transformer | DecoderOnlyTransformer,
        ids: Tensor,
        bos_id: int,
        max_new_tokens: int,
    ) -> None:
        self.model = cast(Any, model)
        self.has_encoder = model.config.num_encoder_layers > 0
        self.padding: Tensor | None = None
        if self.has_encoder:
            self.prompt = ids.new_full((ids.size(0), 1), bos_id, dtype=torch.int64)
        else:
            check_ids("ids", ids)
            self.prompt, self.padding = padded_left(ids, model.config.pad_id)
        length = self.prompt.size(1)
        positions = length + max_new_tokens - 1
        if max_new_tokens > room(model, ids):
            raise ValueError(
                f"{length} tokens and max_new_tokens={max_new_tokens} take {positions} "
                f"positions, more than max_len={model.max_len}"
            )
        self.is_fast = is_untouched(uncompiled(model))
        self.caches: list[KVCache] = []
        if not self.is_fast and not is_own(uncompiled(model)):
            self.sources, self.texts = ids, self.prompt[:, :0]
            return
        if self.has_encoder:
            self.memory, self.memory_mask = self.model.encode(ids)
            self.memory_is_padded = not bool(self.memory_mask.all())
            self.caches = KVCache.for_decoder(self.model, self.memory, positions)
        else:
            self.caches = [KVCache(positions) for _ in self.model.decoder.layers]
        if self.is_fast:
            name = "tgt_embedding" if self.has_encoder else "embedding"
            self.embedding = getattr(self.model, name)
            self.layers = [
                SinglePositionLayer(uncompiled(layer)) for layer in self.model.decoder.layers
            ]
            self.score = Product(self.model.output_projection)

    def __call__(self, tokens: Tensor | None) -> Tensor:
        """Append a token to each row, (rows,), none at first; score what follows, (rows, v)."""
        ids = self.prompt if tokens is None else tokens[:, None]
        if not self.caches:
            return self.read_again(ids)
        if self.is_fast and ids.size(1) == 1:
            return self.step(ids)
        if self.has_encoder:
            logits = self.model.decode(ids, self.memory, self.memory_mask, self.caches)
        else:
            logits = self.model.decode(ids, self.caches, self.padding)
        return cast(Tensor, logits[:, -1].float())

    def step(self, ids: Tensor) -> Tensor:
        """What `decode` does with one position of each row, (rows, 1), around the modules."""
        start = self.caches[0].length
        x = self.model.embed(self.embedding, ids, start, self.padding)[:, 0]
        mask = None
        if self.padding is not None:
            positions = torch.arange(start + 1, device=x.device)
            mask = positions >= self.padding[:, None, None, None]
        memory_mask = self.memory_mask if self.has_encoder and self.memory_is_padded else None
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = layer(x, cache, mask, memory_mask)
        return self.score(self.model.decoder.norm(x)).float()

    def read_again(self, ids: Tensor) -> Tensor:
        """What `model(...)` says of the whole texts, each without its padding."""
        self.texts = torch.cat([self.texts, ids], dim=1)
        if self.has_encoder:  # in beam search several texts have one source
            sources = self.sources.repeat_interleave(len(self.texts) // len(self.sources), dim=0)
            return cast(Tensor, self.model(sources, self.texts)[:, -1].float())
        if self.padding is None:
            return cast(Tensor, self.model(self.texts)[:, -1].float())
        logits = torch.empty(len(self.texts), self.model.config.tgt_vocab_size, device=ids.device)
        for padding in self.padding.unique().tolist():
            rows = self.padding == padding
            logits[rows] = self.model(self.texts[rows, padding:])[:, -1].float()
        return logits

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left.

        In beam search several rows have one source. The encoder's keys and values are there once.
        """
        for cache in self.caches:
            cache.select(rows)
            if cache.memory is not None and sources is not None:
                cache.memory = (cache.memory[0][sources], cache.memory[1][sources])
        if not self.caches:
            self.texts = self.texts[rows]
            self.sources = self.sources if sources is None else self.sources[sources]
        elif self.has_encoder and sources is not None:
            self.memory, self.memory_mask = self.memory[sources], self.memory_mask[sources]
        if self.padding is not None:
            self.padding = self.padding[rows]


def room(model: Transformer | DecoderOnlyTransformer, ids: Tensor) -> float:
    """How many tokens can follow the longest of these prompts, or the begin of a target."""
    longest = 1
    if not model.config.num_encoder_layers:
        check_ids("ids", ids)
        longest = int((ids != model.config.pad_id).sum(dim=-1).max())
    return model.max_len - longest + 1  # the last token that is written is not read again


def padded_left(ids: Tensor, pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Move padding from the right of each row to its left, and count it; None if there is none."""
    real = ids != pad_id
    lengths = real.sum(dim=-1)
    if not bool((real == (torch.arange(ids.size(1), device=ids.device) < lengths[:, None])).all()):
        raise ValueError(f"prompts must be filled on the right only, got pad_id={pad_id} inside")
    if not bool(lengths.all()):
        raise ValueError("every prompt must have at least 1 token, got one with 0")
    longest = int(lengths.max())
    padding = longest - lengths
    columns = torch.arange(longest, device=ids.device) - padding[:, None]
    moved = ids.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, pad_id)
    return moved, padding if bool(padding.any()) else None
