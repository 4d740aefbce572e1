"""What Marian and BART have beside the laws of all published families."""

import pytest
import torch
from alike import assert_close, ids_of
from families import pair_of

from minitransformer import generate, length_normalisation


@pytest.fixture(params=["Marian MTModel as OPUS-MT", "Bart ForConditionalGeneration as published"])
def pair(request, tmp_path):
    return pair_of(request.param, tmp_path)


def test_penalties_of_length_are_not_theirs(tmp_path):
    """Ours divides by ((5 + n) / 6)^α, as Wu et al.; theirs by n^α, and so writes longer texts."""
    pair = pair_of("Marian MTModel as OPUS-MT", tmp_path)
    src = ids_of(31, 40, 7, low=8)
    options = {"max_new_tokens": 9, "num_beams": 4, "length_penalty": 1.0}
    ours = generate(pair.ours, src, bos_id=pair.start_id, stop_ids=[8], **options)
    theirs = pair.theirs.generate(
        src,
        attention_mask=torch.ones_like(src),
        do_sample=False,
        eos_token_id=8,
        bad_words_ids=[[pair.pad_id]],
        **options,
    )[:, 1:]
    differ = 0
    for row, *both in zip(src, ours.tolist(), theirs.tolist(), strict=True):
        our_text, their_text = ([i for i in text if i != pair.pad_id] for text in both)
        if our_text != their_text:
            differ += 1
            (p, n), (q, m) = (log_probability(pair, row, text) for text in (our_text, their_text))
            assert p / length_normalisation(n, 1.0) > q / length_normalisation(m, 1.0)
            assert p / n < q / m
            assert n < m
    assert 5 < differ < 35


@torch.no_grad()
def log_probability(pair, src, text):
    """Of a whole text, and its length."""
    scores = pair.ours(src[None], torch.tensor([[pair.start_id, *text[:-1]]]))[0].log_softmax(-1)
    return float(scores[range(len(text)), text].sum()), len(text)


def test_positions_reach_to_the_last_and_no_further(pair):
    ids = ids_of(31, 1, 18, low=8)
    expected = pair.theirs(input_ids=ids, decoder_input_ids=ids).logits
    assert_close(pair.ours(ids, ids), expected)
    with pytest.raises(ValueError, match="a sequence of 19 positions is longer than max_len=18"):
        pair.ours(torch.cat([ids, ids[:, :1]], dim=1), ids)
