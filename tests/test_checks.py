"""Checks look at numbers where there are some; the errors are tested with what raises them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from minitransformer.checks import check_types, known


@pytest.mark.parametrize("value", [True, False])
def test_condition_with_a_value_is_known(value):
    assert known(torch.tensor(value)) is value


def test_nothing_is_known_of_what_is_traced_mapped_or_empty():
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


@pytest.mark.parametrize("settings", [{}, {"rate": None}, {"rate": 2}, {"switch": True}], ids=str)
def test_fields_of_their_types_are_right(settings):
    check_types(Settings(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 3.0}, r"size must be int, got 3\.0"),
        ({"size": True}, "size must be int, got True"),
        ({"size": None}, "size must be int, got None"),
        ({"rate": "0.5"}, r"rate must be float or None, got '0\.5'"),
        ({"rate": False}, "rate must be float or None, got False"),
        ({"switch": 1}, "switch must be bool, got 1"),
    ],
    ids=str,
)
def test_fields_of_other_types_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        check_types(Settings(**settings))


def test_integers_of_numpy_become_integers():
    settings = Settings(size=np.int64(7))
    check_types(settings)
    assert (settings.size, type(settings.size)) == (7, int)
