"""A checkpoint is whole or not there, says what is wrong with it, and executes nothing."""

import hashlib
import os
import pickle
import re
import stat
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_same_weights, randn
from safetensors.torch import save_file

from minitransformer import Translator
from minitransformer.training.checkpoint import fingerprint, load_checkpoint, save_checkpoint

TENSORS = {
    "float": randn(5, 7),
    "brain": randn(3, 4, dtype=torch.bfloat16),
    "integer": torch.tensor(2**60 + 1),
    "transposed": randn(5, 7).T,
    "empty": torch.zeros(0, 3),
    "ß 数": torch.tensor([True, False]),
}
STATE = {"step": 7, "history": [{"loss": 0.1 + 0.2}], "name": "dreißig", "none": None}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def saved(path):
    save_checkpoint(path, TENSORS, STATE)
    return path


def assert_holds(file):
    found_tensors, found_state = load_checkpoint(file)
    assert found_state == STATE
    assert_same_weights(found_tensors, TENSORS)


@pytest.mark.parametrize("kind", [str, Path, open, BytesIO])
def test_everything_comes_back_bit_for_bit(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    name = "a" if sys.getfilesystemencoding() == "ascii" else "ß"
    if kind in (str, Path):
        save_checkpoint(kind(name), TENSORS, STATE)
        assert_holds(kind(name))
        Path("other").touch()
        modes = {stat.S_IMODE(os.stat(file).st_mode) for file in (name, "other")}
        assert len(modes) == 1  # it has the permissions of any new file
        return
    with BytesIO() if kind is BytesIO else open(name, "wb+") as file:
        save_checkpoint(file, TENSORS, STATE)
        file.seek(0)
        assert_holds(file)


ERRORS = [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("place", ["save", "checksum", "os.fsync", "os.replace"])
@pytest.mark.parametrize("before", [True, False], ids=["there before", "new"])
def test_failure_while_saving_leaves_what_was_there(path, monkeypatch, error, place, before):
    def fail(*_):
        raise error

    if before:
        save_checkpoint(path, TENSORS, STATE)
    message = None
    if isinstance(error, OSError):
        message = rf"{re.escape(str(path))} could not be written, and is as it was: .*No space left"
    with monkeypatch.context() as patch:
        patch.setattr(f"minitransformer.files.{place}", fail)
        with pytest.raises(type(error), match=message):
            save_checkpoint(path, {"new": torch.ones(2)}, {"step": 8})
    assert os.listdir(path.parent) == ([path.name] if before else [])
    if before:
        assert_holds(path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_leaves_what_was_there(saved):
    """A limit on the size of files stands for it."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not be written, and is as it was: .*too large"):
            save_checkpoint(saved, {"weight": torch.ones(10_000)}, {"step": 8})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(saved.parent) == [saved.name]
    assert_holds(saved)


def test_new_file_is_complete_on_disk_before_it_takes_the_name(path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.fstat(fd).st_size) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda *a: events.append("replace") or replace(*a))
    save_checkpoint(path, TENSORS, STATE)
    assert events == [path.stat().st_size, "replace"]


def test_state_that_is_no_json_leaves_what_was_there(saved):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(saved, TENSORS, {"step": object()})
    assert_holds(saved)


def test_missing_folder_is_refused(tmp_path):
    folder = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError, match=f"does not exist: {re.escape(str(folder))}"):
        save_checkpoint(folder / "model.safetensors", TENSORS, STATE)


def assert_refused(path, error, message):
    """By every loader, with the name of the file."""
    for load in (load_checkpoint, Translator.load):
        with pytest.raises(error, match=message.replace("PATH", re.escape(str(path)))):
            load(path)


@pytest.mark.parametrize("is_folder", [False, True])
def test_missing_file_is_named(path, is_folder):
    if is_folder:
        path.mkdir()
    assert_refused(path, FileNotFoundError, "there is no checkpoint at PATH")


GARBAGE = [b"hello", b"\x00" * 100, b"\xff" * 100, torch.arange(3000).numpy().tobytes()]
GARBAGE += [(2).to_bytes(8, "little") + b"[]", (100).to_bytes(8, "little") + b"{" * 100]


@pytest.mark.parametrize("content", [0, 1, 7, 8, 9, 100, -100, -8, -1, *GARBAGE], ids=repr)
def test_truncated_file_and_garbage_are_refused(saved, content):
    if isinstance(content, int):
        content = saved.read_bytes()[:content]
    saved.write_bytes(content)
    assert_refused(saved, ValueError, rf"PATH \({len(content)} bytes\) is damaged")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"state": "{}"}])
def test_safetensors_file_of_another_program_is_refused(path, metadata):
    save_file({"weight": torch.ones(2)}, path, metadata)
    found = (metadata or {}).get("format")
    message = rf"PATH is not a checkpoint .* format is {found!r}, expected 'mini"
    assert_refused(path, ValueError, message)


def test_checksum_with_another_name_is_no_file_without_a_checksum(saved):
    content = saved.read_bytes()
    assert content.count(b"transformer.sha256") == 1
    saved.write_bytes(content.replace(b"transformer.sha256", b"transformer.sha257"))
    assert_refused(saved, ValueError, r"PATH is damaged: .*expected \['format', 'state'\]")


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("dump", ["pickle", "torch"])
def test_pickle_is_refused_and_never_executed(path, tmp_path, dump):
    trap = Trap(tmp_path / "sprung")
    if dump == "pickle":
        path.write_bytes(pickle.dumps(trap))
    else:
        torch.save({"weight": torch.ones(2), "trap": trap}, path)
    assert_refused(path, ValueError, "PATH .* is damaged")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(trap))
    assert (tmp_path / "sprung").exists()  # the trap works


def test_ids_are_known_by_all_of_them():
    """Also those of a file that is longer than what is read at once."""
    ids = np.arange(2**20 + 5, dtype=np.uint32)
    digest = hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:12]
    assert fingerprint(ids) == f"1048581 tokens, {digest}"
