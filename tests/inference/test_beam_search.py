"""Beam search finds what looking at every text finds, when the beam is wide enough."""

import itertools

import pytest
import torch
from helpers import SRC_IDS, each_kind, model_and_ids, shaken, small_model

from minitransformer import (
    Transformer,
    TransformerConfig,
    generate,
    length_normalisation,
    pad_rows,
)

VOCAB_SIZE, LONGEST = 5, 4  # padding, begin, end, and two words
SOURCES = torch.tensor([[3, 4, 3, 2], [4, 2, 0, 0], [4, 4, 2, 0]])


@pytest.fixture(scope="module", params=[(2, 0.6), (4, 0.6), (3, 0.3)], ids=str)
def tiny(request):
    """A model of five tokens, shaken so strongly that texts end early, late, and never."""
    seed, scale = request.param
    config = TransformerConfig(
        src_vocab_size=VOCAB_SIZE,
        tgt_vocab_size=VOCAB_SIZE,
        d_model=6,
        num_heads=3,
        num_encoder_layers=1,
        num_decoder_layers=2,
        d_ff=10,
        dropout=0.0,
        max_len=16,
        norm_first=True,
        positional_encoding="learned",
        tie_output=False,
    )
    model = Transformer(config, torch.Generator().manual_seed(seed))
    return shaken(model, seed=seed, scale=scale).eval()


@torch.no_grad()
def log_probs(model, src, texts):
    """The model's log-probability of each text, computed without cache."""
    tgt = pad_rows([[1, *text] for text in texts])
    scores = model(src.expand(len(texts), -1), tgt[:, :-1]).log_softmax(-1)
    of_tokens = scores.gather(-1, tgt[:, 1:, None])[..., 0]
    return of_tokens.masked_fill(tgt[:, 1:] == 0, 0.0).sum(-1).tolist()


def every_text(min_new_tokens):
    """All texts without padding that end at their first end token, or at the longest length."""
    for length in range(1, LONGEST + 1):
        for begin in itertools.product((1, 3, 4), repeat=length - 1):
            if length >= min_new_tokens:
                yield [*begin, 2]
            if length == LONGEST:
                yield from ([*begin, word] for word in (1, 3, 4))


@pytest.mark.parametrize("min_new_tokens", [1, 3])
def test_wide_beam_equals_exhaustive_search(tiny, min_new_tokens):
    texts, found = list(every_text(min_new_tokens)), []
    options = {"max_new_tokens": LONGEST, "min_new_tokens": min_new_tokens}
    for alpha in (0.0, 0.6, 2.0):
        expected = []
        for src in SOURCES:
            scores = [
                log_prob / length_normalisation(len(text), alpha)
                for log_prob, text in zip(log_probs(tiny, src[src != 0], texts), texts, strict=True)
            ]
            expected.append(max(zip(scores, texts, strict=True))[1])
        wide = {"num_beams": VOCAB_SIZE**LONGEST, "length_penalty": alpha}
        found.append(generate(tiny, SOURCES, **options, **wide).tolist())
        assert found[-1] == pad_rows(expected).tolist()
    if min_new_tokens == 1:  # else greedy decoding, or one without the penalty, would pass too
        assert found[0] != generate(tiny, SOURCES, **options).tolist()
        assert len({str(row) for rows in found for row in rows}) > 2


@pytest.mark.parametrize("num_beams", [2, 4])
def test_equals_a_search_with_lists_and_without_cache(tiny, num_beams):
    """Written once more, as plainly as possible; and a row of a batch is the row alone."""
    alpha, longest, expected = 0.6, 8, []
    for src in SOURCES:
        beams, ended = [(0.0, [])], []
        for length in range(1, longest + 1):
            texts = [[*text, token] for _, text in beams for token in range(1, VOCAB_SIZE)]
            scores = log_probs(tiny, src[src != 0], texts)
            options = sorted(zip(scores, texts, strict=True), reverse=True)
            ended += [
                (score / length_normalisation(length, alpha), text)
                for score, text in options[:num_beams]
                if text[-1] == 2 or length == longest
            ]
            beams = [(s, text) for s, text in options if text[-1] != 2][:num_beams]
        expected.append(max(ended)[1])
    settings = {"max_new_tokens": longest, "num_beams": num_beams, "length_penalty": alpha}
    assert generate(tiny, SOURCES, **settings).tolist() == pad_rows(expected).tolist()


@each_kind
def test_each_row_is_searched_as_if_alone(kind):
    model, ids = model_and_ids(kind)
    together = generate(model, ids, max_new_tokens=7, num_beams=3).tolist()
    for row, found in zip(ids, together, strict=True):
        (alone,) = generate(model, row[row != 0][None], max_new_tokens=7, num_beams=3)
        assert [token for token in found if token] == alone.tolist()


def test_search_is_the_same_with_rows_and_sources_that_leave():
    src = SRC_IDS.repeat(3, 1)
    options = {"max_new_tokens": 15, "num_beams": 4, "stop_ids": list(range(2, 12))}
    rows = generate(small_model(), src, **options)
    assert torch.equal(rows[:2], rows[2:4])
    assert torch.equal(rows[:2], rows[4:])


@pytest.mark.parametrize(("length", "alpha"), [(1, 0.6), (7, 0.0), (7, 1.0), (31, 0.6)])
def test_length_normalisation_is_equation_14(length, alpha):
    assert length_normalisation(length, alpha) == pytest.approx((5 + length) ** alpha / 6**alpha)
