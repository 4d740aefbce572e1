"""Files that are whole or not there: replaced in a single step, with a checksum, by one at a time.

Built in chapter 9.
"""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

File = str | os.PathLike[str] | BinaryIO
"""A path, or a file open for reading or writing bytes, such as an `io.BytesIO`."""

CHECKSUM = "minitransformer.sha256"
"""The entry of a safetensors file's metadata that holds the SHA-256 of all its other bytes."""

DIGITS = 64  # of a SHA-256, in hexadecimal


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write to, which takes its place when the block is done.

    If the program is stopped at any moment, `path` is the old file or the new one, whole. Two
    writers at the same time have a new file each: the last one to finish wins.
    """
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}.unfinished")
    try:
        unfinished.touch(exist_ok=False)
        yield unfinished
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_json(content: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write JSON in a single step: an interruption leaves either the old file or the new one."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path.name} does not exist: {path.parent}")
    with replacing(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=2)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object; a ValueError if the file holds something else, or is damaged."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return json_object(Path(path).read_bytes(), str(path))


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """The object that a JSON file of that name holds; a ValueError if it holds none."""
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{name} is damaged or no JSON file: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds a {type(found).__name__}, expected an object")
    return found


def named_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, or an error if it has no name: an empty one would mean the one we are in."""
    if os.fspath(folder) == "":
        raise ValueError("folder must have a name, got ''; the one we are in is called '.'")
    return Path(folder)


def local_folder(name_or_folder: str | os.PathLike[str], wanted: Sequence[str]) -> Path:
    """The folder itself, or where those files of that model of the Hub have been downloaded to."""
    path = named_folder(name_or_folder)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(
            f"name_or_folder must be a folder, or a name on the Hugging Face Hub, got the file "
            f"{path}; its folder is {path.parent}"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FileNotFoundError(
            f"there is no folder {name_or_folder}; if it is a name on the Hugging Face Hub, "
            "install what asks the Hub: pip install 'minitransformer[hub]'"
        ) from error
    try:
        return Path(snapshot_download(os.fspath(name_or_folder), allow_patterns=list(wanted)))
    except (OSError, ValueError) as error:  # the Hub's errors are one or the other
        raise FileNotFoundError(
            f"there is no folder {name_or_folder}, and from the Hugging Face Hub: {error}"
        ) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` to write to, which takes its place when the block is done.

    A FileExistsError if there is a file at `path`, or a folder that is not empty.
    """
    path = path.resolve()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} is there already; name a new folder, or an empty one")
    unfinished = path.with_name(f".{path.name}.{token_hex(4)}.unfinished")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        if path.exists():
            path.rmdir()
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` against other blocks like this one, in this process or another.

    The lock is the operating system's on a file beside `path`, so it ends with its process,
    however that ends. Without such locks, as on Windows, there is no protection. Unfinished files
    of a killed writer of `path` are removed.

    Raises:
        OSError: if no file can be made in the folder of `path`.
        ValueError: if `path` is locked.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        file = open(lock, "ab")  # noqa: SIM115
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    with file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last owner may have removed the file before we locked it.
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                    raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            raise ValueError(
                f"{path} is being written by another training, here or in another process"
            ) from error
        except OSError:
            pass  # a file system without locks, as some in a network: better unguarded than no file
        try:
            for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.unfinished"):
                leftover.unlink(missing_ok=True)
            yield
        finally:
            if fcntl is not None:
                lock.unlink(missing_ok=True)


def write_tensors(file: File, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum among its metadata; a path in a single step."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = memoryview(save(contiguous, {**metadata, CHECKSUM: "0" * DIGITS}))
    place = place_of_checksum(content)
    parts = (content[:place], checksum(content, place), content[place + DIGITS :])
    if not isinstance(file, str | os.PathLike):
        file.writelines(parts)
        return
    with replacing(Path(file)) as unfinished, open(unfinished, "wb") as opened:
        opened.writelines(parts)


def read_tensors(file: File) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, onto the CPU, and its metadata.

    A ValueError if it is damaged, which a file of `write_tensors` is with any bit changed.
    """
    content = Path(file).read_bytes() if isinstance(file, str | os.PathLike) else file.read()
    wrong = f"{file} ({len(content)} bytes) is damaged"
    place = place_of_checksum(content)
    if place > 0:
        found, expected = content[place : place + DIGITS], checksum(content, place)
        if found != expected:
            raise ValueError(f"{wrong}: its checksum is {found!r}, expected {expected!r}")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise ValueError(f"{wrong} or no safetensors file: {error}") from error
    metadata = json.loads(header_of(content)).get("__metadata__", {})
    metadata.pop(CHECKSUM, None)
    return tensors, metadata


def header_of(content: bytes | memoryview) -> bytes:
    """The JSON at the beginning of a safetensors file, after the 8 bytes with its length."""
    return bytes(content[8 : 8 + int.from_bytes(content[:8], "little")])


def place_of_checksum(content: bytes | memoryview) -> int:
    """Where the digits of the checksum begin, 0 if there is none.

    A quotation mark in a name or a text is escaped, so that this entry cannot be in another.
    """
    before, entry, _ = header_of(content).partition(f'"{CHECKSUM}":"'.encode())
    return 8 + len(before) + len(entry) if entry else 0


def checksum(content: bytes | memoryview, place: int) -> bytes:
    """The SHA-256 of a file without the digits that begin at `place`."""
    digest = hashlib.sha256(content[:place])
    digest.update(memoryview(content)[place + DIGITS :])
    return digest.hexdigest().encode()
