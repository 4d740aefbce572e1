"""A mixture of experts is its formula, token by token, and padding is nothing to it.

n=10 tokens (2 rows of 5), g=6 experts, a=2 or 3 of them for a token, d=12, f=20.
"""

import copy
import itertools

import pytest
import torch
from helpers import (
    SRC_IDS,
    TGT_IDS,
    assert_same,
    assert_same_weights,
    decoder_only_model,
    randn,
    refuses,
    shaken,
    small_model,
)
from torch import nn

from minitransformer import (
    DecoderOnlyTransformer,
    FeedForward,
    KVCache,
    LanguageModelTrainer,
    TrainingConfig,
    TransformerConfig,
    WordTokenizer,
    label_smoothing_loss,
    next_token_loss,
)
from minitransformer.layers.mixture_of_experts import (
    MixtureOfExperts,
    load_balancing_loss,
    route,
)
from minitransformer.training import BalanceExperts

TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 2, 0, 0]])
LITTLE = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 4, 2, 0]])  # padding that packing would leave
KINDS = {
    "mixtral": {},
    "switch": {"top_k": 1},
    "qwen": {"normalise": False, "top_k": 3},
    "deepseek": {
        "scoring": "sigmoid",
        "top_k": 3,
        "scale": 2.5,
        "load_bias": True,
        "num_groups": 3,
        "top_groups": 2,
    },
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def mixture(count=6, **options):
    """A shaken layer of experts of different functions, in float64."""
    names = itertools.cycle(["swiglu", "gelu", "relu"])
    torch.manual_seed(0)
    experts = [FeedForward(12, 20, activation=next(names)) for _ in range(count)]
    if options.get("load_bias"):
        options["shared"] = FeedForward(12, 8)
    return shaken(MixtureOfExperts(12, experts, **options), scale=0.5).double()


def with_experts(model, **options):
    """The model with a mixture in each of its layers, shaken."""
    for part in list(model.modules()):
        if hasattr(part, "feed_forward"):
            part.feed_forward = mixture(**options).to(torch.float32)
    return model


def by_loops(layer, x):
    """Equation by equation: for each token, each of its experts."""
    out = torch.zeros_like(x)
    for place in itertools.product(*map(range, x.shape[:-1])):
        token = x[place]
        logits = layer.router.weight @ token
        p = logits.softmax(0) if layer.scoring == "softmax" else logits.sigmoid()
        ranked = p if layer.load_bias is None else p + layer.load_bias
        allowed = range(len(p))
        if layer.num_groups > 1:
            size = len(p) // layer.num_groups
            groups = [range(i * size, i * size + size) for i in range(layer.num_groups)]
            groups.sort(key=lambda group: -sum(sorted(ranked[i].item() for i in group)[-2:]))
            allowed = [i for group in groups[: layer.top_groups] for i in group]
        chosen = sorted(allowed, key=lambda i: -ranked[i].item())[: layer.top_k]
        total = sum(p[i] for i in chosen) if layer.normalise else 1
        for i in chosen:
            out[place] += layer.scale * p[i] / total * layer.experts[i](token)
        if layer.shared is not None:
            out[place] += layer.shared(token)
    return out


# --- the formula


@each_kind
def test_loop_is_grouped_with_gradients(kind):
    layer, x = mixture(**kind), randn(2, 5, 12, dtype=torch.float64, grad=True)
    outputs = [layer(x), by_loops(layer, x)]
    assert_same(*outputs, tolerance=1e-10)
    weighting = randn(2, 5, 12, seed=1, dtype=torch.float64)
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    options = {"allow_unused": True, "materialize_grads": True}
    ours, theirs = (
        torch.autograd.grad((out * weighting).sum(), wanted, **options) for out in outputs
    )
    for own, other in zip(ours, theirs, strict=True):
        assert_same(own, other, tolerance=1e-10)
    assert ours[1].abs().sum() > 1e-3  # of the router


@each_kind
def test_what_is_traced_or_mapped_computes_the_same(kind):
    layer, x = mixture(**kind).eval(), randn(3, 5, 12, dtype=torch.float64)
    assert_same(torch.vmap(layer, randomness="same")(x), layer(x), tolerance=1e-10)
    program = torch.export.export(layer, (x,)).module()
    other = randn(3, 5, 12, seed=2, dtype=torch.float64)
    assert_same(program(other), layer(other), tolerance=1e-10)


def test_one_expert_is_a_feed_forward_network():
    ffn, x = shaken(FeedForward(12, 20)), randn(2, 5, 12)
    assert_same(MixtureOfExperts(12, [ffn], top_k=1)(x), ffn(x))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_all_experts_are_a_weighted_sum(scoring):
    layer, x = mixture(top_k=6, scoring=scoring, normalise=False), randn(5, 12).double()
    logits = x @ layer.router.weight.T
    p = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    expected = sum(p[:, i, None] * expert(x) for i, expert in enumerate(layer.experts))
    assert_same(layer(x), expected, tolerance=1e-10)


def test_order_of_experts_is_without_effect():
    layer, x = mixture(top_k=3, load_bias=True), randn(2, 5, 12).double()
    expected, order = layer(x), [4, 1, 5, 0, 3, 2]
    layer.experts = nn.ModuleList(layer.experts[i] for i in order)
    assert not torch.allclose(layer(x), expected)
    layer.router.weight.data = layer.router.weight[order]
    layer.load_bias.data = layer.load_bias[order]
    assert_same(layer(x), expected, tolerance=1e-10)


def test_bias_decides_who_is_chosen_and_nothing_else():
    logits, bias = randn(7, 6), torch.tensor([9.0, 0, 0, 0, 0, 0])
    scores, weights, chosen = route(logits, 2, scoring="sigmoid", normalise=False, bias=bias)
    assert (chosen[:, 0] == 0).all()
    assert torch.equal(weights[:, 0], logits[:, 0].sigmoid())
    assert torch.equal(scores, logits.sigmoid())


def test_a_single_expert_of_a_token_keeps_its_weight():
    """Normalised it would be 1, whatever the router says, and no gradient would reach it."""
    x = randn(9, 12).double()
    for normalise, learns in ((None, True), (True, False)):
        layer = mixture(top_k=1, normalise=normalise)
        layer(x).square().sum().backward()
        assert bool(layer.router.weight.grad.abs().max() > 1e-9) == learns


def test_low_precision_routes_in_float32_and_returns_its_dtype():
    layer, x = mixture().float(), randn(9, 12)
    expected = layer.route(x)[2]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.route(x)[2], expected)
        assert layer(x).dtype == torch.bfloat16
    scores, weights, _ = route(randn(9, 6).bfloat16(), 2)
    assert scores.dtype == weights.dtype == torch.float32
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    hopeless = route(torch.full((1, 4), -1e4), 2, scoring="sigmoid")[1]
    assert torch.equal(hopeless, torch.zeros(1, 2))


# --- load


def test_balance_loss_by_hand():
    """Choices 3 : 1, mean scores 0.6 and 0.4: 2 (0.75·0.6 + 0.25·0.4) = 1.1."""
    scores = torch.tensor([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.3, 0.7]])
    chosen = torch.tensor([[0], [0], [0], [1]])
    assert_same(load_balancing_loss(scores, chosen), torch.tensor(1.1))
    assert_same(load_balancing_loss(3 * scores, chosen), torch.tensor(1.1))  # of σ no sum is 1


def test_balance_loss_evens_out_the_load():
    """Its gradient alone moves a router that sends everything to one expert."""
    x = randn(200, 12).abs()
    layer = mixture(top_k=1, balance_weight=1.0).float()
    layer.router.weight.data[2] += 1.0
    most = []
    for _ in range(60):
        layer(x)
        most.append(layer.route(x)[2].flatten().bincount().max().item())
        layer.balance_loss.backward()
        layer.router.weight.data -= 0.3 * layer.router.weight.grad
        layer.router.weight.grad = None
    assert most[0] == 200
    assert most[-1] < 80


def test_bias_evens_out_the_load_without_a_loss():
    x = randn(200, 12).abs()
    layer = mixture(top_k=1, balance_weight=0.0, load_bias=True).float()
    layer.load_bias.data.zero_()
    layer.router.weight.data[2] += 0.3
    start = layer.route(x)[2].flatten().bincount(minlength=6)
    for _ in range(200):
        layer(x)
        assert layer.balance_loss is None
        layer.move_bias(0.02)
    end = layer.route(x)[2].flatten().bincount(minlength=6)
    assert start.max() > 100
    assert end.max() < 60
    before = layer.load_bias.clone()
    layer.move_bias()  # nothing was counted since
    assert torch.equal(layer.load_bias, before)
    layer.eval()(x)
    layer.move_bias()
    assert torch.equal(layer.load_bias, before)


def test_no_capacity_drops_nothing_and_the_first_come_get_a_place():
    x = randn(7, 12).double()
    layer = mixture(top_k=2)
    layer.router.weight.data.zero_()
    layer.router.weight.data[1:3] = 3 * randn(2, 12).double().abs()
    x = x.abs()  # now all choose experts 1 and 2
    whole = layer(x)
    assert_same(whole, by_loops(layer, x), tolerance=1e-10)
    layer.capacity_factor = 1.0  # ⌈7·2/6⌉ = 3 places
    dropped = layer(x)
    assert_same(dropped[:3], whole[:3], tolerance=1e-10)
    assert not dropped[3:].any()
    layer.capacity_factor = 6.0
    assert_same(layer(x), whole, tolerance=1e-10)
    layer.capacity_factor = 0.1
    assert_same(layer.eval()(x), whole, tolerance=1e-10)  # not at inference


def test_places_are_taken_in_order_so_that_no_row_sees_what_comes_later():
    layer, x = mixture(top_k=3, capacity_factor=0.5), randn(1, 9, 12).double()
    changed = x.clone()
    changed[:, 6:] = randn(1, 3, 12, seed=9).double()
    before, after = layer(x)[:, :3], layer(changed)[:, :3]
    assert torch.equal(before, after)
    assert not torch.allclose(layer(x), layer.eval()(x))


# --- in models


def test_padding_is_invisible():
    for options in ({}, {"capacity_factor": 1.0}):
        model = with_experts(decoder_only_model(), **options).double().eval()
        assert_same(model(TGT_IDS)[1:, :3], model(TGT_IDS[1:, :3]))
        both = with_experts(small_model(), **options).double().eval()
        alone = both(SRC_IDS[1:, :4], TGT_IDS[1:, :3])
        assert_same(both(SRC_IDS, TGT_IDS)[1:, :3], alone)


@pytest.mark.parametrize("targets", [TARGETS, LITTLE], ids=["much", "little"])
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
def test_padding_has_no_place_and_no_vote_in_training(new_model, targets):
    """Loss, balance and places are those of the same tokens with more padding around them."""
    model = with_experts(new_model(), capacity_factor=1.0, balance_weight=0.5)
    batch = [SRC_IDS, TGT_IDS, targets][new_model is decoder_only_model :]
    wider = [nn.functional.pad(ids, (0, 3)) for ids in batch]
    found = [next_token_loss(model, *ids) for ids in (batch, wider)]
    assert_same(found[1], found[0])
    model.eval()
    assert abs(next_token_loss(model, *batch) - found[0]) > 0.1


def test_balance_is_part_of_the_loss_of_training_alone():
    model = with_experts(decoder_only_model(), balance_weight=0.5)
    ids = TGT_IDS[:1]
    loss = next_token_loss(model, ids, TARGETS[:1])
    terms = [layer.feed_forward.balance_loss for layer in model.decoder.layers]
    plain = label_smoothing_loss(model(ids), TARGETS[:1], smoothing=0.0)
    assert all(term > 0.5 for term in terms)
    assert_same(loss, plain + sum(terms))
    model.register_forward_hook(lambda *_: None)  # now by the logits
    assert_same(next_token_loss(model, ids, TARGETS[:1]), loss)
    assert_same(next_token_loss(model.eval(), ids, TARGETS[:1]), plain)
    copied = copy.deepcopy(model.train())
    assert copied.decoder.layers[0].feed_forward.balance_loss is None


@each_kind
def test_cached_is_full(kind):
    model = with_experts(decoder_only_model(), **kind, capacity_factor=1.0).eval()
    caches = [KVCache() for _ in model.decoder.layers]
    parts = [model.decode(ids, caches) for ids in TGT_IDS[:1].split([2, 1, 2], dim=1)]
    assert_same(torch.cat(parts, dim=1), model(TGT_IDS[:1]))


class WithExperts(DecoderOnlyTransformer):
    """A model with layers of its own, which a checkpoint finds by its name."""

    def layer(self, index, *, cross=False):
        layer, config = super().layer(index, cross=cross), self.config
        experts = [FeedForward(config.d_model, 20) for _ in range(4)]
        layer.feed_forward = MixtureOfExperts(config.d_model, experts, load_bias=True)
        return layer


def test_moved_bias_is_resumed_from_a_file(tmp_path):
    """Callbacks run before the file is written, and a resumed training counts nothing twice."""
    words, texts = WordTokenizer.train(["a b c d"]), ["a b c d c b a"] * 9
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 2, "max_len": 9}
    config = TransformerConfig.decoder_only(words.vocab_size, **sizes)
    training = TrainingConfig(steps=4, warmup_steps=1, context_length=5, batch_size=2)
    options = {"callbacks": [BalanceExperts(0.1)], "progress": False}

    def trainer():
        model = WithExperts(config, torch.Generator().manual_seed(0))
        return LanguageModelTrainer(model, texts, words, training)

    whole, halves = trainer(), trainer()
    whole.fit(**options)
    halves.fit(until=2, checkpoint=tmp_path / "halves.safetensors", **options)
    resumed = LanguageModelTrainer.resume(tmp_path / "halves.safetensors", texts)
    resumed.fit(**options)
    assert_same_weights(resumed.model, whole.model)
    bias = whole.model.decoder.layers[0].feed_forward.load_bias
    assert not bias.requires_grad
    assert bias.abs().max() > 0.15


def layer_of(count=4, **options):
    return MixtureOfExperts(12, [FeedForward(12, 20) for _ in range(count)], **options)


class Several:
    """A trainer of two processes."""

    processes = type("Processes", (), {"count": 2})


test_refuses = refuses(
    ("experts must be at least 1, got 0", lambda: layer_of(0)),
    ("top_k must be at least 1, got 0", lambda: layer_of(top_k=0)),
    ("top_k must be at most 4, .* got 5", lambda: layer_of(top_k=5)),
    ("top_k must be at most 2, .*top_groups=1 of 2", lambda: layer_of(top_k=3, num_groups=2)),
    ("top_groups=3 of 2 groups", lambda: layer_of(num_groups=2, top_groups=3)),
    ("num_groups must divide 4 experts, got 3", lambda: layer_of(num_groups=3)),
    ("scoring must be 'softmax' or 'sigmoid', got 'relu'", lambda: layer_of(scoring="relu")),
    ("capacity_factor must be above 0, got 0", lambda: layer_of(capacity_factor=0)),
    ("balance_weight must be at least 0, got -1", lambda: layer_of(balance_weight=-1)),
    ("load_bias must be True, got False", lambda: layer_of().move_bias()),
    ("rate must be above 0, got 0", lambda: BalanceExperts(0)),
    ("the tokens of 1 process, got 2", lambda: BalanceExperts().begin(Several())),
)
