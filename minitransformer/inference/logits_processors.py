"""Rules for the next token that know the text so far: penalties on repetition, and bans.

`generate` takes functions of (the text so far, the scores of the next token) that return new
scores, as `logits_processors`. These are the usual ones; `functools.partial` sets their last
arguments. Those of the library transformers can be passed too, with rows of unequal length only
where padding is a token: they would look up -1.

Built in chapter 10. Paper: "CTRL: A Conditional Transformer Language Model for Controllable
Generation" (Keskar et al., 2019), section 4.1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["no_repeat_ngrams", "occurrence_penalty", "repetition_penalty", "suppress_tokens"]

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""From ids, (rows, n), and logits, (rows, v), to logits; what may not follow gets -inf."""


def repetition_penalty(ids: Tensor, logits: Tensor, penalty: float, *, start: int = 0) -> Tensor:
    """Make what occurred less probable: its score is divided by θ if above 0, else multiplied.

    It acts once, however often a token occurred, and depends on where the scores have their zero,
    which their softmax does not. θ = 1 does nothing. (The paper divides all; a score below 0 would
    rise.)

    Args:
        ids: the text so far, prompt or begin token included, (rows, n), int64; -1 is no token.
        logits: scores of the next token, (rows, v), floating point, as what is returned.
        penalty: θ, above 0; others are a `ValueError`.
        start: columns before this one do not count, such as those of the prompts.

    Example:
        >>> ids, logits = torch.tensor([[1, 2, 1]]), torch.tensor([[3.0, 3.0, -3.0, -3.0]])
        >>> repetition_penalty(ids, logits, 1.5)
        tensor([[ 3.0000,  2.0000, -4.5000, -3.0000]])
    """
    if not penalty > 0.0:
        raise ValueError(f"penalty must be above 0, got {penalty}")
    occurred = token_counts(ids[:, start:], logits) > 0
    return torch.where(
        occurred, torch.where(logits > 0, logits / penalty, logits * penalty), logits
    )


def occurrence_penalty(
    ids: Tensor, logits: Tensor, *, presence: float = 0.0, frequency: float = 0.0, start: int = 0
) -> Tensor:
    """Subtract `presence` from the score of what occurred, and `frequency` for each occurrence.

    Either divides the odds against any other token by a power of e, wherever the scores have
    their zero. 0 does nothing. The other arguments are those of `repetition_penalty`.

    Example:
        >>> ids, logits = torch.tensor([[1, 2, 1]]), torch.zeros(1, 4)
        >>> occurrence_penalty(ids, logits, presence=1.0, frequency=0.5)
        tensor([[ 0.0000, -2.0000, -1.5000,  0.0000]])
    """
    times = token_counts(ids[:, start:], logits)
    return logits - frequency * times - presence * times.clamp(max=1)


def token_counts(ids: Tensor, logits: Tensor) -> Tensor:
    """How often each token occurs in ids, (rows, n), as (rows, v); padding of -1 is no token."""
    is_token = (ids >= 0).to(logits.dtype)
    return torch.zeros_like(logits).scatter_add(1, ids.clamp(min=0), is_token)


def no_repeat_ngrams(ids: Tensor, logits: Tensor, size: int) -> Tensor:
    """Forbid every token that would end a run of `size` tokens that the text already has.

    Ids and logits are those of `repetition_penalty`. A `size` of 1 allows each token once; below 1
    is a `ValueError`.

    Example:
        >>> ids, logits = torch.tensor([[1, 2, 3, 1]]), torch.zeros(1, 4)
        >>> no_repeat_ngrams(ids, logits, 2)  # 1 was followed by 2
        tensor([[0., 0., -inf, 0.]])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if ids.size(1) < size:
        return logits
    runs = ids.unfold(1, size, 1)  # (rows, n - size + 1, size)
    newest = ids[:, None, ids.size(1) - size + 1 :]
    again = (runs[..., :-1] == newest).all(dim=-1)
    forbidden = runs[..., -1].where(again, -1)
    return logits.masked_fill(token_counts(forbidden, logits) > 0, -torch.inf)


def suppress_tokens(ids: Tensor, logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Forbid these tokens everywhere, such as the one for unknown words, whatever the text is.

    Example:
        >>> suppress_tokens(torch.tensor([[1]]), torch.zeros(1, 4), [0, 3])
        tensor([[-inf, 0., 0., -inf]])
    """
    forbidden = torch.tensor([*tokens], dtype=torch.int64, device=logits.device)
    return logits.index_fill(-1, forbidden, -torch.inf)
