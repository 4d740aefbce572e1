"""Measuring a model on texts that it was not trained on, and ending a training by that.

Built in chapter 9.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitransformer.checkpoint import MEASURED
from minitransformer.data import as_pairs, collate, encode_pairs, epoch_batches, num_targets
from minitransformer.inference import translate
from minitransformer.inspection import evaluating
from minitransformer.loss import next_token_loss
from minitransformer.tokenization import Tokenizer
from minitransformer.transformer import Transformer

__all__ = ["EarlyStopping", "exact_match", "held_out_loss"]


def some_pairs(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    """Pairs of texts, at least one."""
    found = as_pairs(pairs)
    if not found:
        raise ValueError("pairs must hold at least 1 pair, got 0")
    return found


def exact_match(
    model: Transformer,
    pairs: Iterable[tuple[str, str]],
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    **options: Any,
) -> float:
    """The share of pairs whose translation equals the target, character by character.

    `options` go to `translate`, such as `max_new_tokens`; it is greedy when nothing is said.

    Raises:
        TypeError: if a pair is not two texts.
        ValueError: if there are no pairs, or a tokenizer does not fit the model.

    Built in chapter 9.
    """
    pairs = some_pairs(pairs)
    sources = [pair.src for pair in pairs]
    translations = translate(model, sources, src_tokenizer, tgt_tokenizer, **options)
    right = sum(text == pair.tgt for text, pair in zip(translations, pairs, strict=True))
    return right / len(pairs)


def held_out_loss(
    model: Transformer,
    pairs: Iterable[tuple[str, str]],
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    *,
    batch_size: int = 64,
) -> float:
    """The mean loss of a target token in nats: without label smoothing, without dropout.

    Each token counts once, whatever batch it is in. For running text there is
    `bits_per_character`.

    Args:
        model: a model, which stays in the mode that it is in.
        pairs: what it is not trained on.
        src_tokenizer: for the source side.
        tgt_tokenizer: for the target side.
        batch_size: pairs computed together.

    Raises:
        TypeError: if a pair is not two texts.
        ValueError: if there are no pairs, or `batch_size` is below 1.

    Example:
        >>> import torch
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.words import WordTokenizer
        >>> pairs, words = [("one two", "two one")], WordTokenizer.train(["one two"])
        >>> config = TransformerConfig(words.vocab_size, words.vocab_size, d_model=8, num_heads=2)
        >>> model = Transformer(config, torch.Generator().manual_seed(0))
        >>> 0 < held_out_loss(model, pairs, words, words) < 9
        True

    Built in chapter 9.
    """
    examples = encode_pairs(some_pairs(pairs), src_tokenizer, tgt_tokenizer, model.config)
    pad_id, device = model.config.pad_id, next(model.parameters()).device
    nats, count = 0.0, 0
    with evaluating(model):
        for batch in epoch_batches(examples, batch_size, seed=0, epoch=0):
            parts = (part.to(device) for part in collate(batch, pad_id))
            targets = num_targets(batch, pad_id)
            nats += targets * next_token_loss(model, *parts).item()
            count += targets
    return nats / count


@dataclass(frozen=True)
class EarlyStopping:
    """When to end a training, and what of it to keep: by a number that `evaluate` returns.

    It counts nothing itself. All follows from the history, which is in every checkpoint; so a
    training that was stopped and resumed ends where it would have ended.

    Args:
        watch: the name of the number.
        patience: evaluations in a row that bring nothing better, after which the training ends;
            None lets it go on to its end.
        best: file to save to whenever the number is better than ever; None keeps nothing.
        higher_is_better: for scores; a loss is better when it is lower.

    Raises:
        ValueError: if `patience` is below 1, or `watch` is what every step has.

    Example:
        >>> history = [{"step": n, "held_out": x} for n, x in enumerate((3.0, 2.0, 2.5, 2.0), 1)]
        >>> stopping = EarlyStopping("held_out", patience=2)
        >>> stopping.best_row(history), stopping.ends(history), stopping.ends(history[:3])
        ({'step': 2, 'held_out': 2.0}, True, False)

    Built in chapter 9. Source: Prechelt (1998).
    """

    watch: str
    patience: int | None = None
    best: str | os.PathLike[str] | None = None
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if self.watch in MEASURED:
            raise ValueError(f"watch must be a number that evaluate returns, got {self.watch!r}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience}")

    def check(self, evaluate: object, checkpoint: str | os.PathLike[str] | None) -> None:
        """Raise an error unless there is something to watch, and a file for the best alone."""
        if evaluate is None:
            raise ValueError(f"stopping watches {self.watch!r}, but evaluate is None")
        same = self.best and checkpoint and Path(self.best).resolve() == Path(checkpoint).resolve()
        if same:
            raise ValueError(f"the best and the last checkpoint must be two files, got {self.best}")

    def best_row(self, history: Sequence[dict[str, float]]) -> dict[str, float] | None:
        """The row with the best number so far, of equal ones the first; None without any."""
        seen = [row for row in history if not math.isnan(row.get(self.watch, math.nan))]
        pick = max if self.higher_is_better else min
        return pick(seen, key=lambda row: row[self.watch], default=None)

    def ends(self, history: Sequence[dict[str, float]]) -> bool:
        """Whether the patience is at its end."""
        best = self.best_row(history)
        since = [row for row in history if best is None or row["step"] > best["step"]]
        waited = sum(self.watch in row for row in since)
        return self.patience is not None and waited >= self.patience
