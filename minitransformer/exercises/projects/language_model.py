"""The project of the language model: text that ships with Python, and bits per byte."""

import ast
import hashlib
import math
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitransformer.exercises.comparing import Difference
from minitransformer.exercises.projects.laws import Verdict, alike, loaded, verdict, want

SECONDS = 60  # of training, on two cores
MOST_BITS = 2.5  # per byte of the held-out text
LENGTH, ROWS = 256, 256
LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


# --- text ------------------------------------------------------------------------------------


@cache
def docstrings() -> tuple[str, ...]:
    """Those of Python's standard library, each once; a few seconds."""
    found: dict[str, None] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        if LEFT_OUT & {*path.relative_to(LIBRARY).parts}:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # an example of what is wrong
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                found[text] = None
    return tuple(found)


def is_held_out(text: str) -> bool:
    """Whether a docstring is one of the sixteenth that no model may be trained on."""
    return hashlib.sha256(text.encode()).digest()[0] < 16


def write_text(folder: Path) -> None:
    """Write the docstrings to train on, with blank lines between."""
    texts = [text for text in docstrings() if not is_held_out(text)]
    (folder / "train.txt").write_text("\n\n".join(texts), encoding="utf-8")


def held_out_rows() -> Tensor:
    """The held-out docstrings, (b, n), as bytes."""
    joined = "\n\n".join(text for text in docstrings() if is_held_out(text)).encode()
    rows = min(ROWS, len(joined) // LENGTH)
    return torch.tensor([*joined[: rows * LENGTH]]).view(rows, LENGTH)  # (b, n)


# --- laws ------------------------------------------------------------------------------------


@torch.no_grad()
def is_distribution(code: Any) -> None:
    """Each position has 256 probabilities, with the sum 1."""
    rows = held_out_rows()[:3, :40]
    found = code.log_probabilities(rows)
    want(found.shape == (3, 40, 256), f"It has the shape {tuple(found.shape)}, not (3, 40, 256).")
    sums = found.double().exp().sum(dim=-1)
    off = (sums - 1).abs().max().item()
    want(off < 1e-3, f"Probabilities have sums that differ from 1 by up to {off:.2g}.")


@torch.no_grad()
def no_peeking(code: Any) -> None:
    """Position i predicts byte i, from the bytes before it and nothing else."""
    rows = held_out_rows()[:4, :64]
    found = code.log_probabilities(rows)
    for place in range(0, 64, 3):
        changed = rows.clone()
        changed[:, place:] = (changed[:, place:] + 1) % 128
        same = alike(code.log_probabilities(changed)[:, : place + 1], found[:, : place + 1], 1e-3)
        want(same, f"Predictions up to byte {place} change with byte {place} or later ones.")
    cut = code.log_probabilities(rows[:, :32])
    want(alike(cut, found[:, :32], 1e-3), "A text cut off behind byte 31 has other predictions.")


@torch.no_grad()
def no_memory(code: Any) -> None:
    """A text gives the same alone, in a batch, and again."""
    rows = held_out_rows()[:6]
    first = code.log_probabilities(rows)
    want(alike(code.log_probabilities(rows), first, 1e-3), "The same text again gives others.")
    alone = torch.cat([code.log_probabilities(row[None]) for row in rows])
    want(alike(alone, first, 1e-3), "A text alone gives other predictions than in a batch.")


def time_stated(code: Any) -> None:
    """The reader says how long the training took."""
    stated = getattr(code, "SECONDS", None)
    if not isinstance(stated, int | float) or stated <= 0:
        raise Difference(f"SECONDS is {stated!r}: how long did the training take, on two cores?")
    want(stated <= SECONDS, f"SECONDS is {stated}; {SECONDS} are allowed.")


@torch.no_grad()
def few_bits(code: Any) -> None:
    """The held-out text costs few bits."""
    rows = held_out_rows()
    bits = bits_per_byte(code, rows)
    want(bits <= MOST_BITS, f"{bits:.3f} bits per byte; at most {MOST_BITS} are asked for.")


def bits_per_byte(code: Any, rows: Tensor) -> float:
    """The mean of -log2 of the probabilities that the bytes got, each row by itself."""
    total = 0.0
    for part in rows.split(32):
        logs = code.log_probabilities(part).double()
        total -= logs.gather(-1, part[..., None]).sum().item()
    return total / rows.numel() / math.log(2)


LAWS: dict[str, Callable[[Any], None]] = {
    "probabilities": is_distribution,
    "no peeking": no_peeking,
    "no memory of other texts": no_memory,
    "time of training": time_stated,
}


def verdicts(folder: Path) -> Iterator[Verdict]:
    """Those on the laws, and if all are kept, on the bits."""
    with loaded(folder, "model") as (code,):
        found = []
        for name, law in LAWS.items():
            found.append(verdict(name, law, code))
            yield found[-1]
        name = f"at most {MOST_BITS} bits per byte"
        if any(one.fault for one in found):
            yield Verdict(name, "Measured once all laws are kept.")
        else:
            yield verdict(name, few_bits, code)
