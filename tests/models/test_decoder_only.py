"""The decoder-only model obeys the laws too, and is a causal encoder of torch.nn."""

import pytest
import torch
from helpers import (
    MODELS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    small_config,
    torch_layer,
    torch_norm,
)
from torch import nn

from minitransformer import (
    DecoderOnlyTransformer,
    KVCache,
    SinusoidalPositionalEncoding,
    Transformer,
    TransformerConfig,
    causal_mask,
    label_smoothing_loss,
    next_token_loss,
)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("tie_output", [False, True], ids=["untied", "tied"])
def test_equals_a_causal_encoder_of_torch(norm_first, tie_output):
    model = decoder_only_model(norm_first=norm_first, tie_output=tie_output)
    x = SinusoidalPositionalEncoding(12)(model.embedding(TGT_IDS))
    for layer in model.decoder.layers:
        x = torch_layer(layer, nn.TransformerEncoderLayer, "relu")(x, src_mask=~causal_mask(5))
    if norm_first:
        x = torch_norm(model.decoder.norm)(x)
    assert_same(model(TGT_IDS), x @ model.output_projection.weight.T)
    assert (model.output_projection.weight is model.embedding.weight) == tie_output


@each_model
@pytest.mark.parametrize("position", range(5))
def test_output_depends_on_its_own_token_and_on_none_after_it(changes, position):
    model, ids = decoder_only_model(**changes), TGT_IDS.masked_fill(TGT_IDS == 0, 9)
    changed = ids.clone()
    changed[:, position] = 23
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :position], after[:, :position])
    assert ((before - after).abs().amax(-1)[:, position:] > 1e-4).all()


@each_model
@pytest.mark.parametrize("amount", [1, 4])
def test_padding_is_invisible_on_either_side(changes, amount):
    model = decoder_only_model(**changes)
    alone = model(TGT_IDS)
    assert_same(model(nn.functional.pad(TGT_IDS, (0, amount)))[:, :5], alone)
    left = torch.full((2,), amount)
    moved = model.decode(nn.functional.pad(TGT_IDS, (amount, 0)), left_padding=left)
    assert_same(moved[:, amount:], alone)


# --- a mask in place of the causal one

PREFIX = causal_mask(5) | (torch.arange(5) < torch.tensor([3, 2])[:, None, None, None])


@each_model
@pytest.mark.parametrize("position", range(5))
def test_prefix_sees_itself_and_nothing_after_it(changes, position):
    model, changed = decoder_only_model(**changes), TGT_IDS.clone()
    changed[:, position] = 23
    difference = (model(TGT_IDS, PREFIX) - model(changed, PREFIX)).abs().amax(-1)
    for row, length in enumerate((3, 2)):
        first = 0 if position < length else position
        assert (difference[row, first:] > 1e-4).all()
        assert (difference[row, :first] == 0).all()


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
def test_documents_that_do_not_see_each_other_are_as_if_alone(scheme):
    model = decoder_only_model(positional_encoding=scheme)
    document = torch.tensor([0, 0, 1, 1, 1])
    together = model(TGT_IDS, (document[:, None] == document) & causal_mask(5))
    assert_same(together, torch.cat([model(TGT_IDS[:, :2]), model(TGT_IDS[:, 2:])], dim=1))


@each_model
def test_prefix_can_be_decoded_first_and_the_rest_with_a_cache(changes):
    model = decoder_only_model(**changes)
    everything = causal_mask(5) | (torch.arange(5) < 3)
    caches = [KVCache() for _ in model.decoder.layers]
    parts = [model.decode(TGT_IDS[:, :3], caches, mask=everything[:3, :3])]
    parts += [
        model.decode(TGT_IDS[:, n : n + 1], caches, mask=everything[[n], : n + 1]) for n in (3, 4)
    ]
    assert_same(torch.cat(parts, dim=1), model(TGT_IDS, everything))


@each_model
def test_mask_goes_together_with_padding_on_the_left(changes):
    model = decoder_only_model(**changes)
    mask = nn.functional.pad(PREFIX, (2, 0, 2, 0), value=True)
    padded = nn.functional.pad(TGT_IDS, (2, 0))
    moved = model.decode(padded, left_padding=torch.tensor([2, 2]), mask=mask)
    assert_same(moved[:, 2:], model(TGT_IDS, PREFIX))


@each_model
def test_loss_sees_what_the_mask_lets_be_seen(changes):
    model = decoder_only_model(**changes)
    targets = torch.tensor([[0, 9, 0, 0, 0], [3, 0, 11, 0, 0]])
    everything = torch.ones(5, 5, dtype=torch.bool)
    for mask in (everything, PREFIX, causal_mask(5)):
        expected = label_smoothing_loss(model(TGT_IDS, mask), targets, smoothing=0.2)
        assert_same(next_token_loss(model, TGT_IDS, targets, smoothing=0.2, mask=mask), expected)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (causal_mask(5).float(), TypeError, r"mask must be boolean .* got torch\.float32"),
        (causal_mask(4), ValueError, r"mask of shape \(4, 4\) does not broadcast"),
        ("diagonal", ValueError, "mask must be a boolean tensor or 'causal', got 'diagonal'"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask, error, message):
    with pytest.raises(error, match=message):
        decoder_only_model()(TGT_IDS, mask)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_model_can_be_compiled_and_exported(name):
    if torch.__version__ < "2.6" and MODELS[name].get("norm") == "rms_norm":
        pytest.skip("PyTorch 2.5 exports this model for the sizes alone that it has seen")
    torch.compiler.reset()  # it counts how often it compiled the same lines
    model = decoder_only_model(**MODELS[name], num_layers=1).eval()
    b, t = (torch.export.Dim(axis, min=2, max=16) for axis in "bt")
    exported = torch.export.export(model, (TGT_IDS,), dynamic_shapes=({0: b, 1: t},)).module()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for ids in (TGT_IDS, TGT_IDS.repeat(2, 2)[:3, :9].clamp(min=1)):
        assert_same(exported(ids), model(ids), 4e-6)
        assert_same(compiled(ids), model(ids), 4e-6)


def test_each_model_refuses_the_configuration_of_the_other():
    with pytest.raises(ValueError, match="num_encoder_layers must be 0, got 2"):
        DecoderOnlyTransformer(small_config())
    with pytest.raises(ValueError, match="num_encoder_layers must be at least 1, got 0"):
        Transformer(TransformerConfig.decoder_only(31, d_model=12, num_heads=3))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (TGT_IDS[0], ValueError, r"ids must have shape \(b, length\).* got \(5,\)"),
        (TGT_IDS + 1, ValueError, "id 31 lies outside the vocabulary of 31 tokens"),
        (TGT_IDS[:, :2].repeat(1, 10), ValueError, "20 positions is longer than max_len=16"),
        (TGT_IDS.float(), TypeError, r"int32 or int64, got torch\.float32"),
    ],
)
def test_bad_ids_are_refused(ids, error, message):
    with pytest.raises(error, match=message):
        decoder_only_model()(ids)
