"""Checks look at numbers where there are some; the errors are tested with what raises them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from helpers import refuses

from minitransformer.checks import check_types, known


def test_a_value_is_known_but_not_of_what_is_traced_mapped_or_empty():
    assert [known(torch.tensor(value)) for value in (True, False)] == [True, False]
    answers = []

    def ask(x):
        answers.append(known(x.any()))
        return x + 0

    torch.func.vmap(ask)(torch.tensor([0, 2]))
    torch.func.vmap(torch.func.grad(lambda x: ask(x).sum()))(torch.tensor([0.0, 2.0]))
    known_on_meta = known(torch.tensor(1, device="meta"))
    assert (answers, known_on_meta) == ([None, None], None)

    def one_if_known(x):
        return x * 0 + (0 if known(x.any()) is None else 1)

    x = torch.ones(3)
    assert torch.equal(torch.compile(one_if_known, fullgraph=True, backend="eager")(x), 0 * x)
    assert torch.equal(one_if_known(x), x)


@dataclass(frozen=True)
class Settings:
    """What the configurations hold: numbers, words, switches."""

    size: int = 3
    rate: float | None = 0.5
    switch: bool = False
    word: Literal["a", "b"] = "a"


def test_fields_of_their_types_are_right_and_integers_of_numpy_become_integers():
    for fields in ({}, {"rate": None}, {"rate": 2}, {"switch": True}):
        check_types(Settings(**fields))
    settings = Settings(size=np.int64(7))
    check_types(settings)
    assert (settings.size, type(settings.size)) == (7, int)


test_fields_of_other_types_are_refused = refuses(
    (r"size must be int, got 3\.0", lambda: check_types(Settings(size=3.0)), TypeError),
    ("size must be int, got True", lambda: check_types(Settings(size=True)), TypeError),
    ("size must be int, got None", lambda: check_types(Settings(size=None)), TypeError),
    (r"rate must be float or None, got '0", lambda: check_types(Settings(rate="0.5")), TypeError),
    ("rate must be float or None, got Fal", lambda: check_types(Settings(rate=False)), TypeError),
    ("switch must be bool, got 1", lambda: check_types(Settings(switch=1)), TypeError),
)
