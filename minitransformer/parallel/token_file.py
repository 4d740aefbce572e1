"""Texts that do not fit into memory: their tokens in a file, read as they are asked for.

A folder holds `tokens.bin`, the tokens one after the other as unsigned numbers of 2 or 4 bytes, the
lowest first; `tokenizer.json`; and `about.json`, which has their number, size and SHA-256.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from minitransformer.checks import texts_of
from minitransformer.files import named_folder, new_folder, replacing
from minitransformer.models.pretrained import check_come_back
from minitransformer.parallel.checkpoints import sha256
from minitransformer.tokenization.tokenizer import Tokenizer

__all__ = ["TokenFile", "paragraphs", "write_tokens"]

TOKENS, TOKENIZER, ABOUT = "tokens.bin", "tokenizer.json", "about.json"


def paragraphs(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """The texts of some files, which blank lines part, one after the other.

    Each file is read once, so it may be a pipe. A byte-order mark at its beginning is no text.

    Raises:
        ValueError: if a file is not UTF-8.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_text("one\\ntwo\\n\\n\\nthree")
        ...     list(paragraphs([f"{folder}/a.txt"]))
        ['one\\ntwo', 'three']
    """
    for path in paths:
        lines: list[str] = []
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if wrong := re.search("[\udc80-\udcff]", line):  # so a byte of no UTF-8 is read
                    raise ValueError(
                        f"{path} is not UTF-8: byte 0x{ord(wrong[0]) - 0xDC00:02x} in line "
                        f"{number}, column {wrong.start() + 1}"
                    )
                if line.strip():
                    lines.append(line.rstrip("\n"))
                elif lines:
                    yield "\n".join(lines)
                    lines = []
        if lines:
            yield "\n".join(lines)


@contextmanager
def read_once(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Callable[[], Iterator[str]]]:
    """A function that gives the `paragraphs` of files as often as it is called, from a copy.

    A pipe has its text once, but to train a tokenizer and to use it takes two readings.

    Raises:
        ValueError: if there is no text in them, or a file is not UTF-8.
    """
    paths = list(paths)
    with TemporaryFile("w+", encoding="utf-8") as copy:
        for text in paragraphs(paths):
            copy.write(json.dumps(text) + "\n")
        if not copy.tell():
            raise ValueError(f"there is no text in {', '.join(map(str, paths))}")

        def texts() -> Iterator[str]:
            copy.seek(0)
            return map(json.loads, copy)

        yield texts


def write_tokens(
    texts: Iterable[str], tokenizer: Tokenizer, folder: str | os.PathLike[str]
) -> None:
    """Write the tokens of texts, each with its begin and end, as `token_stream` has them.

    Texts are read one at a time; of a data set of the library `datasets`, for example,
    `(row["text"] for row in data)`.

    Raises:
        FileExistsError: if there is a file, or a folder that is not empty.
        OSError: if it cannot be written; then nothing is there.
        ValueError: if there are no texts, or the tokenizer would come back as another.

    Example:
        >>> import tempfile
        >>> from minitransformer.tokenization.words import WordTokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tokens(["one two", "two"], WordTokenizer(["one", "two"]), f"{folder}/tokens")
        ...     TokenFile(f"{folder}/tokens").tokens.tolist()
        [1, 5, 6, 2, 1, 6, 2]
    """
    folder = named_folder(folder)
    check_come_back({"text": tokenizer})
    dtype = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
    digest, count = hashlib.sha256(), 0
    with new_folder(folder) as unfinished:
        with replacing(unfinished / TOKENS) as place, open(place, "wb") as file:
            for text in texts_of("texts", texts):
                row = tokenizer.stream_ids(text)
                content = np.array(row, dtype).tobytes()
                file.write(content)
                digest.update(content)
                count += len(row)
        if not count:
            raise ValueError("texts must hold at least 1 text, got 0")
        tokenizer.save(unfinished / TOKENIZER)
        about = {"tokens": count, "dtype": dtype, "sha256": digest.hexdigest()}
        (unfinished / ABOUT).write_text(json.dumps(about), encoding="utf-8")


class TokenFile:
    """The tokens of a folder that `write_tokens` wrote, mapped into memory, and their tokenizer.

    They are read through once, to see that they are what was written. `LanguageModelTrainer` takes
    `tokens` in place of texts, and reads the rows of a batch when it needs them.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if the tokens are not those that were written.

    Example:
        >>> import tempfile
        >>> from minitransformer.tokenization.tokenizer import CharacterTokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tokens(["ab", "b"], CharacterTokenizer.train(["ab"]), f"{folder}/tokens")
        ...     file = TokenFile(f"{folder}/tokens")
        ...     file.tokens.tolist(), file.tokenizer.decode(file.tokens.tolist())
        ([1, 5, 6, 2, 1, 6, 2], 'abb')
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder)
        if not (place / ABOUT).is_file():
            raise FileNotFoundError(f"there are no tokens in {place}")
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        if (found := sha256(place / TOKENS)) != about["sha256"]:
            raise ValueError(
                f"{place / TOKENS} is damaged: its SHA-256 is {found}, expected {about['sha256']}"
            )
        self.tokens = np.memmap(place / TOKENS, about["dtype"], mode="r")
        self.tokenizer = Tokenizer.load(place / TOKENIZER)
