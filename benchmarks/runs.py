"""What the programs share: files of results, runs that go on after a stop, and intervals.

A program that makes many runs adds a line of JSON to its `.jsonl` file whenever one is done
(`appending`, `read_rows`). One that writes a single JSON object keeps its runs in `.partial.json`
beside it until all are done (`Runs`). Either way you can stop it at any time: the same command
goes on. Runs of another plan do not count.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import pooch
import torch
from scipy import stats
from torch import nn

import minitransformer as mt
from minitransformer.files import locked, replacing

Row = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)

RESULTS = Path(__file__).parent / "results"


def options(about: str, results: str, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The options that most programs have: seeds, and where the results are."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="at least 2")
    parser.add_argument("--out", type=Path, default=RESULTS / results)
    return parser


# --- intervals and tables


def half_width(numbers: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of at least 2 numbers, by Student's distribution."""
    count = len(numbers)
    quantile = float(stats.t.ppf(0.975, count - 1))
    return quantile * statistics.stdev(numbers) / math.sqrt(count)


def interval(numbers: Sequence[float], name: str = "mean") -> dict[str, float]:
    """The mean of at least 2 numbers, `low` and `high`: its 95 % interval."""
    mean, half = statistics.mean(numbers), half_width(numbers)
    return {name: mean, "low": mean - half, "high": mean + half}


def paired(ours: Sequence[float], others: Sequence[float]) -> Row:
    """Differences of two settings by seed, and the 95 % interval of their mean."""
    differences = [own - other for own, other in zip(ours, others, strict=True)]
    return {"differences": differences, **interval(differences, "difference")}


def gathered(found: Sequence[Any]) -> Any:
    """Dictionaries of one shape, however deep, one for each seed, as one with lists of numbers."""
    if not isinstance(found[0], dict):
        return list(found)
    return {name: gathered([each[name] for each in found]) for name in found[0]}


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *lines))


# --- what made the results


def made(**more: Any) -> Row:
    """When, with what and where."""
    names: list[str] = []
    if Path("/proc/cpuinfo").exists():  # elsewhere the operating system's word has to do
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "minitransformer": version("minitransformer"),
        "threads": torch.get_num_threads(),
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        **more,
    }


def fingerprint(texts: Sequence[str], digits: int = 8) -> str:
    """Hexadecimal digits that other texts do not have."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:digits]


def plan_of(*decided: Any) -> str:
    """A fingerprint of all that is decided before a run."""
    return fingerprint([json.dumps(list(decided), sort_keys=True)])


def size(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


def downloaded(folder: str, file: str, address: str, sha256: str) -> Path:
    """A file with this checksum: of `folder` in MINITRANSFORMER_DATA, or downloaded once.

    Raises:
        ValueError: if the file that is there has another checksum.
    """
    if (data := os.environ.get("MINITRANSFORMER_DATA")) is None:
        cache = Path(pooch.os_cache("minitransformer"), folder)
        return Path(pooch.retrieve(address, sha256, fname=file, path=cache))
    path = Path(data, folder, file)
    if (found := pooch.file_hash(str(path))) != sha256:
        raise ValueError(f"{path} has the SHA-256 {found}, expected {sha256}: see {address}")
    return path


# --- a file with a line for each run


def read_rows(path: Path, key_of: Callable[[Row], Key | None]) -> dict[Key, Row]:
    """The rows of a file by their keys: the first of equal ones, none without a key.

    A last line that was torn by an interruption does not count.

    Raises:
        ValueError: if another line is damaged.
    """
    content = path.read_bytes() if path.exists() else b""
    rows: dict[Key, Row] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            key = key_of(row)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}, is no run: {line[:60]!r}") from error
        if key is not None:
            rows.setdefault(key, row)
    return rows


@contextmanager
def appending(path: Path) -> Iterator[Callable[[Row], None]]:
    """Let nobody else write the file, cut a torn last line off, and give what adds a row to it.

    Raises:
        ValueError: if another process is writing it.
    """
    with locked(path):
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        with open(path, "ab", buffering=0) as file:

            def append(row: Row) -> None:
                line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
                if file.write(line) != len(line):
                    raise OSError(f"{path} could not be written to its end")
                os.fsync(file.fileno())

            yield append


# --- a file with one object


def write_json(path: Path, content: Any) -> None:
    """Write JSON, so that the file is whole whenever it is read."""
    with replacing(path) as new:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        new.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


class Runs:
    """Runs that are not lost: each is made once, and kept until all are done.

    Args:
        out: where the results will be.
        plan: all that is decided before a run.
    """

    def __init__(self, out: Path, *plan: Any) -> None:
        self.out, self.partial = out, out.with_suffix(".partial.json")
        self.kept = json.loads(json.dumps({"plan": plan, "runs": {}, "seconds": 0.0}))
        if self.partial.exists():
            found = read_json(self.partial)
            self.kept = found if found["plan"] == self.kept["plan"] else self.kept
        self.begun = time.process_time()

    def keep(self) -> None:
        """Write down what is done."""
        now = time.process_time()
        self.kept["seconds"] += now - self.begun
        self.begun = now
        write_json(self.partial, self.kept)

    def run(self, name: str, make: Callable[[], Any]) -> Any:
        """What a run found; it is made if it has not been."""
        runs = self.kept["runs"]
        if name not in runs:
            runs[name] = make()
            self.keep()
            print(f"{name:<42} {json.dumps(runs[name])[:150]}", flush=True)
        return runs[name]

    def of_seeds(self, name: str, make: Callable[[int], Any], seeds: Sequence[int]) -> Any:
        """What the runs of all seeds found, as `gathered`."""
        return gathered([self.run(f"{name}, {seed}", partial(make, seed)) for seed in seeds])

    def finish(self, results: Row) -> Row:
        """Write the results and what made them; what was kept is not needed any more."""
        self.keep()
        minutes = round(self.kept["seconds"] / 60, 1)
        results = {"made": made(cpu_minutes=minutes), **results}
        write_json(self.out, results)
        self.partial.unlink()
        return results


# --- a training of what has been encoded before


class EncodedPairs(mt.Trainer):
    """A `Trainer` of examples: encoded once, they serve many runs."""

    def __init__(
        self,
        model: nn.Module,
        examples: Sequence[mt.Example],
        tokenizers: dict[str, mt.Tokenizer],
        config: mt.TrainingConfig,
    ) -> None:
        self.set_up(model, examples, tokenizers, config)
        self.examples = list(examples)
