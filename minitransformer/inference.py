"""Writing with a trained model: greedily, at random, or by beam search.

Built in chapter 10. Paper: "Attention Is All You Need" (Vaswani et al., 2017), sections 3.1
(auto-regressive decoding) and 6.1 (beam search).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.beam_search import beam_search
from minitransformer.checks import check_instance
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.decoding import WholeTexts, check_options, room
from minitransformer.fast import decoding_of
from minitransformer.inspection import evaluating
from minitransformer.logits_processors import LogitsProcessor
from minitransformer.sampling import next_token_probs
from minitransformer.tokenization import pad_rows
from minitransformer.transformer import Transformer

__all__ = ["generate"]


def generate(
    model: Transformer | DecoderOnlyTransformer,
    ids: Tensor,
    *,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 1,
    num_beams: int = 1,
    alpha: float = 0.6,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
    bos_id: int | None = None,
    stop_ids: Sequence[int] | None = None,
    logits_processors: Sequence[LogitsProcessor] = (),
) -> Tensor:
    """Write one token after another: a target for each source, or what follows each prompt.

    The most probable token each time (greedy, when nothing is said); a random one, with a
    `temperature` above 0; or the best text that beam search finds, with several `num_beams`. Rows
    that have ended leave the batch. Padding is never written.

    Args:
        model: a trained model; dropout is off while it decodes.
        ids: sources of an encoder-decoder model or prompts of a decoder-only model, (b, n), an
            integer dtype, on the model's device; short rows are filled with pad_id on the right.
        max_new_tokens: longest text, its end included; when left out 64, or as many as the model
            has room for.
        min_new_tokens: shortest text, its end included.
        num_beams: beginnings that beam search keeps; 1 is no beam search.
        alpha: see `length_penalty`; 0.6 is the paper's.
        temperature: see `next_token_probs`; 0 draws nothing.
        top_k: see `top_k_filter`.
        top_p: see `top_p_filter`.
        min_p: see `min_p_filter`.
        generator: where random numbers come from; PyTorch's global generator when left out.
        bos_id: what the targets of an encoder-decoder model begin with; not returned. When left
            out, the configuration's `start_id`, and 1 if it has none.
        stop_ids: each of them ends a text; the model's own when left out.
        logits_processors: functions of the texts so far, (rows, n), with their prompts (padded on
            the left) or begin token, and of the scores, (rows, v), that return the scores to go on
            with; called in this order, whatever the way of writing. See `repetition_penalty`.

    Returns:
        New tokens, (b, n) with n ≤ max_new_tokens, int64; after its end a row is filled with
        pad_id.

    Raises:
        TypeError: if `ids` are not integers.
        ValueError: if an argument is out of range, two do not fit together, or `ids` do not fit
            the model; if `logits_processors` forbid every token.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> config = TransformerConfig.decoder_only(30, num_layers=2, d_model=12, num_heads=3)
        >>> model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
        >>> prompts = torch.tensor([[5, 6, 7], [8, 0, 0]])
        >>> generate(model, prompts, max_new_tokens=4, min_new_tokens=4).shape
        torch.Size([2, 4])

    Built in chapter 10.
    """
    check_instance("ids", ids, Tensor)
    if max_new_tokens is None:
        max_new_tokens = int(max(min_new_tokens, min(64, room(model, ids))))
    stop_ids = model.stop_ids if stop_ids is None else stop_ids
    cuts: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    check_options(
        model,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        num_beams=num_beams,
        alpha=alpha,
        temperature=temperature,
        cuts=cuts,
        stop_ids=stop_ids,
    )
    vocab_size, pad_id = model.config.tgt_vocab_size, model.config.pad_id
    padding = [pad_id] if pad_id >= 0 else []  # -1 is no token, and has no score
    if bos_id is None:
        bos_id = getattr(model.config, "start_id", 1)
    is_stop = torch.zeros(vocab_size, dtype=torch.bool, device=ids.device)
    is_stop[list(stop_ids)] = True
    never = torch.tensor(padding, dtype=torch.int64, device=ids.device)
    not_yet = torch.tensor([*padding, *stop_ids], dtype=torch.int64, device=ids.device)

    def restrict(texts: Tensor, logits: Tensor) -> Tensor:
        for processor in logits_processors:
            logits = processor(texts, logits)
        is_early = texts.size(1) - prompts.size(1) + 1 < min_new_tokens
        logits = logits.index_fill(-1, not_yet if is_early else never, -torch.inf)
        # A beginning of beam search may have nowhere to go while others have.
        if logits_processors and num_beams == 1 and not bool((logits > -torch.inf).any(-1).all()):
            raise ValueError("logits_processors forbade every token")
        return logits

    def choose(logits: Tensor) -> Tensor:
        if temperature == 0:
            return logits.argmax(dim=-1)
        probs = next_token_probs(logits, temperature=temperature, **cuts)
        return probs.multinomial(1, generator=generator)[:, 0]

    cached = decoding_of(model)
    # Where nobody listens nobody meets a tensor of inference mode, in which steps are faster.
    with evaluating(model), torch.inference_mode() if cached else torch.no_grad():
        step = (cached or WholeTexts)(model, ids, bos_id, max_new_tokens)
        prompts = step.prompt.long()
        if num_beams > 1:
            texts = beam_search(
                step,
                prompts,
                num_beams=num_beams,
                alpha=alpha,
                max_new_tokens=max_new_tokens,
                is_stop=is_stop,
                restrict=restrict,
            )
            written = pad_rows(texts, pad_id).to(ids.device)
        else:
            start = prompts.size(1)
            written = F.pad(prompts, (0, max_new_tokens), value=pad_id)
            rows = torch.arange(ids.size(0), device=ids.device)  # those that have not ended
            logits = step(None)
            for end in range(start, start + max_new_tokens):
                tokens = choose(restrict(written[rows, :end], logits))
                written[rows, end] = tokens
                ended = is_stop[tokens]
                if end + 1 == written.size(1) or bool(ended.all()):
                    break
                if bool(ended.any()):
                    kept = (~ended).nonzero()[:, 0]
                    rows, tokens = rows[kept], tokens[kept]
                    step.select(kept, kept)
                logits = step(tokens)
            written = written[:, start : end + 1]
    return written.clone()  # outside inference mode: an ordinary tensor, fit for training
