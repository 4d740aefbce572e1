"""What BERT, RoBERTa and DistilBERT have beside the laws of all published families."""

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from alike import assert_close, ids_of
from families import Pair, theirs_of

from minitransformer.models.bert import (
    BERT,
    BERTConfig,
    BERTForMaskedLM,
    BERTForSequenceClassification,
    DistilBERTConfig,
    RoBERTaConfig,
    mask_tokens,
)
from minitransformer.tokenization.tokenizer import pad_rows

V, MASK = 37, 3
FAMILIES = ("Bert", "Roberta", "DistilBert")
each_family = pytest.mark.parametrize("family", FAMILIES)
SMALL = {"vocab_size": V, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 9}


def small(kind=BERT, config=BERTConfig, **changes):
    """A model of ours in evaluation, drawn wider than models start, so that inputs matter."""
    model = kind(config(**(SMALL | changes)), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    return model


# --- the same as published


@each_family
def test_pooled_vectors_are_theirs(family, tmp_path):
    pair = Pair(f"{family} Model as published", tmp_path)
    if pair.ours.pooler is not None:
        ids = pair.given[0]
        expected = pair.theirs(ids, attention_mask=(ids != pair.pad_id).long()).pooler_output
        assert_close(pair.ours.pool(pair.ours(ids)), expected)


@each_family
def test_padding_on_the_left_gives_theirs(family, tmp_path):
    pair = Pair(f"{family} Model other", tmp_path)
    ids, segments = (None if each is None else each.flip(1) for each in pair.given)
    assert_close(pair.run(pair.ours, (ids, segments)), pair.run(pair.theirs, (ids, segments)))


def test_segments_count(tmp_path):
    ours = Pair("Bert Model other", tmp_path).ours
    ids = ids_of(V, 1, 5, low=5)
    assert torch.equal(ours(ids), ours(ids, torch.zeros_like(ids)))
    assert not torch.allclose(ours(ids), ours(ids, torch.ones_like(ids)))


@each_family
def test_losses_are_theirs(family, tmp_path):
    """Their labels are our targets, with padding where nothing is asked."""
    pair = Pair(f"{family} ForMaskedLM as published", tmp_path / "tokens")
    ids, pad_id = pair.given[0], pair.pad_id
    mask = (ids != pad_id).long()
    generator = torch.Generator().manual_seed(0)
    options = {"share": 0.5, "pad_id": pad_id, "generator": generator}
    seen, targets = mask_tokens(ids, V, MASK, range(5), **options)
    labels = targets.masked_fill(targets == pad_id, -100)
    expected = pair.theirs(seen, attention_mask=mask, labels=labels).loss
    assert_close(pair.ours.loss(seen, targets), expected)

    pair = Pair(f"{family} ForSequenceClassification other", tmp_path / "classes")
    ids, labels = pair.given[0], torch.tensor([2, 0])
    mask = (ids != pair.pad_id).long()
    expected = pair.theirs(ids, attention_mask=mask, labels=labels).loss
    assert_close(pair.ours.loss(ids, labels), expected)


# --- other heads


@each_family
def test_encoder_is_read_from_the_file_of_another_head(family, tmp_path):
    theirs = theirs_of(f"{family} ForSequenceClassification as published")
    theirs.save_pretrained(tmp_path)
    encoder = getattr(theirs, theirs.base_model_prefix)
    ids = ids_of(V, 2, 7, low=5)
    ours = BERT.from_pretrained(tmp_path)
    assert_close(ours(ids), encoder(ids).last_hidden_state)
    assert (ours.pooler is not None) == (family == "Bert")  # the others' files have none
    with pytest.raises(ValueError, match=r"weights are missing; the first is dense"):
        BERTForMaskedLM.from_pretrained(tmp_path)


@each_family
def test_encoder_is_the_beginning_of_a_classifier(family, tmp_path):
    """One that was published without a head names the way; what it computes stays."""
    theirs_of(f"{family} Model as published").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Model has no head for BERTForSequenceClassification: re"):
        BERTForSequenceClassification.from_pretrained(tmp_path)
    encoder = BERT.from_pretrained(tmp_path)
    model = BERTForSequenceClassification(encoder.config).double().eval()
    missing, unexpected = model.load_state_dict(encoder.state_dict(), strict=False)
    assert {name.split(".")[0] for name in missing} <= {"pooler", "classifier"}
    assert unexpected == []
    ids = ids_of(V, 2, 7, low=5)
    assert torch.equal(model.encode(ids), encoder.encode(ids))


# --- what is refused -------------------------------------------------------------------------


def test_distilbert_has_what_it_has():
    """Its files have no place for these, so they would be lost."""
    with pytest.raises(ValueError, match="eps is 1e-12 in every distilbert, got 1e-05"):
        DistilBERTConfig(eps=1e-5)
    with pytest.raises(ValueError, match="num_segments is 0 in every distilbert, got 2"):
        DistilBERTConfig(num_segments=2)


def test_wrong_inputs_are_refused_with_both_numbers():
    ids = ids_of(V, 2, 5, low=5)
    model = small()
    with pytest.raises(ValueError, match="sequence of 10 positions is longer than max_len=9"):
        model(ids_of(V, 2, 10, low=5))
    with pytest.raises(ValueError, match="sequence of 10 positions is longer than max_len=9"):
        small(config=RoBERTaConfig)(ids_of(V, 2, 8, low=5))  # the first two rows are not for tokens
    with pytest.raises(ValueError, match=r"same shape, got \(2, 5\) and \(2, 4\)"):
        model(ids, ids[:, 1:])
    with pytest.raises(ValueError, match="id 2 lies outside the vocabulary of 2"):
        model(ids, torch.full_like(ids, 2))
    with pytest.raises(ValueError, match="id 37 lies outside the vocabulary of 37"):
        model(torch.full_like(ids, V))
    distilled = small(config=DistilBERTConfig)
    with pytest.raises(ValueError, match=r"DistilBertModel has no segments, got \(2, 5\)"):
        distilled(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match="DistilBertModel has no pooler"):
        distilled.pool(distilled(ids))
    masked = small(BERTForMaskedLM)
    with pytest.raises(ValueError, match="all 10 targets are padding"):
        masked.loss(ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match="target -100 lies outside the vocabulary of 37"):
        masked.loss(ids, torch.full_like(ids, -100))
    with pytest.raises(ValueError, match=r"same shape, got \(2, 5\) and \(2, 4\)"):
        masked.loss(ids, ids[:, 1:])


# --- laws ------------------------------------------------------------------------------------


def test_each_position_sees_all_others():
    ids = ids_of(V, 1, 6, low=5)
    before = small()(ids)
    for changed in range(6):
        other = ids.clone()
        other[0, changed] = 5 + (ids[0, changed] - 4) % (V - 5)
        assert ((small()(other) - before).abs().amax(dim=-1) > 1e-6).all()


def test_padding_on_the_left_is_invisible_where_positions_follow_the_tokens():
    row = ids_of(V, 1, 4, low=5)
    for config, same in ((RoBERTaConfig, True), (BERTConfig, False)):
        model = small(config=config)
        moved = F.pad(row, (3, 0), value=model.config.pad_id)
        assert torch.allclose(model(moved)[:, 3:], model(row), atol=1e-5) == same


def test_order_matters_only_through_positions():
    ids, order = ids_of(V, 1, 6, low=5), torch.tensor([3, 0, 5, 1, 4, 2])
    model = small()
    assert not torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-3)
    with torch.no_grad():
        model.positions.weight.zero_()
    assert_close(model(ids[:, order]), model(ids)[:, order], 1e-5)


def test_loss_asks_for_chosen_tokens_alone():
    model, ids = small(BERTForMaskedLM), ids_of(V, 2, 6, low=5)
    targets = torch.zeros_like(ids)
    targets[0, 2], targets[1, 4] = 9, 30
    logits = model(ids)
    expected = -(logits[0, 2].log_softmax(-1)[9] + logits[1, 4].log_softmax(-1)[30]) / 2
    assert_close(model.loss(ids, targets), expected, 1e-5)


# --- hiding tokens ---------------------------------------------------------------------------


def hidden(ids, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return mask_tokens(ids, 1000, 4, range(5), generator=generator, **options)


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


@pytest.mark.parametrize("options", [{"share": 1.5}, {"masked": 0.95}, {"replaced": -0.1}])
def test_shares_that_are_none_are_refused(options):
    with pytest.raises(ValueError, match=r"must lie between 0 and 1, got"):
        hidden(ids_of(1000, 2, 5, low=5), **options)


@pytest.mark.slow
def test_hidden_tokens_are_learned_from_both_sides():
    """In rows a b c the middle is the larger neighbour: one of them alone does not say it."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    rows = torch.stack([ends[:, 0], ends.amax(dim=1), ends[:, 1]], dim=1) + 5
    config = BERTConfig(
        vocab_size=12, d_model=32, num_heads=4, num_layers=1, d_ff=64, max_len=3, dropout=0.0
    )
    model = BERTForMaskedLM(config, generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        seen, targets = mask_tokens(rows, 12, 4, range(5), share=0.3, generator=generator)
        loss = model.loss(seen, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def right(hidden):
        seen = rows.index_fill(1, torch.tensor(hidden), 4)
        return (model.eval()(seen)[:, 1].argmax(-1) == rows[:, 1]).float().mean()

    assert right([1]) > 0.9
    assert right([1, 2]) < 0.8  # 28 of 49 are the left one


def test_all_fields_reach_the_file():
    for kind in (BERTConfig, RoBERTaConfig):
        assert {field.name for field in fields(kind)} == set(kind.keys.values())
