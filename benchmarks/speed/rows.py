"""The same work done in several ways that take turns: what the programs of this folder measure."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

import minitransformer as mt

OURS = "ours"
VOCAB_SIZE = 8_192


@dataclass
class Row:
    """One kind of work, and how each library does it."""

    name: str
    calls: dict[str, Callable[[], object]]
    limit: Callable[[], float] | None = None
    """Seconds that the work would take if nothing but its limit mattered."""
    memory: dict[str, float] = field(default_factory=dict)
    """Megabytes that it takes, where that is what differs."""
    clock: Callable[[], float] = time.perf_counter
    times: dict[str, list[float]] = field(default_factory=dict)
    limits: list[float] = field(default_factory=list)

    def measure(self, rounds: int) -> "Row":
        """Let all take turns, and the limit too; the first round does not count."""
        for turn in range(rounds + 1):
            for name, call in self.calls.items():
                seconds = timed(call, self.clock)
                if turn > 0:
                    self.times.setdefault(name, []).append(seconds)
            if turn > 0 and self.limit:
                self.limits.append(self.limit())
        return self

    def ratios(self, times: list[float]) -> list[float]:
        """How many times as long as ours these took, for each round."""
        return [other / ours for other, ours in zip(times, self.times[OURS], strict=True)]

    def medians(self) -> dict[str, float]:
        """The median ratio of each way that is not ours."""
        others = {name: times for name, times in self.times.items() if name != OURS}
        return {name: statistics.median(self.ratios(times)) for name, times in others.items()}

    def results(self) -> dict[str, Any]:
        """What the page's tables are made of."""
        return {
            "ratios": {name: round(ratio, 3) for name, ratio in self.medians().items()},
            "limit": round(statistics.median(self.ratios(self.limits)), 3) if self.limit else None,
        }

    def __str__(self) -> str:
        found = self.results()
        share = "    –" if found["limit"] is None else f"{found['limit']:5.0%}"
        ratios = [f"{name} {ratio:.2f}" for name, ratio in found["ratios"].items()]
        memory = [f"{name} {megabytes:.1f} MB" for name, megabytes in self.memory.items()]
        return f"{self.name:<50} limit {share}   {', '.join(ratios + memory)}"


def translator(
    d_model: int, num_layers: int, vocab_size: int = VOCAB_SIZE, **changes: object
) -> mt.Transformer:
    """A model of the sizes that all share, with random weights: speed does not depend on them."""
    options = {"share_embeddings": True} | changes
    config = mt.TransformerConfig(
        src_vocab_size=vocab_size,
        tgt_vocab_size=vocab_size,
        d_model=d_model,
        num_heads=d_model // 64,
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        d_ff=4 * d_model,
        **options,
    )
    return mt.Transformer(config)


def conditions(libraries: Sequence[str], rounds: int) -> str:
    """What rows were measured with, and when."""
    versions = ", ".join(f"{name} {version(name).split('+')[0]}" for name in libraries)
    today = datetime.now(UTC)
    return (
        f"{torch.get_num_threads()} threads on {os.cpu_count()} processors, {versions}, "
        f"{today.day} {today:%B %Y}; medians of {rounds} rounds"
    )


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call."""
    start = clock()
    call()
    if on_gpu():
        torch.cuda.synchronize()
    return clock() - start


def on_gpu() -> bool:
    """Whether tensors are made on a GPU."""
    return torch.get_default_device().type == "cuda"
