"""Beam search finds what looking at every text finds, when the beam is wide enough."""

import itertools

import pytest
import torch
from helpers import SRC_IDS, decoder_only_model, shaken, small_model

from minitransformer import (
    Transformer,
    TransformerConfig,
    generate,
    length_normalisation,
    pad_rows,
)

VOCAB_SIZE, LONGEST = 5, 4  # padding, begin, end, and two words


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


SOURCES = torch.tensor([[3, 4, 3, 2], [4, 2, 0, 0], [4, 4, 2, 0]])


@torch.no_grad()
def log_probs(model, src, texts):
    """The model's log-probability of each text, computed without cache."""
    tgt = pad_rows([[1, *text] for text in texts])
    scores = model(src.expand(len(texts), -1), tgt[:, :-1]).log_softmax(-1)
    of_tokens = scores.gather(-1, tgt[:, 1:, None])[..., 0]
    return of_tokens.masked_fill(tgt[:, 1:] == 0, 0.0).sum(-1).tolist()


def every_text(longest=LONGEST, min_new_tokens=1, stop_id=2):
    """All texts without padding that end at their first stop id, or at the longest length."""
    words = [token for token in range(1, VOCAB_SIZE) if token != stop_id]
    for length in range(1, longest + 1):
        for begin in itertools.product(words, repeat=length - 1):
            if length >= min_new_tokens:
                yield [*begin, stop_id]
            if length == longest:
                yield from ([*begin, word] for word in words)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("min_new_tokens", [1, 3])
def test_wide_beam_equals_exhaustive_search(tiny, alpha, min_new_tokens):
    texts = list(every_text(min_new_tokens=min_new_tokens))
    expected = []
    for src in SOURCES:
        scores = [
            log_prob / length_normalisation(len(text), alpha)
            for log_prob, text in zip(log_probs(tiny, src[src != 0], texts), texts, strict=True)
        ]
        expected.append(max(zip(scores, texts, strict=True))[1])
    found = generate(
        tiny,
        SOURCES,
        max_new_tokens=LONGEST,
        min_new_tokens=min_new_tokens,
        num_beams=VOCAB_SIZE**LONGEST,
        length_penalty=alpha,
    )
    assert found.tolist() == pad_rows(expected).tolist()


def test_answers_differ_from_greedy_or_by_length_penalty(tiny):
    """Else the test above could not tell beam search from anything else."""
    options = {"max_new_tokens": LONGEST, "num_beams": VOCAB_SIZE**LONGEST}
    found = [
        generate(tiny, SOURCES, length_penalty=alpha, **options).tolist() for alpha in (0.0, 2.0)
    ]
    greedy = generate(tiny, SOURCES, max_new_tokens=LONGEST).tolist()
    assert found[0] != greedy
    assert len({str(row) for rows in found for row in rows}) > 2


@pytest.mark.parametrize("num_beams", [2, 3, 7])
def test_each_source_is_searched_as_if_alone(tiny, num_beams):
    options = {"max_new_tokens": 9, "num_beams": num_beams}
    together = generate(tiny, SOURCES, **options).tolist()
    for src, row in zip(SOURCES, together, strict=True):
        (alone,) = generate(tiny, src[src != 0][None], **options).tolist()
        assert [token for token in row if token] == alone


@pytest.mark.parametrize("num_beams", [2, 4])
def test_equals_a_search_with_lists_and_without_cache(tiny, num_beams):
    """Written once more, as plainly as possible."""
    alpha, longest = 0.6, 8
    for src in SOURCES:
        real = src[src != 0]
        beams, ended = [(0.0, [])], []
        for length in range(1, longest + 1):
            texts = [[*text, token] for _, text in beams for token in range(1, VOCAB_SIZE)]
            options = sorted(zip(log_probs(tiny, real, texts), texts, strict=True), reverse=True)
            last = length == longest
            ended += [
                (score / length_normalisation(length, alpha), text)
                for score, text in options[:num_beams]
                if text[-1] == 2 or last
            ]
            beams = [(s, text) for s, text in options if text[-1] != 2][:num_beams]
        settings = {"max_new_tokens": longest, "num_beams": num_beams, "length_penalty": alpha}
        assert generate(tiny, real[None], **settings).tolist() == [max(ended)[1]]


def test_wider_beam_finds_texts_as_probable_or_more(tiny):
    for src in SOURCES:
        real = src[src != 0]
        best = []
        for num_beams in (1, 5**5):
            options = {"max_new_tokens": 5, "num_beams": num_beams, "length_penalty": 0.0}
            (text,) = generate(tiny, real[None], **options).tolist()
            best += log_probs(tiny, real, [text])
        assert best[1] >= best[0] - 1e-5


def test_decoder_only_models_search_too():
    model, prompts = decoder_only_model(), torch.tensor([[8, 3, 28], [9, 22, 0]])
    together = generate(model, prompts, max_new_tokens=7, num_beams=3).tolist()
    for prompt, row in zip(prompts, together, strict=True):
        (alone,) = generate(model, prompt[prompt != 0][None], max_new_tokens=7, num_beams=3)
        assert [token for token in row if token] == alone.tolist()


def test_search_is_the_same_with_rows_and_sources_that_leave():
    model = small_model()
    src = SRC_IDS.repeat(3, 1)
    rows = generate(model, src, max_new_tokens=15, num_beams=4, stop_ids=list(range(2, 12)))
    assert torch.equal(rows[:2], rows[2:4])
    assert torch.equal(rows[:2], rows[4:])


@pytest.mark.parametrize(("length", "alpha"), [(1, 0.6), (7, 0.0), (7, 1.0), (31, 0.6)])
def test_length_normalisation_is_equation_14(length, alpha):
    assert length_normalisation(length, alpha) == pytest.approx((5 + length) ** alpha / 6**alpha)
