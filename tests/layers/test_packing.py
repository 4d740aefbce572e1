"""Packed = padded: the loss of a model without its padding is the loss with it, gradients too."""

import pytest
import torch
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_published,
    randn,
    shaken,
    small_model,
)
from torch import nn

from minitransformer import FeedForward, label_smoothing_loss, next_token_loss
from minitransformer.layers.packing import PACKABLE, Packing
from minitransformer.models.lora import add_lora

TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 2, 0, 0]])
GAPS = {
    "padding at the end": TARGETS,
    "a target left out": TARGETS.masked_fill(TARGETS == 6, 0),
    "a row without targets": TARGETS * torch.tensor([[0], [1]]),
    "almost no padding": torch.tensor([[30, 6, 19, 12, 2], [7, 25, 4, 2, 0]]),
}
each_model = pytest.mark.parametrize("new_model", [small_model, decoder_only_model])


def inputs_of(model, targets=TARGETS):
    pad_id, has_encoder = model.config.pad_id, model.config.num_encoder_layers > 0
    batch = [SRC_IDS, TGT_IDS, targets][not has_encoder :]
    return [x.masked_fill(x == 0, pad_id) for x in batch]


def assert_loss_is_of_the_logits(model, targets=TARGETS, smoothing=0.1):
    """The loss of the model, gradients too, is that of its logits."""
    *inputs, targets = inputs_of(model, targets)
    options = {"smoothing": smoothing, "pad_id": model.config.pad_id}
    expected = label_smoothing_loss(model(*inputs), targets, **options)
    loss = next_token_loss(model, *inputs, targets, smoothing=smoothing)
    assert_same(loss, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    options = {"allow_unused": True, "materialize_grads": True}
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters, **options),
        torch.autograd.grad(expected, parameters, **options),
        strict=True,
    ):
        assert_same(ours, theirs)


def shapes_in_training(model, part):
    """What a part of a model is given while the loss is computed."""
    shapes = []
    hook = part.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    next_token_loss(model, *inputs_of(model))
    hook.remove()
    return shapes


@pytest.mark.parametrize("num_padding", [0, 2, 3, 9, None])
def test_unpack_puts_back_what_pack_keeps_with_gradients(num_padding):
    """In order; little padding stays where it is."""
    real = torch.arange(20).view(2, 10) < 20 - (num_padding or 0)
    x, packing = randn(2, 10, 3, grad=True), Packing(None if num_padding is None else real)
    is_packed = num_padding in (3, 9)
    packed = packing.pack(x)
    assert torch.equal(packed, x[real] if is_packed else x)
    kept = real[..., None] if is_packed else torch.ones(2, 10, 1)
    back = packing.unpack(packed)
    assert torch.equal(back, x * kept)
    weighting = randn(2, 10, 3, seed=1)
    (back * weighting).sum().backward()
    assert torch.equal(x.grad, weighting * kept)


# --- packed = padded


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("targets", GAPS.values(), ids=GAPS.keys())
@each_model
def test_packed_is_padded(new_model, changes, targets):
    model = new_model(**changes)
    assert_loss_is_of_the_logits(model, targets)
    assert_loss_is_of_the_logits(model, targets, smoothing=0.0)


@each_published
def test_packed_is_padded_in_published_models(kind, config):
    model = shaken(kind(config))
    assert_loss_is_of_the_logits(model)
    layer = model.decoder.layers[0]
    assert shapes_in_training(model, layer) == [(8, 12)]
    layer.self_attention.window = 2
    assert_loss_is_of_the_logits(model)


@pytest.mark.parametrize(
    "mask", ["causal", torch.ones(5, 5, dtype=torch.bool)], ids=["word", "tensor"]
)
def test_a_mask_of_ones_own_sees_all_positions(mask):
    model = decoder_only_model()
    expected = label_smoothing_loss(model(TGT_IDS, mask), TARGETS, smoothing=0.0)
    assert_same(next_token_loss(model, TGT_IDS, TARGETS, mask=mask), expected)


# --- whatever was done to the model


class LooksBack(nn.Module):
    """A part that mixes positions."""

    def forward(self, x):
        return x.cumsum(dim=-2)


class LooksBackToo(FeedForward):
    def forward(self, x):
        return super().forward(x).cumsum(dim=-2)


class OwnAttention(nn.Module):
    """It knows masks, but not `PackedMask`."""

    def forward(self, query, key, value, mask=None, cache=None):
        scores = query @ key.transpose(-2, -1)
        if isinstance(mask, str):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1) @ value


def rolled(function):
    return lambda *args, **named: function(*args, **named).roll(1, dims=-1)


def roll(module, args, output):
    return output.roll(1, dims=-1)


def derived(name):
    def change(model):
        methods = {name: rolled(getattr(type(model), name))}
        model.__class__ = type("Derived", (type(model),), methods)

    return change


def of_last_layer(change):
    return lambda model: change(model.decoder.layers[-1])


def with_tanh(linear):
    return nn.Sequential(linear, nn.Tanh())


CHANGES = {
    "a part that mixes positions": of_last_layer(lambda x: setattr(x, "feed_forward", LooksBack())),
    "a derived one": of_last_layer(lambda x: setattr(x, "feed_forward", LooksBackToo(12, 20))),
    "a function as a part": of_last_layer(
        lambda x: (delattr(x, "feed_forward"), setattr(x, "feed_forward", LooksBack().forward))
    ),
    "a forward of its own": of_last_layer(lambda x: setattr(x.feed_forward, "forward", torch.tanh)),
    "another attention": of_last_layer(lambda x: setattr(x, "self_attention", OwnAttention())),
    "another attend": of_last_layer(
        lambda x: setattr(x.self_attention, "attend", rolled(x.self_attention.attend))
    ),
    "another attention inside": of_last_layer(
        lambda x: setattr(x.self_attention.attention, "forward", lambda q, k, v, mask, bias: v)
    ),
    "a forward of the output": lambda x: setattr(
        x.output_projection, "forward", rolled(x.output_projection.forward)
    ),
    "another output": lambda x: setattr(x, "output_projection", with_tanh(x.output_projection)),
    "a hook on a layer": of_last_layer(lambda x: x.register_forward_hook(roll)),
    "a hook on a part": of_last_layer(lambda x: x.self_attention.w_o.register_forward_hook(roll)),
    "a hook on the model": lambda x: x.register_forward_hook(roll),
    "a forward of the model": lambda x: setattr(x, "forward", rolled(x.forward)),
    "a derived forward": derived("forward"),
    "a derived decode": derived("decode"),
    "low-rank changes": lambda x: shaken(x, add_lora(x, 2) and 2),
    "compiled in place": of_last_layer(lambda x: x.compile(backend="eager")),
}


@pytest.mark.parametrize("name", CHANGES)
@each_model
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
def test_loss_is_that_of_the_changed_model(new_model, name):
    model = new_model()
    before = model(*inputs_of(model)[:-1])
    CHANGES[name](model)
    changed = name != "compiled in place"
    assert torch.equal(model(*inputs_of(model)[:-1]), before) != changed
    assert_loss_is_of_the_logits(model)


@each_model
def test_hooks_on_all_modules_are_heard(new_model):
    model = new_model()
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: roll(module, args, output) if module is model else None
    )
    assert_loss_is_of_the_logits(model)
    hook.remove()


@pytest.mark.parametrize("change", ["class", "class of a part", "nothing", "LoRA"])
def test_what_treats_positions_alone_gets_them_packed(change):
    model = small_model()
    layer = model.decoder.layers[0]
    if change == "class":
        model.__class__ = type("Derived", (type(model),), {"helps": lambda self: None})
    elif change == "class of a part":
        layer.feed_forward.__class__ = type("Derived", (FeedForward,), {})
    elif change == "LoRA":
        add_lora(model, 2)
    assert shapes_in_training(model, layer) == [(8, 12)]
    assert shapes_in_training(model, model.encoder.layers[0]) == [(11, 12)]


def test_a_new_layer_may_say_that_it_treats_positions_alone(monkeypatch):
    class Halves(nn.Module):
        def forward(self, x):
            return x / 2

    model = small_model()
    model.decoder.layers[0].feed_forward = Halves()
    assert shapes_in_training(model, model.decoder.layers[1]) == [(2, 5, 12)]
    monkeypatch.setitem(PACKABLE, Halves.forward, None)
    assert shapes_in_training(model, model.decoder.layers[1]) == [(8, 12)]
    assert_loss_is_of_the_logits(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@each_model
def test_a_compiled_model_computes_its_loss_by_what_was_compiled(new_model):
    model, calls = new_model(), []

    def backend(graph, inputs):
        return lambda *args: calls.append(1) or graph.forward(*args)

    compiled = torch.compile(model, backend=backend)
    assert_loss_is_of_the_logits(compiled)
    assert calls
