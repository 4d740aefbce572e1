"""What chapter 19's programs change is what they say."""

from functools import partial

import pytest
import torch

import minitransformer as mt
from benchmarks.experiments import looking_inside


@pytest.mark.parametrize("seen", [1, 3, 5])
def test_shuffled_weights_are_the_same_numbers_at_seen_words(seen):
    scores = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(seen))
    weights = scores.where(torch.arange(7) < seen, -torch.inf).softmax(-1)
    change = partial(looking_inside.shuffled, torch.Generator().manual_seed(0))
    found = change(weights)
    assert torch.equal(found.sort(-1).values, weights.sort(-1).values)
    assert not found[..., seen:].any()
    assert torch.equal(found, weights) == (seen == 1)


def test_a_path_that_the_second_layer_does_not_read_changes_nothing():
    config = mt.TransformerConfig.decoder_only(
        looking_inside.VOCABULARY, num_layers=2, **looking_inside.CIRCUIT
    )
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        model.decoder.layers[1].self_attention.w_k.weight.zero_()
    whole = looking_inside.look(model)["loss"]
    without = [head["loss"] for head in looking_inside.lesions(model)[0]]
    for path, away in zip(looking_inside.paths(model), without, strict=True):
        assert path["cut"]["keys"]["loss"] == whole
        assert path["kept"]["keys"]["loss"] == pytest.approx(away, abs=1e-6)
        assert path["cut"]["values"]["loss"] != whole
