"""The laws of a healthy model, each tried on one batch.

Axes: `b` batch, `s` source position, `t` target position, `v` vocabulary.

Built in chapter 17.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.attention import ScaledDotProductAttention, attention_weights
from minitransformer.cache import KVCache
from minitransformer.case import Case, Found, change
from minitransformer.inspection import record_attention

__all__ = ["LAWS"]


def numbers_are_finite(case: Case) -> Found:
    logits, loss = case.logits(), float(case.loss())
    finite = math.isfinite(loss) and bool(logits[case.real].isfinite().all())
    if not finite:
        return (
            False,
            f"loss {loss}: overflow in {next(case.model.parameters()).dtype}, a root or "
            "logarithm of 0, or a row of attention with nothing to see",
        )
    even = math.log(logits.size(-1))
    return True, f"loss {loss:.2f} nats; ln v = {even:.2f} is that of a model that knows nothing"


def logits_are_scores(case: Case) -> Found:
    logits = case.logits()
    normal = bool(((logits.sum(-1) - 1).abs() < 1e-2).all()) and float(logits.min()) >= 0
    if normal:
        return False, "every row sums to 1: a softmax stands before the loss, which has its own"
    return True, f"between {float(logits.min()):.1f} and {float(logits.max()):.1f}"


def loss_is_of_the_logits(case: Case) -> Found:
    logits, loss = case.logits(), float(case.loss())
    expected = float(F.cross_entropy(logits[case.real], case.targets[case.real]))
    if abs(loss - expected) <= min(case.tolerance(logits), 1e-2 * (1 + expected)):
        return True, f"{expected:.2f} nats over {int(case.real.sum())} targets"
    return (
        False,
        f"loss {loss:.3f}, but the cross-entropy of targets that are not padding is "
        f"{expected:.3f}: padding counts, a softmax comes first, or rows count alike and not words",
    )


def padding_is_known(case: Case) -> Found:
    for name, ids in (("source", case.src), ("target", case.targets)):
        if ids is None or ids.size(1) < 2:
            continue
        ends = ids[(ids[:, -1] == ids[:, -2]) & (ids[:, -1] != case.pad_id), -1]
        if len(ends) and 2 * int(ends.bincount().max()) >= len(ids):
            filler = int(ends.mode().values)
            return False, f"many a {name} ends in a run of id {filler}, but pad_id={case.pad_id}"
        gap = (ids[:, :-1] == case.pad_id) & (ids[:, 1:] != case.pad_id)
        if bool(gap.any()):
            return False, f"padding stands before a token of a {name}: fill rows on the right"
    return True, f"pad_id={case.pad_id} stands to the right only"


def targets_follow_the_input(case: Case) -> Found:
    def share(first: Tensor, second: Tensor) -> float:
        real = (first != case.pad_id) & (second != case.pad_id)
        return float((first == second)[real].float().mean()) if bool(real.any()) else 0.0

    follow = share(case.targets[:, :-1], case.ids[:, 1:])
    if follow > 0.99:
        return True, "each target is the next input"
    if share(case.targets, case.ids) > 0.99:
        return False, "each target is the input itself: labels are not shifted"
    if share(case.targets[:, :-2], case.ids[:, 2:]) > 0.99:
        return False, "each target is the input after the next: labels are shifted twice"
    return False, f"{follow:.0%} of targets are the next input"


def targets_end(case: Case) -> Found:
    if case.src is None:
        return None  # a text is cut anywhere
    last = case.targets.gather(1, case.real.sum(1, keepdim=True).clamp(min=1) - 1)[:, 0]
    end = int(last.mode().values)
    inside = int(((case.targets == end) & case.real).sum()) > len(last)
    if bool((last == end).all()) and not inside:
        return True, f"every target ends with id {end}"
    return (
        False,
        f"{len(last.unique())} different last ids: no end is learned (left out, or "
        "taken for padding)",
    )


def source_matters(case: Case) -> Found:
    if case.src is None:
        return None
    before = case.logits()
    moved = change(before, case.logits(src=case.other(case.src)), case.real)
    if moved > case.tolerance(before) / 1000:  # where nothing gets through it is 0
        return True, f"another source moves logits by {moved:.2g}"
    return (
        False,
        f"another source moves logits by {moved:.2g}: keys and values of "
        "cross-attention do not come from the encoder, or its mask is inverted",
    )


def past_matters(case: Case) -> Found:
    before, ids, later = case.logits(), case.ids.clone(), case.real.clone()
    ids[:, 0], later[:, 0] = case.other(case.ids)[:, 0], False
    moved = change(before, case.logits(ids=ids), later)
    if moved > case.tolerance(before) / 1000:  # where nothing gets through it is 0
        return True, f"another first token moves later logits by {moved:.2g}"
    return False, f"another first token moves later logits by {moved:.2g}: the mask is inverted"


def no_peeking(case: Case) -> Found:
    before, worst = case.logits(), 0.0
    length = case.ids.size(1)
    for start in {1, length // 2, length - 1}:
        ids = torch.cat([case.ids[:, :start], case.other(case.ids)[:, start:]], dim=1)
        worst = max(worst, change(before[:, :start], case.logits(ids=ids)[:, :start]))
    if worst <= case.tolerance(before):
        return True, "other tokens to come change nothing before them"
    return (
        False,
        f"tokens to come change logits before them by {worst:.2g}: no causal mask, an "
        "inverted one, or heads split without a transpose",
    )


def positions_differ(case: Case) -> Found:
    if case.model.config.positional_encoding == "none":
        return None
    src = None if case.src is None else case.src[:2, :1].expand(2, 5)
    with record_attention(case.model) as maps:
        case.logits(src=src, ids=case.ids[:2, :1].expand(2, 5))
    for side in ("encoder", "decoder"):
        found = [w for name, w in maps.items() if name.startswith(side) and "self" in name]
        even = [(w > 0) / (w > 0).sum(-1, keepdim=True) for w in found]
        if found and all(
            bool((w - e).abs().max() < 1e-5) for w, e in zip(found, even, strict=True)
        ):
            return (
                False,
                f"in a text of one token, again and again, all weights of the {side} are "
                "equal: positions are left out",
            )
    return True, "a token is told from the same token elsewhere"


def rows_stay_apart(case: Case) -> Found:
    before = case.logits()
    src = case.src
    if src is not None:
        src = torch.cat([src[:1], case.other(src)[1:]])
    ids = torch.cat([case.ids[:1], case.other(case.ids)[1:]])
    moved = change(before[:1], case.logits(src=src, ids=ids)[:1], case.real[:1])
    if moved <= case.tolerance(before):
        return True, "other rows change nothing in the first"
    return False, f"other rows change the first by {moved:.2g}: an axis of the batch is mixed in"


def padding_is_invisible(case: Case) -> Found:
    before = case.logits()
    src = None if case.src is None else F.pad(case.src, (0, 3), value=case.pad_id)
    ids = F.pad(case.ids, (0, 2), value=case.pad_id)
    after = case.logits(src=src, ids=ids)[:, : case.ids.size(1)]
    moved = change(before, after, case.real)
    if moved <= case.tolerance(before):
        return True, "more padding changes nothing"
    return False, f"more padding changes logits by {moved:.2g}: it is attended"


def attention_is_the_formula(case: Case) -> Found:
    worst, handles = [0.0], []

    def compare(module: Any, args: Any, named: Any, output: Tensor) -> None:
        names = ("query", "key", "value", "mask", "bias")
        inputs = dict(zip(names, args, strict=False)) | named
        value = inputs.pop("value")
        expected = attention_weights(**inputs, scale=module.scale) @ value
        worst[0] = max(worst[0], float((output - expected).abs().max() / expected.abs().max()))

    for module in case.model.modules():
        if isinstance(module, ScaledDotProductAttention):
            handles.append(module.register_forward_hook(compare, with_kwargs=True))
    if not handles:
        return None
    try:
        case.logits()
    finally:
        for handle in handles:
            handle.remove()
    if worst[0] < 1e-3 or (next(case.model.parameters()).dtype != torch.float32 and worst[0] < 0.1):
        return True, "softmax(QKᵀ/√d_k) V, over the keys that the mask allows"
    return (
        False,
        f"attention differs from its formula by {worst[0]:.0%}: another scale, a softmax "
        "over another axis, or a mask that is not heeded",
    )


def cached_is_full(case: Case) -> Found:
    if not hasattr(case.model, "decode"):
        return None
    full = case.logits()
    memory = () if case.src is None else case.model.encode(case.src)
    caches = [KVCache() for _ in case.model.decoder.layers]
    steps = [
        case.model.decode(case.ids[:, t : t + 1], *memory, caches=caches).float()
        for t in range(case.ids.size(1))
    ]
    moved = change(full, torch.cat(steps, dim=1), case.real)
    if moved <= case.tolerance(full):
        return True, "one token at a time gives the same logits as the whole text"
    return (
        False,
        f"with a cache logits differ by {moved:.2g}: positions begin again, or the cache "
        "is not all that is attended",
    )


def gradients_arrive(case: Case) -> Found:
    parameters = {n: p for n, p in case.model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        loss = case.loss()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    # Adding the same to all scores of a query moves no weight, so the keys' bias learns nothing.
    still = [
        name
        for name, grad in zip(parameters, found, strict=True)
        if (grad is None or not bool(grad.any())) and not name.endswith("w_k.bias")
    ]
    if still:
        return (
            False,
            f"{len(still)} parameters get none, as {still[0]}: cut off",
        )
    broken = [
        name
        for name, grad in zip(parameters, found, strict=True)
        if grad is not None and not bool(grad.isfinite().all())
    ]
    if broken:
        return False, f"{len(broken)} gradients are not finite, as that of {broken[0]}"
    return True, f"all {len(parameters)} parameters get one"


def batch_is_learned(case: Case) -> Found:
    rows = [x[:8] for x in case.batch]
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    saved = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, 0.98))
    gradients = [p.grad for p in parameters]
    losses = []
    try:
        with torch.enable_grad():
            for step in range(60):
                optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 20)
                loss = case.loss(*rows)
                losses.append(loss.item())
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
    finally:
        for parameter, value, gradient in zip(parameters, saved, gradients, strict=True):
            parameter.data.copy_(value)
            parameter.grad = gradient
    start, end = losses[0], min(losses[-5:])
    text = f"60 steps on {len(rows[0])} rows bring the loss from {start:.2f} to {end:.2f}"
    return end < max(0.6 * start, 0.1), text


LAWS: dict[str, Callable[[Case], Found]] = {
    "numbers are finite": numbers_are_finite,
    "logits are scores": logits_are_scores,
    "loss is the logits'": loss_is_of_the_logits,
    "padding is known": padding_is_known,
    "targets follow the input": targets_follow_the_input,
    "targets end": targets_end,
    "source matters": source_matters,
    "past matters": past_matters,
    "no peeking": no_peeking,
    "positions differ": positions_differ,
    "rows stay apart": rows_stay_apart,
    "padding is invisible": padding_is_invisible,
    "attention is the formula": attention_is_the_formula,
    "cached = full": cached_is_full,
    "gradients arrive": gradients_arrive,
    "a batch is learned": batch_is_learned,
}
