"""Any trainer of the package, on many processes: the same batches, and the same weights at the end.

Papers: "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (Li et al., 2020);
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (Zhao et al., 2023).
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from minitransformer.checkpoint import checked_state, fingerprint
from minitransformer.data import in_parts
from minitransformer.optimizers import new_optimizer
from minitransformer.parallel.checkpoints import (
    check_state,
    checkpoints_in,
    load_shares,
    read_state,
    save_shares,
    sole_training,
)
from minitransformer.parallel.layers import compile_layers, compute_again, full, like, share_out
from minitransformer.parallel.parts import LossOf, check_parts, check_recipe
from minitransformer.parallel.processes import Processes
from minitransformer.progress import progress_of
from minitransformer.registry import named_weights
from minitransformer.trainer import Trainer

__all__ = ["ParallelTrainer"]

TO_STOP = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and what clusters send before they kill


class ParallelTrainer:
    """Trains what a trainer trains, on all processes together.

    Every batch is that of the trainer, and is dealt in `parts`: row i goes to part i mod parts,
    part p to process p mod count, which computes its parts one after the other. So four parts are
    one step of four processes, of two, or of one. The random numbers of a part are a function of
    (seed, step, part), whoever computes it.

    The loss of a batch is the mean over its tokens. A part's loss is a mean over the part's tokens,
    of which rows of unequal length give it more or fewer. So each counts as much as it has tokens
    (`in_parts`). The engines add up gradients over the processes and divide by their number, hence
    the product with that number before the backward pass.

    With one part the weights are those of the trainer itself; with the same parts they are the
    same on any number of processes; without dropout the parts make no difference. All to rounding.

    Args:
        trainer: a `Trainer` or `LanguageModelTrainer`, begun or resumed, the same in all processes.
        processes: from `join_processes`.
        engine: "ddp", each process has the whole model; or "fsdp", each has a share of it, and of
            the optimiser's state.
        parts: into how many each batch is dealt, a multiple of the number of processes. When left
            out it is the trainer's `accumulate`, or the number of processes if that is 1.
        recompute: compute each layer again in the backward pass, to keep less in memory.
        compiled: have PyTorch compile the layers.

    Raises:
        ImportError: if PyTorch is too old for the engine.
        TimeoutError: if a process has ended.
        ValueError: if the processes cannot share the parts evenly, or have different trainers; if
            `parts` are not those that the trainer accumulates, or "muon" is to work on shares.

    Example:
        >>> from minitransformer.parallel import join_processes
        >>> from minitransformer.config import TransformerConfig
        >>> from minitransformer.words import WordTokenizer
        >>> from minitransformer.training import TrainingConfig
        >>> from minitransformer.transformer import Transformer
        >>> pairs, words = [("one two", "two"), ("two", "one")], WordTokenizer.train(["one two"])
        >>> sizes = words.vocab_size, words.vocab_size
        >>> model = Transformer(TransformerConfig(*sizes, d_model=8, num_heads=2, d_ff=16))
        >>> trainer = Trainer(model, pairs, words, words, TrainingConfig(steps=3, warmup_steps=1))
        >>> with join_processes() as processes:
        ...     history = ParallelTrainer(trainer, processes, parts=2).fit(progress=False)
        >>> [row["step"] for row in history]
        [1, 2, 3]
    """

    def __init__(
        self,
        trainer: Trainer,
        processes: Processes,
        engine: Literal["ddp", "fsdp"] = "ddp",
        *,
        parts: int | None = None,
        recompute: bool = False,
        compiled: bool = False,
    ) -> None:
        if engine not in ("ddp", "fsdp"):
            raise ValueError(f"engine must be 'ddp' or 'fsdp', got {engine!r}")
        check_recipe(trainer.config, engine, parts)
        if trainer.config.accumulate > 1:
            parts = trainer.config.accumulate
        self.trainer, self.processes, self.parts_asked = trainer, processes, parts
        self.parts = processes.count if parts is None else parts
        check_parts(self.parts, processes.count)
        with processes.waiting("start"):
            processes.check_same(
                config=trainer.config,
                model=trainer.model.config,
                data=fingerprint(trainer.texts),
                step=trainer.step,
                engine=engine,
                parts=self.parts,
            )
        self.signalled = self.told_to_stop = 0.0  # this process; and how many have been
        if recompute:
            compute_again(trainer.model)
        if compiled:
            compile_layers(trainer.model)
        self.loss: nn.Module = LossOf(trainer)
        if engine == "ddp":
            self.loss = DistributedDataParallel(self.loss)
        else:
            self.share_out()
        # Whoever lets go of the group last waits for its threads. DDP does so without letting them
        # finish, and may wait for ever. So this comes after `loss`, and is let go of after it.
        self.group = dist.group.WORLD

    def share_out(self) -> None:
        """Part the model and what the optimiser knows of it among the processes."""
        trainer = self.trainer
        before = named_weights(trainer.model)
        known = {name: trainer.optimizer.state[p] for name, p in before.items()}
        share_out(trainer.model, self.processes)
        trainer.optimizer = new_optimizer(trainer.model, trainer.config)
        for name, parameter in named_weights(trainer.model).items():
            states = {key: like(parameter, value) for key, value in known[name].items()}
            trainer.optimizer.state[parameter] = states
            if name in trainer.average:
                trainer.average[name] = like(parameter, trainer.average[name])

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return self.trainer.step

    @property
    def history(self) -> list[dict[str, float]]:
        """What the trainer has of each step; the same in all processes."""
        return self.trainer.history

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: this process's parts, then what all have found together."""
        trainer, config, found = self.trainer, self.trainer.config, 0.0
        device = self.processes.device.type
        bf16 = torch.autocast(device, torch.bfloat16, enabled=config.precision == "bf16")
        dealt = in_parts(batch, self.parts, trainer.model.config.pad_id)
        trainer.model.train()
        trainer.optimizer.zero_grad()
        mine = range(self.processes.rank, self.parts, self.processes.count)
        for part in mine:
            trainer.seed(self.step + 1, part)
            rows, share = dealt[part]
            # Of a batch with fewer rows than parts some get none. The others wait for these, too.
            rows = rows if share else batch[:1]
            with self.adding_up(part == mine[-1]):
                with bf16:
                    loss = share * self.loss(rows)
                (self.processes.count * loss).backward()
            found += loss.item()
        norm = full(clip_grad_norm_(trainer.model.parameters(), config.max_gradient_norm)).item()
        loss_of_all, self.told_to_stop = self.processes.totals(found, self.signalled)
        return trainer.update(loss_of_all, norm)

    @contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:
        """Only in a process's last part gradients go over the network, those of all its parts."""
        if isinstance(self.loss, DistributedDataParallel):
            with nullcontext() if last else self.loss.no_sync():
                yield
        else:
            self.trainer.model.set_requires_gradient_sync(last)
            yield

    def fit(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        until: int | None = None,
        checkpoint_every: int = 50,
        progress: bool = True,
    ) -> list[dict[str, float]]:
        """Train up to and including step `until`, the configured end when left out.

        Where the folder has a checkpoint that is further, it goes on from that. So the same
        program, started again by `torchrun` or by hand, loses only the steps since the last one.

        Ctrl-C, or the signal SIGTERM to any process, ends the training after the step that all
        are at, with a checkpoint.

        Args:
            folder: where to save to every `checkpoint_every` steps and at the end; it is made.
            until: the step to stop at.
            checkpoint_every: steps between two saves.
            progress: whether the first process draws a progress bar, or writes lines, as in
                `Trainer.fit`.

        Returns:
            The history, the same in all processes.

        Raises:
            FloatingPointError: if the loss or a gradient is no longer finite.
            InterruptedError: if a signal has ended it.
            OSError: if a checkpoint cannot be written; what was there before stays.
            TimeoutError: if a process hangs or has ended.
            ValueError: if `checkpoint_every` is below 1, others train in the folder, or what is
                there is damaged, of another training, or in parts that cannot be shared evenly.
        """
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")
        trainer, processes = self.trainer, self.processes
        until = trainer.config.steps if until is None else min(until, trainer.config.steps)
        cuda_devices = [trainer.device] if trainer.device.type == "cuda" else []
        with ExitStack() as stack:
            place = None if folder is None else Path(folder)
            if place is not None:
                with processes.waiting("beginning"):
                    checked_state(trainer)
                    stack.enter_context(sole_training(place, processes))
                    self.go_on(place)
            shown = progress and processes.is_first
            show = stack.enter_context(progress_of(self.step, until, shown=shown))
            stack.enter_context(torch.random.fork_rng(cuda_devices))
            stack.enter_context(self.listening())
            for batch in trainer.batches():
                ends = self.step >= until or self.told_to_stop
                if place and self.history and (ends or self.step % checkpoint_every == 0):
                    with processes.waiting(f"checkpoint {self.step}"):
                        save_shares(trainer, self.parts, place, processes)
                if self.step >= until:
                    break
                if self.told_to_stop:
                    saved = "" if place is None else ", which is saved"
                    raise InterruptedError(f"told to stop after step {self.step}{saved}")
                with processes.waiting(f"step {self.step + 1}"):
                    row = self.train_step(batch)
                show(self.step, row)
        return self.history

    def go_on(self, folder: Path) -> None:
        """Take what the last checkpoint of the folder has, if it has one and that is further."""
        # The first one looks: on a network's disk others may see a file later than it does.
        last = self.processes.everyones(checkpoints_in(folder)[-1:])[0]
        if not last:
            return
        state, files = read_state(last[0])
        check_state(self.trainer, last[0], state)
        if self.parts_asked not in (None, state["parts"]):
            raise ValueError(
                f"{last[0]} has batches dealt in {state['parts']} parts, not in {self.parts_asked}"
            )
        check_parts(state["parts"], self.processes.count)
        self.parts = state["parts"]
        if state["step"] > self.step:
            load_shares(self.trainer, last[0], files, self.processes)
            self.trainer.history = state["history"]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block a signal to stop is only noted, for the end of the step."""

        def note(number: int, frame: Any) -> None:
            self.signalled = 1.0

        self.signalled = self.told_to_stop = 0.0
        may = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, note) for number in TO_STOP if may}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
