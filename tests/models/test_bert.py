"""What BERT, RoBERTa and DistilBERT have beside the laws of all published families."""

from dataclasses import fields

import pytest
import torch
from alike import assert_close, ids_of
from families import pair_of, theirs_of
from helpers import refuses

from minitransformer import models as mm
from minitransformer.tokenization.tokenizer import pad_rows

V, MASK = 37, 3
FAMILIES = ("Bert", "Roberta", "DistilBert")
each_family = pytest.mark.parametrize("family", FAMILIES)
SMALL = {"vocab_size": V, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 9}


def small(kind=mm.BERT, config=mm.BERTConfig, **changes):
    """A model of ours in evaluation, drawn wider than models start, so that inputs matter."""
    model = kind(config(**(SMALL | changes)), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    return model


@each_family
def test_pooled_vectors_are_theirs(family, tmp_path):
    pair = pair_of(f"{family} Model as published", tmp_path)
    if pair.ours.pooler is not None:
        ids = pair.given[0]
        expected = pair.theirs(ids, attention_mask=(ids != pair.pad_id).long()).pooler_output
        assert_close(pair.ours.pool(pair.ours(ids)), expected)


@each_family
def test_padding_on_the_left_gives_theirs(family, tmp_path):
    pair = pair_of(f"{family} Model other", tmp_path)
    ids, segments = (None if each is None else each.flip(1) for each in pair.given)
    assert_close(pair.run(pair.ours, (ids, segments)), pair.run(pair.theirs, (ids, segments)))


@each_family
@pytest.mark.parametrize("head", ["ForMaskedLM as published", "ForSequenceClassification other"])
def test_losses_are_theirs(family, head, tmp_path):
    """Their labels are our targets, with padding where nothing is asked."""
    pair = pair_of(f"{family} {head}", tmp_path)
    ids, pad_id = pair.given[0], pair.pad_id
    mask, targets = (ids != pad_id).long(), torch.tensor([2, 0])
    labels = targets
    if "Masked" in head:
        options = {"share": 0.5, "pad_id": pad_id, "generator": torch.Generator().manual_seed(0)}
        ids, targets = mm.mask_tokens(ids, V, MASK, range(5), **options)
        labels = targets.masked_fill(targets == pad_id, -100)
    expected = pair.theirs(ids, attention_mask=mask, labels=labels).loss
    assert_close(pair.ours.loss(ids, targets), expected)


@each_family
def test_encoder_is_read_from_the_file_of_another_head(family, tmp_path):
    theirs = theirs_of(f"{family} ForSequenceClassification as published")
    theirs.save_pretrained(tmp_path)
    encoder = getattr(theirs, theirs.base_model_prefix)
    ids = ids_of(V, 2, 7, low=5)
    ours = mm.BERT.from_pretrained(tmp_path)
    assert_close(ours(ids), encoder(ids).last_hidden_state)
    assert (ours.pooler is not None) == (family == "Bert")  # the others' files have none
    with pytest.raises(ValueError, match=r"weights are missing; the first is dense"):
        mm.BERTForMaskedLM.from_pretrained(tmp_path)


@each_family
def test_encoder_is_the_beginning_of_a_classifier(family, tmp_path):
    """One that was published without a head names the way; what it computes stays."""
    theirs_of(f"{family} Model as published").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Model has no head for BERTForSequenceClassification: re"):
        mm.BERTForSequenceClassification.from_pretrained(tmp_path)
    encoder = mm.BERT.from_pretrained(tmp_path)
    model = mm.BERTForSequenceClassification(encoder.config).double().eval()
    missing, unexpected = model.load_state_dict(encoder.state_dict(), strict=False)
    assert {name.split(".")[0] for name in missing} <= {"pooler", "classifier"}
    assert unexpected == []
    ids = ids_of(V, 2, 7, low=5)
    assert torch.equal(model.encode(ids), encoder.encode(ids))


MODELS = {
    "bert": small(),
    "roberta": small(config=mm.RoBERTaConfig),
    "distilbert": small(config=mm.DistilBERTConfig),
    "masked": small(mm.BERTForMaskedLM),
}
IDS = ids_of(V, 2, 5, low=5)
LONG = "sequence of 10 positions is longer than max_len=9"
SHAPES = r"same shape, got \(2, 5\) and \(2, 4\)"
REFUSED = [
    # What the files of every DistilBERT have no place for would be lost.
    ("eps is 1e-12 in every distilbert, got 1e-05", lambda: mm.DistilBERTConfig(eps=1e-5)),
    ("num_segments is 0 in every distilbert, got 2", lambda: mm.DistilBERTConfig(num_segments=2)),
    (LONG, lambda: MODELS["bert"](ids_of(V, 2, 10, low=5))),
    (LONG, lambda: MODELS["roberta"](ids_of(V, 2, 8, low=5))),  # two rows are not for tokens
    (SHAPES, lambda: MODELS["bert"](IDS, IDS[:, 1:])),
    ("id 2 lies outside the vocabulary of 2", lambda: MODELS["bert"](IDS, 0 * IDS + 2)),
    ("id 37 lies outside the vocabulary of 37", lambda: MODELS["bert"](0 * IDS + V)),
    (r"DistilBertModel has no segments, got \(2, 5\)", lambda: MODELS["distilbert"](IDS, 0 * IDS)),
    ("DistilBertModel has no pooler", lambda: MODELS["distilbert"].pool(torch.zeros(2, 5, 12))),
    ("all 10 targets are padding", lambda: MODELS["masked"].loss(IDS, 0 * IDS)),
    ("target -100 lies outside the vocabulary", lambda: MODELS["masked"].loss(IDS, 0 * IDS - 100)),
    (SHAPES, lambda: MODELS["masked"].loss(IDS, IDS[:, 1:])),
    (r"must lie between 0 and 1, got", lambda: hidden(IDS, share=1.5)),
    (r"must lie between 0 and 1, got", lambda: hidden(IDS, masked=0.95)),
    (r"must lie between 0 and 1, got", lambda: hidden(IDS, replaced=-0.1)),
]


test_what_cannot_be_is_refused_with_both_numbers = refuses(*REFUSED)


def test_order_matters_only_through_positions():
    ids, order = ids_of(V, 1, 6, low=5), torch.tensor([3, 0, 5, 1, 4, 2])
    model = small()
    assert not torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-3)
    with torch.no_grad():
        model.positions.weight.zero_()
    assert_close(model(ids[:, order]), model(ids)[:, order], 1e-5)


def hidden(ids, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return mm.mask_tokens(ids, 1000, 4, range(5), generator=generator, **options)


def test_shares_of_hidden_tokens_are_the_papers():
    ids = ids_of(1000, 100, 401, low=5)
    seen, targets = hidden(ids)
    asked = targets != 0
    assert torch.equal(targets[asked], ids[asked])
    assert torch.equal(seen[~asked], ids[~asked])
    assert abs(float(asked.float().mean()) - 0.15) < 0.01
    mask, same = seen[asked] == 4, seen[asked] == ids[asked]
    for share, expected in ((mask, 0.8), (same, 0.1), (~mask & ~same, 0.1)):
        assert abs(float(share.float().mean()) - expected) < 0.02


def test_special_tokens_are_neither_asked_nor_drawn():
    ids = pad_rows([[1, *range(5, 300), 2], [1, *range(300, 400), 2]])
    seen, targets = hidden(ids, share=1.0, masked=0.0, replaced=1.0)
    assert torch.equal(targets, ids.masked_fill(ids < 5, 0))
    assert torch.equal(seen < 5, ids < 5)
    assert torch.equal(seen[ids < 5], ids[ids < 5])


def test_choice_is_a_function_of_the_generator():
    ids = ids_of(1000, 3, 50, low=5)
    assert all(torch.equal(a, b) for a, b in zip(hidden(ids), hidden(ids), strict=True))
    assert not torch.equal(hidden(ids)[1], hidden(ids, seed=1)[1])


def test_all_fields_reach_the_file():
    for kind in (mm.BERTConfig, mm.RoBERTaConfig):
        assert {field.name for field in fields(kind)} == set(kind.keys.values())
