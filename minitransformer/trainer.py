"""The trainer: updates, progress, evaluation, and checkpoints from which it goes on exactly.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from minitransformer.checkpoint import (
    MEASURED,
    as_scores,
    checked_state,
    fingerprint,
    load_checkpoint,
    rebuild,
    save_checkpoint,
    tensors_of,
    uninterrupted,
)
from minitransformer.data import (
    as_pairs,
    check_lengths,
    collate,
    encode_pairs,
    epoch_batches,
    in_parts,
    token_batches,
)
from minitransformer.evaluation import EarlyStopping
from minitransformer.loss import next_token_loss
from minitransformer.optimizers import copy_with, move_average, new_optimizer
from minitransformer.pretrained import check_tokenizers
from minitransformer.progress import progress_of
from minitransformer.sole_writer import sole_writer
from minitransformer.tokenization import Tokenizer
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer
from minitransformer.translator import TextModel

__all__ = ["Trainer"]


class Trainer:
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
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.words import WordTokenizer
        >>> pairs, words = [("one two", "two one")], WordTokenizer.train(["one two"])
        >>> sizes = words.vocab_size, words.vocab_size
        >>> model = Transformer(TransformerConfig(*sizes, d_model=8, num_heads=2, d_ff=16))
        >>> trainer = Trainer(model, pairs, words, words, TrainingConfig(steps=3, warmup_steps=1))
        >>> [row["step"] for row in trainer.fit(progress=False)]
        [1, 2, 3]

    Built in chapter 9. Paper: section 5.
    """

    def __init__(
        self,
        model: Transformer,
        pairs: Iterable[tuple[str, str]],
        src_tokenizer: Tokenizer,
        tgt_tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        pairs = as_pairs(pairs)
        self.begin(model, pairs, {"src": src_tokenizer, "tgt": tgt_tokenizer}, config)
        self.examples = encode_pairs(pairs, src_tokenizer, tgt_tokenizer, model.config)
        check_lengths(pairs, self.examples, model.max_len)
        self.epoch(0)  # does every example fit into a batch?

    def begin(
        self,
        model: Any,
        texts: Sequence[Any],
        tokenizers: dict[str, Tokenizer],
        config: TrainingConfig,
    ) -> None:
        """What every trainer starts with, whatever its texts are."""
        if not texts:
            raise ValueError("there must be at least 1 text to train on, got 0")
        check_tokenizers(model.config, tokenizers)
        self.model, self.texts = model, texts
        self.tokenizers, self.config = tokenizers, config
        self.history: list[dict[str, float]] = []
        self.device = next(model.parameters()).device
        self.optimizer = new_optimizer(model, config)
        self.average: dict[str, Tensor] = {}  # of the weights, by name, once there is one

    @property
    def step(self) -> int:
        """The number of updates so far; it and the history cannot disagree."""
        return int(self.history[-1]["step"]) if self.history else 0

    def epoch(self, epoch: int) -> list[Any]:
        """The batches of one pass over the data; each pass has as many."""
        config = self.config
        if config.batch_tokens is not None:
            return token_batches(self.examples, config.batch_tokens, seed=config.seed, epoch=epoch)
        return epoch_batches(self.examples, config.batch_size, seed=config.seed, epoch=epoch)

    def loss(self, batch: Any) -> Tensor:
        """The smoothed loss of a batch."""
        parts = (part.to(self.device) for part in collate(batch, self.model.config.pad_id))
        return next_token_loss(self.model, *parts, smoothing=self.config.label_smoothing)

    def batches(self) -> Iterator[Any]:
        """The batches from the next step on, for ever."""
        epoch, skip = divmod(self.step, len(self.epoch(0)))
        while True:
            yield from self.epoch(epoch)[skip:]
            epoch, skip = epoch + 1, 0

    def fit(
        self,
        until: int | None = None,
        *,
        evaluate: Callable[[], dict[str, float]] | None = None,
        evaluate_every: int = 100,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 50,
        stopping: EarlyStopping | None = None,
        progress: bool = True,
    ) -> list[dict[str, float]]:
        """Train up to and including step `until`, the configured end when left out.

        Args:
            until: the step to stop at.
            evaluate: called every `evaluate_every` steps and at the end; the numbers that it
                returns, by name, are added to the history.
            evaluate_every: steps between two calls.
            checkpoint: file to save to every `checkpoint_every` steps and at the end.
            checkpoint_every: steps between two saves.
            stopping: when to end before that, and where to keep the best state. The model here
                is the last one; `resume` and `Translator.load` read the best.
            progress: whether to draw a progress bar; where stderr is no terminal and no notebook,
                a line for every tenth of the steps.

        Returns:
            The history, which has for each step its loss (nats), learning rate and gradient norm.

        Raises:
            FileNotFoundError: if the folder of `checkpoint`, or of the best, does not exist.
            FloatingPointError: if the loss or a gradient is no longer finite.
            OSError: if `checkpoint` cannot be written; what was there before stays.
            TypeError: if `evaluate` returns anything else than numbers by name.
            ValueError: if `evaluate_every` or `checkpoint_every` is below 1, `evaluate` returns
                a name that every step has, or not the one that `stopping` watches; if another
                training writes to `checkpoint` or has written it, or the best is to go there too;
                if model or tokenizers would come back from a checkpoint as others.
        """
        if min(evaluate_every, checkpoint_every) < 1:
            raise ValueError(
                "evaluate_every and checkpoint_every must be at least 1, "
                f"got {evaluate_every} and {checkpoint_every}"
            )
        best, watch = (stopping.best, stopping.watch) if stopping else (None, None)
        if stopping:
            stopping.check(evaluate, checkpoint)
        until = self.config.steps if until is None else min(until, self.config.steps)
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        with (
            sole_writer(self, checkpoint, best),
            torch.random.fork_rng(cuda_devices),
            progress_of(self.step, until, shown=progress) as show,
        ):
            for batch in self.batches():
                # First what the last step asks for: where it was interrupted, it is made up for.
                row, step, ends = self.history[-1] if self.history else {}, self.step, False
                due = row.keys() == MEASURED and (step == until or step % evaluate_every == 0)
                if evaluate and due:
                    self.seed(step)
                    row |= as_scores(evaluate(), watch)
                if stopping and watch in row:
                    ends = stopping.ends(self.history)
                    if best and stopping.best_row(self.history) is row:
                        self.save(best)
                ends = ends or step >= until
                if checkpoint and row and (ends or step % checkpoint_every == 0):
                    self.save(checkpoint)
                show(step, row)
                if ends:
                    break
                self.train_step(batch)
        return self.history

    def seed(self, step: int, part: int = 0) -> None:
        """Everything random from here on is that of a part of a step."""
        # Primes: no two runs share a step's numbers, and no two parts of a step.
        torch.manual_seed(1_000_003 * self.config.seed + step + 1_000_000_007 * part)

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: forward, loss, backward, in as many parts as configured; clip, step."""
        config, found = self.config, 0.0
        self.model.train()
        self.optimizer.zero_grad()
        bf16 = torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16")
        dealt = in_parts(batch, config.accumulate, self.model.config.pad_id)
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
        """Step the optimiser, as loss and gradient are there; the step's row of the history."""
        step, config = self.step + 1, self.config
        rate = config.learning_rate(step, self.model.config.d_model)
        if not math.isfinite(loss + norm):
            raise FloatingPointError(
                f"step {step}: loss {loss}, gradient norm {norm}, "
                f"at learning rate {rate:.2g}; a lower one may help"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        row = {"step": step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}
        with uninterrupted():  # Ctrl-C finds all of it done, or nothing
            self.optimizer.step()
            self.history.append(row)
            if config.average:
                move_average(self.average, self.model, config.average, step)
        return row

    def averaged(self) -> Any:
        """A copy of the model, in evaluation mode, with the average of its weights.

        With β = `config.average` the weights after step i of n count β^(n−i). Without an average
        they are the model's own.
        """
        return copy_with(self.average, self.model).eval()

    def trained(self) -> TextModel:
        """`averaged` with its tokenizers: a `Translator`, or a `TextGenerator`."""
        return TextModel.of(self.averaged(), self.tokenizers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with all that is needed to translate and to go on, or refuse it."""
        save_checkpoint(path, tensors_of(self), checked_state(self))

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], texts: Iterable[Any], device: torch.device | str = "cpu"
    ) -> Self:
        """Rebuild a trainer from its checkpoint, on `device`, ready to go on with `fit`.

        Args:
            path: what `save` wrote.
            texts: the same training texts.
            device: where to train.

        Raises:
            FileNotFoundError: if there is no checkpoint.
            ValueError: if it is damaged, no checkpoint of a trainer, or of other texts.
        """
        texts = list(texts)
        tensors, state = load_checkpoint(path)
        model, tokenizers = rebuild(tensors, state, device)
        if state["data"] != fingerprint(texts):
            raise ValueError(
                f"{path} was trained on other texts: {state['data']}, not {fingerprint(texts)}"
            )
        config, new_trainer = TrainingConfig(**state["training"]), cast(Any, cls)
        trainer = new_trainer(model, texts, *tokenizers.values(), config)
        for name, parameter in model.named_parameters():
            prefix = f"optimizer.{name}."
            trainer.optimizer.state[parameter] = {
                key.removeprefix(prefix): value.to(device)
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
            if (key := f"average.{name}") in tensors:
                trainer.average[name] = tensors[key].to(device)
        trainer.history = state["history"]
        return trainer
