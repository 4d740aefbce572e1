"""Checkpoints: tensors and a JSON header in one safetensors file, written all or not at all.

A safetensors file holds numbers and text and can execute nothing when it is read.

Built in chapter 9.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minitransformer.config import TransformerConfig
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.pretrained import local_folder, read_config, read_tokenizers
from minitransformer.tokenization import Tokenizer
from minitransformer.transformer import Transformer

__all__ = ["load_checkpoint", "save_checkpoint"]

FORMAT = "minitransformer 1"


def save_checkpoint(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Write tensors and state to `path`, replacing what was there in a single step.

    The file is written beside `path` first and renamed when it is complete on disk: whoever
    stops the program at any moment finds the old checkpoint or the new one, whole.

    Args:
        path: the file to write.
        tensors: names to tensors; no two may share memory.
        state: whatever else is needed, as JSON can hold it.

    Raises:
        FileNotFoundError: if the folder of `path` does not exist.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/a.safetensors", {"w": torch.ones(2)}, {"step": 3})
        ...     tensors, state = load_checkpoint(f"{folder}/a.safetensors")
        >>> tensors["w"], state["step"]
        (tensor([1., 1.]), 3)

    Built in chapter 9.
    """
    path = Path(path)
    check_folder(path)
    metadata = {"format": FORMAT, "state": json.dumps(state)}
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    temporary = path.with_name(f".{path.name}.unfinished")
    try:
        temporary.touch()
        permissions = temporary.stat().st_mode
        save_file(contiguous, temporary, metadata)
        temporary.chmod(permissions)  # safetensors would keep the file from all but its owner
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise an error unless there is a folder for `path`: better now than after the training."""
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"the folder of the checkpoint does not exist: {Path(path).parent}")


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote, onto the CPU.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or not a checkpoint of this package.

    Example:
        >>> load_checkpoint("nowhere.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: there is no checkpoint at nowhere.safetensors

    Built in chapter 9.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        size = path.stat().st_size
        raise ValueError(
            f"{path} ({size} bytes) is damaged or no safetensors file: {error}"
        ) from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a checkpoint of this package: "
            f"its format is {metadata.get('format')!r}, expected {FORMAT!r}"
        )
    return tensors, json.loads(metadata["state"])


def fingerprint(texts: Sequence[Any]) -> str:
    """The number of texts, or pairs of them, and a short hash: the same for the same only."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    return f"{len(texts)} texts, {digest[:12]}"


def rebuild(
    tensors: dict[str, Tensor], state: dict[str, Any], device: torch.device | str
) -> tuple[Any, dict[str, Tokenizer]]:
    """The model and tokenizers of a loaded checkpoint."""
    if missing := {"model", "tokenizers", "training", "data", "step", "history"} - state.keys():
        raise ValueError(f"the checkpoint was not written by a Trainer: no {sorted(missing)} in it")
    config = TransformerConfig(**state["model"])
    kind = Transformer if config.num_encoder_layers else DecoderOnlyTransformer
    prefix = "model."
    weights = {k.removeprefix(prefix): w for k, w in tensors.items() if k.startswith(prefix)}
    model = kind.with_weights(config, weights, device)
    return model, {name: Tokenizer.from_dict(t) for name, t in state["tokenizers"].items()}


def load_model(
    path: str | os.PathLike[str], device: torch.device | str
) -> tuple[Any, dict[str, Tokenizer]]:
    """The model and tokenizers of a checkpoint, or of a folder or Hub name of a model."""
    if Path(path).is_file() or Path(path).suffix == ".safetensors":
        return rebuild(*load_checkpoint(path), device)
    folder = local_folder(path)
    _, config = read_config(folder)
    kind = Transformer if config.num_encoder_layers else DecoderOnlyTransformer
    return kind.from_pretrained(folder, device), read_tokenizers(folder, config)
