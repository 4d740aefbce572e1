"""T5 of this book is T5 as published: buckets, outputs, gradients, texts, files."""

import json
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
from torch import nn

from minitransformer import (
    KVCache,
    generate,
    next_token_loss,
    pad_rows,
    record_attention,
    trace,
)
from minitransformer.models.t5 import T5, RelativePositionBias, Scaled, T5Config, position_buckets

SIZES = {"vocab_size": 37, "d_model": 12, "d_kv": 5, "d_ff": 20, "num_heads": 3, "num_layers": 3}
VARIANTS = {
    "as published": {},
    "1.1": {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
    "other sizes": {
        "num_decoder_layers": 2,
        "relative_attention_num_buckets": 9,
        "relative_attention_max_distance": 11,
        "layer_norm_epsilon": 1e-3,
        "feed_forward_proj": "gated-silu",
    },
    "untied, ungated": {"tie_word_embeddings": False, "feed_forward_proj": "gelu_new"},
}
SRC = pad_rows([ids_of(37, 40, low=1).tolist(), ids_of(37, 23, seed=3, low=1).tolist()])
TGT = ids_of(37, 2, 31, seed=4).clamp(min=1).index_fill(1, torch.tensor([0]), 0)
SMALL = T5Config(vocab_size=37, d_model=12, d_k=5, d_ff=20, num_heads=3, num_encoder_layers=2)


class Exact:
    """T5's norm in the dtype of its input; transformers takes the mean square in float32."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, True) + self.variance_epsilon)


@pytest.fixture
def exact(monkeypatch):
    kind = transformers.models.t5.modeling_t5.T5LayerNorm
    monkeypatch.setattr(kind, "forward", Exact.forward)


def theirs_of(changes, seed=1):
    torch.manual_seed(seed)
    config = transformers.T5Config(**SIZES, decoder_start_token_id=0, **changes)
    theirs = transformers.T5ForConditionalGeneration(config)
    if changes.get("tie_word_embeddings") is False:  # transformers ties it all the same
        theirs.lm_head.weight = nn.Parameter(torch.randn(37, 12))
    return published(theirs, seed)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, tmp_path):
    theirs = theirs_of(request.param)
    ours = loaded(T5, theirs, tmp_path / "theirs")
    return SimpleNamespace(theirs=theirs, ours=ours, folder=tmp_path, changes=request.param)


def outputs_of(theirs, **options):
    real = (SRC != 0).long()
    return theirs(input_ids=SRC, attention_mask=real, decoder_input_ids=TGT, **options)


def logits(model):
    return model(SRC, TGT) if isinstance(model, T5) else outputs_of(model).logits


# --- equal to what was published --------------------------------------------------------------


def test_logits_and_gradients_are_theirs(pair, exact):
    assert_close(logits(pair.ours), logits(pair.theirs))
    assert_same_gradients(pair.ours, pair.theirs, logits)


def test_float32_is_as_near_as_theirs(pair, monkeypatch):
    """Scores that nothing divides are large, and with them the rounding of both."""
    single, theirs = logits(pair.theirs.float()).detach().double(), pair.theirs.double()
    kind = transformers.models.t5.modeling_t5.T5LayerNorm
    monkeypatch.setattr(kind, "forward", Exact.forward)
    right = logits(theirs).detach()
    of_the_library = float((single - right).abs().max())
    assert_close(logits(pair.ours.float()).detach().double(), right, max(1e-5, 2 * of_the_library))
    assert of_the_library < 1e-3


def test_hidden_states_are_theirs(pair, exact):
    found = {"encoder": [], "decoder": []}
    for side, states in found.items():
        for layer in getattr(pair.ours, side).layers:
            layer.register_forward_hook(lambda _, inputs, out, states=states: states.append(out))
    pair.ours(SRC, TGT)
    expected = outputs_of(pair.theirs, output_hidden_states=True)
    for side, states in found.items():
        theirs = getattr(expected, f"{side}_hidden_states")
        assert len(states) == len(theirs) - 1
        for our_state, their_state in zip(states[:-1], theirs[1:-1], strict=True):
            assert_close(our_state, their_state)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_texts_are_theirs(pair, exact, num_beams):
    """Padding is never written; theirs is told so. Without lengths beams compare alike."""
    expected = pair.theirs.generate(
        SRC,
        attention_mask=(SRC != 0).long(),
        max_new_tokens=7,
        do_sample=False,
        num_beams=num_beams,
        length_penalty=0.0,
        eos_token_id=None,
        suppress_tokens=[0],
    )[:, 1:]
    options = {"max_new_tokens": 7, "bos_id": 0, "stop_ids": [], "length_penalty": 0.0}
    assert torch.equal(generate(pair.ours, SRC, num_beams=num_beams, **options), expected)


def test_their_labels_are_our_targets(pair, exact):
    """Theirs moves `labels` behind the start itself, and leaves out -100 where ours has padding."""
    labels = TGT[:, 1:].clone()
    labels[1, 9:] = 0
    theirs = pair.theirs(
        input_ids=SRC,
        attention_mask=(SRC != 0).long(),
        labels=labels.masked_fill(labels == 0, -100),
    ).loss
    start = torch.cat([torch.zeros(2, 1, dtype=torch.int64), labels[:, :-1]], dim=1)
    assert_close(next_token_loss(pair.ours, SRC, start, labels), theirs)


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, logits, pair.folder / "ours")


def test_settings_that_do_not_matter_are_kept(pair):
    pair.ours.save_pretrained(pair.folder / "ours")
    content = json.loads((pair.folder / "ours" / "config.json").read_text())
    assert (content["eos_token_id"], content["decoder_start_token_id"]) == (1, 0)
    assert content["architectures"] == ["T5ForConditionalGeneration"]


def test_shards_are_read(pair):
    ours = loaded(T5, pair.theirs, pair.folder / "shards", max_shard_size="5KB")
    assert len(list((pair.folder / "shards").glob("model-*.safetensors"))) > 2
    assert_close(logits(ours), logits(pair.ours))


def changed_config(folder, *left_out, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if k not in left_out}))


def test_older_files_are_read(pair):
    """With every name of the embedding, an unused bias, and no word on the scale of logits."""
    folder = pair.folder / "theirs"
    tied = pair.changes.get("tie_word_embeddings", True)
    path = folder / "model.safetensors"
    weights = load_file(path)
    table = weights["shared.weight"]
    weights |= {f"{side}.embed_tokens.weight": table.clone() for side in ("encoder", "decoder")}
    weights.setdefault("lm_head.weight", table.clone())
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file(weights | {unused: torch.ones(32, 3)}, path, {"format": "pt"})
    since = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "is_decoder")
    changed_config(folder, *since, tie_word_embeddings=tied, n_positions=512, output_past=True)
    assert_close(logits(T5.from_pretrained(folder)), logits(pair.ours))


def test_files_that_transformers_saved_again_are_read(tmp_path):
    """It calls the output tied then, and keeps the other one beside it."""
    theirs = theirs_of(VARIANTS["1.1"])
    theirs.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert (content["tie_word_embeddings"], content["scale_decoder_outputs"]) == (True, False)
    ours = T5.from_pretrained(tmp_path)
    assert (ours.config.tie_output, ours.config.scale_output) == (False, False)


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


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match="got 4 queries, 3 keys"):
        RelativePositionBias(2)(4, 3)


# --- the laws ---------------------------------------------------------------------------------


@pytest.fixture
def model():
    made = T5(SMALL, torch.Generator().manual_seed(0)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=torch.float64))
    return made


def test_padding_is_invisible(model):
    alone = model(SRC[1:, :23], TGT[1:])
    for filled in (SRC, F.pad(SRC, (0, 5))):
        assert_close(model(filled, TGT)[1:], alone)


def test_nobody_peeks(model):
    other = TGT.clone()
    other[:, 20:] = 5
    before, after = model(SRC, TGT), model(SRC, other)
    assert_close(before[:, :20], after[:, :20])
    assert (before[:, 20:] - after[:, 20:]).abs().max() > 1e-3


def test_source_matters(model):
    assert (model(SRC.flip(0), TGT) - model(SRC, TGT)).abs().max() > 1e-3


def test_order_matters_through_the_bias_alone(model):
    shuffle = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    src = SRC[1:, :23]
    assert (model(src[:, shuffle], TGT[1:]) - model(src, TGT[1:])).abs().max() > 1e-3
    nn.init.zeros_(model.encoder.layers[0].self_attention.position_bias.weight)
    assert_close(model(src[:, shuffle], TGT[1:]), model(src, TGT[1:]))


def test_cached_is_full(model):
    memory, mask = model.encode(SRC)
    caches = [KVCache() for _ in model.decoder.layers]
    parts = [model.decode(part, memory, mask, caches) for part in TGT.split([3, 1, 20, 7], dim=1)]
    assert_close(torch.cat(parts, dim=1), model(SRC, TGT))


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


def test_trace_lists_every_tensor(model):
    rows = {row.module: row for row in trace(model, SRC, TGT)}
    assert rows["encoder.layers.1.self_attention.w_q"].shape == (2, 40, 15)
    assert rows["output_projection"].shape == (2, 31, 37)


def test_scaled_is_a_product():
    assert Scaled(-0.5)(torch.tensor([4.0, 0.0])).tolist() == [-2.0, 0.0]


def test_starting_values_are_the_published_ones():
    sizes = {"d_model": 60, "d_k": 20, "num_heads": 5, "d_ff": 90, "num_encoder_layers": 2}
    model = T5(T5Config(vocab_size=300, **sizes), torch.Generator().manual_seed(0))
    layer = model.decoder.layers[1]
    for weight, std in (
        (model.src_embedding.weight, 1.0),
        (layer.self_attention.w_q.weight, (60 * 20) ** -0.5),
        (layer.cross_attention.w_q.weight, (60 * 20) ** -0.5),
        (layer.self_attention.w_k.weight, 60**-0.5),
        (layer.self_attention.w_o.weight, 100**-0.5),
        (layer.feed_forward.w_1.weight, 60**-0.5),
        (layer.feed_forward.w_2.weight, 90**-0.5),
        (layer.self_attention.position_bias.weight, 60**-0.5),
    ):
        assert abs(float(weight.detach().std()) / std - 1) < 0.15
    untied = T5(T5Config(vocab_size=300, **sizes, tie_output=False))
    assert abs(float(untied.output_projection.weight.detach().std()) * 60**0.5 - 1) < 0.1
    assert all(p.eq(1).all() for n, p in model.named_parameters() if "norm" in n)


# --- what is refused --------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clever_new_attention": True}, "these settings are not known: clever_new_attention"),
        ({"model_type": "mt5"}, "model_type is 'mt5', expected t5"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False, expected True"),
        ({"feed_forward_proj": "gated-mish"}, "network must be one of .* got 'gated-mish'"),
        ({"num_layers": 2}, "8 weights have no place"),
        ({"num_decoder_layers": 4}, "13 weights are missing; the first is decoder.layers.3"),
        ({"feed_forward_proj": "gated-gelu"}, "6 weights are missing; .*feed_forward.w_3"),
        ({"d_kv": 6}, r"w_q.weight is \(15, 12\), expected \(18, 12\)"),
    ],
)
def test_configuration_that_does_not_fit_is_refused(folder, changes, message):
    changed_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        T5.from_pretrained(folder)


def test_unknown_weight_is_refused_by_name(folder):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"encoder.extra.weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"1 weights have no place .* the first is encoder.extra"):
        T5.from_pretrained(folder)


def test_two_tables_in_a_stack_are_refused(folder):
    """A bias for each layer, as umT5 has it, is another model."""
    path = folder / "model.safetensors"
    name = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
    save_file(load_file(path) | {name: torch.ones(32, 3, dtype=torch.float64)}, path)
    with pytest.raises(ValueError, match="differs from the table that it is tied to"):
        T5.from_pretrained(folder)


def test_what_would_be_lost_is_not_saved(folder):
    model = T5.from_pretrained(folder)
    model.decoder.layers[1].self_attention.attention.scale = 0.5
    with pytest.raises(ValueError, match=r"attention.scale is not what .* 0.5, expected 1.0"):
        model.save_pretrained(folder)
