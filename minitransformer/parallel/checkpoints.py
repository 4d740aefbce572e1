"""Checkpoints of which every process writes its share, through `torch.distributed.checkpoint`.

A folder holds the last two, each in a folder:

    numbers.shares/step-00000050/  .metadata  __0_0.distcp  __1_0.distcp  state.json
    numbers.shares/step-00000100/  ...

The tensors have the names that they have in a trainer's single file, and `state.json` holds the
state of that file. So `gather` makes one of the other, and any number of processes can go on.

Load only checkpoints that you trust: `.metadata` is a pickle, which PyTorch executes. The single
file holds numbers and text only.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.files import locked, replacing
from minitransformer.models.registry import named_weights
from minitransformer.parallel.processes import Processes
from minitransformer.training.checkpoint import save_checkpoint, state_of, tensors_of
from minitransformer.training.trainer import Trainer

__all__ = ["gather"]

KEPT = 2  # checkpoints in a folder: if the last one's disk is damaged, there is one before it
STATE = "state.json"


@contextmanager
def sole_training(folder: Path, processes: Processes) -> Iterator[None]:
    """The folder, made if it is not there, is these processes' alone inside the block."""
    with ExitStack() as stack:
        with processes.failing_together():
            if processes.is_first:
                folder.mkdir(exist_ok=True)
                stack.enter_context(locked(folder))
                for leftover in folder.glob(".*.unfinished"):
                    shutil.rmtree(leftover)
        yield


def save_shares(trainer: Trainer, parts: int, folder: Path, processes: Processes) -> None:
    """Write a checkpoint, every process its share.

    They write to a folder beside it, which gets its name when all have finished: the checkpoint
    is there whole, or not at all.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    place = folder / f"step-{trainer.step:08d}"
    unfinished = folder / f".{place.name}.unfinished"
    if processes.everyones(place.exists())[0]:
        return
    try:
        with processes.failing_together():
            rank: Any = processes.rank
            try:
                save(tensors_of(trainer), checkpoint_id=unfinished)
                hashes = {path.name: sha256(path) for path in unfinished.glob(f"__{rank}_*")}
            except (CheckpointException, OSError) as error:
                cause: Any = error
                if isinstance(error, CheckpointException):
                    rank, (cause, _) = next(iter(error.failures.items()))
                raise OSError(f"by process {rank} of {processes.count}: {cause}") from error
        all_hashes = processes.everyones(hashes)
        with processes.failing_together():
            if processes.is_first:
                finish(trainer, parts, unfinished, all_hashes)
                unfinished.rename(place)
                flush(folder)
    except OSError as error:
        if processes.is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(f"{place} could not be written {error}; what was before it stays") from error
    if processes.is_first:
        for older in checkpoints_in(folder)[:-KEPT]:
            shutil.rmtree(older)


def finish(trainer: Trainer, parts: int, unfinished: Path, hashes: list[dict[str, str]]) -> None:
    """Write the state and the checksums of all files, once these are there."""
    files = {name: digest for share in hashes for name, digest in share.items()}
    files[".metadata"] = sha256(unfinished / ".metadata")
    content = json.dumps({"state": state_of(trainer) | {"parts": parts}, "files": files}).encode()
    with replacing(unfinished / STATE) as path:
        path.write_bytes(content + b"\n" + hashlib.sha256(content).hexdigest().encode())
    flush(unfinished)


def flush(folder: Path) -> None:
    """Have the operating system write a folder's names to its disk, where it can be asked to."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the last one at the end."""
    return sorted(path.parent for path in folder.glob(f"step-*/{STATE}"))


def read_state(place: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The state of a checkpoint, and the checksums of its files."""
    content, _, end = (place / STATE).read_bytes().rpartition(b"\n")
    expected = end.decode(errors="replace")
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise damaged(place / STATE, found, expected)
    read = json.loads(content)
    return read["state"], read["files"]


def check_files(place: Path, files: Mapping[str, str]) -> None:
    """Raise a ValueError if a file is missing or not what was written."""
    for name, expected in files.items():
        found = sha256(place / name) if (place / name).is_file() else "missing"
        if found != expected:
            raise damaged(place / name, found, expected)


def damaged(path: Path, found: str, expected: str) -> ValueError:
    """The error that says so, and what to do."""
    return ValueError(
        f"{path} is damaged: its SHA-256 is {found}, expected {expected}; without the folder "
        f"{path.parent.name} a training goes on from the checkpoint before it"
    )


def load_shares(
    trainer: Trainer, place: Path, files: Mapping[str, str], processes: Processes
) -> None:
    """Put a checkpoint into the trainer's model and optimiser, into each process its share."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    with processes.failing_together():  # each process checks some files for all
        check_files(place, dict(sorted(files.items())[processes.rank :: processes.count]))
    saved = empty_tensors(place, "meta")
    for name, parameter in named_weights(trainer.model).items():
        prefix = f"optimizer.{name}."
        trainer.optimizer.state[parameter] = {
            key.removeprefix(prefix): torch.zeros_like(parameter)
            if tensor.shape
            else torch.zeros((), dtype=tensor.dtype, device=parameter.device)
            for key, tensor in saved.items()
            if key.startswith(prefix)
        }
        if f"average.{name}" in saved:
            trainer.average[name] = torch.zeros_like(parameter, requires_grad=False)
    try:
        load(tensors_of(trainer), checkpoint_id=place)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise OSError(f"{place} cannot be read: {cause}") from error


def empty_tensors(place: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Tensors by name, as large as those of a checkpoint."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    return {
        name: torch.empty(about.size, dtype=about.properties.dtype, device=device)
        for name, about in FileSystemReader(place).read_metadata().state_dict_metadata.items()
        if isinstance(about, TensorStorageMetadata)
    }


def check_state(trainer: Trainer, place: Path, state: dict[str, Any]) -> None:
    """Raise a ValueError if a checkpoint is of another training than the trainer's."""
    ours = state_of(trainer)
    for name in (name for name in ours if name not in ("step", "history")):
        found, expected = state[name], ours[name]
        if isinstance(found, dict):
            keys = [key for key in expected if found.get(key) != expected[key]]
            found, expected = ({key: d.get(key) for key in keys} for d in (found, expected))
        if found != expected:
            what = f"its {name} is {found}, not {expected}"
            raise ValueError(f"{place} is of another training: {what}")


def gather(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write the last checkpoint of a folder as the single file that `Trainer.save` writes.

    `folder` is what `ParallelTrainer.fit` has saved to. No process is asked. `Trainer.resume`,
    `Translator.load` and the command line read the file, and a `ParallelTrainer` of a resumed
    trainer goes on from it.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or there is no folder for `path`.
        OSError: if the file cannot be written; what was there before stays.
        ValueError: if the checkpoint is damaged.

    Example:
        >>> gather("nowhere", "model.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: there is no checkpoint in nowhere
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    found = checkpoints_in(Path(folder))
    if not found:
        raise FileNotFoundError(f"there is no checkpoint in {folder}")
    state, files = read_state(found[-1])
    check_files(found[-1], files)
    tensors = empty_tensors(found[-1])
    with warnings.catch_warnings():  # PyTorch finds it worth saying that there is one process
        warnings.filterwarnings("ignore", ".*to load in a single process", UserWarning)
        load(tensors, checkpoint_id=found[-1], no_dist=True)
    save_checkpoint(path, tensors, state)
