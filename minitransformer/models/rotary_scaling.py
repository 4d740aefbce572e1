"""Rotary positions of published models: their base, and how pairs are slowed for longer texts.

A pair that has not come round once in the texts of training meets angles in longer ones that it
has never seen. Each rule divides the speed of such pairs by a factor, and keeps a share of the
speed of others:

| kind | share s kept of a pair that turns n times in the texts of training |
| --- | --- |
| "default" | 1 |
| "linear" | 0: all positions are divided by the factor (Chen et al., 2023) |
| "llama3" | from 0 at n = `low` to 1 at n = `high`, linear in n |
| "yarn" | from 0 at n = `beta_slow` to 1 at n = `beta_fast`, linear in the pair's number |
| "dynamic" | 1 up to `max_len`, and beyond these models do not go |

Built in chapter 12.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from minitransformer.checks import check_types
from minitransformer.layers.positional_encoding import RotaryPositionalEncoding, rotary_frequencies

__all__ = ["RotaryScaling"]

NAMES = {
    "rope_type": "kind",
    "rope_theta": "base",
    "factor": "factor",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "beta_slow": "beta_slow",
    "beta_fast": "beta_fast",
    "attention_factor": "attention_factor",
    "original_max_position_embeddings": "trained_len",
}
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
YARN = ("factor", "beta_slow", "beta_fast", "attention_factor", "original_max_position_embeddings")
SETTINGS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": LLAMA3,
    "yarn": YARN,
}
"""What a rule of `config.json` is told, besides its name and the base."""


@dataclass(frozen=True)
class RotaryScaling:
    """How fast the pairs of a published model turn.

    Args:
        kind: a rule of the table above.
        base: see `rotary_frequencies`.
        factor: how many times longer texts may become.
        low, high: of "llama3".
        beta_slow, beta_fast: of "yarn".
        attention_factor: of "yarn": queries and keys become so many times longer; when left out,
            0.1 ln(factor) + 1.
        trained_len: length of the texts of training; the model's `max_len` when left out.

    Raises:
        TypeError: if a value is of another type than is annotated here.
        ValueError: if `kind` is unknown, or `factor` below 1.

    Example:
        >>> RotaryScaling("linear", factor=2.0).frequencies(4, max_len=8)
        tensor([0.5000, 0.0050], dtype=torch.float64)

    "llama3": Grattafiori et al. (2024), whose code it is; "yarn": Peng et al. (2023), section 3.
    """

    kind: str = "default"
    base: float = 10_000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    attention_factor: float | None = None
    trained_len: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.kind not in SETTINGS:
            raise ValueError(f"rope_type must be one of {sorted(SETTINGS)}, got {self.kind!r}")
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")

    @classmethod
    def from_published(cls, content: Mapping[str, Any]) -> Self:
        """What a `config.json` says, in `rope_parameters` or, older, beside `rope_scaling`."""
        said = content.get("rope_scaling") or content.get("rope_parameters") or {}
        if not isinstance(said, Mapping):
            raise ValueError(f"rope_scaling must be an object with a rope_type, got {said!r}")
        found = dict(said)
        old_name = found.pop("type", "default")
        found = {"rope_type": old_name, "rope_theta": content.get("rope_theta", cls.base)} | found
        kind = found["rope_type"]
        if kind not in SETTINGS:
            raise ValueError(f"rope_type must be one of {sorted(SETTINGS)}, got {kind!r}")
        known = {"rope_type", "rope_theta", *SETTINGS[kind]}
        if unknown := sorted(found.keys() - known):
            raise ValueError(f"these settings of {kind!r} are not known: {', '.join(unknown)}")
        return cls(**{NAMES.get(key, key): value for key, value in found.items()})

    def to_published(self) -> dict[str, Any]:
        """The same, as new and as old programs read it."""
        names = ("rope_type", *SETTINGS[self.kind])
        values = {name: getattr(self, NAMES[name]) for name in names}
        values = {name: value for name, value in values.items() if value is not None}
        return {
            "rope_parameters": {**values, "rope_theta": self.base},
            "rope_theta": self.base,
            "rope_scaling": values if len(values) > 1 else None,
        }

    def frequencies(self, d_k: int, max_len: int) -> Tensor:
        """The angle between neighbouring positions, of each pair, (e/2,); see the table above."""
        plain = rotary_frequencies(d_k, self.base)
        length = max_len if self.trained_len is None else self.trained_len
        kept = torch.full_like(plain, float(self.kind != "linear"))
        if self.kind == "llama3":
            turns = length * plain / (2 * math.pi)
            kept = (turns - self.low) / (self.high - self.low)
        elif self.kind == "yarn":
            # The number of the pair that turns so often; whole ones, within the head.
            fast, slow = (
                d_k * math.log(length / (2 * math.pi * turns)) / (2 * math.log(self.base))
                for turns in (self.beta_fast, self.beta_slow)
            )
            first, last = max(math.floor(fast), 0), min(math.ceil(slow), d_k - 1)
            kept = (last - torch.arange(d_k // 2, device="cpu")) / max(last - first, 0.001)
        kept = kept.clamp(0, 1)
        factor = 1.0 if self.kind == "dynamic" else self.factor
        return plain * (kept + (1 - kept) / factor)

    def longest(self, max_len: int) -> int:
        """The longest text of a model whose `config.json` says that it is `max_len`.

        By "linear" and "yarn" texts become longer than those of training, and files may name
        either length. The other rules end at `max_len`.

        Example:
            >>> RotaryScaling("linear", factor=2.0).longest(8), RotaryScaling().longest(8)
            (16, 8)
        """
        if self.kind not in ("linear", "yarn"):
            return max_len
        return max(max_len, math.floor(self.factor * (self.trained_len or max_len)))

    def encoding(self, d_k: int, max_len: int) -> RotaryPositionalEncoding:
        """The layer that turns queries and keys so, halves of a head against each other."""
        frequencies = self.frequencies(d_k, max_len)
        rotary = RotaryPositionalEncoding(d_k, self.longest(max_len), "half", frequencies)
        if self.kind == "yarn":
            longer = self.attention_factor
            rotary.table *= 0.1 * math.log(self.factor) + 1 if longer is None else longer
        return rotary
