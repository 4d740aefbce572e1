"""Beam search: keep the few best beginnings of a text, and extend them all.

Built in chapter 10. Paper: "Google's Neural Machine Translation System" (Wu et al., 2016),
section 7; its settings for the Transformer: Vaswani et al. (2017), section 6.1.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["beam_search", "length_normalisation"]


class Step(Protocol):
    """What beam search asks of a model, see `CachedDecoding`."""

    prompts: Tensor

    def __call__(self, ids: Tensor) -> Tensor:
        """Read the next ids, (rows, n); score what follows, (rows, v)."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Go on with these rows, in this order; with these sources, if some have left."""


def length_normalisation(length: int, alpha: float) -> float:
    """((5 + length) / 6)^α: what the log-probability of a text of that length is divided by.

    Every token makes a text less probable, so the most probable text is often too short. α = 0
    compares log-probabilities; the greater α, the better for long texts.

    Example:
        >>> length_normalisation(1, 0.6), round(length_normalisation(20, 0.6), 3)
        (1.0, 2.354)

    Paper: Wu et al., equation 14.
    """
    return ((5 + length) / 6) ** alpha


def beam_search(
    step: Step,
    *,
    num_beams: int,
    length_penalty: float,
    max_new_tokens: int,
    is_stop: Tensor,
    restrict: Callable[[Tensor, Tensor], Tensor],
) -> list[list[int]]:
    """For each source the best text that a beam of `num_beams` beginnings finds.

    A text's score is its log-probability over its `length_normalisation`. Each step extends every
    beginning by every token and keeps the best `num_beams`. A text that ends while among those is
    set aside. A source is done when no beginning can still beat its best ended text.

    Args:
        step: the model, see `Step`; `step.prompts` are what texts begin with, (b, n).
        num_beams: beginnings kept for each source.
        length_penalty: α of `length_normalisation`, at least 0.
        max_new_tokens: longest text, its end included.
        is_stop: which tokens end a text, (v,), boolean.
        restrict: from the texts so far, prompts included, (rows, n), and the scores, (rows, v), to
            scores; -inf for what may not follow. It must not raise any: the search ends early
            because a log-probability only falls.

    Returns:
        The ids of a text for each source, without the prompt.

    Raises:
        ValueError: if every text was forbidden for some source.

    Example:
        >>> class Same:  # a model that scores three tokens the same way each time
        ...     prompts = torch.empty(1, 0, dtype=torch.int64)
        ...
        ...     def __call__(self, ids):
        ...         return torch.tensor([[0.0, 2.0, 1.0]]).expand(len(ids), 3)
        ...
        ...     def select(self, rows, sources=None):
        ...         pass
        >>> options = {"num_beams": 2, "length_penalty": 0.6, "max_new_tokens": 3}
        >>> options |= {"is_stop": torch.tensor([False, False, True])}
        >>> beam_search(Same(), restrict=lambda texts, scores: scores, **options)
        [[1, 1, 1]]

    Paper: Wu et al., section 7.
    """
    logits = step(step.prompts)
    device, vocab_size = logits.device, logits.size(-1)
    num_sources, num_given = step.prompts.shape
    sources = torch.arange(num_sources, device=device)  # those that are not done
    scores = logits.new_zeros(num_sources, 1)  # (sources, beams)
    texts = step.prompts[:, None]  # (sources, beams, n); one beam at first: equal ones stay equal
    best: list[tuple[float, list[int]]] = [(-torch.inf, [])] * num_sources
    # Each beginning can end in as many ways as there are stop ids, so look at that many more.
    wanted = num_beams * (1 + int(is_stop.sum()))
    for length in range(1, max_new_tokens + 1):
        log_total = logits.logsumexp(dim=-1, keepdim=True)
        allowed = restrict(texts.flatten(0, 1), logits)  # (sources · beams, v)
        highest, tokens = allowed.topk(min(wanted, vocab_size), dim=-1)
        log_probs = (highest - log_total).view(*scores.shape, -1)  # (sources, beams, wanted)
        extended = (scores[..., None] + log_probs).flatten(1)  # (sources, beams · wanted)
        ranked, index = extended.topk(min(wanted, extended.size(1)), dim=1)  # (sources, wanted)
        origin, token = index // tokens.size(1), tokens.view_as(extended).gather(1, index)

        ended = is_stop[token] & (torch.arange(token.size(1), device=device) < num_beams)
        if length == max_new_tokens:
            ended[:, :num_beams] = True
        final = ranked.masked_fill(~ended, -torch.inf).max(dim=1)
        final_scores = (final.values / length_normalisation(length, length_penalty)).tolist()
        for row, (source, score) in enumerate(zip(sources.tolist(), final_scores, strict=True)):
            if score > best[source][0]:
                column = final.indices[row]
                text = [*texts[row, origin[row, column]].tolist(), int(token[row, column])]
                best[source] = (score, text)
        if length == max_new_tokens:
            break

        going_on = ranked.masked_fill(is_stop[token], -torch.inf)
        scores, kept = going_on.topk(min(num_beams, going_on.size(1)), dim=1)  # (sources, beams)
        origin, token = origin.gather(1, kept), token.gather(1, kept)
        # A log-probability only falls, and is divided by most at the greatest length.
        bound = (scores[:, 0] / length_normalisation(max_new_tokens, length_penalty)).tolist()
        open_ = [r for r, s in enumerate(sources.tolist()) if best[s][0] < bound[r]]
        if not open_:
            break
        rows = torch.tensor(open_, device=device)
        origin, token, scores = origin[rows], token[rows], scores[rows]
        step.select(
            (rows[:, None] * texts.size(1) + origin).flatten(),
            None if len(open_) == len(sources) else rows,
        )
        sources = sources[rows]
        texts = torch.cat([texts[rows[:, None], origin], token[..., None]], dim=-1)  # one longer
        logits = step(token.view(-1, 1))
    if not all(score > -torch.inf for score, _ in best):
        raise ValueError("beam search found no text: at some step every token was forbidden")
    return [text[num_given:] for _, text in best]
