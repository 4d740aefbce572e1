"""The laws of a healthy model, each tried on one batch.

Axes: `b` batch, `s` source position, `t` target position, `v` vocabulary.

Built in chapter 17.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.inspection.record import record_attention
from minitransformer.layers.attention import ScaledDotProductAttention, attention_weights
from minitransformer.layers.cache import KVCache

__all__ = ["LAWS", "Case", "Found", "change"]

Found = tuple[bool, str] | None
"""Whether a law holds, and what was seen; None where it does not apply."""


@dataclass(frozen=True)
class Case:
    """A model and a batch for it."""

    model: Any
    src: Tensor | None
    ids: Tensor
    targets: Tensor
    pad_id: int
    measure: Callable[..., Tensor]
    """Its loss: a function of the model, a batch and `smoothing`."""

    @property
    def batch(self) -> list[Tensor]:
        """What the loss takes."""
        return [x for x in (self.src, self.ids, self.targets) if x is not None]

    def loss(self, *rows: Tensor) -> Tensor:
        """The loss of the batch, or of other rows, without smoothing."""
        return self.measure(self.model, *(rows or self.batch), smoothing=0.0)

    @property
    def real(self) -> Tensor:
        """Which targets count, (b, t)."""
        return self.targets != self.pad_id

    def logits(self, src: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """The model's logits, for another source or other ids."""
        src = self.src if src is None else src
        ids = self.ids if ids is None else ids
        logits: Tensor = self.model(ids) if src is None else self.model(src, ids)
        return logits.float()

    def tolerance(self, logits: Tensor) -> float:
        """What rounding may change in logits."""
        dtype = next(self.model.parameters()).dtype
        return 64 * torch.finfo(dtype).eps * (1 + float(logits.abs().max()))

    def other(self, ids: Tensor) -> Tensor:
        """Another token in each place that has one, and padding where there is padding."""
        known = ids[ids != self.pad_id].unique()
        place = torch.searchsorted(known, ids.clamp(min=int(known[0])))
        return torch.where(ids == self.pad_id, ids, known[(place + 1) % len(known)])


def change(before: Tensor, after: Tensor, where: Tensor | None = None) -> float:
    """The largest difference of logits, (b, t, v), at the positions `where`, (b, t)."""
    moved = (after - before).abs().amax(-1)
    return float(moved.max() if where is None else moved.masked_fill(~where, 0.0).max())


def numbers_are_finite(case: Case) -> Found:
    logits, loss = case.logits(), float(case.loss())
    if not (math.isfinite(loss) and bool(logits[case.real].isfinite().all())):
        causes = "a root or logarithm of 0, or a row of attention with nothing to see"
        return False, f"loss {loss}: overflow in {next(case.model.parameters()).dtype}, {causes}"
    even = math.log(logits.size(-1))
    return True, f"loss {loss:.2f} nats; ln v = {even:.2f} is that of a model that knows nothing"


def logits_are_scores(case: Case) -> Found:
    logits = case.logits()
    if bool(((logits.sum(-1) - 1).abs() < 1e-2).all()) and float(logits.min()) >= 0:
        return False, "every row sums to 1: a softmax stands before the loss, which has its own"
    return True, f"between {float(logits.min()):.1f} and {float(logits.max()):.1f}"


def loss_is_of_the_logits(case: Case) -> Found:
    logits, loss = case.logits(), float(case.loss())
    expected = float(F.cross_entropy(logits[case.real], case.targets[case.real]))
    if abs(loss - expected) <= min(case.tolerance(logits), 1e-2 * (1 + expected)):
        return True, f"{expected:.2f} nats over {int(case.real.sum())} targets"
    causes = "padding counts, a softmax comes first, or rows count alike and not words"
    what = "the cross-entropy of targets that are not padding"
    return False, f"loss {loss:.3f}, but {what} is {expected:.3f}: {causes}"


def padding_is_known(case: Case) -> Found:
    for name, ids in (("source", case.src), ("target", case.targets)):
        if ids is None or ids.size(1) < 2:
            continue
        ends = ids[(ids[:, -1] == ids[:, -2]) & (ids[:, -1] != case.pad_id), -1]
        if len(ends) and 2 * int(ends.bincount().max()) >= len(ids):
            filler = int(ends.mode().values)
            return False, f"many a {name} ends in a run of id {filler}, but pad_id={case.pad_id}"
        if bool(((ids[:, :-1] == case.pad_id) & (ids[:, 1:] != case.pad_id)).any()):
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
    causes = "no end is learned (left out, or taken for padding)"
    return False, f"{len(last.unique())} different last ids: {causes}"


def source_matters(case: Case) -> Found:
    if case.src is None:
        return None
    before = case.logits()
    moved = change(before, case.logits(src=case.other(case.src)), case.real)
    if moved > case.tolerance(before) / 1000:  # where nothing gets through it is 0
        return True, f"another source moves logits by {moved:.2g}"
    why = "keys and values of cross-attention do not come from the encoder, or its mask is inverted"
    return False, f"another source moves logits by {moved:.2g}: {why}"


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
        uneven = [(w - (w > 0) / (w > 0).sum(-1, keepdim=True)).abs().max() for w in found]
        if found and max(uneven) < 1e-5:
            what = f"in a text of one token, again and again, all weights of the {side} are equal"
            return False, f"{what}: positions are left out"
    return True, "a token is told from the same token elsewhere"


def rows_stay_apart(case: Case) -> Found:
    before = case.logits()
    src = None if case.src is None else torch.cat([case.src[:1], case.other(case.src)[1:]])
    ids = torch.cat([case.ids[:1], case.other(case.ids)[1:]])
    moved = change(before[:1], case.logits(src=src, ids=ids)[:1], case.real[:1])
    if moved <= case.tolerance(before):
        return True, "other rows change nothing in the first"
    return False, f"other rows change the first by {moved:.2g}: an axis of the batch is mixed in"


def padding_is_invisible(case: Case) -> Found:
    before = case.logits()
    src = None if case.src is None else F.pad(case.src, (0, 3), value=case.pad_id)
    after = case.logits(src=src, ids=F.pad(case.ids, (0, 2), value=case.pad_id))
    moved = change(before, after[:, :-2], case.real)
    if moved <= case.tolerance(before):
        return True, "more padding changes nothing"
    return False, f"more padding changes logits by {moved:.2g}: it is attended"


def attention_is_the_formula(case: Case) -> Found:
    attentions = [m for m in case.model.modules() if isinstance(m, ScaledDotProductAttention)]
    if not attentions:
        return None
    differences = []

    def compare(module: Any, args: Any, named: Any, output: Tensor) -> None:
        inputs = dict(zip(("query", "key", "value", "mask", "bias"), args, strict=False)) | named
        value = inputs.pop("value")
        expected = attention_weights(**inputs, scale=module.scale) @ value
        differences.append(float((output - expected).abs().max() / expected.abs().max()))

    with ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.register_forward_hook(compare, with_kwargs=True))
        case.logits()
    worst = max(0.0, *differences)
    if worst < (1e-3 if next(case.model.parameters()).dtype == torch.float32 else 0.1):
        return True, "softmax(QKᵀ/√d_k) V, over the keys that the mask allows"
    causes = "another scale, a softmax over another axis, or a mask that is not heeded"
    return False, f"attention differs from its formula by {worst:.0%}: {causes}"


def cached_is_full(case: Case) -> Found:
    if not hasattr(case.model, "decode"):
        return None
    full = case.logits()
    memory = () if case.src is None else case.model.encode(case.src)
    caches = [KVCache() for _ in case.model.decoder.layers]
    steps = [case.model.decode(ids, *memory, caches=caches) for ids in case.ids.split(1, dim=1)]
    moved = change(full, torch.cat(steps, dim=1).float(), case.real)
    if moved <= case.tolerance(full):
        return True, "one token at a time gives the same logits as the whole text"
    causes = "positions begin again, or the cache is not all that is attended"
    return False, f"with a cache logits differ by {moved:.2g}: {causes}"


def gradients_arrive(case: Case) -> Found:
    parameters = {n: p for n, p in case.model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        found = torch.autograd.grad(case.loss(), [*parameters.values()], allow_unused=True)
    gradients = dict(zip(parameters, found, strict=True))
    # Adding the same to all scores of a query moves no weight, so the keys' bias learns nothing.
    still = [n for n, g in gradients.items() if (g is None or not g.any()) and "w_k.bias" not in n]
    if still:
        return False, f"{len(still)} parameters get none, as {still[0]}: cut off"
    broken = [n for n, g in gradients.items() if g is not None and not g.isfinite().all()]
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
"""The laws, by name: what holds of a right model and its batch, whatever was trained."""
