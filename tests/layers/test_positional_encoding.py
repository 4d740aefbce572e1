"""Positions follow the paper's formula, wherever the sequence starts."""

import copy
import io
import math

import pytest
import torch
from helpers import assert_same, randn
from torch import nn

from minitransformer import (
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
    sinusoidal_positions,
)
from minitransformer.layers.positional_encoding import (
    ALiBi,
    LearnedPositionalEncoding,
    alibi_slopes,
)

each_added = pytest.mark.parametrize(
    "scheme", [SinusoidalPositionalEncoding, LearnedPositionalEncoding]
)


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
@pytest.mark.parametrize(
    "scheme",
    [SinusoidalPositionalEncoding, LearnedPositionalEncoding, RotaryPositionalEncoding],
)
def test_position_past_the_table_is_refused(scheme, length, start, end):
    with pytest.raises(ValueError, match=f"{end} positions is longer than max_len=16"):
        scheme(12, 16)(torch.zeros(1, length, 12), start)


def test_last_position_of_the_table_is_allowed():
    encode = SinusoidalPositionalEncoding(12, 16)
    assert_same(encode(torch.zeros(1, 1, 12), 15)[0], positions_with_loops([15], 12))


# --- constants


def schemes():
    """A function of each module with constants, and what goes into it in float32."""
    x = randn(2, 3, 5, 12)
    return {
        "sinusoidal": (SinusoidalPositionalEncoding(12, 16), lambda m: m(x[:, 0], 3)),
        "rotary": (RotaryPositionalEncoding(12, 16), lambda m: m(x, 3)),
        "alibi": (ALiBi(3), lambda m: m(5, 7)),
    }


each_constant = pytest.mark.parametrize("name", schemes())


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@each_constant
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.half().float(),
        lambda m: m.bfloat16(),
        lambda m: m.double(),
        lambda m: m.to("meta"),
        lambda m: m.to_empty(device="cpu"),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: nn.Sequential(m).half().float()[0],
        copy.deepcopy,
        pickled,
    ],
    ids=["half", "bfloat16", "double", "meta", "empty", "meta, empty", "inside", "copy", "pickle"],
)
def test_constants_stay_what_they_are(name, change):
    module, use = schemes()[name]
    expected = use(module)
    assert torch.equal(use(change(module)), expected)


@each_constant
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_constants_do_not_depend_on_the_default_dtype(name, dtype):
    expected = schemes()[name][1](schemes()[name][0])
    _, use = schemes()[name]
    torch.set_default_dtype(dtype)
    try:
        module, _ = schemes()[name]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(use(module), expected)


@each_constant
def test_constants_are_made_on_no_meta_device(name):
    module, use = schemes()[name]
    with torch.device("meta"):
        made, _ = schemes()[name]
    assert torch.equal(use(made), use(module))


@each_constant
def test_constants_go_with_what_is_on_the_meta_device(name):
    module, _ = schemes()[name]
    if name == "alibi":
        assert module(5, 7, "meta").device.type == "meta"
    else:
        assert module(torch.empty(2, 3, 5, 12, device="meta")[:, 0]).device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tables_are_float32_whatever_the_default_dtype_is(dtype):
    table, slopes = sinusoidal_positions(9, 7), alibi_slopes(12)
    torch.set_default_dtype(dtype)
    try:
        again = sinusoidal_positions(9, 7), alibi_slopes(12)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (table.dtype, slopes.dtype) == (torch.float32, torch.float32)
    assert torch.equal(again[0], table)
    assert torch.equal(again[1], slopes)


# --- what does not fit


@pytest.mark.parametrize(
    "scheme",
    [SinusoidalPositionalEncoding, LearnedPositionalEncoding, RotaryPositionalEncoding],
)
@pytest.mark.parametrize("width", [1, 6, 24])
def test_another_width_is_refused(scheme, width):
    with pytest.raises(ValueError, match=f"(table's width |d_k=)12, got {width}"):
        scheme(12, 16)(torch.zeros(2, 5, width))


@pytest.mark.parametrize(
    "scheme",
    [SinusoidalPositionalEncoding, LearnedPositionalEncoding, RotaryPositionalEncoding],
)
def test_start_below_zero_is_refused(scheme):
    with pytest.raises(ValueError, match="start must be at least 0, got -1"):
        scheme(12, 16)(torch.zeros(2, 5, 12), -1)


@each_added
@pytest.mark.parametrize(
    "start",
    [3, [3], [1, 2, 3], [[1], [2]], [1.0, 2.0]],
    ids=str,
)
def test_starts_that_are_not_one_for_each_row_are_refused(scheme, start):
    start = torch.tensor(start)
    with pytest.raises(ValueError, match=r"one for each of the 2 rows, int64, got shape \("):
        scheme(12, 16)(torch.zeros(2, 5, 12), start)


@each_added
def test_starts_one_for_each_row(scheme):
    encode, x = scheme(12, 16), randn(2, 5, 12)
    output = encode(x, torch.tensor([-3, 11]))
    assert_same(output[1:], encode(x[1:], 11))
    assert_same(output[:1, 3:], encode(x[:1, 3:], 0))
    with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
        encode(x, torch.tensor([0, 12]))


def test_alibi_refuses_more_queries_than_keys():
    with pytest.raises(ValueError, match="got 4 queries, 3 keys"):
        ALiBi(2)(4, 3)


# --- learned


@pytest.mark.parametrize("start", [0, 3])
def test_learned_vectors_are_added_and_only_those_used_get_a_gradient(start):
    encode = LearnedPositionalEncoding(12, 16)
    x, weighting = randn(2, 5, 12), randn(2, 5, 12, seed=1)
    output = encode(x, start)
    assert_same(output, x + encode.weight[start : start + 5])
    (output * weighting).sum().backward()
    expected = torch.zeros(16, 12)
    expected[start : start + 5] = weighting.sum(0)
    assert_same(encode.weight.grad, expected)


def test_learned_vectors_start_as_large_as_sinusoids():
    learned, fixed = LearnedPositionalEncoding(64, 512).weight, sinusoidal_positions(512, 64)
    assert learned.square().mean().item() == pytest.approx(fixed.square().mean().item(), rel=0.05)


@each_added
def test_dtype_of_the_input_is_kept_by_both(scheme):
    assert scheme(12)(randn(1, 3, 12, dtype=torch.bfloat16)).dtype == torch.bfloat16


# --- ALiBi


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (8, [2**-exponent for exponent in range(1, 9)]),
        (
            12,  # as the authors' code gives them
            [2**-e for e in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
        ),
    ],
)
def test_slopes_are_the_papers(num_heads, slopes):
    assert_same(alibi_slopes(num_heads), torch.tensor(slopes), 1e-6)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(5, 5), (5, 7), (1, 7), (0, 3)])
def test_biases_fall_with_the_distance(num_queries, num_keys):
    bias = ALiBi(3)(num_queries, num_keys)
    assert bias.shape == (3, num_queries, num_keys)
    for h, slope in enumerate(alibi_slopes(3).tolist()):
        for i in range(num_queries):
            for j in range(num_keys):
                distance = abs(num_keys - num_queries + i - j)
                assert bias[h, i, j].item() == pytest.approx(-slope * distance)


def test_no_heads_have_no_slopes():
    with pytest.raises(ValueError, match="num_heads must be at least 1, got 0"):
        alibi_slopes(0)


def test_alibi_has_nothing_to_learn_or_to_save():
    alibi = ALiBi(3)
    assert list(alibi.parameters()) == []
    assert alibi.state_dict() == {}
