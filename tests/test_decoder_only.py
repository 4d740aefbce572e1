"""The decoder-only model obeys the laws too, and is a causal encoder of torch.nn."""

import pytest
import torch
from helpers import (
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
    SinusoidalPositionalEncoding,
    Transformer,
    TransformerConfig,
    causal_mask,
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
    model, changed = decoder_only_model(**changes), TGT_IDS.clone()
    changed[:, position] = 23
    before, after = model(TGT_IDS), model(changed)
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


@each_model
def test_gradients_are_finite_with_rows_that_begin_with_padding(changes):
    model = decoder_only_model(**changes)
    padded = nn.functional.pad(TGT_IDS, (3, 0))
    model.decode(padded, left_padding=torch.tensor([3, 3])).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()


def test_starting_values_depend_on_the_generator_alone():
    config = TransformerConfig.decoder_only(31, num_layers=2, d_model=12, num_heads=3)
    first, again = (
        DecoderOnlyTransformer(config, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert first.embedding.weight.std().item() == pytest.approx(12**-0.5, rel=0.2)


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
        (TGT_IDS.repeat(1, 4), ValueError, "20 positions is longer than max_len=16"),
        (TGT_IDS.float(), TypeError, r"int32 or int64, got torch\.float32"),
    ],
)
def test_bad_ids_are_refused(ids, error, message):
    with pytest.raises(error, match=message):
        decoder_only_model()(ids)
