"""Generating text with a trained model: greedily, at random, or by beam search.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), sections 3.1
(auto-regressive decoding) and 6.1 (beam search).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.checks import check_ids, check_instance
from minitransformer.inference.beam_search import beam_search
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.inference.logits_processors import LogitsProcessor
from minitransformer.inference.sampling import next_token_probs
from minitransformer.inspection.record import evaluating
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.tokenization.tokenizer import pad_rows

__all__ = ["GenerationConfig", "generate"]


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How `generate` chooses the next token, and when it ends.

    Args:
        max_new_tokens: longest text, its end included; when left out 64, or as many as the model
            has positions for.
        min_new_tokens: shortest text, its end included.
        num_beams: beginnings that beam search keeps; 1 is no beam search.
        num_samples: texts drawn for each row.
        length_penalty: α of `length_normalisation` in beam search; 0.6 is the paper's.
        temperature, top_k, top_p, min_p: see `next_token_probs`; a temperature of 0 takes the most
            probable token each time (greedy).
        bos_id: what the targets of an encoder-decoder model begin with; not returned. When left
            out, the configuration's `start_id`, and 1 if it has none.
        stop_ids: each of them ends a text; the model's own when left out.

    Raises:
        ValueError: if an option is out of range, or two do not fit together.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 1
    num_beams: int = 1
    num_samples: int = 1
    length_penalty: float = 0.6
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    bos_id: int | None = None
    stop_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        lowest = {"min_new_tokens": 1, "max_new_tokens": self.min_new_tokens, "num_beams": 1}
        lowest |= {"num_samples": 1, "length_penalty": 0, "temperature": 0}
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise ValueError(f"{name} must be at least {low} and finite, got {value}")
        if self.num_beams > 1 and self.temperature > 0:
            raise ValueError(
                f"beam search draws nothing: num_beams={self.num_beams} needs temperature 0, "
                f"got {self.temperature}"
            )
        for name in ("top_k", "top_p", "min_p", "num_samples"):
            value = getattr(self, name)
            if self.temperature == 0 and value not in (None, 1):
                raise ValueError(f"{name}={value} needs a temperature above 0, got 0")

    def for_model(self, model: Any, ids: Tensor) -> "GenerationConfig":
        """The same options, with the model's values where none are given, checked against it."""
        vocab_size = model.config.tgt_vocab_size
        stop_ids = tuple(model.stop_ids if self.stop_ids is None else self.stop_ids)
        for stop_id in stop_ids:
            if not 0 <= stop_id < vocab_size:
                raise ValueError(f"stop_ids must lie between 0 and {vocab_size - 1}, got {stop_id}")
        length = 1
        if not model.config.num_encoder_layers:
            check_ids("ids", ids)
            length = int((ids != model.config.pad_id).sum(dim=-1).max())
        longest = model.max_len - length + 1  # the last token is not read
        new = self.max_new_tokens
        if new is None:
            new = int(max(self.min_new_tokens, min(64, longest)))
        if new > longest:
            raise ValueError(
                f"{length} tokens and max_new_tokens={new} take {length + new - 1} positions, "
                f"more than max_len={model.max_len}"
            )
        bos_id = getattr(model.config, "start_id", 1) if self.bos_id is None else self.bos_id
        return replace(self, max_new_tokens=new, bos_id=bos_id, stop_ids=stop_ids)


def generate(
    model: Transformer | DecoderOnlyTransformer,
    ids: Tensor,
    config: GenerationConfig | None = None,
    *,
    generator: torch.Generator | None = None,
    logits_processors: Sequence[LogitsProcessor] = (),
    **options: Any,
) -> Tensor:
    """Decode one token after another: a target for each source, or what follows each prompt.

    The most probable token each time (greedy, the default); a random one, with a `temperature`
    above 0; or the best text that beam search finds, with several `num_beams`. Rows that have
    ended leave the batch. Padding is never chosen. Keys and values are cached, whatever the model
    is: a subclass, a model with hooks, or with other parts than the usual ones.

    Args:
        model: a trained model; dropout is off while it decodes.
        ids: sources of an encoder-decoder model or prompts of a decoder-only model, (b, n), an
            integer dtype, on the model's device; short rows are filled with pad_id on the right.
        config: the options; `GenerationConfig()` when left out.
        generator: source of the random numbers; PyTorch's global generator when left out.
        logits_processors: functions of the texts so far, (rows, n), with their prompts (padded on
            the left) or begin token, and of the scores, (rows, v), that return new scores; called
            in this order. See `repetition_penalty`.
        options: fields of `GenerationConfig`, in place of those of `config`.

    Returns:
        New tokens, (b·num_samples, n) with n ≤ max_new_tokens, int64, the samples of a row one
        after the other; after its end a row is filled with pad_id.

    Raises:
        TypeError: if `ids` are not integers, or there is no such option.
        ValueError: if an option is out of range, two do not fit together, or `ids` do not fit
            the model; if every token is forbidden; if an attention keeps nothing in its cache.

    Example:
        >>> from minitransformer.models.config import TransformerConfig
        >>> config = TransformerConfig.decoder_only(30, num_layers=2, d_model=12, num_heads=3)
        >>> model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
        >>> prompts = torch.tensor([[5, 6, 7], [8, 0, 0]])
        >>> generate(model, prompts, max_new_tokens=4, min_new_tokens=4).shape
        torch.Size([2, 4])
    """
    check_instance("ids", ids, Tensor)
    settings: Any = replace(config or GenerationConfig(), **options).for_model(model, ids)
    pad_id, longest = model.config.pad_id, settings.max_new_tokens
    is_stop = torch.zeros(model.config.tgt_vocab_size, dtype=torch.bool, device=ids.device)
    is_stop[list(settings.stop_ids)] = True
    never = is_stop.new_tensor([pad_id] if pad_id >= 0 else [], dtype=torch.int64)
    not_yet = torch.cat([never, is_stop.nonzero()[:, 0]])

    def restrict(texts: Tensor, logits: Tensor) -> Tensor:  # (rows, n), (rows, v)
        for processor in logits_processors:
            logits = processor(texts, logits)
        is_early = texts.size(1) - step.prompts.size(1) + 1 < settings.min_new_tokens
        return logits.index_fill(-1, not_yet if is_early else never, -torch.inf)

    def choose(logits: Tensor) -> Tensor:
        may_end_up_empty = logits_processors or settings.min_new_tokens > 1
        if may_end_up_empty and not bool((logits > -torch.inf).any(dim=-1).all()):
            raise ValueError("logits_processors, padding and stop_ids forbade every token")
        if settings.temperature == 0:
            return logits.argmax(dim=-1)
        cuts = {"top_k": settings.top_k, "top_p": settings.top_p, "min_p": settings.min_p}
        probs = next_token_probs(logits, temperature=settings.temperature, **cuts)
        return probs.multinomial(1, generator=generator)[:, 0]

    with evaluating(model):
        step = CachedDecoding(model, ids, settings.bos_id, longest)
        if settings.num_beams > 1:
            found = beam_search(
                step,
                num_beams=settings.num_beams,
                length_penalty=settings.length_penalty,
                max_new_tokens=longest,
                is_stop=is_stop,
                restrict=restrict,
            )
            return pad_rows(found, pad_id).to(ids.device)
        logits = step(step.prompts)
        start, rows = step.prompts.size(1), torch.arange(len(ids), device=ids.device)
        if settings.num_samples > 1:
            rows = rows.repeat_interleave(settings.num_samples)
            step.select(rows, rows)
            logits = logits[rows]
        texts = F.pad(step.prompts[rows].long(), (0, longest), value=pad_id)
        rows = torch.arange(len(texts), device=ids.device)  # those that have not ended
        for end in range(start, start + longest):
            tokens = choose(restrict(texts[rows, :end], logits))
            texts[rows, end] = tokens
            goes_on = (~is_stop[tokens]).nonzero()[:, 0]
            if end + 1 == start + longest or not len(goes_on):
                break
            if len(goes_on) < len(rows):
                rows, tokens = rows[goes_on], tokens[goes_on]
                step.select(goes_on, goes_on)
            logits = step(tokens[:, None])
        return texts[:, start : end + 1]
