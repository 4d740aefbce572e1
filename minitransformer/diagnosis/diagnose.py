"""What to check before the first step: laws of a healthy model, tried on one batch.

Axes: `b` batch, `s` source position, `t` target position, `v` vocabulary.

Built in chapter 17.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from minitransformer.diagnosis.laws import LAWS, Case
from minitransformer.inspection.record import evaluating
from minitransformer.training.loss import next_token_loss

__all__ = ["Diagnosis", "Finding", "diagnose"]


class Finding(NamedTuple):
    """One law, and whether it held.

    Example:
        >>> Finding("no peeking", True, "the future changed nothing").passed
        True
    """

    law: str
    passed: bool
    found: str
    """What was seen, with its numbers, and what to suspect first where the law does not hold."""


class Diagnosis(list[Finding]):
    """What `diagnose` returns: the findings in order, shown as a table.

    Example:
        >>> Diagnosis([Finding("no peeking", False, "the future changes the past by 0.3")])
        FAILS  no peeking  the future changes the past by 0.3
    """

    @property
    def failed(self) -> list[str]:
        """The laws that do not hold."""
        return [finding.law for finding in self if not finding.passed]

    def __repr__(self) -> str:
        width = max((len(finding.law) for finding in self), default=0)
        return "\n".join(
            f"{'holds' if passed else 'FAILS'}  {law.ljust(width)}  {found}"
            for law, passed, found in self
        )


def diagnose(
    model: Any, batch: Sequence[Tensor], loss: Callable[..., Tensor] = next_token_loss
) -> Diagnosis:
    """Try the laws of a healthy model, trained or not; nothing of it is changed in the end.

    Takes as long as 100 steps of training on eight rows: the last check learns them by heart.

    Args:
        model: a `Transformer` or a `DecoderOnlyTransformer`, or what was made of one.
        batch: what the loss takes: source (b, s), target input (b, t) and targets (b, t), or
            ids (b, t) and targets (b, t) where there is no encoder, int64. At least two rows, of
            unequal lengths if there are such, and three positions.
        loss: what it is trained with: a function of the model, the batch and `smoothing`.

    Returns:
        A finding for each law that can be tried; printed, or shown by a notebook, they are a table.

    Raises:
        ValueError: if the batch is too small, or of another number of tensors than the model takes.

    Example:
        >>> import torch
        >>> from minitransformer.models.config import TransformerConfig
        >>> from minitransformer.models.transformer import Transformer
        >>> sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_model": 12, "d_ff": 16}
        >>> config = TransformerConfig(**sizes, num_heads=3, num_encoder_layers=1)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> src = torch.tensor([[3, 4, 5, 2], [6, 3, 2, 0]])
        >>> tgt = torch.tensor([[1, 5, 4, 3, 2], [1, 3, 6, 2, 0]])
        >>> diagnose(model, (src, tgt[:, :-1], tgt[:, :-1])).failed
        ['targets follow the input', 'targets end']
    """
    case = case_of(model, batch, loss)
    findings = Diagnosis()
    with evaluating(model):
        for law, check in LAWS.items():
            if found := check(case):
                findings.append(Finding(law, *found))
                if law == "numbers are finite" and not found[0]:
                    return findings  # nothing can be compared with NaN
    return findings


def case_of(model: Any, batch: Sequence[Tensor], loss: Callable[..., Tensor]) -> Case:
    """The model and its batch, if they fit together."""
    has_encoder = model.config.num_encoder_layers > 0
    if len(batch) != 2 + has_encoder:
        raise ValueError(f"batch must have {2 + has_encoder} tensors, got {len(batch)}")
    ids, targets = batch[-2:]
    shape = tuple(targets.shape)
    if min(shape) < 2 or shape[1] < 3:
        raise ValueError(f"targets must have at least 2 rows and 3 positions, got {shape}")
    src = batch[0] if has_encoder else None
    return Case(model, src, ids, targets, model.config.pad_id, loss)
