"""Packed = padded: the loss of a model without its padding is the loss with it, gradients too."""

import pytest
import torch
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    randn,
    shaken,
    small_model,
)
from torch import nn

from minitransformer import FeedForward, label_smoothing_loss, next_token_loss
from minitransformer.layers.packing import PACKABLE, Packing
from minitransformer.models import (
    BART,
    GPT2,
    T5,
    BARTConfig,
    GPT2Config,
    Llama,
    Marian,
    MarianConfig,
    Qwen3Config,
    T5Config,
)
from minitransformer.models.lora import add_lora

TARGETS = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 2, 0, 0]])
REAL = torch.tensor([[True, True, True], [True, False, False]])
GAPS = {
    "padding at the end": TARGETS,
    "a target left out": TARGETS.masked_fill(TARGETS == 6, 0),
    "a row without targets": TARGETS * torch.tensor([[0], [1]]),
    "almost no padding": torch.tensor([[30, 6, 19, 12, 2], [7, 25, 4, 2, 0]]),
}
HEADS = {"encoder_num_heads": 3, "decoder_num_heads": 2, "encoder_d_ff": 20, "decoder_d_ff": 16}
SMALL = {"d_model": 12, "num_heads": 3, "d_ff": 20}
RELATIVES = {
    "T5": lambda: T5(T5Config(vocab_size=31, **SMALL, d_k=5, num_encoder_layers=2, dropout=0.0)),
    "Marian": lambda: Marian(
        MarianConfig(
            vocab_size=31,
            d_model=12,
            num_encoder_layers=1,
            num_decoder_layers=2,
            **HEADS,
            pad_id=0,
            start_id=0,
            dropout=0.0,
        )
    ),
    "BART": lambda: BART(
        BARTConfig(
            vocab_size=31,
            d_model=12,
            num_encoder_layers=1,
            num_decoder_layers=2,
            **HEADS,
            pad_id=0,
            dropout=0.0,
        )
    ),
    "GPT-2": lambda: GPT2(GPT2Config(vocab_size=31, **SMALL, num_layers=2, dropout=0.0)),
    "Qwen 3": lambda: Llama(Qwen3Config(vocab_size=31, **SMALL, num_kv_heads=1, num_layers=2)),
}


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


# --- packing


def test_pack_keeps_real_tokens_in_order_and_unpack_puts_them_back():
    x = randn(2, 3, 5)
    packed = Packing(REAL).pack(x)
    assert_same(packed, x[REAL], 0)
    assert_same(Packing(REAL).unpack(packed), x * REAL[..., None], 0)


def test_packing_passes_gradients_of_real_tokens_on():
    x, packing = randn(2, 3, 5, grad=True), Packing(REAL)
    weighting = randn(2, 3, 5, seed=1)
    (packing.unpack(packing.pack(x)) * weighting).sum().backward()
    assert_same(x.grad, weighting * REAL[..., None], 0)


@pytest.mark.parametrize("num_padding", [0, 2, 3, None])
def test_little_padding_stays_where_it_is(num_padding):
    real = torch.arange(20).view(2, 10) < 20 - (num_padding or 0)
    x, packing = randn(2, 10, 3), Packing(None if num_padding is None else real)
    assert packing.pack(x).shape == ((17, 3) if num_padding == 3 else (2, 10, 3))
    expected = x * real[..., None] if num_padding == 3 else x
    assert_same(packing.unpack(packing.pack(x)), expected, 0)


# --- packed = padded


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("targets", GAPS.values(), ids=GAPS.keys())
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
def test_packed_is_padded(new_model, changes, targets):
    model = new_model(**changes)
    assert_loss_is_of_the_logits(model, targets)
    assert_loss_is_of_the_logits(model, targets, smoothing=0.0)


@pytest.mark.parametrize("name", RELATIVES)
def test_packed_is_padded_in_published_models(name):
    model = shaken(RELATIVES[name]())
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


def roll_before(module, args):
    return (args[0].roll(1, dims=-1), *args[1:])


def derived(name):
    def change(model):
        methods = {name: rolled(getattr(type(model), name))}
        model.__class__ = type("Derived", (type(model),), methods)

    return change


def of_last_layer(change):
    return lambda model: change(model.decoder.layers[-1])


def ignore_mask(layer):
    attend = layer.self_attention.attend
    layer.self_attention.attend = lambda q, k, v, mask: attend(q, k, v, None)


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
    "a sequence as W^Q": of_last_layer(
        lambda x: setattr(x.self_attention, "w_q", with_tanh(x.self_attention.w_q))
    ),
    "another attend": of_last_layer(
        lambda x: setattr(x.self_attention, "attend", rolled(x.self_attention.attend))
    ),
    "an ignored mask": of_last_layer(ignore_mask),
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
    "a hook before the output": lambda x: x.output_projection.register_forward_pre_hook(
        roll_before
    ),
    "a forward of the model": lambda x: setattr(x, "forward", rolled(x.forward)),
    "a derived forward": derived("forward"),
    "a derived decode": derived("decode"),
    "a derived embed": derived("embed"),
    "low-rank changes": lambda x: shaken(x, add_lora(x, 2) and 2),
    "compiled in place": of_last_layer(lambda x: x.compile(backend="eager")),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
def test_loss_is_that_of_the_changed_model(new_model, name):
    model = new_model()
    before = model(*inputs_of(model)[:-1])
    CHANGES[name](model)
    changed = name != "compiled in place"
    assert torch.equal(model(*inputs_of(model)[:-1]), before) != changed
    assert_loss_is_of_the_logits(model)


@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
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
    layer.feed_forward = LooksBackToo(12, 20)
    assert shapes_in_training(model, layer) == [(2, 5, 12)]


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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@pytest.mark.parametrize("new_model", [small_model, decoder_only_model])
def test_a_compiled_model_computes_its_loss_by_what_was_compiled(new_model):
    model, calls = new_model(), []

    def backend(graph, inputs):
        return lambda *args: calls.append(1) or graph.forward(*args)

    compiled = torch.compile(model, backend=backend)
    assert_loss_is_of_the_logits(compiled)
    assert calls
