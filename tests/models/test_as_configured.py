"""What would be lost when a model is saved is refused, by its name and with both values."""

import pytest
from helpers import small_model

from minitransformer import RotaryPositionalEncoding, Transformer
from minitransformer.layers.positional_encoding import ALiBi, rotary_frequencies
from minitransformer.models.pretrained import check_as_configured


def eps_of_a_norm(model):
    model.decoder.layers[1].residual_2.norm.eps = 1e-6


def other_frequencies(model):
    frequencies = rotary_frequencies(4, base=500_000.0)
    model.decoder.layers[0].self_attention.rotary = RotaryPositionalEncoding(
        4, 16, frequencies=frequencies
    )


def other_layout(model):
    model.decoder.layers[0].self_attention.rotary.layout = "half"


def scale(model):
    model.tgt_embedding.scale = 1.0


def part_that_is_new(model):
    model.decoder.layers[0].self_attention.position_bias = ALiBi(3)


def part_that_is_gone(model):
    model.decoder.layers[0].self_attention.rotary = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (eps_of_a_norm, r"decoder.layers.1.residual_2.norm.eps .*: 1e-06, expected 1e-05"),
        (other_frequencies, r"self_attention.rotary.table .*: a tensor \(16, 4\), expected a"),
        (other_layout, r"rotary.layout .* 'half', expected 'interleaved'"),
        (scale, r"tgt_embedding.scale .* 1.0, expected 3.46"),
        (part_that_is_gone, r"self_attention.rotary is nothing, a part of the model as configured"),
        (part_that_is_new, r"position_bias is a ALiBi, nothing as configured"),
    ],
)
def test_what_no_configuration_says_is_not_saved(change, message, tmp_path):
    model = small_model(positional_encoding="rotary")
    check_as_configured(model)
    change(model)
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_evaluation_does_not_see_may_differ(tmp_path):
    model = small_model(dropout=0.1).train()
    model.dropout.p = 0.5
    model.decoder.layers[0].self_attention.attention.backend = "reference"
    model.save_pretrained(tmp_path)
    assert Transformer.from_pretrained(tmp_path).dropout.p == 0.1
