"""Training a decoder-only model on running text.

Built in chapter 10. Paper: "Improving Language Understanding by Generative Pre-Training"
(Radford et al., 2018), section 3.1.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minitransformer.checks import check_at_least_1, texts_of
from minitransformer.models.transformer import DecoderOnlyTransformer
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import token_stream
from minitransformer.training.loss import next_token_loss
from minitransformer.training.trainer import Trainer

__all__ = ["LanguageModelTrainer", "stream_batches"]


def row_starts(num_tokens: int, context_length: int, *, seed: int, epoch: int) -> list[int]:
    """Where the rows of an epoch begin in a stream, in the order in which they are read.

    They are a context apart, from a random place on, and go round the end: in the long run a row
    begins everywhere as often.
    """
    num_rows = num_tokens // context_length - 1
    num_places = num_tokens - context_length
    if num_rows < 1:
        raise ValueError(
            f"a stream of {num_tokens} tokens is too short for context_length={context_length}: "
            f"at least {2 * context_length} are needed"
        )
    generator = random.Random(f"stream {seed} {epoch}")
    first = generator.randrange(num_places)
    starts = [(first + row * context_length) % num_places for row in range(num_rows)]
    generator.shuffle(starts)
    return starts


def stream_batches(
    stream: Tensor | np.ndarray, batch_size: int, context_length: int, *, seed: int, epoch: int
) -> Sequence[Tensor]:
    """Cut a stream into rows at new places each epoch, shuffle them, and deal them into batches.

    A row has one token more than the context, because the target is the row shifted by one.
    Which rows there are, and their order, is a function of (seed, epoch).

    `stream` is ids, (n,), whole numbers, also of a file mapped into memory. The last batch may have
    fewer rows.

    Raises:
        ValueError: if a size is below 1 or the stream is too short for a row.

    Example:
        >>> batches = stream_batches(torch.arange(100), 4, 9, seed=0, epoch=0)
        >>> [tuple(batch.shape) for batch in batches]
        [(4, 10), (4, 10), (2, 10)]
    """
    check_at_least_1(batch_size=batch_size, context_length=context_length)
    starts = row_starts(len(stream), context_length, seed=seed, epoch=epoch)
    batches = [starts[first : first + batch_size] for first in range(0, len(starts), batch_size)]
    return StreamBatches(np.asarray(stream), batches, context_length + 1)


@dataclass(frozen=True)
class StreamBatches(Sequence[Tensor]):
    """Batches of rows of a stream, each (rows, length), int64, cut out when asked for."""

    stream: np.ndarray
    starts: list[list[int]]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return replace(self, starts=self.starts[index])
        rows = [self.stream[start : start + self.length] for start in self.starts[index]]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


def as_stream(ids: Tensor | np.ndarray) -> np.ndarray:
    """Ids, (n,), as an array, without a copy of what is on the CPU."""
    stream = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    if stream.ndim != 1 or stream.dtype.kind not in "iu":
        raise TypeError(f"ids must be whole numbers, (n,), got {stream.shape}, {stream.dtype}")
    return stream


class LanguageModelTrainer(Trainer):
    """Trains a `DecoderOnlyTransformer` to predict each next token of texts.

    It is a `Trainer`, with other batches: rows of `config.context_length` tokens from the stream
    of all texts. The model is trained in place, on the device it is on.

    `texts` may be their ids, (n,), a tensor or an array, as `token_stream` makes them. An array may
    be a file mapped into memory (`numpy.memmap`), of which rows are read when they are needed.

    Raises:
        TypeError: if a text is none, or ids are no whole numbers.
        ValueError: if there are no texts, too few tokens, the context is longer than max_len, or
            the tokenizer does not fit the model; if a row is longer than `max_tokens_per_batch`.

    Example:
        >>> from minitransformer import CharacterTokenizer, TransformerConfig
        >>> letters = CharacterTokenizer.train(["abcabc"])
        >>> config = TransformerConfig.decoder_only(letters.vocab_size, d_model=8, num_heads=2)
        >>> model, texts = DecoderOnlyTransformer(config), ["abcabc"] * 9
        >>> config = TrainingConfig(steps=3, warmup_steps=1, context_length=4)
        >>> history = LanguageModelTrainer(model, texts, letters, config).fit(progress=False)
        >>> [row["step"] for row in history]
        [1, 2, 3]

    Paper: Radford et al. (2018), section 3.1.
    """

    default_smoothing = 0.0

    def __init__(
        self,
        model: DecoderOnlyTransformer,
        texts: Iterable[str] | Tensor | np.ndarray,
        tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        given: Any = texts
        is_stream = isinstance(given, Tensor | np.ndarray)
        given = as_stream(given) if is_stream else list(texts_of("texts", given))
        self.set_up(model, given, {"text": tokenizer}, config)
        if config.context_length > model.max_len:
            raise ValueError(
                f"a context of {config.context_length} positions is longer than "
                f"max_len={model.max_len}"
            )
        self.stream = given if is_stream else token_stream(given, tokenizer)
        self.epoch(0)  # fail now if there is no batch

    def epoch(self, epoch: int) -> Sequence[Tensor]:
        """The batches of one pass over the data; every pass has the same number."""
        length, seed = self.config.context_length, self.config.seed
        return stream_batches(self.stream, self.rows, length, seed=seed, epoch=epoch)

    @property
    def rows(self) -> int:
        """Rows in a batch, of `context_length` tokens each."""
        most, length = self.config.max_tokens_per_batch, self.config.context_length
        if most is not None and most < length:
            raise ValueError(f"context_length={length} is above max_tokens_per_batch={most}")
        return self.config.batch_size if most is None else most // length

    def loss(self, batch: Tensor) -> Tensor:
        """The loss of a batch, (b, context_length + 1)."""
        ids = batch.to(self.device)
        return next_token_loss(self.model, ids[:, :-1], ids[:, 1:], smoothing=self.smoothing)
