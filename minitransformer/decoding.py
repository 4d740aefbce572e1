"""A text while it is being written: what its next token is scored by, and the cache of attention.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.1
(auto-regressive decoding).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minitransformer.checks import check_ids, check_padding

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of one layer's positions so far, which need not be computed twice.

    Example:
        >>> cache = KVCache()
        >>> new = torch.ones(2, 3, 1, 4)
        >>> keys, values = cache.extend(new, new)
        >>> keys, values = cache.extend(new, new)
        >>> tuple(keys.shape), cache.length
        ((2, 3, 2, 4), 2)

    Built in chapter 10.
    """

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the next positions' keys and values, (b, h, q, e); return all so far."""
        if self.length:
            keys = torch.cat([self.keys, keys], dim=-2)
            values = torch.cat([self.values, values], dim=-2)
        self.keys, self.values, self.length = keys, values, keys.size(-2)
        return keys, values


class WholeTexts:
    """A batch while it is being written: each step asks `model(...)` about the whole texts.

    Args:
        model: an encoder-decoder or a decoder-only model.
        ids: sources of the former, prompts of the latter, (b, n), filled on the right.
        bos_id: what the targets of the former begin with.
        max_new_tokens: how many tokens there must be room for.
    """

    def __init__(self, model: Any, ids: Tensor, bos_id: int, max_new_tokens: int) -> None:
        self.model = model
        self.prompt, padding = prompts_of(model, ids, bos_id, max_new_tokens)
        self.texts = self.prompt
        self.padding = self.texts.new_zeros(len(self.texts)) if padding is None else padding
        self.sources = ids if model.config.num_encoder_layers else None

    def __call__(self, tokens: Tensor | None) -> Tensor:
        """Append a token to each row, (rows,), none at first; score what follows, (rows, v)."""
        if tokens is not None:
            self.texts = torch.cat([self.texts, tokens[:, None]], dim=1)
        if self.sources is not None:  # in beam search several texts have one source
            num_texts = len(self.texts) // len(self.sources)
            sources = self.sources.repeat_interleave(num_texts, dim=0)
            return self.model(sources, self.texts)[:, -1].float()
        logits = self.texts.new_empty(
            len(self.texts), self.model.config.tgt_vocab_size, dtype=torch.float32
        )
        for padding in self.padding.unique().tolist():
            rows = self.padding == padding
            logits[rows] = self.model(self.texts[rows, padding:])[:, -1].float()
        return logits

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""
        self.texts, self.padding = self.texts[rows], self.padding[rows]
        if self.sources is not None and sources is not None:
            self.sources = self.sources[sources]


def prompts_of(
    model: Any, ids: Tensor, bos_id: int, max_new_tokens: int
) -> tuple[Tensor, Tensor | None]:
    """What the texts begin with, (b, n), and how much padding each begins with, (b,), if any does.

    Raises:
        ValueError: if the model has no room for so many new tokens.
    """
    if model.config.num_encoder_layers:
        prompts, padding = ids.new_full((len(ids), 1), bos_id, dtype=torch.int64), None
    else:
        check_ids("ids", ids)
        prompts, padding = padded_left(ids, model.config.pad_id)
    if max_new_tokens > room(model, ids):
        length = prompts.size(1)
        raise ValueError(
            f"{length} tokens and max_new_tokens={max_new_tokens} take "
            f"{length + max_new_tokens - 1} positions, more than max_len={model.max_len}"
        )
    return prompts, padding


def check_options(
    model: Any,
    *,
    max_new_tokens: int,
    min_new_tokens: int,
    num_beams: int,
    alpha: float,
    temperature: float,
    cuts: Mapping[str, Any],
    stop_ids: Sequence[int],
) -> None:
    """Raise an error unless these options of `generate` are in range and fit together."""
    for name, value, low in (
        ("min_new_tokens", min_new_tokens, 1),
        ("max_new_tokens", max_new_tokens, min_new_tokens),
        ("num_beams", num_beams, 1),
        ("alpha", alpha, 0),
        ("temperature", temperature, 0),
    ):
        if not value >= low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
        if value == math.inf:
            raise ValueError(f"{name} must be finite, got {value}")
    if num_beams > 1 and temperature > 0:
        raise ValueError(
            f"beam search draws nothing: num_beams={num_beams} needs temperature 0, "
            f"got {temperature}"
        )
    for name, cut in cuts.items():
        if temperature == 0 and cut is not None:
            raise ValueError(f"{name}={cut} needs a temperature above 0, got 0")
    vocab_size, pad_id = model.config.tgt_vocab_size, model.config.pad_id
    for stop_id in stop_ids:
        if not 0 <= stop_id < vocab_size:
            raise ValueError(f"stop_ids must lie between 0 and {vocab_size - 1}, got {stop_id}")
    if min_new_tokens > 1 and len({pad_id, *stop_ids} - {-1}) == vocab_size:
        raise ValueError(
            f"min_new_tokens={min_new_tokens} needs a token that does not end the text, but "
            f"pad_id={pad_id} and stop_ids are all {vocab_size} there are"
        )


def room(model: Any, ids: Tensor) -> float:
    """How many tokens can follow the longest of these prompts, or the begin of a target."""
    longest = 1
    if not model.config.num_encoder_layers:
        check_ids("ids", ids)
        longest = int((ids != model.config.pad_id).sum(dim=-1).max())
    return model.max_len - longest + 1  # the last token that is written is not read again


def padded_left(ids: Tensor, pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Move padding from the right of each row to its left, and count it; None if there is none."""
    check_padding("prompts", ids, pad_id)
    lengths = (ids != pad_id).sum(dim=-1)
    if not bool(lengths.all()):
        raise ValueError("every prompt must have at least 1 token, got one with 0")
    longest = int(lengths.max())
    padding = longest - lengths
    columns = torch.arange(longest, device=ids.device) - padding[:, None]
    moved = ids.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, pad_id)
    return moved, padding if bool(padding.any()) else None
