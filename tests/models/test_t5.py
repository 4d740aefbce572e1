"""What T5 has beside the laws of all published families: buckets of distances, no scale."""

import pytest
import torch
from alike import assert_close, ids_of, transformers
from torch import nn

from minitransformer import next_token_loss, pad_rows, record_attention
from minitransformer.models.t5 import T5, RelativePositionBias, T5Config, position_buckets

SRC = pad_rows([ids_of(37, 40, low=1).tolist(), ids_of(37, 23, seed=3, low=1).tolist()])
TGT = ids_of(37, 2, 31, seed=4).clamp(min=1).index_fill(1, torch.tensor([0]), 0)
SMALL = T5Config(vocab_size=37, d_model=12, d_k=5, d_ff=20, num_heads=3, num_encoder_layers=2)


def test_a_configuration_alone_says_by_untied_that_logits_are_not_divided():
    read = T5Config.from_published({"model_type": "t5", "tie_word_embeddings": False})
    assert (read.tie_output, read.scale_output) == (False, False)
    assert T5Config.from_published({"model_type": "t5"}) == T5Config()


# --- buckets ----------------------------------------------------------------------------------


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
    assert both.diff().nonzero()[:, 0].add(1).tolist() == [
        *range(1, 9),
        *(12, 16, 23, 32, 46, 64, 91),
    ]
    assert causal.max() == 31
    assert (causal == 31).nonzero()[0] == 113
    assert not (position_buckets(torch.arange(-200, 200)) == 16).any()  # behind, at distance 0


def test_bias_is_the_number_of_the_bucket():
    bias = RelativePositionBias(3, num_buckets=8, max_distance=10)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(24.0).view(8, 3))
    found = bias(4, 6)
    assert found.shape == (3, 4, 6)
    for query in range(4):
        for key in range(6):
            distance = torch.tensor(key - (query + 2))  # queries are the last positions
            bucket = position_buckets(distance, num_buckets=8, max_distance=10)
            assert torch.equal(found[:, query, key], bias.weight[bucket])


def test_fewer_queries_are_the_last_rows():
    bias = RelativePositionBias(3, bidirectional=False)
    with torch.no_grad():
        bias.weight.normal_(generator=torch.Generator().manual_seed(0))
    assert torch.equal(bias(2, 7), bias(7, 7)[:, 5:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_buckets": 3}, "num_buckets must be at least 4, got 3"),
        ({"num_buckets": 1, "bidirectional": False}, "num_buckets must be at least 2, got 1"),
        ({"max_distance": 8}, "above the 8 distances that have a bucket each, got 8"),
        ({"max_distance": 16, "bidirectional": False}, "above the 16 distances .* got 16"),
    ],
)
def test_buckets_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(3, **options)


# --- the laws ---------------------------------------------------------------------------------


@pytest.fixture
def model():
    made = T5(SMALL, torch.Generator().manual_seed(0)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
    return made


def test_order_matters_through_the_bias_alone(model):
    shuffle = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    src = SRC[1:, :23]
    assert (model(src[:, shuffle], TGT[1:]) - model(src, TGT[1:])).abs().max() > 1e-3
    nn.init.zeros_(model.encoder.layers[0].self_attention.position_bias.weight)
    assert_close(model(src[:, shuffle], TGT[1:]), model(src, TGT[1:]))


def test_start_is_padding_and_is_seen(model):
    """The id that fills short rows begins every target, and later positions attend to it."""
    other = TGT.index_fill(1, torch.tensor([0]), 3)
    assert (model(SRC, other)[:, 1:] - model(SRC, TGT)[:, 1:]).abs().max() > 1e-3


def test_texts_have_no_longest(model):
    assert model.max_len == float("inf")
    assert model(ids_of(37, 1, 600, low=1), TGT[:1]).shape == (1, 31, 37)


def test_gradients_are_finite_and_reach_all(model):
    next_token_loss(model.train(), SRC, TGT[:, :-1], TGT[:, 1:], smoothing=0.1).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_one_table_for_each_stack(model):
    names = [name for name, _ in model.named_parameters() if "position_bias" in name]
    assert names == [
        f"{s}.layers.0.self_attention.position_bias.weight" for s in ("encoder", "decoder")
    ]
    for stack in (model.encoder, model.decoder):
        first, second = (layer.self_attention.position_bias for layer in stack.layers)
        assert first is second
    assert all(layer.cross_attention.position_bias is None for layer in model.decoder.layers)
    assert not any("bias" in n for n, _ in model.named_parameters() if "position_bias" not in n)


def test_scores_are_not_divided(model):
    attention = model.encoder.layers[0].self_attention
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    with record_attention(attention) as maps:
        attention(x, x, x)
    queries, keys = (attention.split_heads(w(x)) for w in (attention.w_q, attention.w_k))
    scores = queries @ keys.mT + attention.position_bias(7, 7)
    assert_close(maps[""], scores.softmax(dim=-1))


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
