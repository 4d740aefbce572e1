"""The files of a training are its alone: no other writes them meanwhile, or has written them.

Built in chapter 9.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from minitransformer.checkpoint import check_folder, checked_state
from minitransformer.files import locked

__all__ = ["sole_writer"]


@contextmanager
def sole_writer(trainer: Any, *paths: str | os.PathLike[str] | None) -> Iterator[None]:
    """The checkpoints, if there are to be any, are this training's alone inside the block.

    What would keep them from being written or read is found now, which is better than after hours.

    Raises:
        FileNotFoundError: if the folder of a path does not exist.
        OSError: if no file can be written there.
        TypeError: if JSON cannot hold what belongs into it.
        ValueError: if another training is writing it, or has written it; if model or tokenizers
            would come back as others.
    """
    with ExitStack() as stack:
        for path in (Path(path) for path in paths if path is not None):
            check_folder(path)
            if path.is_dir():
                raise IsADirectoryError(f"the checkpoint is to be a file, but {path} is a folder")
            try:
                stack.enter_context(locked(path))
            except OSError as error:
                raise OSError(f"the checkpoint {path} cannot be written: {error}") from error
            check_same_training(path, trainer.history)
            checked_state(trainer)
        yield


def check_same_training(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if there is a file that is not of this training: it would be replaced.

    The losses tell: a trainer that goes on has those of its file, one that begins has none.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        theirs = json.loads(metadata["state"])["history"]
        written, ours = ([(row["step"], row["loss"]) for row in rows] for rows in (theirs, history))
    except (KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
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
