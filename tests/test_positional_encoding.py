"""Positions follow the paper's formula, wherever the sequence starts."""

import math

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import SinusoidalPositionalEncoding, sinusoidal_positions


def positions_with_loops(positions, d_model):
    """Section 3.5, one number after another."""
    table = torch.zeros(len(positions), d_model)
    for row, pos in enumerate(positions):
        for column in range(d_model):
            angle = pos / 10_000 ** ((column - column % 2) / d_model)
            table[row, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
def test_table_equals_the_formula(d_model):
    table = sinusoidal_positions(9, d_model)
    assert_same(table, positions_with_loops(range(9), d_model), 1e-6)


def test_far_positions_are_as_exact_as_near_ones():
    assert_same(sinusoidal_positions(20_001, 6)[-1:], positions_with_loops([20_000], 6), 1e-6)


def test_shift_is_a_rotation_the_same_everywhere():
    table = sinusoidal_positions(40, 12).double()
    sine, cosine = table[:, 0::2], table[:, 1::2]
    turn_sine, turn_cosine = sine[5], cosine[5]
    assert_same(sine[5:], sine[:-5] * turn_cosine + cosine[:-5] * turn_sine)
    assert_same(cosine[5:], cosine[:-5] * turn_cosine - sine[:-5] * turn_sine)


def test_encoding_is_added_to_every_row():
    x = randn(2, 5, 12)
    assert_same(SinusoidalPositionalEncoding(12, 16)(x), x + positions_with_loops(range(5), 12))


@pytest.mark.parametrize("start", [1, 4, 11])
def test_later_start_is_a_later_piece_of_the_table(start):
    x = randn(2, 5, 12)
    encode = SinusoidalPositionalEncoding(12, 16)
    assert_same(encode(x, start), x + positions_with_loops(range(start, start + 5), 12))


def test_dtype_of_the_input_is_kept():
    assert SinusoidalPositionalEncoding(12)(randn(1, 3, 12, dtype=torch.bfloat16)).dtype == (
        torch.bfloat16
    )


def test_there_is_nothing_to_learn_or_to_save():
    encode = SinusoidalPositionalEncoding(12)
    assert list(encode.parameters()) == []
    assert encode.state_dict() == {}


@pytest.mark.parametrize(("length", "start", "end"), [(17, 0, 17), (1, 16, 17), (5, 14, 19)])
def test_position_past_the_table_is_refused(length, start, end):
    with pytest.raises(ValueError, match=f"{end} positions is longer than max_len=16"):
        SinusoidalPositionalEncoding(12, 16)(torch.zeros(1, length, 12), start)


def test_last_position_of_the_table_is_allowed():
    encode = SinusoidalPositionalEncoding(12, 16)
    assert_same(encode(torch.zeros(1, 1, 12), 15)[0], positions_with_loops([15], 12))
