"""The trainer: updates, progress, evaluation, and checkpoints from which it goes on exactly.

Built in chapter 9. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 5.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from minitransformer.checkpoint import (
    check_folder,
    fingerprint,
    load_checkpoint,
    load_model,
    rebuild,
    save_checkpoint,
)
from minitransformer.data import TextPair, collate, encode_pairs, epoch_batches
from minitransformer.inference import translate
from minitransformer.tokenization import Tokenizer
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer

__all__ = ["Trainer", "exact_match", "load_translator"]


class Trainer:
    """Trains a `Transformer` on sequence pairs; stopped and resumed, it loses nothing.

    Everything random in step n (order of the data, dropout) is a function of (seed, n). That is
    why a checkpoint needs no generator's state, and why training leaves the global one alone.

    Args:
        model: the model, trained in place, on the device it is on.
        pairs: the training texts.
        src_tokenizer: for the source side.
        tgt_tokenizer: for the target side.
        config: how to train.

    Raises:
        ValueError: if there are no pairs.

    Example:
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.tokenization import WordTokenizer
        >>> pairs, words = [TextPair("one two", "two one")], WordTokenizer.train(["one two"])
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
        pairs: Sequence[TextPair],
        src_tokenizer: Tokenizer,
        tgt_tokenizer: Tokenizer,
        config: TrainingConfig,
    ) -> None:
        self.begin(model, pairs, {"src": src_tokenizer, "tgt": tgt_tokenizer}, config)
        self.examples = encode_pairs(pairs, src_tokenizer, tgt_tokenizer)

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
        self.model = model
        self.texts = texts
        self.tokenizers = tokenizers
        self.config = config
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.device = next(model.parameters()).device
        # The paper's betas and epsilon; the learning rate is set before every step.
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

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
            evaluate: called every `evaluate_every` steps and at the end; what it returns is
                added to the history.
            evaluate_every: steps between two calls.
            checkpoint: file to save to every `checkpoint_every` steps and at the end.
            checkpoint_every: steps between two saves.
            progress: whether to draw a progress bar.

        Returns:
            The history, which has for each step its loss (nats), learning rate and gradient norm.

        Raises:
            FileNotFoundError: if the folder of `checkpoint` does not exist.
            FloatingPointError: if the loss or a gradient is no longer finite.
        """
        from tqdm import tqdm

        if checkpoint:
            check_folder(checkpoint)
        until = self.config.steps if until is None else min(until, self.config.steps)
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        bar = tqdm(initial=self.step, total=until, disable=not progress, unit="step")
        with bar, torch.random.fork_rng(cuda_devices):
            for batch in self.batches():
                if self.step >= until:
                    break
                row = self.train_step(batch)
                last = self.step == until
                if evaluate and (last or self.step % evaluate_every == 0):
                    row |= evaluate()
                self.history.append(row)
                if checkpoint and (last or self.step % checkpoint_every == 0):
                    self.save(checkpoint)
                bar.set_postfix({k: f"{v:.3g}" for k, v in row.items() if k != "step"})
                bar.update()
        return self.history

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: forward, loss, backward, clip, step."""
        step, config = self.step + 1, self.config
        self.model.train()
        torch.manual_seed(1_000_003 * config.seed + step)  # a prime: no two runs share a step's
        with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
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
        self.optimizer.step()
        self.step = step
        return row

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint with everything needed to translate and to go on training."""
        tensors: dict[str, Tensor] = {}
        # named_parameters() lists a tied weight once, so no two tensors share memory.
        for name, parameter in self.model.named_parameters():
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
        }
        save_checkpoint(path, tensors, state)

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], texts: Sequence[Any], device: torch.device | str = "cpu"
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
        trainer.step, trainer.history = state["step"], state["history"]
        return trainer


def load_translator(
    path: str | os.PathLike[str], device: torch.device | str = "cpu"
) -> tuple[Transformer, Tokenizer, Tokenizer]:
    """Read what `translate` needs: the model and its two tokenizers.

    Args:
        path: what `Trainer.save` wrote; or a folder that `Transformer.save_pretrained` wrote, here
            or on the Hugging Face Hub.
        device: where to put the model.

    Returns:
        The model, in evaluation mode, the source and the target tokenizer.

    Raises:
        FileNotFoundError: if there is no checkpoint or folder, or a file of the folder is missing.
        ValueError: if it is damaged, or holds no translator.

    Built in chapter 9.
    """
    model, tokenizers = load_model(path, device)
    if tokenizers.keys() != {"src", "tgt"}:
        raise ValueError(f"{path} holds no translator: its tokenizers are {sorted(tokenizers)}")
    return model.eval(), tokenizers["src"], tokenizers["tgt"]


def exact_match(
    model: Transformer,
    pairs: Sequence[TextPair],
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    *,
    max_new_tokens: int = 64,
) -> float:
    """The share of pairs whose greedy translation equals the target, character by character.

    Raises:
        ValueError: if there are no pairs.

    Built in chapter 9.
    """
    if not pairs:
        raise ValueError("pairs must hold at least 1 pair, got 0")
    translations = translate(
        model,
        [pair.src for pair in pairs],
        src_tokenizer,
        tgt_tokenizer,
        max_new_tokens=max_new_tokens,
    )
    right = sum(text == pair.tgt for text, pair in zip(translations, pairs, strict=True))
    return right / len(pairs)
