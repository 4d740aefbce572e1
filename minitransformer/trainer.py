"""The trainer: updates, progress, evaluation, and checkpoints from which it goes on exactly.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from minitransformer.checkpoint import (
    MEASURED,
    as_scores,
    fingerprint,
    load_checkpoint,
    rebuild,
    save_checkpoint,
    sole_writer,
    uninterrupted,
)
from minitransformer.data import as_pairs, check_lengths, collate, encode_pairs, epoch_batches
from minitransformer.dropout import drawing_from
from minitransformer.inference import translate
from minitransformer.pretrained import check_tokenizers, named_weights
from minitransformer.tokenization import Tokenizer
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer

__all__ = ["Trainer", "exact_match"]


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
        >>> from minitransformer.tokenization import WordTokenizer
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
        self.examples = encode_pairs(pairs, src_tokenizer, tgt_tokenizer)
        check_lengths(pairs, self.examples, model.max_len)

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
        self.model = model
        self.texts = texts
        self.tokenizers = tokenizers
        self.config = config
        self.history: list[dict[str, float]] = []
        self.device = next(model.parameters()).device
        self.generator = torch.Generator(self.device)
        # The paper's betas and epsilon; the learning rate is set before every step.
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    @property
    def step(self) -> int:
        """The number of updates so far; it and the history cannot disagree."""
        return int(self.history[-1]["step"]) if self.history else 0

    def epoch(self, epoch: int) -> list[Any]:
        """The batches of one pass over the data; each pass has as many."""
        size, seed = self.config.batch_size, self.config.seed
        return epoch_batches(self.examples, size, seed=seed, epoch=epoch)

    def loss(self, batch: Any) -> Tensor:
        """The smoothed loss of a batch."""
        parts = (part.to(self.device) for part in collate(batch, self.model.config.pad_id))
        return self.model.loss(*parts, smoothing=self.config.label_smoothing)

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
            progress: whether to draw a progress bar.

        Returns:
            The history, which has for each step its loss (nats), learning rate and gradient norm.

        Raises:
            FileNotFoundError: if the folder of `checkpoint` does not exist.
            FloatingPointError: if the loss or a gradient is no longer finite.
            OSError: if `checkpoint` cannot be written; what was there before stays.
            TypeError: if `evaluate` returns anything else than numbers by name.
            ValueError: if `evaluate_every` or `checkpoint_every` is below 1, `evaluate` returns
                a name that every step has, or another training writes to `checkpoint`.
        """
        from tqdm import tqdm

        if min(evaluate_every, checkpoint_every) < 1:
            raise ValueError(
                "evaluate_every and checkpoint_every must be at least 1, "
                f"got {evaluate_every} and {checkpoint_every}"
            )
        until = self.config.steps if until is None else min(until, self.config.steps)
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        bar = tqdm(initial=self.step, total=until, disable=not progress, unit="step")
        with sole_writer(checkpoint), bar, torch.random.fork_rng(cuda_devices):
            for batch in self.batches():
                # First what the last step asks for: where it was interrupted, it is made up for.
                row, step = self.history[-1] if self.history else {}, self.step
                due = row.keys() == MEASURED and (step == until or step % evaluate_every == 0)
                if evaluate and due:
                    self.seed(step)
                    row |= as_scores(evaluate())
                if checkpoint and row and (step == until or step % checkpoint_every == 0):
                    self.save(checkpoint)
                bar.set_postfix({k: f"{v:.3g}" for k, v in row.items() if k != "step"})
                if step >= until:
                    break
                self.train_step(batch)
                bar.update()
        return self.history

    def seed(self, step: int) -> None:
        """Everything random from here on is that of a step."""
        seed = 1_000_003 * self.config.seed + step  # a prime: no two runs share a step's
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)  # for modules of others

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: forward, loss, backward, clip, step."""
        step, config = self.step + 1, self.config
        self.model.train()
        self.seed(step)
        bf16 = torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16")
        with bf16, drawing_from(self.generator, self.model):
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(self.model.parameters(), config.max_gradient_norm)
        learning_rate = config.learning_rate(step, self.model.config.d_model)
        row = {
            "step": step,
            "loss": loss.item(),
            "learning_rate": learning_rate,
            "gradient_norm": norm.item(),
        }
        if not math.isfinite(row["loss"] + row["gradient_norm"]):
            raise FloatingPointError(
                f"step {step}: loss {row['loss']}, gradient norm {row['gradient_norm']}, "
                f"at learning rate {learning_rate:.2g}; a lower one may help"
            )
        self.optimizer.param_groups[0]["lr"] = learning_rate
        with uninterrupted():  # Ctrl-C finds an update done and counted, or neither
            self.optimizer.step()
            self.history.append(row)
        return row

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with everything needed to translate and to go on training."""
        tensors: dict[str, Tensor] = {}
        weights = named_weights(self.model)  # a tied one once: no two tensors share memory
        for name, parameter in weights.items():
            tensors[f"model.{name}"] = parameter
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        state = {
            "model": asdict(self.model.config),
            "tokenizers": {side: t.to_dict() for side, t in self.tokenizers.items()},
            "training": asdict(self.config),
            "data": fingerprint(self.texts),
            "step": self.step,
            "history": self.history,
            "frozen": [name for name, weight in weights.items() if not weight.requires_grad],
        }
        save_checkpoint(path, tensors, state)

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
        trainer.history = state["history"]
        return trainer


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
    pairs = as_pairs(pairs)
    if not pairs:
        raise ValueError("pairs must hold at least 1 pair, got 0")
    sources = [pair.src for pair in pairs]
    translations = translate(model, sources, src_tokenizer, tgt_tokenizer, **options)
    right = sum(text == pair.tgt for text, pair in zip(translations, pairs, strict=True))
    return right / len(pairs)
