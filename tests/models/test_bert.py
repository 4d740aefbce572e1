"""BERT, RoBERTa and DistilBERT of this book are those that were published; and what BERT can do."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from alike import (
    assert_close,
    assert_reads_back,
    assert_same_gradients,
    ids_of,
    loaded,
    published,
    transformers,
)
from safetensors.torch import load_file, save_file

from minitransformer import pad_rows, record_attention
from minitransformer.models.bert import (
    BERT,
    BERTConfig,
    BERTForMaskedLM,
    BERTForSequenceClassification,
    DistilBERTConfig,
    RoBERTaConfig,
    mask_tokens,
)

V, PAD, MASK = 37, 4, 3
BERTS = {
    "vocab_size": V,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
DISTILBERTS = {
    "vocab_size": V,
    "dim": 12,
    "n_heads": 3,
    "n_layers": 2,
    "hidden_dim": 20,
    "max_position_embeddings": 16,
}
FAMILIES = {
    "Bert": (
        BERTS,
        {},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 3, "num_labels": 5},
        {"tie_word_embeddings": False, "pad_token_id": PAD, "num_attention_heads": 2},
    ),
    "Roberta": (
        BERTS,
        {},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 1, "num_labels": 5},
        {"tie_word_embeddings": False, "pad_token_id": PAD, "hidden_act": "gelu_new"},
    ),
    "DistilBert": (
        DISTILBERTS,
        {},
        {"activation": "relu", "num_labels": 5, "n_layers": 3},
        {"tie_word_embeddings": False, "pad_token_id": PAD, "sinusoidal_pos_embds": True},
    ),
}
HEADS = {
    "Model": BERT,
    "ForMaskedLM": BERTForMaskedLM,
    "ForSequenceClassification": BERTForSequenceClassification,
}
ALL = [
    pytest.param((family, head, number), id=f"{family}{head}-{number}")
    for family in FAMILIES
    for head in HEADS
    for number in (1, 2, 3)
]


def theirs_of(family, head, changes, seed=1):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**(FAMILIES[family][0] | changes))
    return published(getattr(transformers, family + head)(config), seed)


def batch_of(config, left=False):
    """Two rows of real ids, 7 and 4 of them, and which positions are real."""
    rows = ids_of(V, 2, 7, low=5)
    short = rows.new_full((3,), config.pad_token_id)
    parts = [short, rows[1, :4]] if left else [rows[1, :4], short]
    ids = torch.stack([rows[0], torch.cat(parts)])
    return ids, ids != config.pad_token_id


def outputs_of(model, config, head, ids, real):
    """The model's outputs, without what stands at padding."""
    types = ids_of(2, *ids.shape) if hasattr(config, "type_vocab_size") else None
    types = types if types is None or config.type_vocab_size > 1 else torch.zeros_like(ids)
    if isinstance(model, BERT):
        found = model(ids, types)
    else:
        named = {} if types is None else {"token_type_ids": types}
        found = model(ids, attention_mask=real.long(), **named)[0]
    return found if head == "ForSequenceClassification" else found[real]


@pytest.fixture(params=ALL)
def pair(request, tmp_path):
    """Theirs, ours with its weights, and how to run either of them."""
    family, head, number = request.param
    theirs = theirs_of(family, head, FAMILIES[family][number])
    ids, real = batch_of(theirs.config)
    return SimpleNamespace(
        theirs=theirs,
        ours=loaded(HEADS[head], theirs, tmp_path / "theirs"),
        run=lambda model, *batch: outputs_of(model, theirs.config, head, *(batch or (ids, real))),
        head=head,
        folder=tmp_path,
    )


@pytest.fixture(params=FAMILIES)
def masked_pair(request, tmp_path):
    """The same, of models with a masked-language head alone."""
    theirs = theirs_of(request.param, "ForMaskedLM", {})
    ours = loaded(BERTForMaskedLM, theirs, tmp_path / "theirs")
    return SimpleNamespace(theirs=theirs, ours=ours, family=request.param, folder=tmp_path)


SMALL = {"vocab_size": V, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 9}


def small(kind=BERT, config=BERTConfig, **changes):
    """A model of ours in evaluation, drawn wider than models start, so that inputs matter."""
    model = kind(config(**(SMALL | changes)), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    return model


# --- the same as published -------------------------------------------------------------------


def test_outputs_and_gradients_of_a_padded_batch_are_theirs(pair):
    assert_close(pair.run(pair.ours), pair.run(pair.theirs))
    assert_same_gradients(pair.ours, pair.theirs, pair.run)


def test_padding_on_the_left_gives_theirs(pair):
    batch = batch_of(pair.theirs.config, left=True)
    if pair.head != "ForSequenceClassification":  # which reads the first token, here padding
        assert_close(pair.run(pair.ours, *batch), pair.run(pair.theirs, *batch))


def test_float32_too(pair):
    assert_close(pair.run(pair.ours.float()), pair.run(pair.theirs.float()), 1e-5)


def test_hidden_states_and_pooled_vectors_are_theirs(pair):
    ids, real = batch_of(pair.theirs.config)
    found = []
    for layer in pair.ours.encoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: found.append(output))
    hidden = pair.ours.encode(ids)
    expected = pair.theirs(ids, attention_mask=real.long(), output_hidden_states=True)
    for ours, theirs in zip(found, expected.hidden_states[1:], strict=True):
        assert_close(ours[real], theirs[real])
    if (pooled := getattr(expected, "pooler_output", None)) is not None:
        assert_close(pair.ours.pool(hidden), pooled)


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, pair.run, pair.folder / "ours")


def test_shards_are_read(pair):
    again = loaded(type(pair.ours), pair.theirs, pair.folder / "shards", max_shard_size="4KB")
    assert len(list((pair.folder / "shards").glob("model-*.safetensors"))) > 2
    assert_close(pair.run(again), pair.run(pair.ours))


def test_segments_count(pair):
    if not pair.ours.config.num_segments > 1:
        return
    ids = ids_of(V, 1, 5, low=5)
    second = ids.new_ones(ids.shape)
    assert torch.equal(pair.ours(ids), pair.ours(ids, torch.zeros_like(ids)))
    assert not torch.allclose(pair.ours(ids), pair.ours(ids, second))


def test_their_labels_are_our_targets_with_padding_for_none(masked_pair):
    ids, real = batch_of(masked_pair.theirs.config)
    pad_id = masked_pair.theirs.config.pad_token_id
    seen, targets = mask_tokens(
        ids, V, MASK, range(5), share=0.5, pad_id=pad_id, generator=torch.Generator().manual_seed(0)
    )
    labels = targets.masked_fill(targets == pad_id, -100)
    theirs = masked_pair.theirs(seen, attention_mask=real.long(), labels=labels).loss
    assert_close(masked_pair.ours.loss(seen, targets), theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_of_classes_is_theirs(family, tmp_path):
    theirs = theirs_of(family, "ForSequenceClassification", {"num_labels": 3})
    ours = loaded(BERTForSequenceClassification, theirs, tmp_path)
    ids, real = batch_of(theirs.config)
    labels = torch.tensor([2, 0])
    expected = theirs(ids, attention_mask=real.long(), labels=labels).loss
    assert_close(ours.loss(ids, labels), expected)


# --- files as others wrote them --------------------------------------------------------------


def changed_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_first_files_are_read(tmp_path):
    """With the two heads of pre-training, gammas and betas, positions' numbers, old settings."""
    torch.manual_seed(0)
    theirs = published(transformers.BertForPreTraining(transformers.BertConfig(**BERTS)))
    theirs.save_pretrained(tmp_path)

    path = tmp_path / "model.safetensors"
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    numbers = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    save_file(old | numbers, path, {"format": "pt"})
    changed_config(
        tmp_path, position_embedding_type="absolute", directionality="bidi", pooler_fc_size=768
    )
    ids = ids_of(V, 2, 7, low=5)
    with torch.no_grad():
        expected = theirs(ids)
        assert_close(BERTForMaskedLM.from_pretrained(tmp_path)(ids), expected.prediction_logits)
        encoder = BERT.from_pretrained(tmp_path)
        assert_close(encoder(ids), theirs.bert(ids).last_hidden_state)
        assert_close(encoder.pool(encoder(ids)), theirs.bert(ids).pooler_output)


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_is_read_from_the_file_of_another_head(family, tmp_path):
    theirs = theirs_of(family, "ForSequenceClassification", {})
    theirs.save_pretrained(tmp_path)
    encoder = getattr(theirs, theirs.base_model_prefix)
    ids = ids_of(V, 2, 7, low=5)
    ours = BERT.from_pretrained(tmp_path)
    assert_close(ours(ids), encoder(ids).last_hidden_state)
    assert (ours.pooler is not None) == (family == "Bert")  # the others' files have none
    with pytest.raises(ValueError, match=r"weights are missing; the first is dense"):
        BERTForMaskedLM.from_pretrained(tmp_path)


def test_weights_of_the_encoder_are_taken_over_for_another_task(masked_pair):
    """How fine-tuning starts: PyTorch itself says what stays as it was drawn."""
    model = BERTForSequenceClassification(masked_pair.ours.config).double().eval()
    missing, unexpected = model.load_state_dict(masked_pair.ours.state_dict(), strict=False)
    assert {name.split(".")[0] for name in missing} == {"pooler", "classifier"}
    assert {name.split(".")[0] for name in unexpected} == {
        "dense",
        "dense_norm",
        "output_projection",
    }
    ids = ids_of(V, 2, 7, low=5)
    assert torch.equal(model.encode(ids), masked_pair.ours.encode(ids))


def test_number_of_labels_is_known_to_both_sides(tmp_path):
    small(BERTForSequenceClassification, num_labels=3).save_pretrained(tmp_path)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    changed_config(tmp_path, id2label={"0": "no", "1": "yes", "2": "maybe"}, label2id={})
    ours = BERTForSequenceClassification.from_pretrained(tmp_path)
    ours.save_pretrained(tmp_path / "again")
    content = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (ours.config.num_labels, content["id2label"]["2"]) == (3, "maybe")


@pytest.mark.parametrize(
    ("ours", "family"),
    [(BERTConfig, "Bert"), (RoBERTaConfig, "Roberta"), (DistilBERTConfig, "DistilBert")],
)
def test_what_a_file_leaves_out_is_what_transformers_takes(ours, family):
    theirs = getattr(transformers, f"{family}Config")()
    left_out = ours.from_published({"model_type": ours.model_type})
    assert left_out == ours()
    for key, name in ours.keys.items():
        assert key == "pooler" or getattr(left_out, name) == getattr(theirs, key)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Bert", {"clever_new_attention": True}, "these settings are not known: clever_new"),
        ("Bert", {"position_embedding_type": "relative_key"}, "relative_key', expected"),
        ("Bert", {"is_decoder": True}, "is_decoder is True, expected False"),
        ("Bert", {"model_type": "gpt2"}, "model_type is 'gpt2', expected bert"),
        ("Bert", {"num_attention_heads": 5}, "num_heads must divide d_model, got 5 and 12"),
        ("Bert", {"hidden_act": "mish"}, "activation must be one of gelu, .*, got 'mish'"),
        ("Bert", {"pad_token_id": "none"}, "pad_id must be int, got 'none'"),
        ("Roberta", {"num_hidden_layers": 3}, "16 weights are missing; the first is enc"),
        ("Roberta", {"max_position_embeddings": 18}, r"is \(16, 12\), expected \(18, 12"),
        ("DistilBert", {"layer_norm_eps": 1e-3}, "these settings are not known: layer_norm_eps"),
        ("DistilBert", {"dim": 9}, r"expected \(37, 9\) as configured"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(tmp_path, family, changes, message):
    theirs_of(family, "ForMaskedLM", {}).save_pretrained(tmp_path)
    changed_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        BERTForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["extra.weight", "bert.encoder.layer.2.output.dense.bias"])
def test_unknown_weight_is_refused_by_name(tmp_path, name):
    theirs_of("Bert", "ForMaskedLM", {}).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(12)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"1 weights have no place .* the first is {name}"):
        BERTForMaskedLM.from_pretrained(tmp_path)


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


def test_what_would_be_lost_is_not_saved(tmp_path):
    model = small()
    model.norm.eps = 1e-3
    with pytest.raises(ValueError, match=r"norm.eps is not what .* 0.001, expected 1e-12"):
        model.save_pretrained(tmp_path)


# --- laws ------------------------------------------------------------------------------------


def test_starting_values_are_the_published_ones():
    config = BERTConfig(**(SMALL | {"vocab_size": 900}))
    model = BERTForMaskedLM(config, torch.Generator().manual_seed(0))
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])
    assert weights.abs().max() <= 0.04
    assert abs(float(weights.std()) / 0.0176 - 1) < 0.05  # of a normal cut at two of its σ
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_each_position_sees_all_others():
    ids = ids_of(V, 1, 6, low=5)
    before = small()(ids)
    for changed in range(6):
        other = ids.clone()
        other[0, changed] = 5 + (ids[0, changed] - 4) % (V - 5)
        assert ((small()(other) - before).abs().amax(dim=-1) > 1e-6).all()


@pytest.mark.parametrize("config", [BERTConfig, RoBERTaConfig, DistilBERTConfig])
def test_padding_is_invisible(config):
    model = small(config=config)
    rows = [ids_of(V, 5, low=5).tolist(), ids_of(V, 3, low=5, seed=4).tolist()]
    padded = model(pad_rows(rows, pad_id=model.config.pad_id))
    longer = model(pad_rows([*rows, [7] * 7], pad_id=model.config.pad_id))
    for index, row in enumerate(rows):
        alone = model(torch.tensor([row]))[0]
        assert_close(padded[index, : len(row)], alone, 1e-5)
        assert_close(longer[index, : len(row)], alone, 1e-5)


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


def test_bias_of_the_keys_does_nothing():
    """It adds the same to all scores of a query, which the softmax takes away."""
    ids, model = ids_of(V, 2, 6, low=5), small().double()
    before = model(ids)
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.self_attention.w_k.bias.add_(3.0)
    assert_close(model(ids), before)


def test_loss_asks_for_chosen_tokens_alone():
    model, ids = small(BERTForMaskedLM), ids_of(V, 2, 6, low=5)
    targets = torch.zeros_like(ids)
    targets[0, 2], targets[1, 4] = 9, 30
    logits = model(ids)
    expected = -(logits[0, 2].log_softmax(-1)[9] + logits[1, 4].log_softmax(-1)[30]) / 2
    assert_close(model.loss(ids, targets), expected, 1e-5)


def test_attention_can_be_recorded():
    model = small()
    with record_attention(model) as maps:
        model(pad_rows([[5, 6, 7, 8, 9], [5, 6, 7]]))
    weights = maps["encoder.layers.1.self_attention"]
    assert weights.shape == (2, 3, 5, 5)
    assert not weights[1, :, :, 3:].any()
    assert_close(weights.sum(-1), torch.ones(2, 3, 5), 1e-5)


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
