"""Checkpoints: tensors and a JSON header in one safetensors file, which executes nothing.

Built in chapter 9.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from minitransformer.files import File, local_folder, locked, read_tensors, write_tensors
from minitransformer.models.pretrained import (
    HUB_FILES,
    check_as_configured,
    check_come_back,
    read_folder,
)
from minitransformer.models.registry import (
    check_dtype,
    described,
    named_weights,
    rebuilt,
    with_weights,
)
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.training.config import TrainingConfig

__all__ = ["Resumable", "load_checkpoint", "save_checkpoint"]

FORMAT = "minitransformer 2"


def save_checkpoint(file: File, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and state to a path, replacing what was there in a single step.

    The file may also be one that is open for writing bytes, such as an `io.BytesIO`. Tensors do not
    share memory; JSON can hold the state.

    Raises:
        FileNotFoundError: if the folder of the path does not exist.
        OSError: if it cannot be written; what was there before stays.

    Example:
        >>> import io, torch
        >>> file = io.BytesIO()
        >>> save_checkpoint(file, {"w": torch.ones(2)}, {"step": 3})
        >>> _ = file.seek(0)
        >>> load_checkpoint(file)
        ({'w': tensor([1., 1.])}, {'step': 3})
    """
    if isinstance(file, str | os.PathLike):
        check_folder(Path(file))
    metadata = {"format": FORMAT, "state": json.dumps(state)}
    try:
        write_tensors(file, tensors, metadata)
    except OSError as error:
        raise OSError(f"{file} could not be written, and is as it was: {error}") from error


def check_folder(path: Path) -> None:
    """Raise an error unless there is a folder for `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the checkpoint does not exist: {path.parent}")


def load_checkpoint(file: File) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote, onto the CPU.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or not a checkpoint of this package.
    """
    if isinstance(file, str | os.PathLike) and not Path(file).is_file():
        raise FileNotFoundError(f"there is no checkpoint at {file}")
    tensors, metadata = read_tensors(file)
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{file} is not a checkpoint of this package: "
            f"its format is {metadata.get('format')!r}, expected {FORMAT!r}"
        )
    # Any other entry may be a checksum that is not recognised, because its name is damaged.
    if metadata.keys() != {"format", "state"}:
        raise ValueError(
            f"{file} is damaged: it has {sorted(metadata)}, expected ['format', 'state']"
        )
    return tensors, json.loads(metadata["state"])


def fingerprint(texts: Sequence[Any]) -> str:
    """The number of texts, pairs of texts, or ids, and a short hash that identifies them."""
    if not isinstance(texts, np.ndarray):
        digest = hashlib.sha256(json.dumps(list(texts)).encode())
        return f"{len(texts)} texts, {digest.hexdigest()[:12]}"
    digest = hashlib.sha256()
    for start in range(0, len(texts), 2**20):  # of a file mapped into memory, a part at a time
        digest.update(texts[start : start + 2**20].astype("<i8").tobytes())
    return f"{len(texts)} tokens, {digest.hexdigest()[:12]}"


def state_of(trainer: Any) -> dict[str, Any]:
    """All that a checkpoint keeps of a trainer except tensors, as JSON can hold it."""
    weights = named_weights(trainer.model)
    return described(trainer.model) | {
        "tokenizers": {side: t.to_dict() for side, t in trainer.tokenizers.items()},
        "training": asdict(trainer.config),
        "data": trainer.data,
        "step": trainer.step,
        "history": trainer.history,
        "frozen": [name for name, weight in weights.items() if not weight.requires_grad],
    }


def checked_state(trainer: Any) -> dict[str, Any]:
    """The state, or an error if a file cannot hold it or would be read as another model."""
    state = state_of(trainer)
    json.dumps(state)
    check_as_configured(trainer.model)
    check_dtype(named_weights(trainer.model))
    check_come_back(trainer.tokenizers)
    return state


def tensors_of(trainer: Any) -> dict[str, Tensor]:
    """The tensors of a checkpoint: weights, the optimiser's state, averaged weights."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in named_weights(trainer.model).items():  # a tied one once
        tensors[f"model.{name}"] = parameter.detach()
        for key, value in trainer.optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors | {f"average.{name}": mean for name, mean in trainer.average.items()}


class Resumable:
    """The part of a trainer that saves, resumes, and keeps other trainings from its file."""

    resources: ExitStack
    """Released when `fit` is done."""
    texts: Any
    history: list[dict[str, float]]

    @cached_property
    def data(self) -> str:
        """The fingerprint of the texts."""
        return fingerprint(self.texts)

    def save(self, file: File) -> None:
        """Write a checkpoint, to a path or an open file, to use the model and to go on from.

        Errors are those of `save_checkpoint`, and a ValueError if model or tokenizers would come
        back as others.
        """
        save_checkpoint(file, tensors_of(self), checked_state(self))

    def claim(self, path: str | os.PathLike[str]) -> None:
        """Keep other trainings from this checkpoint until `fit` is done; refuse a bad one now."""
        path = Path(path)
        check_folder(path)
        if path.is_dir():
            raise IsADirectoryError(f"the checkpoint is to be a file, but {path} is a folder")
        self.resources.enter_context(locked(path))
        check_same_training(path, self.history)
        checked_state(self)

    @classmethod
    def resume(cls, file: File, texts: Any, device: torch.device | str = "cpu") -> Self:
        """Rebuild a trainer from its checkpoint, on `device`, ready to go on with `fit`.

        Raises:
            FileNotFoundError: if there is no checkpoint.
            ValueError: if it is damaged, no checkpoint of a trainer, or of other texts.
        """
        tensors, state = load_checkpoint(file)
        model, tokenizers = rebuild(tensors, state, device)
        make: Any = cls
        config = TrainingConfig(**state["training"])
        trainer: Any = make(model, texts, *tokenizers.values(), config)
        if state["data"] != trainer.data:
            raise ValueError(
                f"{file} was trained on other texts: {state['data']}, not {trainer.data}"
            )
        for name, parameter in named_weights(model).items():
            prefix = f"optimizer.{name}."
            trainer.optimizer.state[parameter] = {
                key.removeprefix(prefix): value.to(device)
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
            if (key := f"average.{name}") in tensors:
                trainer.average[name] = tensors[key].to(device)
        trainer.history = state["history"]
        return cast(Self, trainer)


def check_same_training(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if there is a file of another training (other losses): it would be lost."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        theirs = load_checkpoint(path)[1]["history"]
        written, ours = ([(row["step"], row["loss"]) for row in rows] for rows in (theirs, history))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is no checkpoint of a trainer, and would be replaced: name another file, or "
            "delete it"
        ) from error
    shorter = min(len(written), len(ours))
    if written[:shorter] != ours[:shorter] or (written and not ours):
        raise ValueError(
            f"{path} holds another training, of {len(written)} steps, which this one, at step "
            f"{len(ours)}, would replace: go on from it with `resume`, name another file, or "
            "delete it"
        )


def rebuild(
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    device: torch.device | str,
    prefix: str = "model.",
) -> tuple[Any, dict[str, Tokenizer]]:
    """The model and tokenizers of a checkpoint; with the prefix "average.", averaged weights."""
    needed = {"class", "model", "tokenizers", "training", "data", "step", "history"}
    if missing := needed - state.keys():
        raise ValueError(f"the checkpoint was not written by a Trainer: no {sorted(missing)} in it")
    weights = {k.removeprefix(prefix): w for k, w in tensors.items() if k.startswith(prefix)}
    model = with_weights(rebuilt(state, "cpu"), weights, device)
    for name in state["frozen"]:
        model.get_parameter(name).requires_grad_(False)
    return model, {name: Tokenizer.from_dict(t) for name, t in state["tokenizers"].items()}


def load_model(file: File, device: torch.device | str) -> tuple[Any, dict[str, Tokenizer]]:
    """The model and tokenizers of a checkpoint, or of a folder or Hub name of a model."""
    if isinstance(file, str | os.PathLike):
        path = Path(file)
        if not path.is_file() and path.suffix != ".safetensors":
            return read_folder(local_folder(file, HUB_FILES), device)
    tensors, state = load_checkpoint(file)
    averaged = any(name.startswith("average.") for name in tensors)
    return rebuild(tensors, state, device, "average." if averaged else "model.")
