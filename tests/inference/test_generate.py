"""Generation chooses what the model's scores say: greedily, at random, in batches, alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from helpers import (
    PROMPTS,
    SRC_IDS,
    decoder_only_model,
    each_kind,
    each_model,
    model_and_ids,
    refuses,
    small_model,
)

from minitransformer import (
    DecoderOnlyTransformer,
    generate,
    next_token_loss,
    pad_rows,
    record_attention,
)
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.inference.sampling import next_token_probs
from minitransformer.inspection.record import evaluating

WAYS = [{}, {"temperature": 1.0}, {"num_beams": 3}]
each_way = pytest.mark.parametrize("options", WAYS, ids=["greedy", "drawn", "beams"])


# --- greedy decoding


def loop(model, rows, max_new_tokens):
    """Score all of each text for every new token, one row at a time, without its padding."""
    found = []
    with evaluating(model):
        for row in rows:
            given = row[row != 0]
            text, new = ([1], []) if model.config.num_encoder_layers else (given.tolist(), [])
            while len(new) < max_new_tokens and 2 not in new:
                ids = torch.tensor([[*text, *new]])
                inputs = (given[None], ids) if model.config.num_encoder_layers else (ids,)
                new.append(1 + model(*inputs)[0, -1, 1:].argmax().item())  # never padding
            found.append(new)
    return pad_rows(found)


@each_model
@each_kind
@pytest.mark.parametrize("max_new_tokens", [1, 12])
def test_greedy_decoding_equals_a_loop_without_cache(changes, kind, max_new_tokens):
    model, ids = model_and_ids(kind, **changes)
    expected = loop(model, ids, max_new_tokens)
    assert torch.equal(generate(model, ids, max_new_tokens=max_new_tokens), expected)
    more_padding = F.pad(ids, (0, 3))
    assert torch.equal(generate(model, more_padding, max_new_tokens=max_new_tokens), expected)


def test_rows_end_at_different_steps_and_are_then_not_computed_any_more(trained, monkeypatch):
    """Of 1, 2, 3 and 4 letters, written backwards, there are 3, 3, 2 and 2 texts."""
    model, src_ids = trained.model.eval(), pad_rows([e.src for e in trained.examples])
    sizes = []

    class Counted(CachedDecoding):
        def __call__(self, ids):
            sizes.append(len(ids))
            return super().__call__(ids)

    module = sys.modules["minitransformer.inference.generate"]
    monkeypatch.setattr(module, "CachedDecoding", Counted)
    found = generate(model, src_ids, max_new_tokens=9)
    assert torch.equal(found, loop(model, src_ids, 9))
    assert (found != 0).sum(1).unique().tolist() == [2, 3, 4, 5]
    assert sizes == [10, 10, 7, 4, 2]
    assert torch.equal(generate(model, src_ids, max_new_tokens=2), found[:, :2])


@torch.no_grad()
def test_target_begins_as_told():
    model, first_tokens = small_model(), set()
    for bos_id in (0, 1, 5, 12, 30):
        expected = 1 + model(SRC_IDS, torch.full((2, 1), bos_id))[..., 1:].argmax(-1)
        found = generate(model, SRC_IDS, max_new_tokens=1, bos_id=bos_id)
        assert torch.equal(found, expected)
        first_tokens.add(tuple(found.flatten().tolist()))
    assert len(first_tokens) > 1


@pytest.mark.parametrize("stop_ids", [[2], [13, 2], list(range(5, 25))])
def test_any_stop_id_ends_a_row_and_the_others_go_on(stop_ids, monkeypatch):
    model = decoder_only_model()
    expected = []
    for row in generate(model, PROMPTS, max_new_tokens=12, stop_ids=[]).tolist():
        ends = [n for n, token in enumerate(row, start=1) if token in stop_ids]
        expected.append(row[: ends[0]] if ends else row)
    found = generate(model, PROMPTS, max_new_tokens=12, stop_ids=stop_ids)
    assert torch.equal(found, pad_rows(expected))
    monkeypatch.setattr(DecoderOnlyTransformer, "stop_ids", stop_ids)  # when left out, the model's
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=12), found)


# --- the model is left as it was


@pytest.mark.parametrize("fails", [False, True])
def test_decoding_has_no_dropout_and_every_module_keeps_its_mode(fails):
    model = small_model(dropout=0.5).train()
    model.encoder.eval()
    model.decoder.layers[1].feed_forward.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    if fails:
        with pytest.raises(ValueError, match="outside the vocabulary"):
            generate(model, SRC_IDS + 2, max_new_tokens=6)
    else:
        expected = generate(small_model(), SRC_IDS, max_new_tokens=6)
        assert torch.equal(generate(model, SRC_IDS, max_new_tokens=6), expected)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert torch.is_grad_enabled()


def test_modes_come_back_when_several_threads_evaluate_a_model():
    model = small_model(dropout=0.5).train()
    expected = generate(small_model(), SRC_IDS, max_new_tokens=6)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(16):
            pool.submit(generate, model, SRC_IDS, max_new_tokens=6)
        last = pool.submit(generate, model, SRC_IDS, max_new_tokens=6)
    assert torch.equal(last.result(), expected)
    assert all(module.training for module in model.modules())
    whole, part = evaluating(model), evaluating(model.encoder)
    with torch.enable_grad():  # whose mode is a thread's own, and this is but one
        whole.__enter__()
        part.__enter__()
        whole.__exit__(None, None, None)
        assert not any(module.training for module in model.encoder.modules())
        assert model.decoder.training
        part.__exit__(None, None, None)
    assert all(module.training for module in model.modules())


@each_kind
@each_way
def test_model_can_be_trained_on_what_it_generated(kind, options):
    model, ids = model_and_ids(kind)
    with record_attention(model) as maps:
        new = generate(model, ids, max_new_tokens=6, min_new_tokens=6, **options)
    inputs = (ids, new) if kind == "pairs" else (new,)
    model(*inputs).square().mean().backward()
    new[0, 0] = 5
    assert not any(tensor.is_inference() for tensor in (new, *maps.values()))


# --- sampling


def test_draws_follow_the_distribution():
    model, num_rows = decoder_only_model(), 4000
    prompt = torch.tensor([[8, 3, 28]])
    with torch.no_grad():
        logits = model(prompt)[0, -1]
    logits[0] = -torch.inf
    options = {"temperature": 0.7, "top_k": 9, "top_p": 0.9}
    expected = next_token_probs(logits, **options)
    options["generator"] = torch.Generator().manual_seed(3)
    drawn = generate(model, prompt.repeat(num_rows, 1), max_new_tokens=1, **options)
    counts = drawn.flatten().bincount(minlength=31)
    assert (counts[expected == 0] == 0).all()
    assert (expected > 0).sum() > 3
    spread = (expected * (1 - expected) / num_rows).sqrt()
    assert ((counts / num_rows - expected).abs() <= 4 * spread).all()


@each_kind
def test_the_generator_decides_and_several_samples_are_those_of_repeated_rows(kind):
    (model, ids), before = model_and_ids(kind), torch.get_rng_state()
    options = {"max_new_tokens": 8, "temperature": 1.0, "stop_ids": list(range(2, 9))}
    samples, repeated, other = (
        generate(model, rows, generator=torch.Generator().manual_seed(seed), **options, **more)
        for seed, rows, more in (
            (5, ids, {"num_samples": 3}),
            (5, ids.repeat_interleave(3, 0), {}),
            (6, ids, {"num_samples": 3}),
        )
    )
    assert torch.equal(samples, repeated)
    assert not torch.equal(samples, other)
    assert len(samples.unique(dim=0)) > len(ids)
    assert torch.equal(torch.get_rng_state(), before)


COLD = [{"temperature": temperature} for temperature in (1e-9, 1e-40, 1e-320)]
CUT = [{"temperature": 2.0} | cut for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0})]


@pytest.mark.parametrize("options", COLD + CUT, ids=str)
def test_sampling_from_one_token_is_greedy(options):
    model = decoder_only_model()
    greedy = generate(model, PROMPTS, max_new_tokens=8)
    assert torch.equal(generate(model, PROMPTS, max_new_tokens=8, **options), greedy)


# --- how long a text can be


@each_way
@each_kind
@pytest.mark.parametrize("length", [1, 3, 7])
def test_length_stays_within_the_limits(options, kind, length):
    model, ids = model_and_ids(kind)
    limits = {"min_new_tokens": length, "max_new_tokens": 7, "stop_ids": range(20, 31)}
    for row in generate(model, ids.to(torch.int32), **limits, **options).tolist():
        real = [token for token in row if token]
        assert length <= len(real) <= 7
        assert 0 not in row[: len(real)]
        assert all(token < 20 for token in real[: length - 1])
        assert len(real) == 7 or real[-1] >= 20


def test_default_length_fits_the_model():
    model, wider = small_model(), small_model(max_len=99)
    for least in (1, 16):
        options = {"min_new_tokens": least, "stop_ids": []}
        assert generate(model, SRC_IDS, **options).shape == (2, 16)
        assert generate(wider, SRC_IDS, **options).shape == (2, 64)
    assert generate(wider, SRC_IDS, min_new_tokens=70).shape == (2, 70)
    padded = F.pad(PROMPTS, (0, 3))
    assert generate(decoder_only_model(), padded, stop_ids=[]).shape == (4, 12)
    assert generate(model, SRC_IDS, stop_ids=range(31)).shape == (2, 1)


@each_kind
@pytest.mark.parametrize("scheme", ["alibi", "none"])
def test_without_a_table_no_length_is_too_long(scheme, kind):
    (model, ids), (longer, _) = (
        model_and_ids(kind, positional_encoding=scheme, max_len=n) for n in (16, 99)
    )
    ids = ids[:, :4].repeat(1, 7) if kind == "pairs" else ids[:1].repeat(1, 5)
    options = {"max_new_tokens": 30, "min_new_tokens": 30}
    assert torch.equal(generate(model, ids, **options), generate(longer, ids, **options))
    inputs = (ids, ids) if kind == "pairs" else (ids,)
    assert torch.equal(model(*inputs), longer(*inputs))


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "rotary"])
def test_with_a_table_its_end_is_the_end(scheme):
    model = decoder_only_model(positional_encoding=scheme)
    assert generate(model, PROMPTS, max_new_tokens=12, min_new_tokens=12).shape == (4, 12)
    with pytest.raises(ValueError, match="20 positions is longer than max_len=16"):
        model(PROMPTS[:1].repeat(1, 4))
    with pytest.raises(ValueError, match="max_new_tokens=13 take 17 positions, more than max_len"):
        generate(model, PROMPTS, max_new_tokens=13)


def options(**changes):
    return lambda: generate(small_model(), SRC_IDS, **({"max_new_tokens": 6} | changes))


def ids(kind, tensor):
    return lambda: generate(model_and_ids(kind)[0], tensor)


INFINITE, ALL = float("inf"), range(1, 31)
test_what_does_not_fit_is_refused = refuses(
    ("max_new_tokens must be at least 1 and finite, got 0", options(max_new_tokens=0)),
    ("max_new_tokens .* finite, got inf", options(max_new_tokens=INFINITE)),
    ("max_new_tokens=17 take 17 positions.* max_len=16", options(max_new_tokens=17)),
    ("=17 take 17 positions", options(max_new_tokens=None, min_new_tokens=17)),
    ("min_new_tokens must be at least 1 and finite, got 0", options(min_new_tokens=0)),
    ("max_new_tokens must be at least 7 and finite, got 6", options(min_new_tokens=7)),
    ("stop_ids forbade every token", options(min_new_tokens=2, stop_ids=ALL)),
    ("every token was forbidden", options(num_beams=2, min_new_tokens=2, stop_ids=ALL)),
    ("num_beams must be at least 1 and finite, got 0", options(num_beams=0)),
    (r"length_penalty must .* got -0\.1", options(num_beams=2, length_penalty=-0.1)),
    ("length_penalty .* finite, got inf", options(num_beams=2, length_penalty=INFINITE)),
    (r"num_beams=2 needs temperature 0, got 1\.0", options(num_beams=2, temperature=1.0)),
    (r"temperature must be at least 0 .* got -1\.0", options(temperature=-1.0)),
    ("temperature must be at least 0 .* got nan", options(temperature=float("nan"))),
    ("temperature .* finite, got inf", options(temperature=INFINITE)),
    ("num_samples=2 needs a temperature above 0, got 0", options(num_samples=2)),
    ("top_k=3 needs a temperature above 0, got 0", options(top_k=3)),
    (r"top_p=0\.9 needs a temperature above 0, got 0", options(top_p=0.9)),
    (r"min_p=0\.1 needs a temperature above 0, got 0", options(min_p=0.1)),
    ("top_k must be at least 1, got 0", options(temperature=1.0, top_k=0)),
    ("stop_ids must lie between 0 and 30, got 31", options(stop_ids=[2, 31])),
    ("id 31 lies outside the vocabulary of 31 tokens", options(bos_id=31)),
    (r"^ids must have shape \(b, length\).* got \(0, 5\)", ids("texts", PROMPTS[:0])),
    (r"^ids must have shape \(b, length\).* got \(5,\)", ids("texts", PROMPTS[0])),
    ("at least 1 token, got one with 0", ids("texts", torch.zeros(1, 3).long())),
    ("20 tokens and .*=1 take 20 positions", ids("texts", PROMPTS.repeat(1, 4)[:1])),
    (r"int32 or int64, got torch\.float32", ids("texts", PROMPTS.float()), TypeError),
    ("ids must be of type Tensor, got str", ids("texts", "a"), TypeError),
    (r"src_ids must have shape .* got \(0, 7\)", ids("pairs", SRC_IDS[:0])),
    (r"src_ids must have shape .* got \(7,\)", ids("pairs", SRC_IDS[0])),
    ("21 positions is longer than max_len", ids("pairs", SRC_IDS[:, :3].repeat(1, 7))),
    (r"int32 or int64, got torch\.float32", ids("pairs", SRC_IDS.float()), TypeError),
)


HOLES = [[[0, 0, 5, 6], [4, 3, 5, 6]], [[0, 5], [4, 6]], [[5, 0, 6, 7]]]


@pytest.mark.parametrize("rows", HOLES, ids=["left", "one", "inside"])
def test_padding_before_a_token_is_refused_everywhere(rows):
    ids = torch.tensor(rows)
    right = ids.masked_fill(ids == 0, 9)
    writer, model = decoder_only_model(), small_model()
    for name, call in [
        ("ids", lambda: writer(ids)),
        ("ids", lambda: next_token_loss(writer, ids, right)),
        ("prompts", lambda: generate(writer, ids, max_new_tokens=2)),
        ("src_ids", lambda: model(ids, right)),
        ("src_ids", lambda: next_token_loss(model, ids, right, right)),
        ("src_ids", lambda: generate(model, ids, max_new_tokens=2)),
        ("tgt_ids", lambda: model(right, ids)),
        ("tgt_ids", lambda: next_token_loss(model, right, ids, right)),
    ]:
        message = f"^{name} must be filled on the right only, got pad_id=0 before"
        with pytest.raises(ValueError, match=message):
            call()
    # Targets may all begin with it, and a mask says itself what may be seen.
    model(right, F.pad(right, (1, 0)))
    writer(ids, torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril())
