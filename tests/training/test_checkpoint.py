"""A checkpoint is whole or not there, says what is wrong with it, and executes nothing."""

import os
import pickle
import re
import stat
import sys
from pathlib import Path

import pytest
import torch
from helpers import randn
from safetensors.torch import save_file

import minitransformer.files
from minitransformer import Translator
from minitransformer.training.checkpoint import load_checkpoint, save_checkpoint

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


def assert_holds(path, tensors, state):
    found_tensors, found_state = load_checkpoint(path)
    assert found_state == state
    assert found_tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found_tensors[name].dtype == tensor.dtype
        assert torch.equal(found_tensors[name], tensor)


@pytest.mark.parametrize("kind", [str, Path])
def test_everything_comes_back_bit_for_bit(tmp_path, kind):
    odd = "a" if sys.getfilesystemencoding() == "ascii" else "ß"
    path = kind(tmp_path / "a folder" / f"{odd}.safetensors")
    (tmp_path / "a folder").mkdir()
    save_checkpoint(path, TENSORS, STATE)
    assert_holds(path, TENSORS, STATE)


def test_file_has_the_permissions_of_any_new_file(saved):
    other = saved.parent / "other"
    other.touch()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_relative_path_without_folder_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint("here.safetensors", TENSORS, STATE)
    assert_holds("here.safetensors", TENSORS, STATE)


# --- stopped while saving


def half_a_file(error):
    def save_file(tensors, path, metadata):
        Path(path).write_bytes(b"half of")
        raise error

    return save_file


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("place", ["save_file", "fsync", "replace"])
@pytest.mark.parametrize("before", [True, False], ids=["there before", "new"])
def test_failure_while_saving_leaves_what_was_there(path, monkeypatch, error, place, before):
    if before:
        save_checkpoint(path, TENSORS, STATE)
    if place == "save_file":
        monkeypatch.setattr(minitransformer.files, "save_file", half_a_file(error))
    else:

        def fail(*_):
            raise error

        monkeypatch.setattr(minitransformer.files.os, place, fail)
    with pytest.raises(type(error)):
        save_checkpoint(path, {"new": torch.ones(2)}, {"step": 8})
    monkeypatch.undo()
    assert os.listdir(path.parent) == ([path.name] if before else [])
    if before:
        assert_holds(path, TENSORS, STATE)


def test_new_file_is_complete_on_disk_before_it_takes_the_name(path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append("fsync") or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda *a: events.append("replace") or replace(*a))
    save_checkpoint(path, TENSORS, STATE)
    assert events[:2] == ["fsync", "replace"]


def test_state_that_is_no_json_leaves_what_was_there(saved):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(saved, TENSORS, {"step": object()})
    assert os.listdir(saved.parent) == [saved.name]
    assert_holds(saved, TENSORS, STATE)


def test_missing_folder_is_refused(tmp_path):
    folder = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError, match=f"does not exist: {re.escape(str(folder))}"):
        save_checkpoint(folder / "model.safetensors", TENSORS, STATE)


# --- bad files


@pytest.mark.parametrize("is_folder", [False, True])
def test_missing_file_is_named(path, is_folder):
    if is_folder:
        path.mkdir()
    message = f"there is no checkpoint at {re.escape(str(path))}"
    for load in (load_checkpoint, Translator.load):
        with pytest.raises(FileNotFoundError, match=message):
            load(path)


def assert_damaged(path):
    message = rf"{re.escape(str(path))} \({path.stat().st_size} bytes\) is damaged"
    for load in (load_checkpoint, Translator.load):
        with pytest.raises(ValueError, match=message):
            load(path)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -100, -8, -1])
def test_truncated_file_is_refused(saved, length):
    saved.write_bytes(saved.read_bytes()[:length])
    assert_damaged(saved)


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"\x00" * 100,
        b"\xff" * 100,
        b'{"step": 7}',
        (2).to_bytes(8, "little") + b"[]",
        (100).to_bytes(8, "little") + b"{" * 100,
        torch.arange(3000).numpy().tobytes(),
    ],
    ids=lambda content: str(content[:9]),
)
def test_garbage_is_refused(path, content):
    path.write_bytes(content)
    assert_damaged(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"state": "{}"}])
def test_safetensors_file_of_another_program_is_refused(path, metadata):
    save_file({"weight": torch.ones(2)}, path, metadata)
    found = (metadata or {}).get("format")
    message = rf"{re.escape(str(path))} is not a checkpoint .* format is {found!r}, expected 'mini"
    for load in (load_checkpoint, Translator.load):
        with pytest.raises(ValueError, match=message):
            load(path)


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
    assert_damaged(path)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(trap))
    assert (tmp_path / "sprung").exists()  # the trap works


# --- damage


def test_checksum_with_another_name_is_no_file_without_a_checksum(saved):
    content = saved.read_bytes()
    assert content.count(b"transformer.sha256") == 1
    saved.write_bytes(content.replace(b"transformer.sha256", b"transformer.sha257"))
    with pytest.raises(ValueError, match=r"is damaged: it has .*expected \['format', 'state'\]"):
        load_checkpoint(saved)


def test_full_disk_is_named_with_the_file(saved, monkeypatch):
    full = half_a_file(OSError(28, "No space left on device"))
    monkeypatch.setattr(minitransformer.files, "save_file", full)
    message = rf"{re.escape(str(saved))} could not be written, and is as it was: .*No space left"
    with pytest.raises(OSError, match=message):
        save_checkpoint(saved, {"new": torch.ones(2)}, {"step": 8})
    assert os.listdir(saved.parent) == [saved.name]
    assert_holds(saved, TENSORS, STATE)
