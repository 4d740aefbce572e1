"""Laws of looking inside: recordings are the model's, patches change what they name, parts add up.

They hold for each layout of the package's two models, and for published ones.
"""

from contextlib import ExitStack

import pytest
import torch
from helpers import (
    PROMPTS,
    SRC_IDS,
    TGT_IDS,
    assert_same,
    decoder_only_model,
    each_model,
    randn,
    refuses,
    shaken,
    small_model,
)

from minitransformer import KVCache, models
from minitransformer.inspection import (
    ablate,
    direct_effect,
    linear_probe,
    logit_lens,
    patch,
    record_activations,
    residual_parts,
    sites,
)

SIZES = {"vocab_size": 31, "d_model": 12, "num_heads": 3, "d_ff": 20}
PUBLISHED = {
    "GPT2": lambda: models.GPT2(models.GPT2Config(**SIZES, num_layers=2)),
    "Llama": lambda: models.Llama(models.LlamaConfig(**SIZES, num_layers=2)),
    "Qwen3": lambda: models.Llama(
        models.Qwen3Config(**SIZES, num_layers=2, num_kv_heads=1, d_k=6, tie_output=True)
    ),
    "BERT": lambda: models.BERTForMaskedLM(models.BERTConfig(**SIZES, num_layers=2)),
    "T5": lambda: models.T5(models.T5Config(**SIZES, d_k=5, num_encoder_layers=2)),
}


def model_of(kind, changes):
    """A shaken model without dropout, and ids for it."""
    if kind in PUBLISHED:
        model = PUBLISHED[kind]()
    else:
        model = (small_model if kind == "pairs" else decoder_only_model)(**changes)
    both = hasattr(model, "encoder") and hasattr(model, "decoder")
    ids = (SRC_IDS.clamp(max=28), TGT_IDS) if both else (TGT_IDS[:1],)
    return shaken(model).eval(), ids


def recorded(model, *ids):
    with torch.no_grad(), record_activations(model) as found:
        output = model(*ids)
    return output, found


each_published = pytest.mark.parametrize("kind", PUBLISHED)


def check_laws(kind, changes):
    """What holds for every model."""
    model, ids = model_of(kind, changes)
    with torch.no_grad():
        plain = model(*ids)
    output, found = recorded(model, *ids)
    assert torch.equal(output, plain)
    assert found.keys() == sites(model).keys()
    # Patched with itself: unchanged.
    for site, x in found.items():
        with torch.no_grad(), patch(model, site, x.clone()):
            assert_same(model(*ids), plain)
    # What a sub-layer adds is the difference of the stream, or what the norm gets.
    for site in [site for site in found if site.endswith(".before")]:
        residual = site.removesuffix(".before")
        layer, number = model.get_submodule(residual.rpartition(".")[0]), int(residual[-1])
        names = [
            n for n in ("self_attention", "cross_attention", "feed_forward") if hasattr(layer, n)
        ]
        added = found[f"{residual.rpartition('.')[0]}.{names[number - 1]}"]
        total, norm = found[site] + added, model.get_submodule(residual).norm
        after = total if model.get_submodule(residual).norm_first else norm(total)
        assert_same(found[f"{residual}.after"], after.detach())
    # Heads are their weights' sums of values: made anew of the same weights, nothing changes.
    for site in [site for site in found if site.endswith(".weights")]:
        with torch.no_grad(), patch(model, site, lambda weights: weights):
            assert_same(model(*ids), plain)
    for stack in {"encoder", "decoder"} & {name for name, _ in model.named_children()}:
        last = [x for site, x in found.items() if site.startswith(stack) and "after" in site][-1]
        parts = residual_parts(model, found, stack)
        assert_same(sum(parts.values()).detach(), last)
    return model, ids, found


@each_model
@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_laws_of_recording_and_patching(kind, changes):
    model, ids, found = check_laws(kind, changes)
    *_, lens = logit_lens(model, found).values()
    assert_same(lens.detach(), found["logits"])
    tokens = torch.arange(ids[-1].size(1))
    effects = direct_effect(model, found, tokens, against=tokens + 3)
    expected = found["logits"].gather(-1, tokens.expand(ids[-1].shape)[..., None])
    expected = expected - found["logits"].gather(-1, (tokens + 3).expand(ids[-1].shape)[..., None])
    assert_same(sum(effects.values()).detach(), expected[..., 0], tolerance=1e-4)


@each_published
def test_laws_hold_for_published_models(kind):
    model, _, found = check_laws(kind, {})
    tokens = torch.tensor([7])
    if kind == "BERT":  # a layer between the stack and the scores: no sum of parts
        with pytest.raises(ValueError, match="must add up to the logits"):
            direct_effect(model, found, tokens)
    else:
        effects = direct_effect(model, found, tokens)
        assert_same(sum(effects.values()).detach(), found["logits"][..., 7], tolerance=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
def test_ablated_head_is_as_with_its_weights_zeroed(norm_first):
    model, ids = model_of("texts", {"norm_first": norm_first})
    site = "decoder.layers.1.self_attention"
    with torch.no_grad(), ablate(model, f"{site}.heads", "zero", heads=[1]):
        ablated = model(*ids)
    with torch.no_grad():
        plain = model(*ids)
        model.get_submodule(site).w_o.weight.unflatten(1, (3, -1))[:, 1] = 0
        edited = model(*ids)
    assert_same(ablated, edited)
    assert not torch.allclose(ablated, plain, atol=1e-3)


def test_direct_effect_is_what_the_logit_loses_with_the_part():
    model, ids = model_of("texts", {"norm_first": True})
    model.decoder.norm = torch.nn.Identity()  # else removing a part moves its statistics
    output, found = recorded(model, *ids)
    effects = direct_effect(model, found, torch.tensor([7]))
    part = "decoder.layers.1.feed_forward"
    with torch.no_grad(), ablate(model, part, "zero"):
        without = model(*ids)
    assert_same((output - without)[..., 7], effects[part].detach(), tolerance=1e-4)


def test_patch_changes_only_what_it_names():
    model, ids = model_of("texts", {})
    _, found = recorded(model, *ids)
    site = "decoder.layers.0.self_attention.heads"
    with torch.no_grad(), patch(model, site, torch.tensor(9.0), heads=[2], positions=[1, -1]):
        _, changed = recorded(model, *ids)
    moved = (changed[site] != found[site]).any(-1).any(0)  # (h, q)
    assert moved.nonzero().tolist() == [[2, 1], [2, 4]]
    assert (changed[site][:, 2, [1, -1]] == 9).all()
    # Before position 1 nothing in the model has moved; the stream from there on has.
    after = "decoder.layers.1.residual_2.after"
    assert torch.equal(changed[after][:, 0], found[after][:, 0])
    assert (changed[after][:, 1:] != found[after][:, 1:]).any(-1).all()


def test_patches_of_one_site_add_up():
    model, ids = model_of("texts", {})
    for site in ("weights", "heads"):
        site = f"decoder.layers.1.self_attention.{site}"
        _, plain = recorded(model, *ids)
        with torch.no_grad(), ExitStack() as patches:
            for head in (0, 2):
                patches.enter_context(patch(model, site, lambda x: x.flip(-2), heads=[head]))
            output, found = recorded(model, *ids)
        expected = plain[site].clone()
        expected[:, [0, 2]] = expected[:, [0, 2]].flip(-2)
        assert_same(found[site], expected)
        with torch.no_grad(), patch(model, site, expected):
            assert_same(model(*ids), output)


def test_stream_patched_everywhere_makes_the_other_runs_logits():
    model, (src, tgt) = model_of("pairs", {"norm_first": True})
    other, found = recorded(model, src.flip(0)[:, :4], tgt)
    with torch.no_grad(), ExitStack() as patches:
        site = "decoder.layers.2.residual_3.before"
        patches.enter_context(patch(model, site, found[site]))
        assert_same(model(src, tgt), other)


def test_means_and_resampled_rows():
    model, ids = model_of("texts", {})
    site = "decoder.layers.0.self_attention.heads"
    reference = randn(5, 3, 2, 4)
    with torch.no_grad(), ablate(model, site, reference=reference):
        _, found = recorded(model, *ids)
    assert_same(found[site], reference.mean((0, 2))[:, None].expand_as(found[site]))
    rows = PROMPTS.clamp(max=28)
    _, before = recorded(model, rows)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad(), ablate(model, site, "resample", generator=generator):
        _, after = recorded(model, rows)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(after[site], before[site][order])
    assert order.tolist() != [0, 1, 2, 3]


def test_packed_padded_and_cached_runs_have_the_same_recordings():
    model, (src, tgt) = model_of("pairs", {})
    _, padded = recorded(model, src, tgt)
    real = {"encoder": src != 0, "decoder": tgt != 0}
    needed = tgt != 0
    with torch.no_grad(), record_activations(model) as packed:
        model.hidden(src, tgt, needed=needed)
    assert packed["encoder.layers.0.residual_1.before"].dim() == 2  # it was packed
    assert packed.keys() == padded.keys() - {"logits"}
    for site, x in packed.items():
        own = real[site.partition(".")[0]]
        if x.dim() == 2:
            assert_same(x, padded[site][own])
        else:  # heads and weights, (b, h, q, ·)
            assert_same(x.transpose(1, 2)[own], padded[site].transpose(1, 2)[own])
    caches = [KVCache() for _ in model.decoder.layers]
    steps = []
    with torch.no_grad():
        memory, mask = model.encode(src)
        for position in range(tgt.size(1)):
            with record_activations(model) as found:
                model.decode(tgt[:, position : position + 1], memory, mask, caches)
            steps.append(found)
    for site in [site for site in padded if not site.startswith("encoder")]:
        if not site.endswith("self_attention.weights"):  # whose axis of keys grows
            joined = torch.cat([step[site] for step in steps], dim=-2)
            assert_same(
                joined.transpose(-2, 1)[real["decoder"]],
                padded[site].transpose(-2, 1)[real["decoder"]],
            )


def test_hooks_end_with_their_block():
    model, ids = model_of("texts", {})
    with pytest.raises(KeyError), record_activations(model), patch(model, "logits", torch.abs):  # noqa: PT012
        model(*ids)
        raise KeyError
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_probe_finds_what_is_there_and_its_control_only_remembers():
    types = torch.arange(40).repeat(20)
    labels = types % 3
    named = torch.nn.functional.one_hot(types).float()  # says which word: both can be remembered
    found = linear_probe(named, labels, types)
    assert found.accuracy == found.control == 1.0
    assert found.selectivity == 0.0
    direction = torch.nn.functional.one_hot(labels).float() + 0.1 * randn(800, 3)
    read = linear_probe(direction, labels, types)
    assert read.accuracy > 0.98
    assert read.selectivity > 0.3
    assert read.weight.shape == (3, 3)
    noise = linear_probe(randn(800, 3, grad=True) * 1.0, labels, types)  # as recorded, with a graph
    assert noise.accuracy < 0.45


MODEL, IDS = model_of("texts", {})
HEADS = "decoder.layers.0.self_attention.heads"


def run(*args, **options):
    with patch(MODEL, *args, **options):
        MODEL(*IDS)


test_refusals = refuses(
    ("site must be .*got 'decoder.layers.9", lambda: run("decoder.layers.9", torch.zeros(1))),
    (r"\(1, 3, 5, 4\), got \(7,\)", lambda: run(HEADS, torch.zeros(7))),
    ("heads must lie below 3.*got 3", lambda: run(HEADS, torch.zeros(1), heads=[0, 3])),
    ("positions must lie below 5.*got 8", lambda: run(HEADS, torch.zeros(1), positions=[8])),
    ("heads must be None", lambda: run("logits", torch.zeros(1), heads=[0])),
    ("kind must be zero, mean or resample, got 'noise'", lambda: ablate(MODEL, HEADS, "noise")),
    (
        "at least 4, got \\[9, 8, 9\\]",
        lambda: linear_probe(randn(9, 2), torch.ones(8), torch.ones(9)),
    ),
    ("output_projection, Linear", lambda: logit_lens(torch.nn.Linear(2, 2), {})),
)
