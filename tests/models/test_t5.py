"""What T5 has beside the laws of all published families: buckets of distances, no scale."""

import pytest
import torch
from alike import ids_of, published, transformers
from helpers import refuses

from minitransformer import pad_rows
from minitransformer.models.t5 import T5, RelativePositionBias, T5Config, position_buckets

SRC = pad_rows([ids_of(37, 40, low=1).tolist(), ids_of(37, 23, seed=3, low=1).tolist()])
TGT = ids_of(37, 2, 31, seed=4).clamp(min=1).index_fill(1, torch.tensor([0]), 0)
SMALL = T5Config(vocab_size=37, d_model=12, d_k=5, d_ff=20, num_heads=3, num_encoder_layers=2)


def test_a_configuration_alone_says_by_untied_that_logits_are_not_divided():
    read = T5Config.from_published({"model_type": "t5", "tie_word_embeddings": False})
    assert (read.tie_output, read.scale_output) == (False, False)
    assert T5Config.from_published({"model_type": "t5"}) == T5Config()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("sizes", [(32, 128), (8, 10), (9, 11), (64, 1000), (4, 500)])
def test_buckets_are_theirs(sizes, bidirectional):
    distance = torch.arange(-1500, 1501)
    options = {"num_buckets": sizes[0], "max_distance": sizes[1], "bidirectional": bidirectional}
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    assert torch.equal(position_buckets(distance, **options), bucket(distance, **options))


def test_buckets_begin_where_the_chapter_says():
    past = -torch.arange(200)
    both, causal = position_buckets(past), position_buckets(past, bidirectional=False)
    begins = [*range(1, 9), 12, 16, 23, 32, 46, 64, 91]
    assert both.diff().nonzero()[:, 0].add(1).tolist() == begins
    assert causal.max() == 31
    assert (causal == 31).nonzero()[0] == 113
    assert not (position_buckets(torch.arange(-200, 200)) == 16).any()  # behind, at distance 0


def biased(**options):
    return lambda: RelativePositionBias(3, **options)


test_buckets_that_cannot_be_are_refused = refuses(
    ("num_buckets must be at least 4, got 3", biased(num_buckets=3)),
    ("num_buckets must be at least 2, got 1", biased(num_buckets=1, bidirectional=False)),
    ("above the 8 distances that have a bucket each, got 8", biased(max_distance=8)),
    ("above the 16 distances .* got 16", biased(max_distance=16, bidirectional=False)),
)


@pytest.fixture
def model():
    return published(T5(SMALL, torch.Generator().manual_seed(0)), scale=0.2)


def test_texts_have_no_longest(model):
    assert model.max_len == float("inf")
    assert model(ids_of(37, 1, 600, low=1), TGT[:1]).shape == (1, 31, 37)


def test_one_table_for_each_stack(model):
    names = [name for name, _ in model.named_parameters() if "bias" in name]
    table = "{}.layers.0.self_attention.position_bias.weight"
    assert names == [table.format(side) for side in ("encoder", "decoder")]
    for stack in (model.encoder, model.decoder):
        first, second = (layer.self_attention.position_bias for layer in stack.layers)
        assert first is second
    assert all(layer.cross_attention.position_bias is None for layer in model.decoder.layers)


def test_dropout_is_where_the_authors_have_it():
    model = T5(T5Config(vocab_size=9, d_model=12, d_k=5, num_heads=3, d_ff=20, dropout=0.3))
    places = {name for name, part in model.named_modules() if getattr(part, "p", 0) == 0.3}
    assert {"dropout", "encoder.norm.1", "decoder.norm.1"} <= places
    for layer in ("encoder.layers.5", "decoder.layers.5"):
        assert f"{layer}.feed_forward.dropout" in places
    assert len(places) == 3 + 6 * 3 + 6 * 4  # each residual, each network
    for layer in model.decoder.layers:
        assert layer.self_attention.attention.dropout == 0.3
        assert layer.cross_attention.attention.dropout == 0.3
