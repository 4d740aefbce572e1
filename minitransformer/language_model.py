"""Training a decoder-only model on running text.

Built in chapter 10. Paper: "Improving Language Understanding by Generative Pre-Training"
(Radford et al., 2018), section 3.1.
"""

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from minitransformer.checks import texts_of
from minitransformer.data import token_stream
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.loss import next_token_loss
from minitransformer.tokenization import Tokenizer
from minitransformer.trainer import Trainer
from minitransformer.training import TrainingConfig

__all__ = ["LanguageModelTrainer", "stream_batches"]


def row_starts(num_tokens: int, context_length: int, *, seed: int, epoch: int) -> list[int]:
    """Where the rows of an epoch begin in a stream, in the order in which they are read.

    They begin a context apart, from a random place on, and after the last place at the first again:
    so in the long run a row begins everywhere as often.

    Args:
        num_tokens: the length of the stream, n.
        context_length: tokens that the model sees at once.
        seed: the seed of the training run.
        epoch: which pass over the data.

    Raises:
        ValueError: if the stream is too short for a row.

    Example:
        >>> sorted(row_starts(30, 9, seed=0, epoch=0))
        [8, 20]
    """
    num_rows, num_places = num_tokens // context_length - 1, num_tokens - context_length
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
    stream: Tensor, batch_size: int, context_length: int, *, seed: int, epoch: int
) -> list[Tensor]:
    """Cut a stream into rows at new places each epoch, shuffle them, and deal them into batches.

    A row has one token more than the context, because the target is the row shifted by one.
    Which rows there are, and their order, is a function of (seed, epoch).

    Args:
        stream: ids, (n,).
        batch_size: rows of a batch; the last one may be smaller.
        context_length: tokens that the model sees at once.
        seed: the seed of the training run.
        epoch: which pass over the data.

    Returns:
        Batches, each (rows, context_length + 1).

    Raises:
        ValueError: if a size is below 1 or the stream is too short for a row.

    Example:
        >>> batches = stream_batches(torch.arange(100), 4, 9, seed=0, epoch=0)
        >>> [tuple(batch.shape) for batch in batches]
        [(4, 10), (4, 10), (2, 10)]
    """
    if batch_size < 1 or context_length < 1:
        raise ValueError(
            "batch_size and context_length must be at least 1, "
            f"got {batch_size} and {context_length}"
        )
    starts = row_starts(len(stream), context_length, seed=seed, epoch=epoch)
    rows = stream.unfold(0, context_length + 1, 1)[torch.tensor(starts)]
    return list(rows.split(batch_size))


class LanguageModelTrainer(Trainer):
    """Trains a `DecoderOnlyTransformer` to predict each next token of texts.

    It is a `Trainer`, with other batches: rows of `config.context_length` tokens from the stream
    of all texts.

    Args:
        model: the model, trained in place, on the device it is on.
        texts: the training texts.
        tokenizer: turns them into tokens.
        config: how to train.

    Raises:
        TypeError: if a text is none.
        ValueError: if there are no texts, too few tokens, the context is longer than max_len, or
            the tokenizer does not fit the model; if a row is longer than `max_tokens_per_batch`.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.tokenization import CharacterTokenizer
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
        texts: Iterable[str],
        tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        texts = list(texts_of("texts", texts))
        self.set_up(model, texts, {"text": tokenizer}, config)
        if config.context_length > model.max_len:
            raise ValueError(
                f"context_length of {config.context_length} positions is longer than "
                f"max_len={model.max_len}"
            )
        self.stream = token_stream(texts, tokenizer)
        self.epoch(0)  # fail now if there is no batch

    def epoch(self, epoch: int) -> list[Tensor]:
        """The batches of one pass over the data; each pass has as many."""
        length, seed = self.config.context_length, self.config.seed
        return stream_batches(self.stream, self.rows, length, seed=seed, epoch=epoch)

    @property
    def rows(self) -> int:
        """Rows in a batch, of `context_length` tokens each."""
        most, length = self.config.max_tokens_per_batch, self.config.context_length
        if most is not None and most < length:
            raise ValueError(
                f"a row of context_length={length} tokens is longer than "
                f"max_tokens_per_batch={most}"
            )
        return self.config.batch_size if most is None else most // length

    def loss(self, batch: Tensor) -> Tensor:
        """The loss of a batch, (b, context_length + 1)."""
        ids = batch.to(self.device)
        return next_token_loss(self.model, ids[:, :-1], ids[:, 1:], smoothing=self.smoothing)
