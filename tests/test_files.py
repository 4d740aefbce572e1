"""A file is the old one or the new one, whole; has one writer at a time; and shows any change."""

import errno
import os
import random
import re
import subprocess
import sys
import threading
from io import BytesIO
from unittest.mock import Mock

import pytest
import torch
from helpers import randn
from safetensors.torch import save_file

from minitransformer.files import (
    CHECKSUM,
    locked,
    new_folder,
    read_tensors,
    replacing,
    write_tensors,
)

TENSORS = {"weight": randn(5, 7), "bias": randn(3), "empty": torch.zeros(0, 2)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model"


# --- replaced in a single step


def test_readers_find_whole_texts_while_several_write(path):
    path.write_text("0" * 50_000)
    read = []

    def write(letter):
        for _ in range(30):
            with replacing(path) as unfinished:
                unfinished.write_text(letter * 50_000)

    writers = [threading.Thread(target=write, args=letter) for letter in "abc"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        read.append(path.read_text())
    assert {len(text) for text in read} == {50_000}
    assert {len(set(text)) for text in read} == {1}
    assert os.listdir(path.parent) == [path.name]


def write_folder(path, text, during=None):
    """Write a folder of one file; in the middle, call `during`."""
    with new_folder(path) as unfinished:
        (unfinished / "a.txt").write_text(text)
        assert not (path / "a.txt").exists()
        if during is not None:
            during()


def stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_there", [False, True])
def test_folder_is_there_when_it_is_done_or_not_at_all(path, is_there):
    folder = path / "deep"
    if is_there:
        folder.mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        write_folder(folder, "lost", during=stop)
    assert os.listdir(path) == ["deep"] * is_there
    write_folder(folder, "whole")
    assert os.listdir(path) == ["deep"]
    assert (folder / "a.txt").read_text() == "whole"
    with pytest.raises(FileExistsError, match="is there already"):
        write_folder(folder, "another")
    assert (folder / "a.txt").read_text() == "whole"


def test_of_two_who_write_a_folder_the_first_to_finish_wins(path):
    with pytest.raises(OSError, match=re.escape(str(path))):
        write_folder(path, "late", during=lambda: write_folder(path, "early"))
    assert os.listdir(path.parent) == [path.name]
    assert (path / "a.txt").read_text() == "early"


# --- one writer at a time


def test_second_writer_is_refused_until_the_first_is_done(path):
    with locked(path):
        message = rf"{re.escape(str(path))} is being written by another training"
        with pytest.raises(ValueError, match=message), locked(path):
            pytest.fail("there are two")
        with locked(path.with_name("other")):
            pass
    with locked(path):
        pass
    assert os.listdir(path.parent) == []


HOLDER = """
import sys
from pathlib import Path
from minitransformer.files import locked, replacing
path = Path(sys.argv[1])
with locked(path), replacing(path):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_lock_of_a_killed_process_ends_and_what_it_left_is_removed(path):
    of_another = path.with_name(".model-2.0123abcd.unfinished")
    of_another.touch()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="here or in another process"), locked(path):
            pass
        child.kill()
    assert len(os.listdir(path.parent)) == 3
    with locked(path):
        pass
    assert os.listdir(path.parent) == [of_another.name]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fcntl")
def test_file_system_without_locks_is_written_unguarded(path, monkeypatch):
    for number in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, "no locks")))
        with locked(path), locked(path):
            pass


# --- checksums


def test_tensors_and_metadata_come_back(path):
    about = {"a": "b", "quoted": f'"{CHECKSUM}":"'}
    write_tensors(path, TENSORS, about)
    write_tensors(memory := BytesIO(), TENSORS, about)
    memory.seek(0)
    for tensors, metadata in (read_tensors(path), read_tensors(memory)):
        assert metadata == about
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_any_bit_that_differs_is_noticed(path):
    """Random bits of weights and texts, and every bit around the length and the checksum."""
    write_tensors(path, TENSORS, {"state": '{"step": 7}'})
    whole = path.read_bytes()
    place = whole.index(CHECKSUM.encode()) + len(CHECKSUM) + 3
    generator = random.Random(0)
    bits = {*range(64), *range(8 * place, 8 * (place + 66))}
    bits |= {generator.randrange(8 * len(whole)) for _ in range(1000)}
    for bit in sorted(bits - set(range(8 * (place - len(CHECKSUM) - 3), 8 * (place - 3)))):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))} .* is damaged"):
            read_tensors(path)


def test_file_without_a_checksum_is_read_and_stays_read_when_it_is_written_in_place(path):
    save_file(TENSORS, path)
    tensors, metadata = read_tensors(path)
    assert metadata == {}
    with open(path, "rb+") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(tensors["weight"], TENSORS["weight"])
