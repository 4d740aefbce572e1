"""Loss and texts are those of `model(...)`, whatever was done to the model."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import (
    MODELS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    shaken,
    small_model,
)
from torch import nn

import minitransformer.inference
from minitransformer import (
    FeedForward,
    MultiHeadAttention,
    RMSNorm,
    fast,
    generate,
    next_token_loss,
    pad_rows,
)
from minitransformer.fast.untouched import is_untouched

pytestmark = pytest.mark.slow
EVERYTHING = pytest.mark.everything

PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22, 4]])
WAYS = {
    "greedy": {},
    "beam": {"num_beams": 2},
    "drawn": {"temperature": 1.5},
}


class EachTextAlone:
    """What `Decoding` does, as plainly as possible: each row alone, all of it in every step."""

    def __init__(self, model, ids, bos_id, max_new_tokens):
        self.model, self.has_source = model, model.config.num_encoder_layers > 0
        texts = (
            [[bos_id]] * len(ids) if self.has_source else [row[row != 0].tolist() for row in ids]
        )
        self.rows = list(zip(ids, texts, strict=True))
        self.prompt = ids[:, :1] if self.has_source else ids  # only its length matters

    def __call__(self, tokens):
        if tokens is not None:
            pairs = zip(self.rows, tokens.tolist(), strict=True)
            self.rows = [(source, [*text, token]) for (source, text), token in pairs]
        logits = []
        for source, text in self.rows:
            read = [source[source != 0][None]] if self.has_source else []
            logits.append(self.model(*read, torch.tensor([text]))[:, -1].float())
        return torch.cat(logits)

    def select(self, rows, sources=None):
        self.rows = [self.rows[row] for row in rows.tolist()]


def written(model, ids):
    """Three tokens for each row, in each way of writing."""
    limits = {"max_new_tokens": 3, "min_new_tokens": 3}
    return {
        name: generate(model, ids, generator=torch.Generator().manual_seed(3), **limits, **options)
        for name, options in WAYS.items()
    }


class LooksBack(nn.Module):
    """A part that mixes positions, which no part in its place ever did."""

    def forward(self, x):
        return x.cumsum(dim=-2)


class SamePositions(nn.Module):
    """Positions that count from 0, wherever a sequence goes on."""

    def forward(self, x, start=0):
        return x + torch.arange(x.size(1)).to(x)[:, None] / 4


class Halving(nn.Module):
    """No dropout at all."""

    def forward(self, x):
        return x / 2


def halved(function):
    """The function, with half of its result."""
    return lambda *args, **named: function(*args, **named) / 2


def rolled(function):
    """The function, with scores in another order."""
    return lambda *args, **named: function(*args, **named).roll(1, dims=-1)


def last_layer(model):
    return model.decoder.layers[-1]


def first_layer(model):
    """Of the encoder, where there is one."""
    return getattr(model, "encoder", model.decoder).layers[0]


def nothing(model, patch):
    pass


def another_network(model, patch):
    network = last_layer(model).feed_forward
    last_layer(model).feed_forward = nn.Sequential(network.w_1, nn.Tanh(), network.w_2)


def network_that_looks_back(model, patch):
    last_layer(model).feed_forward = LooksBack()


def sequence_as_w_q(model, patch):
    attention = last_layer(model).self_attention
    attention.w_q = nn.Sequential(attention.w_q, nn.Tanh())


def nothing_as_w_o(model, patch):
    last_layer(model).self_attention.w_o = nn.Identity()


def sequence_as_output_projection(model, patch):
    model.output_projection = nn.Sequential(model.output_projection, nn.Tanh())


def mixed_norms(model, patch):
    residual = last_layer(model).residual_2
    residual.norm_first = not residual.norm_first


def another_dropout(model, patch):
    last_layer(model).residual_1.dropout = Halving()


def other_positions(model, patch):
    model.positions = SamePositions()


def function_as_network(model, patch):
    del last_layer(model).feed_forward
    last_layer(model).feed_forward = torch.tanh


def hook_on_layer(model, patch):
    last_layer(model).register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))


def hook_on_part(model, patch):
    last_layer(model).self_attention.w_o.register_forward_hook(lambda _, args, output: -output)


def hook_before_part(model, patch):
    projection = model.output_projection
    projection.register_forward_pre_hook(lambda _, args: (args[0].roll(1, dims=-1),))


def hook_on_model(model, patch):
    model.register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))


def hook_on_all(model, patch):
    def hook(module, args, output):
        return output.roll(1, dims=-1) if module is model else None

    patch.at_end(nn.modules.module.register_module_forward_hook(hook).remove)


def hook_before_all(model, patch):
    def hook(module, args):
        return (args[0].roll(1, dims=-1),) if isinstance(module, FeedForward) else None

    patch.at_end(nn.modules.module.register_module_forward_pre_hook(hook).remove)


def give_norms(attention):
    norms = [shaken(RMSNorm(attention.d_k), seed).double() for seed in (5, 6)]
    attention.norm_q, attention.norm_k = norms


def norms_of_heads(model, patch):
    give_norms(last_layer(model).self_attention)


def norms_of_memory(model, patch):
    layer = last_layer(model)
    give_norms(getattr(layer, "cross_attention", layer.self_attention))


def window(model, patch):
    last_layer(model).self_attention.window = 2


def bias_of_scores(model, patch):
    bias = torch.linspace(-1, 1, 31, dtype=torch.float64)
    model.output_projection.bias = nn.Parameter(bias)


def other_scale(model, patch):
    embedding = model.tgt_embedding if model.config.num_encoder_layers else model.embedding
    embedding.scale = 1.0


def forward_of_model(model, patch):
    model.forward = rolled(model.forward)


def forward_of_part(model, patch):
    last_layer(model).feed_forward.forward = torch.tanh


def function_of_part(model, patch):
    attention = last_layer(model).self_attention
    attention.attend = halved(attention.attend)


def network_of_first_layer(model, patch):
    first_layer(model).feed_forward = nn.Identity()


def hook_on_first_layer(model, patch):
    first_layer(model).register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))


def forward_of_class_of_model(model, patch):
    patch.setattr(type(model), "forward", rolled(type(model).forward))


def forward_of_class(model, patch):
    patch.setattr(FeedForward, "forward", halved(FeedForward.forward))


def forward_of_class_of_torch(model, patch):
    patch.setattr(nn.Linear, "forward", rolled(nn.Linear.forward))


def function_of_class(model, patch):
    patch.setattr(MultiHeadAttention, "attend", halved(MultiHeadAttention.attend))


def call_of_class(model, patch):
    patch.setattr(FeedForward, "__call__", halved(nn.Module.__call__), raising=False)


def derived(model, name):
    methods = {name: rolled(getattr(type(model), name))}
    model.__class__ = type("Derived", (type(model),), methods)


def derived_forward(model, patch):
    derived(model, "forward")


def derived_decode(model, patch):
    derived(model, "decode")


def derived_embed(model, patch):
    derived(model, "embed")


CHANGES = [
    another_network,
    network_that_looks_back,
    sequence_as_w_q,
    nothing_as_w_o,
    sequence_as_output_projection,
    mixed_norms,
    another_dropout,
    other_positions,
    function_as_network,
    hook_on_layer,
    hook_on_part,
    hook_before_part,
    hook_on_model,
    hook_on_all,
    hook_before_all,
    forward_of_model,
    forward_of_part,
    function_of_part,
    network_of_first_layer,
    hook_on_first_layer,
    forward_of_class_of_model,
    forward_of_class,
    forward_of_class_of_torch,
    function_of_class,
    call_of_class,
    derived_forward,
    derived_decode,
    derived_embed,
    norms_of_heads,
    norms_of_memory,
    window,
    bias_of_scores,
    other_scale,
]
SERVED = [nothing, mixed_norms, norms_of_heads, window, other_scale]
"""Changes after which the model is still made of what the fast way knows."""
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
each_kind = pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "decoder-only"])
each_case = pytest.mark.parametrize(
    ("changes", "has_encoder", "change"),
    [
        pytest.param(
            changes,
            has_encoder,
            change,
            id=f"{change.__name__}-{'pairs' if has_encoder else 'decoder-only'}-{name}",
            # Each change once, neighbours with other models and kinds; in everything all pairs.
            marks=[] if (i + j) % len(MODELS) == 0 and i % 2 != has_encoder else EVERYTHING,
        )
        for i, change in enumerate([nothing, *CHANGES])
        for j, (name, changes) in enumerate(MODELS.items())
        for has_encoder in (True, False)
    ],
)


@pytest.fixture
def patch(monkeypatch):
    """A monkeypatch that can also be told what to do at the end."""
    ends = []
    monkeypatch.at_end = ends.append
    yield monkeypatch
    for end in ends:
        end()


def model_and_ids(has_encoder, **changes):
    """Numbers of 64 bits, so that no choice hangs on the order of a sum."""
    if has_encoder:
        return small_model(**changes).double().eval(), SRC_IDS
    return decoder_only_model(**changes).double().eval(), PROMPTS


@torch.no_grad()
def scores(model, ids):
    """What the model says of some texts."""
    texts = torch.tensor([[1, 30, 6, 19], [1, 7, 25, 4]])
    return model(ids, texts) if model.config.num_encoder_layers else model(texts)


def written_alone(model, ids, patch):
    """The same three tokens, by `EachTextAlone`."""
    with patch.context() as plainly:
        plainly.setattr(minitransformer.inference, "decoding_of", lambda model: EachTextAlone)
        return written(model, ids)


def assert_writes_what_it_scores(model, ids, patch):
    found, expected = written(model, ids), written_alone(model, ids, patch)
    for way in WAYS:
        assert torch.equal(found[way], expected[way]), way


@each_case
def test_generation_equals_the_model_on_whole_texts(changes, has_encoder, change, patch):
    model, ids = model_and_ids(has_encoder, **changes)
    before = scores(model, ids)
    change(model, patch)
    is_served = change in SERVED or (change is norms_of_memory and not has_encoder)
    assert is_untouched(model) == is_served
    if change is not nothing:  # else the law would say nothing
        assert (scores(model, ids) - before).abs().max() > 1e-3
    assert_writes_what_it_scores(model, ids, patch)


def compile_model(model):
    return torch.compile(model, backend="eager")


def compile_layer(model):
    model.decoder.layers[1] = torch.compile(model.decoder.layers[1], backend="eager")
    return model


def compile_layer_in_place(model):
    last_layer(model).compile(backend="eager")
    return model


def compile_parts(model):
    layer = last_layer(model)
    layer.feed_forward = torch.compile(layer.feed_forward, backend="eager")
    layer.self_attention.w_q = torch.compile(layer.self_attention.w_q, backend="eager")
    return model


@pytest.mark.parametrize(
    "change",
    [compile_model, compile_layer, compile_layer_in_place, compile_parts],
    ids=lambda change: change.__name__,
)
@each_kind
def test_compiled_models_write_the_same(has_encoder, change, patch):
    model, ids = model_and_ids(has_encoder)
    compiled = change(model_and_ids(has_encoder)[0])
    found, expected = written(compiled, ids[:1]), written_alone(model, ids[:1], patch)
    for way in WAYS:
        assert torch.equal(found[way], expected[way]), way


@pytest.mark.parametrize("part", ["model", "layer"])
def test_hooks_on_what_is_compiled_are_heard(part):
    model, _ = model_and_ids(has_encoder=False)
    compiled = compile_model(model) if part == "model" else compile_layer(model)
    heard = compiled if part == "model" else last_layer(model)
    heard.register_forward_hook(lambda _, args, output: output.roll(1, dims=-1))
    ids = PROMPTS[:1]
    with torch.no_grad():
        first = 1 + compiled(ids)[:, -1, 1:].argmax(dim=-1)
    assert torch.equal(generate(compiled, ids, max_new_tokens=1)[:, 0], first)


@each_kind
def test_what_takes_no_part_changes_nothing(has_encoder):
    model, _ = model_and_ids(has_encoder)
    model.value_head = nn.Sequential(nn.Linear(12, 1))
    model.value_head.register_forward_hook(lambda _, args, output: output)
    assert is_untouched(model)


@each_kind
def test_a_derived_class_goes_the_plain_way(has_encoder):
    model, ids = model_and_ids(has_encoder)
    before = written(model, ids)
    model.__class__ = type("Derived", (type(model),), {})
    assert not is_untouched(model)
    after = written(model, ids)
    assert all(torch.equal(before[way], after[way]) for way in WAYS)


def test_hooks_on_parts_are_shown_the_whole_texts():
    model, ids = model_and_ids(has_encoder=True)
    sizes = []
    last_layer(model).register_forward_hook(lambda _, args, output: sizes.append(output.shape))
    generate(model, ids, max_new_tokens=3, min_new_tokens=3)
    assert sizes == [(2, 1, 12), (2, 2, 12), (2, 3, 12)]


# --- the switch


def test_nothing_is_served_inside_the_block_in_this_thread():
    model = small_model()
    with pytest.raises(KeyboardInterrupt), fast.disabled():  # noqa: PT012
        assert not fast.serves(model)
        with ThreadPoolExecutor() as threads:
            assert threads.submit(fast.serves, model).result()
        raise KeyboardInterrupt
    assert fast.serves(model)


@each_model
@each_kind
def test_disabled_writes_and_learns_the_same(changes, has_encoder):
    model, ids = model_and_ids(has_encoder, **changes)
    inputs = (ids, TGT_IDS) if has_encoder else (TGT_IDS,)
    targets = torch.tensor([[30, 6, 19, 12, 2], [7, 25, 2, 0, 0]])
    loss, texts = next_token_loss(model, *inputs, targets, smoothing=0.1), written(model, ids)
    with fast.disabled():
        plain_loss, plain_texts = (
            next_token_loss(model, *inputs, targets, smoothing=0.1),
            written(model, ids),
        )
    assert_same(loss, plain_loss)
    assert all(torch.equal(texts[way], plain_texts[way]) for way in WAYS)
