"""A file is the old one or the new one, whole; has one writer at a time; and shows any change."""

import errno
import os
import random
import re
import subprocess
import sys
import threading

import pytest
import torch
from helpers import randn

import minitransformer.files
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


def test_each_writer_has_a_file_of_its_own(path):
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
        assert first != second
        assert not path.exists()
    assert path.read_text() == "first"  # whose block ends last
    assert os.listdir(path.parent) == [path.name]


def test_readers_find_one_text_or_another_while_several_write(path):
    """Whole, whoever else is writing."""
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


# --- a folder at once


def test_folder_takes_its_place_when_it_is_done(path):
    with new_folder(path / "deep") as unfinished:
        (unfinished / "a.txt").write_text("a")
        assert not (path / "deep").exists()
    assert os.listdir(path) == ["deep"]
    assert os.listdir(path / "deep") == ["a.txt"]


def test_empty_folder_is_taken(path):
    path.mkdir()
    with new_folder(path) as unfinished:
        (unfinished / "a.txt").write_text("a")
    assert os.listdir(path) == ["a.txt"]


def test_folder_with_something_in_it_stays(path):
    path.mkdir()
    (path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is there already"), new_folder(path):
        pytest.fail("nothing may be written")
    assert os.listdir(path) == ["mine.txt"]


def test_of_two_who_write_a_folder_the_first_to_finish_wins(path):
    def write_while_another_does():
        with new_folder(path) as late:
            (late / "a.txt").write_text("late")
            with new_folder(path) as early:
                (early / "a.txt").write_text("early")

    with pytest.raises(OSError, match=re.escape(str(path))):
        write_while_another_does()
    assert os.listdir(path.parent) == [path.name]
    assert (path / "a.txt").read_text() == "early"


def test_folder_that_is_not_finished_is_removed(path):
    def stop():
        with new_folder(path) as unfinished:
            (unfinished / "a.txt").write_text("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert os.listdir(path.parent) == []


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
from minitransformer.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_lock_ends_with_its_process(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match="here or in another process"), locked(path):
            pass
        child.kill()
    with locked(path):
        pass


def test_what_a_killed_writer_left_is_removed(path):
    left = path.with_name(f".{path.name}.0123abcd.unfinished")
    of_another = path.with_name(".model-2.0123abcd.unfinished")
    left.touch()
    of_another.touch()
    with locked(path):
        assert os.listdir(path.parent) != []
    assert os.listdir(path.parent) == [of_another.name]


@pytest.mark.skipif(sys.platform == "win32", reason="fcntl is of the others")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_locks_is_written_unguarded(path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(path):
        pass


# --- checksums


def test_tensors_and_metadata_come_back(path):
    write_tensors(path, TENSORS, {"a": "b", "quoted": f'"{CHECKSUM}":"'})
    tensors, metadata = read_tensors(path)
    assert metadata == {"a": "b", "quoted": f'"{CHECKSUM}":"'}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)


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


def test_file_of_others_has_no_checksum_and_is_read(path):
    minitransformer.files.save_file(TENSORS, path)
    tensors, metadata = read_tensors(path)
    assert metadata == {}
    assert torch.equal(tensors["weight"], TENSORS["weight"])


def test_what_was_read_stays_when_the_file_is_written_in_place(path):
    write_tensors(path, TENSORS, {})
    tensors, _ = read_tensors(path)
    with open(path, "rb+") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(tensors["weight"], TENSORS["weight"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_is_an_error_of_the_system(path):
    """A limit on the size of files stands for it: safetensors says both in its own way."""
    program = """
import resource, sys, torch
from pathlib import Path
from minitransformer.files import write_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_tensors(Path(sys.argv[1]), {"weight": torch.ones(10_000)}, {})
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert "File too large" in done.stdout
