"""Any trainer of the package, on many processes: the same batches, and the same weights at the end.

Papers: "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (Li et al., 2020);
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (Zhao et al., 2023).
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from minitransformer.models.registry import named_weights
from minitransformer.parallel.checkpoints import (
    check_state,
    checkpoints_in,
    load_shares,
    read_state,
    save_shares,
    sole_training,
)
from minitransformer.parallel.layers import compile_layers, compute_again, full, like, share_out
from minitransformer.parallel.processes import Processes
from minitransformer.training.checkpoint import checked_state
from minitransformer.training.data import in_parts
from minitransformer.training.optimizers import new_optimizer
from minitransformer.training.trainer import Trainer

__all__ = ["ParallelTrainer"]


class LossOf(nn.Module):
    """A trainer's loss of rows as a module, as which the engines expect it."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.model, self.of = trainer.model, trainer.loss

    def forward(self, rows: Any) -> Tensor:
        """The smoothed loss of these rows of a batch, a scalar."""
        return self.of(rows)


def check_parts(parts: int, count: int) -> None:
    """Raise an error unless so many processes can share so many parts evenly."""
    if parts < 1 or parts % count:
        shared_by = [number for number in range(1, parts + 1) if parts % number == 0]
        raise ValueError(
            f"every batch is dealt in {parts} parts, which {count} processes cannot share evenly; "
            f"start one of {shared_by}"
        )


class ParallelTrainer(Trainer):
    """Trains what a trainer trains, on all processes together.

    Each batch is the trainer's, split into `parts`: row i belongs to part i mod parts, part p to
    process p mod count, which computes its parts one after the other. So four parts are one step on
    four processes, on two, or on one. The random numbers of a part are a function of
    (seed, step, part), in any process.

    The loss of a batch is the mean over its tokens, so each part is weighted by its number of
    tokens (`in_parts`). The engines average gradients over the processes, so the loss is multiplied
    by their number before the backward pass.

    The checkpoint of `fit` is a folder, in which each process writes its share. If it is ahead of
    the trainer, `fit` resumes from it: the same program, started again, loses only the steps since
    the last checkpoint. A signal to stop, to any process, stops all after the same step. Callbacks
    are called in all processes.

    To rounding, the final weights with one part are those of the trainer itself; with the same
    parts they are the same on any number of processes; without dropout, with any parts.

    Args:
        trainer: a `Trainer` or `LanguageModelTrainer`, begun or resumed, the same in all processes.
        processes: from `join_processes`.
        engine: "ddp", each has the whole model; or "fsdp", a share of it and the optimiser's state.
        parts: into how many each batch is split, a multiple of the number of processes. When left
            out: the trainer's `gradient_accumulation_steps`; if that is 1, one a process.
        recompute: compute each layer again in the backward pass, to keep less in memory.
        compiled: have PyTorch compile the layers.

    Raises:
        ImportError: if PyTorch is too old for the engine.
        TimeoutError: if a process has ended.
        ValueError: if the processes cannot share the parts evenly, or have different trainers; if
            `parts` are not those that the trainer accumulates, or "muon" is to work on shares.

    Example:
        >>> import minitransformer as mt
        >>> from minitransformer.parallel import join_processes
        >>> pairs, words = [("one two", "two"), ("two", "one")], mt.WordTokenizer.train(["one two"])
        >>> sizes = {"src_vocab_size": words.vocab_size, "tgt_vocab_size": words.vocab_size}
        >>> model = mt.Transformer(mt.TransformerConfig(**sizes, d_model=8, num_heads=2, d_ff=16))
        >>> config = mt.TrainingConfig(steps=3, warmup_steps=1)
        >>> trainer = Trainer(model, pairs, words, words, config)
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
        accumulated = trainer.config.gradient_accumulation_steps
        if accumulated > 1:
            if parts not in (None, accumulated):
                raise ValueError(
                    f"parts must be the trainer's gradient_accumulation_steps={accumulated}, "
                    f"got {parts}"
                )
            parts = accumulated
        if trainer.config.optimizer == "muon" and engine == "fsdp":
            raise ValueError(
                "optimizer='muon' needs whole matrices, of which engine='fsdp' leaves each process "
                "a share; take engine='ddp'"
            )
        self.trainer, self.processes, self.parts_asked = trainer, processes, parts
        self.parts = processes.count if parts is None else parts
        check_parts(self.parts, processes.count)
        with processes.waiting("start"):
            same = {name: getattr(trainer, name) for name in ("config", "data", "step")}
            processes.check_same(
                **same, model=trainer.model.config, engine=engine, parts=self.parts
            )
        if recompute:
            compute_again(trainer.model)
        if compiled:
            compile_layers(trainer.model)
        self.module: nn.Module = LossOf(trainer)
        if engine == "ddp":
            self.module = DistributedDataParallel(self.module)
        else:
            self.share_out()
        # The last reference to the group waits for its threads, and DDP's might wait for ever.
        # So this one is made after `module`, and is released after it.
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

    def __getattr__(self, name: str) -> Any:
        """The model, optimiser, data and history are the trainer's."""
        return getattr(vars(self)["trainer"], name)

    def batches(self) -> Iterator[Any]:
        """The trainer's batches from the next step on, for ever."""
        return self.trainer.batches()

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update: this process's parts, then what all have found together."""
        trainer, config, found = self.trainer, self.trainer.config, 0.0
        device = self.processes.device.type
        bf16 = torch.autocast(device, torch.bfloat16, enabled=config.precision == "bf16")
        dealt = in_parts(batch, self.parts, trainer.model.config.pad_id)
        trainer.model.train()
        trainer.optimizer.zero_grad()
        mine = range(self.processes.rank, self.parts, self.processes.count)
        with self.processes.waiting(f"step {self.step + 1}"):
            for part in mine:
                trainer.seed(self.step + 1, part)
                rows, share = dealt[part]
                # With fewer rows than parts some get none, but the others wait for these, too.
                rows = rows if share else batch[:1]
                with self.adding_up(part == mine[-1]):
                    with bf16:
                        loss = share * self.module(rows)
                    (self.processes.count * loss).backward()
                found += loss.item()
            norm = full(clip_grad_norm_(trainer.model.parameters(), config.max_gradient_norm))
            (loss_of_all,) = self.processes.totals(found)
            return self.update(loss_of_all, norm.item())

    def adding_up(self, last: bool) -> AbstractContextManager[Any]:
        """Only in a process's last part gradients go over the network, those of all its parts."""
        if isinstance(self.module, DistributedDataParallel):
            return nullcontext() if last else self.module.no_sync()
        self.trainer.model.set_requires_gradient_sync(last)
        return nullcontext()

    def in_any_process(self, condition: bool) -> bool:
        """Whether it holds in this process or another."""
        with self.processes.waiting(f"end of step {self.step}"):
            return self.processes.totals(float(condition)) > [0.0]

    def save(self, path: str | os.PathLike[str]) -> None:  # type: ignore[override]
        """Write a checkpoint to this folder, every process its share."""
        with self.processes.waiting(f"checkpoint {self.step}"):
            save_shares(self.trainer, self.parts, Path(path), self.processes)

    def claim(self, path: str | os.PathLike[str]) -> None:
        """Keep others from this folder, and go on from its last checkpoint if that is further."""
        folder, processes = Path(path), self.processes
        with processes.waiting("beginning"):
            checked_state(self.trainer)
            self.resources.enter_context(sole_training(folder, processes))
            # The first one looks: on a network's disk others may see a file later than it does.
            last = processes.everyones(checkpoints_in(folder)[-1:])[0]
            if last:
                self.go_on(last[0])

    def go_on(self, place: Path) -> None:
        """Take what this checkpoint has, if it is further."""
        state, files = read_state(place)
        check_state(self.trainer, place, state)
        if self.parts_asked not in (None, state["parts"]):
            raise ValueError(
                f"{place} has batches dealt in {state['parts']} parts, not in {self.parts_asked}"
            )
        check_parts(state["parts"], self.processes.count)
        self.parts = state["parts"]
        if state["step"] > self.step:
            load_shares(self.trainer, place, files, self.processes)
            self.trainer.history = state["history"]
