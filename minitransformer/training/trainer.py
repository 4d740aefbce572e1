"""The trainer: updates, evaluation, and checkpoints from which training continues exactly.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from minitransformer.models.pretrained import check_tokenizers
from minitransformer.models.transformer import Transformer
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.training.callbacks import Callback, Checkpoint, Progress, StopOnSignal
from minitransformer.training.checkpoint import Resumable
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import (
    as_pairs,
    check_lengths,
    collate,
    encode_pairs,
    epoch_batches,
    in_parts,
    token_batches,
)
from minitransformer.training.loss import next_token_loss
from minitransformer.training.optimizers import copy_with, move_average, new_optimizer
from minitransformer.training.translator import TextModel, check_generates

__all__ = ["Trainer"]


class Trainer(Resumable):
    """Trains a `Transformer` on sequence pairs; stopped and resumed, it loses nothing.

    Everything random in step n (order of the data, dropout) is a function of (seed, n). That is
    why a checkpoint needs no generator's state, and why training leaves the global one alone.
    Parameters with `requires_grad=False` stay as they are, after `resume` too.

    Args:
        model: the model, trained in place, on the device it is on.
        pairs: the training texts, a `TextPair` each, or any tuple of source and target.
        src_tokenizer: for the source side.
        tgt_tokenizer: for the target side.
        config: how to train.

    Raises:
        TypeError: if a pair is not two texts.
        ValueError: if there are no pairs, or a pair or a tokenizer does not fit the model.

    Example:
        >>> from minitransformer import TransformerConfig, WordTokenizer
        >>> pairs, words = [("one two", "two one")], WordTokenizer.train(["one two"])
        >>> sizes = {"src_vocab_size": words.vocab_size, "tgt_vocab_size": words.vocab_size}
        >>> model = Transformer(TransformerConfig(**sizes, d_model=8, num_heads=2, d_ff=16))
        >>> trainer = Trainer(model, pairs, words, words, TrainingConfig(steps=3, warmup_steps=1))
        >>> [row["step"] for row in trainer.fit(progress=False)]
        [1, 2, 3]

    Paper: section 5.
    """

    default_smoothing = 0.1
    """ε of the loss where the configuration says nothing."""

    def __init__(
        self,
        model: Transformer,
        pairs: Iterable[tuple[str, str]],
        src_tokenizer: Tokenizer,
        tgt_tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        pairs = as_pairs(pairs)
        self.set_up(model, pairs, {"src": src_tokenizer, "tgt": tgt_tokenizer}, config)
        self.examples = encode_pairs(pairs, src_tokenizer, tgt_tokenizer, model.config)
        check_lengths(pairs, self.examples, model.max_len)
        self.epoch(0)  # fail now if an example does not fit into a batch

    def set_up(self, model: Any, texts: Any, tokenizers: Any, config: TrainingConfig) -> None:
        """What every trainer starts with, whatever its texts are."""
        if len(texts) == 0:
            raise ValueError("there must be at least 1 text to train on, got 0")
        check_generates(model)
        check_tokenizers(model.config, tokenizers)
        self.model = model
        self.texts = texts
        self.tokenizers = tokenizers
        self.config = config
        smoothing = config.label_smoothing
        self.smoothing = self.default_smoothing if smoothing is None else smoothing
        self.device = next(model.parameters()).device
        self.optimizer = new_optimizer(model, config)
        self.history: list[dict[str, float]] = []
        self.average: dict[str, Tensor] = {}  # of the weights, by name, once there is one
        self.until = 0
        self.should_stop = False

    @property
    def step(self) -> int:
        """The number of updates so far, read from the history."""
        return int(self.history[-1]["step"]) if self.history else 0

    def epoch(self, epoch: int) -> Any:
        """The batches of one pass over the data; every pass has the same number."""
        config, most = self.config, self.config.max_tokens_per_batch
        if most is not None:
            return token_batches(self.examples, most, seed=config.seed, epoch=epoch)
        return epoch_batches(self.examples, config.batch_size, seed=config.seed, epoch=epoch)

    def batches(self) -> Iterator[Any]:
        """The batches from the next step on, for ever."""
        epoch, skip = divmod(self.step, len(self.epoch(0)))
        while True:
            yield from self.epoch(epoch)[skip:]
            epoch, skip = epoch + 1, 0

    def fit(
        self,
        until: int | None = None,
        callbacks: Iterable[Callback] = (),
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> list[dict[str, float]]:
        """Train up to and including step `until`, the configured end when left out.

        Ctrl-C ends the training after the step it is at, with a last checkpoint.

        Args:
            until: the step to stop at.
            callbacks: what to do between steps, in this order: `Evaluate`, `EarlyStopping`,
                `Checkpoint`, or others derived from `Callback`.
            checkpoint: file to save to every 50 steps and at the end: short for
                `Checkpoint(checkpoint)`.
            progress: whether to draw a progress bar; where stderr is no terminal and no notebook,
                a line for every tenth of the steps.

        Returns:
            The history, which has for each step its loss (nats), learning rate and gradient norm.

        Raises:
            FileNotFoundError: if the folder of a checkpoint does not exist.
            FloatingPointError: if the loss or a gradient is no longer finite.
            KeyboardInterrupt: after Ctrl-C, once everything is saved.
            OSError: if a checkpoint cannot be written; what was there before stays.
            ValueError: if another training writes to a checkpoint or has written it; if model or
                tokenizers would come back from it as others.
        """
        self.until = self.config.steps if until is None else min(until, self.config.steps)
        self.should_stop = False
        saving = [] if checkpoint is None else [Checkpoint(checkpoint)]
        callbacks = [*callbacks, *saving, Progress(progress), StopOnSignal()]
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(cuda_devices), ExitStack() as self.resources:
            for callback in callbacks:
                callback.begin(self)
            for batch in self.batches():
                for callback in callbacks if self.step else ():  # a resumed run catches up first
                    callback.after_step(self)
                if self.should_stop or self.step >= self.until:
                    break
                self.train_step(batch)
            for callback in callbacks:
                callback.end(self)
        return self.history

    def seed(self, step: int, part: int = 0) -> None:
        """Seed everything random for one part of one step."""
        # Primes: no two runs share a step's numbers, and no two parts of a step.
        torch.manual_seed(1_000_003 * self.config.seed + step + 1_000_000_007 * part)

    def loss(self, batch: Any) -> Tensor:
        """The smoothed loss of a batch."""
        parts = (part.to(self.device) for part in collate(batch, self.model.config.pad_id))
        return next_token_loss(self.model, *parts, smoothing=self.smoothing)

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: forward, loss, backward, in as many parts as configured; clip, step."""
        config = self.config
        found = 0.0
        self.model.train()
        self.optimizer.zero_grad()
        bf16 = torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16")
        dealt = in_parts(batch, config.gradient_accumulation_steps, self.model.config.pad_id)
        for part, (rows, share) in enumerate(dealt):
            if share:
                self.seed(self.step + 1, part)
                with bf16:
                    loss = share * self.loss(rows)
                loss.backward()
                found += loss.item()
        norm = clip_grad_norm_(self.model.parameters(), config.max_gradient_norm)
        return self.update(found, norm.item())

    def update(self, loss: float, norm: float) -> dict[str, float]:
        """Update the weights by the gradients there are; return the step's row of the history."""
        step, config = self.step + 1, self.config
        rate = config.learning_rate(step, self.model.config.d_model)
        if not math.isfinite(loss + norm):
            raise FloatingPointError(
                f"step {step}: loss {loss}, gradient norm {norm}, "
                f"at learning rate {rate:.2g}; a lower one may help"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if config.ema_decay:
            move_average(self.average, self.model, config.ema_decay, step)
        row = {"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
        self.history.append(row)
        return row

    def averaged(self) -> Any:
        """A copy of the model, in evaluation mode, with the average of its weights.

        With β = `config.ema_decay` the weights after step i of n count β^(n−i). Without an average
        they are the model's own.
        """
        return copy_with(self.average, self.model).eval()

    def trained(self) -> TextModel:
        """`averaged` with its tokenizers: a `Translator`, or a `TextGenerator`."""
        return TextModel.of(self.averaged(), self.tokenizers)

    def in_any_process(self, condition: bool) -> bool:
        """Whether it holds in this process or another that trains the same model."""
        return condition
