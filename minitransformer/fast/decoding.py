"""A batch while it is being written: each token is computed once, in room that is there already."""

from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.decoding import prompts_of
from minitransformer.fast.reserved_cache import ReservedCache
from minitransformer.fast.single_position import Product, SinglePositionLayer
from minitransformer.positional_encoding import LearnedPositionalEncoding


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
        self.vectors = self.embedding.weight.detach()
        self.positions = rows_of_positions(self.model.positions, self.vectors)
        self.memories: list[tuple[Tensor, Tensor]] = []
        self.mask_of_memory: Tensor | None = None
        if self.has_encoder:
            if not bool(self.memory_mask.all()):
                self.mask_of_memory = self.memory_mask
            layers = self.model.decoder.layers
            self.memories = [projected(layer.cross_attention, self.memory) for layer in layers]

    @cached_property
    def layers(self) -> list[SinglePositionLayer]:
        """What goes on after a prompt, which is read without them."""
        return [SinglePositionLayer(layer) for layer in self.model.decoder.layers]

    @cached_property
    def score(self) -> Product:
        """What the last layer's outputs are scored by."""
        return Product(self.model.output_projection)

    def __call__(self, tokens: Tensor | None) -> Tensor:
        """Append a token to each row, (rows,), none at first; score what follows, (rows, v)."""
        if tokens is None and self.prompt.size(1) > 1:
            return self.decode(self.prompt)
        x, mask = self.embed(tokens), None
        if self.padding is not None:
            positions = torch.arange(self.caches[0].length + 1, device=x.device)
            mask = positions >= self.padding[:, None, None, None]
        for index, layer in enumerate(self.layers):
            memory = self.memories[index] if self.has_encoder else None
            x = layer(x, self.caches[index], mask, memory, self.mask_of_memory)
        return self.score(self.model.decoder.norm(x)).float()

    def embed(self, tokens: Tensor | None) -> Tensor:
        """What `model.embed` makes of the next token of each row, (rows, d); of the first, if None.

        Tokens that were chosen from scores are in the vocabulary, and there is room for them.
        """
        start = self.caches[0].length
        if tokens is None or self.padding is not None:
            ids = self.prompt if tokens is None else tokens[:, None]
            return cast(Tensor, self.model.embed(self.embedding, ids, start, self.padding)[:, 0])
        x = F.embedding(tokens, self.vectors) * self.embedding.scale
        return x if self.positions is None else x + self.positions[start]

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""
        super().select(rows, sources)
        if sources is not None:
            self.memories = [(keys[sources], values[sources]) for keys, values in self.memories]
            if self.mask_of_memory is not None:
                self.mask_of_memory = self.mask_of_memory[sources]


def rows_of_positions(positions: nn.Module | None, vectors: Tensor) -> Tensor | None:
    """The table that is added to vectors, a row for each position, if there is one."""
    if positions is None:
        return None
    name = "weight" if isinstance(positions, LearnedPositionalEncoding) else "table"
    table: Tensor = getattr(positions, name)
    return table.detach().to(vectors)


def projected(attention: Any, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the encoder's output, (b, kv heads, s, e), laid out to be read often."""
    keys, values = (attention.split_heads(part(memory)) for part in (attention.w_k, attention.w_v))
    return keys.contiguous(), values.contiguous()
