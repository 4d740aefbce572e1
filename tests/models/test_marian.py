"""What Marian and BART have beside the laws of all published families."""

import pytest
import torch
from alike import assert_close, ids_of, transformers
from families import MARIANS, OPUS, Pair

from minitransformer import generate, length_normalisation
from minitransformer.models import Marian, MarianConfig


@pytest.fixture(params=["Marian MTModel as OPUS-MT", "Bart ForConditionalGeneration as published"])
def pair(request, tmp_path):
    return Pair(request.param, tmp_path)


def test_penalties_of_length_are_not_theirs(tmp_path):
    """Ours divides by ((5 + n) / 6)^α, as Wu et al.; theirs by n^α, and so writes longer texts."""
    pair = Pair("Marian MTModel as OPUS-MT", tmp_path)
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


def test_padding_is_never_written(pair):
    with torch.no_grad():
        pair.ours.output_projection.bias[pair.pad_id] = 100.0
    texts = generate(pair.ours, pair.given[0], bos_id=pair.start_id, stop_ids=[], max_new_tokens=6)
    assert not (texts == pair.pad_id).any()


# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [48, 9])
def test_sines_come_before_cosines(d_model):
    sizes = MARIANS | OPUS | {"d_model": d_model, "max_position_embeddings": 300}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**(sizes | heads)))
    config = MarianConfig(
        vocab_size=37,
        d_model=d_model,
        num_encoder_layers=1,
        num_decoder_layers=1,
        encoder_num_heads=1,
        decoder_num_heads=1,
        encoder_d_ff=8,
        decoder_d_ff=8,
        max_len=300,
        pad_id=36,
        start_id=36,
    )
    table = Marian(config).positions.table
    assert_close(table, theirs.model.encoder.embed_positions.create_weight(), 1e-7)
    assert not table[0, : (d_model + 1) // 2].any()
    assert bool((table[0, (d_model + 1) // 2 :] == 1).all())


def test_each_side_of_bart_has_its_table_from_row_two_on(tmp_path):
    pair = Pair("Bart ForConditionalGeneration as published", tmp_path)
    pair.run(pair.ours).sum().backward()
    for table, length in ((pair.ours.src_positions, 7), (pair.ours.tgt_positions, 5)):
        is_read = table.weight.grad.abs().sum(dim=1) > 0
        assert is_read.nonzero()[:, 0].tolist() == list(range(2, length + 2))


def test_positions_reach_to_the_last_and_no_further(pair):
    ids = ids_of(31, 1, 18, low=8)
    expected = pair.theirs(input_ids=ids, decoder_input_ids=ids).logits
    assert_close(pair.ours(ids, ids), expected)
    with pytest.raises(ValueError, match="a sequence of 19 positions is longer than max_len=18"):
        pair.ours(torch.cat([ids, ids[:, :1]], dim=1), ids)
