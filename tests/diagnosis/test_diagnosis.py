"""`diagnose` finds what was broken on purpose, and nothing in what is whole."""

import itertools

import pytest
import torch
from helpers import each_published

import minitransformer as mt
from minitransformer.diagnosis.diagnose import diagnose
from minitransformer.diagnosis.faults import FAULTY_BATCHES, FAULTY_LOSSES, FAULTY_MODELS
from minitransformer.diagnosis.laws import LAWS

# The law that catches each fault.
CAUGHT = {
    "mask inverted": "past matters",
    "causal mask missing": "no peeking",
    "padding attended": "padding is invisible",
    "scale missing": "attention is the formula",
    "√d_model for √d_k": "attention is the formula",
    "softmax over queries": "attention is the formula",
    "softmax before the loss": "logits are scores",
    "heads without transpose": "no peeking",
    "heads joined without transpose": "no peeking",
    "mask on its side": "padding is invisible",
    "mask of other rows": "attention is the formula",
    "keys of the target": "source matters",
    "positions left out": "positions differ",
    "positions restarted": "cached = full",
    "padding in the loss": "loss is the logits'",
    "mean of means": "loss is the logits'",
    "rows mixed": "rows stay apart",
    "encoder detached": "gradients arrive",
    "labels not shifted": "targets follow the input",
    "labels shifted twice": "targets follow the input",
    "end left out": "targets end",
    "end taken for padding": "targets end",
    "filled with the end": "padding is known",
}
NEWER = {
    "norm": "rms_norm",
    "activation": "swiglu",
    "num_kv_heads": 1,
    "attention_bias": False,
    "tie_output": False,
}
VARIANTS = [
    {"positional_encoding": kind, "norm_first": norm_first, **more}
    for (i, kind), norm_first, more in itertools.product(
        enumerate(("sinusoidal", "learned", "rotary", "alibi", "none")), (False, True), ({}, NEWER)
    )
    if (i + norm_first) % 4 == 2 * bool(more)  # each position once, each norm's place with both
]
SIZES = {"d_model": 24, "num_heads": 3, "d_ff": 40, "dropout": 0.2}


@pytest.fixture(scope="module")
def batch():
    """Ten ragged pairs: the target is the source backwards."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 8, (10,), generator=generator).tolist()
    rows = [torch.randint(3, 17, (n,), generator=generator).tolist() for n in lengths]
    return mt.collate([mt.Example([*row, 2], [1, *reversed(row), 2]) for row in rows])


def translator(num_layers=2, **options):
    options = SIZES | {"num_encoder_layers": num_layers, "num_decoder_layers": 2} | options
    config = mt.TransformerConfig(src_vocab_size=17, tgt_vocab_size=17, **options)
    return mt.Transformer(config, torch.Generator().manual_seed(1))


def writer(**options):
    config = mt.TransformerConfig.decoder_only(17, num_layers=2, **SIZES | options)
    return mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_nothing_is_found_in_what_is_whole(batch, options):
    assert diagnose(translator(**options), batch).failed == []
    assert diagnose(writer(**options), batch[1:]).failed == []


@pytest.mark.slow
@each_published
def test_nothing_is_found_in_published_models(batch, kind, config):
    torch.manual_seed(0)  # of their first weights
    model = kind(config)
    given = [x.masked_fill(x == 0, model.config.pad_id) for x in batch]
    assert diagnose(model, given[model.config.num_encoder_layers == 0 :]).failed == []


@pytest.mark.slow
def test_nothing_is_found_in_bfloat16_nor_in_a_trained_model(batch):
    assert diagnose(translator().bfloat16(), batch).failed == []
    model = translator(norm_first=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        mt.next_token_loss(model, *batch, smoothing=0.1).backward()
        optimizer.step()
    assert diagnose(model, batch).failed == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", CAUGHT)
def test_fault_is_found(batch, fault):
    model = translator()
    if fault in FAULTY_MODELS:
        FAULTY_MODELS[fault](model)
    loss = FAULTY_LOSSES.get(fault, mt.next_token_loss)
    findings = diagnose(model, FAULTY_BATCHES.get(fault, lambda batch: batch)(batch), loss)
    assert CAUGHT[fault] in findings.failed


@pytest.mark.parametrize(
    "fault", ["causal mask missing", "scale missing", "softmax over queries", "positions left out"]
)
def test_faults_of_a_decoder_only_model_are_found(batch, fault):
    model = writer()
    FAULTY_MODELS[fault](model)
    assert CAUGHT[fault] in diagnose(model, batch[1:]).failed


def test_frozen_parameters_are_not_asked_for_gradients_and_the_batch_must_fit(batch):
    model = translator()
    model.encoder.requires_grad_(False)
    assert diagnose(model, batch).failed == []
    for model, given, message in (
        (translator(), batch[1:], "batch must have 3 tensors, got 2"),
        (writer(), batch, "batch must have 2 tensors, got 3"),
        (writer(), [x[:1] for x in batch[1:]], r"2 rows and 3 positions, got \(1, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            diagnose(model, given)


def test_padding_in_another_id_is_found(batch):
    filled = mt.Batch(*(x.masked_fill(x == 0, 16) for x in batch))
    assert "padding is known" in diagnose(translator(), filled).failed
    moved = mt.Batch(batch.src.flip(1), *batch[1:])
    with pytest.raises(ValueError, match="src_ids must be filled on the right only"):
        diagnose(translator(), moved)


def test_what_is_not_finite_ends_the_diagnosis(batch):
    model = translator()
    with torch.no_grad():
        model.encoder.layers[0].self_attention.w_q.weight[0, 0] = torch.nan
    found = diagnose(model, batch)
    assert found.failed == ["numbers are finite"]
    assert len(found) == 1


def test_half_precision_does_not_learn_with_the_usual_epsilon(batch):
    """1e-8 is 0 in float16, and Adam divides 0 by 0 where a token does not occur."""
    assert "a batch is learned" in diagnose(translator().half(), batch).failed


def test_every_law_is_tried_and_every_fault_is_caught(batch):
    assert [finding.law for finding in diagnose(translator(), batch)] == list(LAWS)
    assert CAUGHT.keys() == FAULTY_MODELS.keys() | FAULTY_LOSSES.keys() | FAULTY_BATCHES.keys()
    assert set(CAUGHT.values()) <= LAWS.keys()


def test_the_model_stays_as_it_was(batch):
    model = translator().train()
    model.decoder.eval()
    mt.next_token_loss(model, *batch, smoothing=0.1).backward()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    diagnose(model, batch)
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.random.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
