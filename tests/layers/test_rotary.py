"""Queries and keys are turned with their positions, so that scores see distances alone."""

import pytest
import torch
from helpers import assert_same, randn

from minitransformer import RotaryPositionalEncoding, sinusoidal_positions
from minitransformer.layers.rotary import rotary_frequencies

each_layout = pytest.mark.parametrize("layout", ["interleaved", "half"])


def turned_with_complex_numbers(x, start, layout):
    """Su et al., section 3.2: pair i times e^(i·pos·θ_i)."""
    half = x.size(-1) // 2
    first, second = (
        (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else (x[..., :half], x[..., half:])
    )
    theta = torch.tensor([10_000 ** (-2 * i / x.size(-1)) for i in range(half)])
    angle = torch.arange(start, start + x.size(-2))[:, None] * theta
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    output = torch.empty_like(x)
    if layout == "interleaved":
        output[..., 0::2], output[..., 1::2] = turned.real, turned.imag
    else:
        output[..., :half], output[..., half:] = turned.real, turned.imag
    return output


@each_layout
@pytest.mark.parametrize("start", [0, 9])
@pytest.mark.parametrize("shape", [(2, 3, 5, 12), (5, 12), (3, 5, 2)], ids=str)
def test_rotary_equals_complex_multiplication(layout, start, shape):
    x = randn(*shape)
    rotary = RotaryPositionalEncoding(shape[-1], 16, layout)
    assert_same(rotary(x, start), turned_with_complex_numbers(x, start, layout))


@each_layout
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float64, 1e-6)],
    ids=str,
)
def test_rotary_turns_any_dtype(layout, dtype, tolerance):
    """Near what float32 gives, rounded once; exact lengths in float64."""
    x = randn(2, 3, 5, 12).to(dtype)
    turned = RotaryPositionalEncoding(12, 64, layout).to(dtype)(x, start=50)
    expected = RotaryPositionalEncoding(12, 64, layout)(x.float(), start=50)
    assert turned.dtype == dtype
    assert_same(turned, expected.to(dtype), tolerance)
    assert_same(turned.norm(dim=-1), x.norm(dim=-1), 4 * tolerance)


@each_layout
def test_rotary_scores_depend_on_the_distance_alone(layout):
    rotary = RotaryPositionalEncoding(12, 64, layout)
    query, key = randn(1, 12, seed=1), randn(1, 12, seed=2)
    for distance in (-7, 0, 3):
        scores = [
            (rotary(query, start) @ rotary(key, start - distance).T).item()
            for start in range(7, 50, 6)
        ]
        assert scores == pytest.approx([scores[0]] * len(scores), abs=1e-4)


@each_layout
def test_rotary_keeps_lengths_and_leaves_the_first_position(layout):
    x = randn(2, 3, 5, 12)
    turned = RotaryPositionalEncoding(12, 16, layout)(x)
    assert_same(turned.norm(dim=-1), x.norm(dim=-1))
    assert_same(turned[..., 0, :], x[..., 0, :])
    assert (turned[..., 1:, :] - x[..., 1:, :]).abs().amax(-1).min() > 0.1


def test_layouts_differ_by_an_order_of_components():
    x, order = randn(2, 5, 12), [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    interleaved, half = (RotaryPositionalEncoding(12, 16, name) for name in ("interleaved", "half"))
    assert_same(interleaved(x[..., order]), half(x)[..., order])
    assert not torch.allclose(interleaved(x), half(x), atol=0.1)


def test_rotary_has_nothing_to_learn_or_to_save_and_keeps_the_dtype():
    rotary = RotaryPositionalEncoding(12)
    assert list(rotary.parameters()) == []
    assert rotary.state_dict() == {}
    assert rotary(randn(1, 3, 12, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_rotary_refuses_odd_widths_and_unknown_layouts():
    with pytest.raises(ValueError, match=r"d_k must be even .* got 5"):
        RotaryPositionalEncoding(5)
    with pytest.raises(ValueError, match="'interleaved' or 'half', got 'pairs'"):
        RotaryPositionalEncoding(4, layout="pairs")


@each_layout
def test_positions_may_be_any(layout):
    x, rotary = randn(2, 3, 4, 12), RotaryPositionalEncoding(12, 16, layout)
    positions = torch.tensor([[0, 9, 2, 15], [3, 3, 3, 4]])
    output = rotary(x, positions[:, None])
    for row, place in ((0, 1), (1, 0), (1, 3)):
        start = int(positions[row, place])
        assert_same(output[row, :, place], rotary(x[row, :, place : place + 1], start)[:, 0])
    with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
        rotary(x, positions + 1)


# --- other frequencies


@pytest.mark.parametrize("d_k", [2, 12, 128])
def test_the_papers_frequencies_make_the_sinusoidal_table(d_k):
    assert torch.equal(RotaryPositionalEncoding(d_k, 64).table, sinusoidal_positions(64, d_k))


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_frequencies_follow_the_formula(base):
    expected = torch.tensor([base ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    assert_same(rotary_frequencies(12, base), expected, 1e-12)
    table = RotaryPositionalEncoding(12, 16, base=base).table
    assert_same(table[:, 0::2], (torch.arange(16)[:, None] * expected).sin().float())


@each_layout
def test_half_the_speed_is_every_other_position(layout):
    x = randn(2, 3, 10, 12)
    slow = RotaryPositionalEncoding(12, 16, layout, rotary_frequencies(12) / 2)
    assert_same(slow(x)[:, :, ::2], RotaryPositionalEncoding(12, 16, layout)(x[:, :, ::2]))


@each_layout
def test_fewer_frequencies_leave_the_other_components(layout):
    x = randn(2, 3, 5, 12)
    turned = RotaryPositionalEncoding(12, 16, layout, rotary_frequencies(8))(x, 7)
    assert_same(turned[..., :8], RotaryPositionalEncoding(8, 16, layout)(x[..., :8], 7))
    assert torch.equal(turned[..., 8:], x[..., 8:])


@pytest.mark.parametrize("shape", [(7,), (0,), (2, 3)])
def test_frequencies_that_are_not_one_for_each_pair_are_refused(shape):
    with pytest.raises(ValueError, match=rf"d_k/2=6 numbers, .* got shape \({shape[0]}"):
        RotaryPositionalEncoding(12, 16, frequencies=torch.ones(shape))


def test_base_that_turns_nothing_slower_is_refused():
    with pytest.raises(ValueError, match=r"base must be above 1, got 1\.0"):
        rotary_frequencies(12, 1.0)
