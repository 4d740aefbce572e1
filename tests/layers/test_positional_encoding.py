"""Positions follow the papers' formulas, wherever the sequence starts and whatever is moved."""

import copy
import io
import math

import pytest
import torch
from helpers import TGT_IDS, assert_same, decoder_only_model, randn, refuses
from torch import nn

from minitransformer import (
    MultiHeadAttention,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
    causal_mask,
    next_token_loss,
    sinusoidal_positions,
)
from minitransformer.layers import (
    ALiBi,
    LearnedPositionalEncoding,
    alibi_slopes,
    rotary_frequencies,
)

ADDED = (SinusoidalPositionalEncoding, LearnedPositionalEncoding)
each_table = pytest.mark.parametrize("scheme", [*ADDED, RotaryPositionalEncoding])
each_layout = pytest.mark.parametrize("layout", ["interleaved", "half"])


# --- added to the vectors


def positions_with_loops(positions, d_model):
    """Section 3.5, one number after another."""
    table = torch.zeros(len(positions), d_model)
    for row, pos in enumerate(positions):
        for column in range(d_model):
            angle = pos / 10_000 ** ((column - column % 2) / d_model)
            table[row, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
def test_sinusoidal_table_equals_the_formula_far_away_too(d_model):
    table = sinusoidal_positions(20_001, d_model)
    assert_same(table[:9], positions_with_loops(range(9), d_model), 1e-6)
    assert_same(table[-1:], positions_with_loops([20_000], d_model), 1e-6)


@pytest.mark.parametrize("start", [0, 4, 11])
def test_rows_from_the_start_are_added(start):
    encode, x = SinusoidalPositionalEncoding(12, 16), randn(2, 5, 12)
    assert_same(encode(x, start), x + positions_with_loops(range(start, start + 5), 12))


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


# --- rotary


def turned_with_complex_numbers(x, start, layout):
    """Su et al., section 3.2: pair i times e^(i·pos·θ_i)."""
    half = x.size(-1) // 2
    pairs = (slice(0, None, 2), slice(1, None, 2))
    first, second = pairs if layout == "interleaved" else (slice(half), slice(half, None))
    theta = torch.tensor([10_000 ** (-2 * i / x.size(-1)) for i in range(half)])
    angle = torch.arange(start, start + x.size(-2))[:, None] * theta
    turned = torch.complex(x[..., first], x[..., second])
    turned = turned * torch.polar(torch.ones_like(angle), angle)
    output = torch.empty_like(x)
    output[..., first], output[..., second] = turned.real, turned.imag
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


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_frequencies_follow_the_formula_and_the_papers_make_the_sinusoidal_table(base):
    for d_k in (2, 12, 128):
        assert torch.equal(RotaryPositionalEncoding(d_k, 64).table, sinusoidal_positions(64, d_k))
    expected = torch.tensor([base ** (-2 * i / 12) for i in range(6)], dtype=torch.float64)
    assert_same(rotary_frequencies(12, base), expected, 1e-12)
    table = RotaryPositionalEncoding(12, 16, base=base).table
    assert_same(table[:, 0::2], (torch.arange(16)[:, None] * expected).sin().float())


@each_layout
def test_other_frequencies_turn_slower_or_fewer_components(layout):
    x, plain = randn(2, 3, 10, 12), RotaryPositionalEncoding(12, 16, layout)
    slow = RotaryPositionalEncoding(12, 16, layout, rotary_frequencies(12) / 2)
    assert_same(slow(x)[:, :, ::2], plain(x[:, :, ::2]))
    fewer = RotaryPositionalEncoding(12, 17, layout, rotary_frequencies(8))(x, 7)
    assert_same(fewer[..., :8], RotaryPositionalEncoding(8, 17, layout)(x[..., :8], 7))
    assert torch.equal(fewer[..., 8:], x[..., 8:])


# --- positions one by one


@each_table
def test_positions_one_by_one(scheme):
    """As from the start of each; for padding before a row they are below 0, and count as 0."""
    encode, x = scheme(12, 16), randn(2, 5, 12)
    assert torch.equal(encode(x, torch.arange(3, 8)), encode(x, 3))
    positions = torch.tensor([[-2, -1, 0, 1, 2], [0, 9, 2, 15, 3]])
    output = encode(x, positions)
    for row, place in ((0, 0), (0, 4), (1, 1), (1, 3)):
        start = int(positions[row, place].clamp(min=0))
        assert_same(output[row, place], encode(x[row : row + 1, place : place + 1], start)[0, 0])
    with pytest.raises(ValueError, match="17 positions is longer than max_len=16"):
        encode(x, positions + 1)


def test_a_rotary_decoder_knows_distances_alone_and_counts_by_default():
    model = decoder_only_model(positional_encoding="rotary")
    for positions in (torch.arange(5), torch.arange(5).expand(2, 5), torch.arange(9, 14)):
        assert_same(model(TGT_IDS, positions=positions), model(TGT_IDS))
    assert not torch.allclose(model(TGT_IDS, positions=2 * torch.arange(5)), model(TGT_IDS))


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "rotary"])
def test_texts_in_one_row_equal_separate_rows(scheme):
    """With positions that start again and a mask of each text's own block; the loss too."""
    model, one, other = decoder_only_model(positional_encoding=scheme), [1, 30, 6, 19], [7, 25, 12]
    ids, text = torch.tensor([one + other]), torch.tensor([0] * 4 + [1] * 3)
    options = {"positions": torch.tensor([0, 1, 2, 3, 0, 1, 2])}
    options["mask"] = (text[:, None] == text) & causal_mask(7)
    expected = torch.cat([model(torch.tensor([text])) for text in (one, other)], dim=1)
    assert_same(model(ids, **options), expected)
    targets = ids.roll(-1)
    loss = nn.functional.cross_entropy(expected[0], targets[0])
    assert_same(next_token_loss(model, ids, targets, **options), loss)


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (1, [2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (7, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3, 2**-5]),
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


# --- constants


def schemes():
    """Each module with constants, and a function of it, of numbers in float32."""
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
        lambda m: m.double(),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: nn.Sequential(m).half().float()[0],
        copy.deepcopy,
        pickled,
    ],
    ids=["double", "meta, empty", "half, inside", "copy", "pickle"],
)
def test_constants_stay_what_they_are(name, change):
    module, use = schemes()[name]
    assert list(module.parameters()) == [*module.state_dict()] == []
    expected = use(module)
    assert torch.equal(use(change(module)), expected)


@each_constant
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, torch.device("meta")], ids=str)
def test_constants_do_not_depend_on_the_defaults(name, default):
    module, use = schemes()[name]
    if isinstance(default, torch.device):
        with default:
            made, _ = schemes()[name]
    else:
        torch.set_default_dtype(default)
        try:
            made, _ = schemes()[name]
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(use(made), use(module))


def test_constants_go_with_what_is_on_the_meta_device_and_keep_its_dtype():
    x = torch.empty(2, 5, 12, device="meta", dtype=torch.bfloat16)
    assert ALiBi(3)(5, 7, "meta").device.type == "meta"
    for scheme in (SinusoidalPositionalEncoding, RotaryPositionalEncoding):
        assert scheme(12)(x).device.type == "meta"
    for scheme in ADDED:
        assert scheme(12)(torch.zeros(1, 3, 12, dtype=torch.bfloat16)).dtype == torch.bfloat16


@each_table
@pytest.mark.parametrize(
    ("shape", "start", "message"),
    [
        ((1, 17, 12), 0, "17 positions is longer than max_len=16"),
        ((1, 5, 12), 14, "19 positions is longer than max_len=16"),
        ((2, 5, 6), 0, "(table's width |d_k=)12, got 6"),
        ((2, 5, 12), -1, "start must be at least 0, got -1"),
        ((2, 5, 12), torch.tensor(3), r"each of the 5, int64, got shape \(\), torch.int64"),
        ((2, 5, 12), torch.tensor([1, 2]), r"got shape \(2,\), torch.int64"),
        ((2, 5, 12), torch.zeros(5), r"got shape \(5,\), torch.float32"),
    ],
)
def test_what_a_table_does_not_have_is_refused(scheme, shape, start, message):
    encode = scheme(12, 16)
    encode(torch.zeros(1, 1, 12), 15)  # the last position
    with pytest.raises(ValueError, match=message):
        encode(torch.zeros(shape), start)


def biased():
    x, attention = randn(2, 5, 12), MultiHeadAttention(12, 3, position_bias=ALiBi(3))
    attention(x, x, x, positions=torch.arange(5))


def rotary(*shape):
    return lambda: RotaryPositionalEncoding(12, 16, frequencies=torch.ones(shape))


test_bad_numbers_are_refused = refuses(
    (r"d_k must be even .* got 5", lambda: RotaryPositionalEncoding(5)),
    ("'half', got 'pairs'", lambda: RotaryPositionalEncoding(4, layout="pairs")),
    (r"d_k/2=6 .*\(7,\)", rotary(7)),
    (r"d_k/2=6 .*\(0,\)", rotary(0)),
    (r"d_k/2=6 .*\(2, 3\)", rotary(2, 3)),
    (r"base must be above 1, got 1\.0", lambda: rotary_frequencies(12, 1.0)),
    ("num_heads must be at least 1, got 0", lambda: alibi_slopes(0)),
    ("got 4 queries, 3 keys", lambda: ALiBi(2)(4, 3)),
    ("positions must be None with ALiBi, which counts", biased),
)
