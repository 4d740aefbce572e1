"""Faults that raise no error: a model or a batch broken on purpose, each in one place.

The first kind of function breaks the model it is given, in place; the others are a loss with a
fault, and what spoils a batch. A dozen were found in published code, where they ran.

Built in chapter 17.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.layers.attention import ScaledDotProductAttention, as_tensor
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.transformer import TokenModel
from minitransformer.training.data import Batch
from minitransformer.training.loss import label_smoothing_loss

__all__ = ["FAULTY_BATCHES", "FAULTY_LOSSES", "FAULTY_MODELS"]


def attentions(model: nn.Module, kind: type[nn.Module] = ScaledDotProductAttention) -> list[Any]:
    """All attentions of a model, or all its layers of a kind, to be given other methods."""
    return [module for module in model.modules() if isinstance(module, kind)]


def change_masks(model: Any, changed: Callable[[Any, Tensor, Tensor], Any]) -> None:
    """Give every attention another mask: a function of the mask, the queries and the keys."""

    def attend(
        forward: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, bias: Any = None
    ) -> Tensor:
        return forward(query, key, value, changed(mask, query, key), bias)

    for attention in attentions(model):
        attention.forward = partial(attend, attention.forward)


def mask_inverted(model: Any) -> None:
    """True hides, as in `nn.MultiheadAttention`, where True should let through."""

    def opposite(mask: Any, query: Tensor, key: Tensor) -> Tensor | None:
        allowed = as_tensor(mask, query, key)
        return None if allowed is None else ~allowed

    change_masks(model, opposite)


def causal_mask_missing(model: Any) -> None:
    """The decoder sees what it has to predict."""
    for layer in model.decoder.layers:
        core = layer.self_attention
        core.attend = lambda q, k, v, mask, attend=core.attend: attend(q, k, v, None)


def padding_attended(model: Any) -> None:
    """The source's padding is read as if it were tokens."""

    def encode(src_ids: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones_like(src_ids, dtype=torch.bool)[:, None, None, :]
        src = model.dropout(model.embed(model.src_embedding, src_ids))
        return model.encoder(src, mask), mask

    model.encode = encode


def scale_missing(model: Any) -> None:
    """Scores are not divided by √d_k."""
    multiply_scores(model, math.sqrt(model.config.d_model / model.config.num_heads))


def scale_of_d_model(model: Any) -> None:
    """Scores are divided by √d_model, where √d_k is meant."""
    multiply_scores(model, 1 / math.sqrt(model.config.num_heads))


def multiply_scores(model: Any, factor: float) -> None:
    """Scores are larger by a factor."""
    for attention in attentions(model):
        forward = attention.forward
        attention.forward = lambda q, *others, forward=forward: forward(q * factor, *others)


def softmax_over_queries(model: Any) -> None:
    """The weights of a key sum to 1, and not those of a query."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Any = None, bias: Any = None
    ) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.size(-1)) + (0 if bias is None else bias)
        if (allowed := as_tensor(mask, query, key)) is not None:
            scores = scores.masked_fill(~allowed, -1e9)
        return scores.softmax(dim=-2) @ value

    for attention in attentions(model):
        attention.forward = attend


def softmax_before_the_loss(model: Any) -> None:
    """The model ends in a softmax, and the loss begins with one."""
    project = model.output_projection.forward
    model.output_projection.forward = lambda x: project(x).softmax(dim=-1)


def heads_without_transpose(model: Any) -> None:
    """(b, n, h·e) is viewed as (b, h, n, e): a head gets pieces of several positions."""
    for module in attentions(model, MultiHeadAttention):
        module.split_heads = lambda x, e=module.d_k: x.reshape(x.size(0), -1, x.size(1), e)


def heads_joined_without_transpose(model: Any) -> None:
    """(b, h, n, e) is viewed as (b, n, h·e): a position gets pieces of other positions."""
    for module in attentions(model, MultiHeadAttention):

        def joined(*inputs: Any, attend: Any = module.attend) -> Tensor:
            heads = attend(*inputs)
            wrong = heads.reshape(len(heads), heads.size(2), -1)
            return wrong.unflatten(-1, (heads.size(1), -1)).transpose(1, 2)

        module.attend = joined


def mask_on_its_side(model: Any) -> None:
    """The encoder's mask is (b, 1, s, 1): padding does not look, and is looked at."""
    forward = model.encoder.forward
    model.encoder.forward = lambda src, mask: forward(src, mask.mT)


def mask_of_other_rows(model: Any) -> None:
    """Masks are repeated row by row where heads are laid out head by head."""

    def mixed(mask: Any, query: Tensor, key: Tensor) -> Any:  # of (b, h), read as of (h, b)
        if not isinstance(mask, Tensor):
            return mask
        rows, heads = query.shape[:2]
        mask = mask.expand(rows, heads, query.size(-2), key.size(-2))
        return mask.reshape(heads, rows, *mask.shape[2:]).transpose(0, 1)

    change_masks(model, mixed)


def keys_of_the_target(model: Any) -> None:
    """Cross-attention asks the target, and never the source."""
    for layer in model.decoder.layers:
        cross = layer.cross_attention
        cross.forward = lambda query, key, value, mask=None, cache=None, forward=cross.forward: (
            forward(query, query, query, "causal", cache)
        )


def positions_left_out(model: Any) -> None:
    """No vector carries its position."""
    model.positions = None


def positions_restarted(model: Any) -> None:
    """With a cache, each new token is told that it is the first."""
    model.embed = lambda embedding, ids, start=0: TokenModel.embed(model, embedding, ids, 0)


def rows_mixed(model: Any) -> None:
    """A norm over the batch in the place of one over the width."""
    norm = model.encoder.layers[0].residual_1

    def forward(x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out = x + sublayer(x)
        return (out - out.mean(0, keepdim=True)) / (out.std(0, keepdim=True) + 1e-5)

    norm.forward = forward


def encoder_detached(model: Any) -> None:
    """The encoder's output is cut off from the gradient."""
    forward = model.encoder.forward
    model.encoder.forward = lambda *args: forward(*args).detach()


def padding_in_the_loss(model: Any, *batch: Tensor, smoothing: float = 0.0) -> Tensor:
    """To predict padding counts as much as to predict a word."""
    *inputs, targets = batch
    return label_smoothing_loss(model(*inputs), targets, smoothing=smoothing, pad_id=-1)


def mean_of_means(model: Any, *batch: Tensor, smoothing: float = 0.0) -> Tensor:
    """The loss is the mean over rows of their means: a word of a long text counts less."""
    *inputs, targets = batch
    rows = zip(model(*inputs), targets, strict=True)
    return torch.stack([label_smoothing_loss(*row, smoothing=smoothing) for row in rows]).mean()


def labels_not_shifted(batch: Batch) -> Batch:
    """Each position is asked for the token it has been given."""
    return batch._replace(tgt_output=batch.tgt_input)


def labels_shifted_twice(batch: Batch) -> Batch:
    """Each position is asked for the token after the next: shifted by the data and by the loss."""
    return batch._replace(tgt_output=F.pad(batch.tgt_output[:, 1:], (0, 1)))


def end_left_out(batch: Batch, end: int = 2) -> Batch:
    """The last target of a text is its last word."""
    return batch._replace(tgt_output=batch.tgt_output.masked_fill(batch.tgt_output == end, 0))


def filled_with_the_end(batch: Batch, end: int = 2) -> Batch:
    """Short rows are filled with the end, which the model does not know for padding."""
    return Batch(*(x.masked_fill(x == 0, end) for x in batch))


def end_taken_for_padding(batch: Batch, end: int = 2) -> Batch:
    """The end has the padding's id, so the loss leaves it out."""
    return Batch(*(x.masked_fill(x == end, 0) for x in batch))


FAULTY_MODELS: dict[str, Callable[[Any], None]] = {
    "mask inverted": mask_inverted,
    "causal mask missing": causal_mask_missing,
    "padding attended": padding_attended,
    "scale missing": scale_missing,
    "√d_model for √d_k": scale_of_d_model,
    "softmax over queries": softmax_over_queries,
    "softmax before the loss": softmax_before_the_loss,
    "heads without transpose": heads_without_transpose,
    "heads joined without transpose": heads_joined_without_transpose,
    "mask on its side": mask_on_its_side,
    "mask of other rows": mask_of_other_rows,
    "keys of the target": keys_of_the_target,
    "positions left out": positions_left_out,
    "positions restarted": positions_restarted,
    "rows mixed": rows_mixed,
    "encoder detached": encoder_detached,
}
"""Faults of a model, by name: each changes a model in place."""

FAULTY_LOSSES: dict[str, Callable[..., Tensor]] = {
    "padding in the loss": padding_in_the_loss,
    "mean of means": mean_of_means,
}
"""Faults of a loss, by name: each is called in place of the loss."""

FAULTY_BATCHES: dict[str, Callable[[Batch], Batch]] = {
    "labels not shifted": labels_not_shifted,
    "labels shifted twice": labels_shifted_twice,
    "end left out": end_left_out,
    "end taken for padding": end_taken_for_padding,
    "filled with the end": filled_with_the_end,
}
"""Faults of a batch, by name: each returns the batch with the fault."""
