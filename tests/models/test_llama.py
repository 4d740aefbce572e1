"""Llama, Mistral, Qwen 2 and Qwen 3 of this book are those that are published."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from alike import (
    ROUNDED,
    assert_close,
    assert_reads_back,
    assert_same_gradients,
    assert_same_text,
    ids_of,
    loaded,
    published,
    transformers,
)
from safetensors.torch import load_file, save_file

from minitransformer import KVCache, fast, generate, next_token_loss, pad_rows
from minitransformer.models.llama import (
    Llama,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from minitransformer.models.rotary_scaling import RotaryScaling

SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 30, "rope_theta": 300.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 30}
YARN |= {"beta_fast": 8.0, "rope_theta": 300.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 3}
VARIANTS = {
    "Llama": ("Llama", {}),
    "Llama, all heads": ("Llama", {"num_key_value_heads": None, "rms_norm_eps": 1e-3}),
    "Llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "Llama, wide heads": ("Llama", {"head_dim": 10, "rope_parameters": {"rope_theta": 77.0}}),
    "Llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5}}),
    "Llama, llama3": ("Llama", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "Llama, yarn": ("Llama", {"head_dim": 16, "rope_parameters": YARN}),
    "Llama, dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral, window": ("Mistral", {"sliding_window": 3, "head_dim": 6}),
    "Mistral, window of two": ("Mistral", {"sliding_window": 2, "tie_word_embeddings": True}),
    "Qwen 2": ("Qwen2", {}),
    "Qwen 2, tied": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    "Qwen 2, windows": ("Qwen2", {"max_window_layers": 1, **SLIDING}),
    "Qwen 3": ("Qwen3", {"head_dim": 8}),
    "Qwen 3, biases": ("Qwen3", {"head_dim": 6, "attention_bias": True}),
    "Qwen 3, windows": (
        "Qwen3",
        {
            "head_dim": 8,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
            **SLIDING,
        },
    ),
}
IDS = ids_of(37, 2, 7)


def theirs_of(kind="Llama", changes=None, seed=1, scale=0.3):
    torch.manual_seed(seed)
    options = SIZES | {"bos_token_id": 1, "eos_token_id": 2} | (changes or {})
    config = getattr(transformers, f"{kind}Config")(**options)
    return published(getattr(transformers, f"{kind}ForCausalLM")(config), seed, scale)


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, tmp_path):
    theirs = theirs_of(*request.param)
    return SimpleNamespace(
        theirs=theirs,
        ours=loaded(Llama, theirs, tmp_path / "theirs"),
        folder=tmp_path,
        request=request.param,
    )


def logits(model):
    outputs = model(IDS)
    return outputs if isinstance(outputs, torch.Tensor) else outputs.logits


def unrounded(theirs, ours):
    """Theirs, where norms and angles are computed in float32, with norms in float64 and our angles.

    What then is left has to be exact.
    """

    def norm(x, own):
        return own.weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + own.variance_epsilon)

    def angles(x, position_ids):
        table = ours.decoder.layers[0].self_attention.rotary.table.double()[position_ids]
        sine, cosine = table[..., 0::2], table[..., 1::2]
        return torch.cat([cosine, cosine], dim=-1), torch.cat([sine, sine], dim=-1)

    for module in theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(norm, own=module)
    theirs.model.rotary_emb.forward = angles
    return theirs


def test_logits_and_gradients_are_theirs(pair):
    theirs = unrounded(pair.theirs, pair.ours)
    assert_close(logits(pair.ours), logits(theirs))
    assert_same_gradients(pair.ours, theirs, logits)


def test_hidden_states_are_theirs(pair):
    found = []
    for layer in pair.ours.decoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: found.append(output))
    pair.ours(IDS)
    expected = unrounded(pair.theirs, pair.ours)(IDS, output_hidden_states=True).hidden_states
    for ours, theirs in zip(found[:-1], expected[1:-1], strict=True):  # the last has been normed
        assert_close(ours, theirs)


def test_logits_are_theirs_as_they_round(tmp_path, pair):
    theirs = theirs_of(*pair.request, scale=0.1)
    ours = loaded(Llama, theirs, tmp_path / "smaller")
    assert_close(logits(ours), logits(theirs), ROUNDED)
    assert_close(logits(ours.float()), logits(theirs.float()), 1e-5)


def test_texts_are_theirs(pair):
    assert_same_text(pair.ours, pair.theirs, IDS, length=9)
    assert_same_text(fast.prepare(pair.ours), pair.theirs, IDS, length=9)


def test_cached_is_full(pair):
    caches = [KVCache() for _ in pair.ours.decoder.layers]
    parts = [pair.ours.decode(part, caches) for part in IDS.split([3, 1, 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), pair.ours(IDS))


def test_rows_of_unequal_length_are_theirs_alone(pair):
    rows = [IDS[0].tolist(), IDS[1, :4].tolist()]
    padded = pad_rows(rows, pad_id=-1)
    assert_close(pair.ours(padded)[1, :4], pair.ours(IDS[1:, :4])[0])
    texts = generate(pair.ours, padded, max_new_tokens=5, stop_ids=[])
    for row, text in zip(rows, texts, strict=True):
        assert_same_text(pair.ours, pair.theirs, torch.tensor([row]), length=5)
        alone = generate(pair.ours, torch.tensor([row]), max_new_tokens=5, stop_ids=[])
        assert torch.equal(text, alone[0])


def test_their_labels_are_our_targets_unshifted(pair):
    found = next_token_loss(pair.ours, IDS[:, :-1], IDS[:, 1:])
    assert_close(found, pair.theirs(IDS, labels=IDS).loss.to(found.dtype), 1e-5)


def test_what_is_saved_reads_back_on_both_sides(pair):
    assert_reads_back(pair.ours, pair.theirs, logits, pair.folder / "ours")
    content = json.loads((pair.folder / "ours" / "config.json").read_text())
    assert content["architectures"] == [type(pair.theirs).__name__]
    assert (content["bos_token_id"], content["eos_token_id"]) == (1, 2)


def test_no_peeking(pair):
    changed = IDS.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 37
    before, after = pair.ours(IDS), pair.ours(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert ((before - after).abs().amax(-1)[:, 4] > 1e-4).all()


# --- laws of single parts --------------------------------------------------------------------


def test_beam_search_is_theirs(tmp_path):
    theirs = theirs_of("Qwen3", {"head_dim": 8})
    options = {"max_new_tokens": 4, "num_beams": 3, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones_like(IDS)
    expected = theirs.generate(IDS, attention_mask=mask, do_sample=False, **options)
    ours = loaded(Llama, theirs, tmp_path)
    found = generate(ours, IDS, max_new_tokens=4, num_beams=3, stop_ids=[])
    assert torch.equal(found, expected[:, 7:])


def test_window_hides_what_is_too_far_back_and_layers_pass_it_on():
    """Three layers with a window of 3 see 3 · 2 positions back, and not one more."""
    config = LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=3, d_ff=20, window=3)
    model = published(Llama(config, torch.Generator().manual_seed(0)))
    ids = ids_of(30, 1, 11)
    before = model(ids)[0, 10]
    for back in range(11):
        changed = ids.clone()
        changed[0, 10 - back] = (changed[0, 10 - back] + 1) % 30
        assert torch.equal(model(changed)[0, 10], before) == (back > 6)


def test_window_as_long_as_the_text_changes_nothing():
    config = LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, d_ff=20)
    model = published(Llama(config, torch.Generator().manual_seed(0)))
    other = published(Llama(replace(config, window=7), torch.Generator().manual_seed(0)))
    assert_close(other(IDS % 30), model(IDS % 30))


def test_cache_with_a_window_is_the_whole_text_with_a_window():
    config = MistralConfig(
        vocab_size=30,
        d_model=12,
        num_heads=3,
        num_layers=2,
        d_ff=20,
        num_kv_heads=1,
        max_len=30,
        window=4,
    )
    model = published(Llama(config, torch.Generator().manual_seed(0)), dtype=torch.float32)
    ids = pad_rows([[5, 6, 7, 8, 9, 10], [11, 12]], pad_id=-1)
    texts = generate(model, ids, max_new_tokens=9, stop_ids=[])
    for prompt, text in zip(ids, texts, strict=True):
        whole = torch.cat([prompt[prompt >= 0], text])[None]
        assert torch.equal(model(whole)[0, -10:-1].argmax(dim=-1), text)


def test_scores_know_distances_alone():
    """The same text 13 positions later; with padding before it nothing is different."""
    config = LlamaConfig(
        vocab_size=30,
        d_model=24,
        num_heads=3,
        num_layers=2,
        d_ff=20,
        rotary=RotaryScaling(base=50.0),
    )
    model = published(Llama(config, torch.Generator().manual_seed(0)))
    ids = IDS % 30
    later = torch.cat([torch.full((2, 13), -1), ids], dim=1)
    found = model.decode(later, left_padding=torch.tensor([13, 13]))[:, 13:]
    assert_close(found, model(ids), 1e-6)  # the table of angles is in float32


def test_all_layers_share_one_table():
    model = Llama(LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=4, d_ff=20))
    assert len({id(layer.self_attention.rotary) for layer in model.decoder.layers}) == 1


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_scaled_frequencies_are_theirs(kind):
    found = {"linear": {"factor": 3.0}, "dynamic": {"factor": 3.0}, "llama3": LLAMA3, "yarn": YARN}
    rope = {"rope_theta": 5000.0, **found.get(kind, {}), "rope_type": kind}
    theirs = theirs_of(changes={"head_dim": 32, "rope_parameters": rope}).model.rotary_emb
    scaling = RotaryScaling.from_published({"rope_parameters": rope})
    assert_close(scaling.frequencies(32, 40).float(), theirs.inv_freq.float(), 1e-6)
    expected = torch.stack([theirs.inv_freq.sin(), theirs.inv_freq.cos()], -1).flatten()
    expected = (expected * theirs.attention_scaling).float()
    assert_close(scaling.encoding(32, 40).table[1], expected, 1e-6)


def test_scaling_by_hand():
    """Pairs of a head of 8 with base 16 turn 1, 1/2, 1/4 and 1/8 radian from place to place."""
    plain = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
    assert_close(RotaryScaling(base=16.0).frequencies(8, 9), plain)
    assert_close(RotaryScaling("dynamic", 16.0, 4.0).frequencies(8, 9), plain)
    assert_close(RotaryScaling("linear", 16.0, 4.0).frequencies(8, 9), plain / 4)
    # In 50 positions they turn 7.96, 3.98, 1.99 and 0.99 times.
    slowed = RotaryScaling("llama3", 16.0, 4.0, low=1.0, high=3.0, trained_len=50)
    kept = (50 * plain / (2 * torch.pi) - 1) / 2
    assert kept[0] > kept[1] > 1 > kept[2] > 0 > kept[3]
    expected = plain * torch.tensor([1, 1, kept[2] + (1 - kept[2]) / 4, 1 / 4])
    assert_close(slowed.frequencies(8, 9), expected)
    assert_close(replace(slowed, trained_len=None).frequencies(8, 50), expected)
    # Between the pairs that turn 3.97 times and once, the share falls in equal steps.
    yarn = RotaryScaling("yarn", 16.0, 4.0, beta_fast=3.97, beta_slow=1.0, trained_len=50)
    kept = torch.tensor([1, 1, 0.5, 0])
    assert_close(yarn.frequencies(8, 9), plain * (kept + (1 - kept) / 4))


# --- files -----------------------------------------------------------------------------------


def changed_config(folder, without=(), **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: content[key] for key in content if key not in without}))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 55.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        LLAMA3,
    ],
    ids=lambda rope: rope["rope_type"],
)
@pytest.mark.parametrize("name", ["type", "rope_type"])
def test_old_spelling_of_rotary_settings_is_read(tmp_path, rope, name):
    theirs = theirs_of(changes={"rope_parameters": dict(rope)})
    expected = logits(loaded(Llama, theirs, tmp_path))
    scaling = {name if key == "rope_type" else key: value for key, value in rope.items()}
    base = scaling.pop("rope_theta")
    old = {"rope_theta": base, "rope_scaling": scaling if len(scaling) > 1 else None}
    changed_config(tmp_path, without=["rope_parameters"], **old)
    assert_close(logits(Llama.from_pretrained(tmp_path)), expected)


def test_old_weights_with_tables_are_read(tmp_path):
    theirs = theirs_of()
    expected = logits(loaded(Llama, theirs, tmp_path))
    path = tmp_path / "model.safetensors"
    tables = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(3)}
    save_file(load_file(path) | tables, path)
    assert_close(logits(Llama.from_pretrained(tmp_path)), expected)


def test_model_without_output_projection_and_prefix_is_read_where_it_is_tied(tmp_path):
    """As `LlamaModel`, the part without head, is saved."""
    theirs = theirs_of(changes={"tie_word_embeddings": True})
    theirs.model.save_pretrained(tmp_path)
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    ours = Llama.from_pretrained(tmp_path)
    assert_close(logits(ours), logits(unrounded(theirs, ours)))


def test_shards_are_read(tmp_path):
    theirs = theirs_of()
    whole = loaded(Llama, theirs, tmp_path / "whole")
    ours = loaded(Llama, theirs, tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_close(logits(ours), logits(whole))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Llama", LlamaConfig()),
        ("Mistral", MistralConfig()),
        ("Qwen2", Qwen2Config()),
        ("Qwen3", Qwen3Config()),
    ],
)
def test_defaults_are_theirs(kind, config):
    """Files leave out what is the default."""
    theirs = getattr(transformers, f"{kind}Config")()
    assert LlamaConfig.from_published({"model_type": theirs.model_type}) == config
    found = LlamaConfig.from_published(theirs.to_diff_dict())
    assert found.to_published() == config.to_published()
    expected = theirs.to_dict()
    for key, value in config.to_published().items():
        if key in expected and key not in ("architectures", "rope_parameters"):
            assert value == expected[key], key


def test_configuration_of_smollm2_is_read():
    """135M, as it lies on the hub."""
    content = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1",
        "use_cache": True,
        "vocab_size": 49152,
    }
    with torch.device("meta"):
        model = Llama(LlamaConfig.from_published(content))
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("Llama", {"model_type": "gemma"}, "'gemma', expected llama or mistral or qwen2 or qwen3"),
        (
            "Llama",
            {"quantization_config": {"bits": 4}},
            r"the weights are quantised, quantization_config=\{'bits': 4\}",
        ),
        ("Llama", {"sliding_window": 3}, "settings are not known: sliding_window"),
        ("Mistral", {"attention_bias": True}, "settings are not known: attention_bias"),
        ("Llama", {"rope_interleaved": True}, "rope_interleaved is True, expected False"),
        ("Llama", {"hidden_act": "mish"}, "activation must be one of gelu, .*, got 'mish'"),
        ("Llama", {"num_key_value_heads": 4}, "num_kv_heads must divide num_heads, got 4 and 6"),
        ("Llama", {"head_dim": 5}, "d_k must be even to turn pairs of components, got 5"),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
            r"rope_type must be one of \['default', .*, got 'longrope'",
        ),
        (
            "Llama",
            {"rope_parameters": YARN | {"mscale": 1.0}},
            "settings of 'yarn' are not known: mscale",
        ),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "settings of 'default' are not known: partial_rotary_factor",
        ),
        ("Llama", {"rope_parameters": LLAMA3 | {"factor": 0.5}}, "factor must be at least 1, got"),
        ("Llama", {"rope_parameters": LLAMA3 | {"factor": None}}, "factor must be float, got None"),
        (
            "Qwen2",
            {"layer_types": ["sliding_attention"] + 2 * ["full_attention"], **SLIDING},
            r"layer_types is \['sliding_attention', .* expected \['full_attention'",
        ),
        ("Llama", {"attention_bias": True}, "12 weights are missing"),
        ("Qwen3", {"head_dim": 6}, r"w_q.weight is \(48, 24\), expected \(36, 24\)"),
    ],
)
def test_configuration_that_is_not_known_is_refused(tmp_path, kind, changes, message):
    theirs_of(kind, {"head_dim": 8} if kind == "Qwen3" else {}).save_pretrained(tmp_path)
    changed_config(tmp_path, **changes)
    with pytest.raises((ValueError, TypeError), match=message):
        Llama.from_pretrained(tmp_path)


def test_biases_where_there_should_be_none_are_refused(tmp_path):
    theirs_of(changes={"attention_bias": True}).save_pretrained(tmp_path)
    changed_config(tmp_path, attention_bias=False)
    with pytest.raises(ValueError, match=r"12 weights have no place"):
        Llama.from_pretrained(tmp_path)


def test_text_that_is_too_long_is_refused(tmp_path):
    ours = loaded(Llama, theirs_of(), tmp_path)
    with pytest.raises(ValueError, match="a sequence of 41 positions is longer than max_len=40"):
        ours(ids_of(37, 1, 41))


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 100),
        # Files name the length of the training texts, or the one that scaling reaches.
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 40}, 80),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10}, 40),
    ],
)
def test_scaled_positions_reach_beyond_the_length_that_a_file_names(tmp_path, rope, longest):
    """That is what scaling is for."""
    theirs = theirs_of(changes={"rope_parameters": rope | {"rope_theta": 10_000.0}})
    ours = loaded(Llama, theirs, tmp_path)
    assert ours.max_len == longest
    ids = ids_of(37, 2, longest)
    with torch.no_grad():
        # Their angles are in float32.
        assert_close(logits_of(ours, ids), logits_of(theirs, ids), 1e-4)
        new = generate(ours, ids[:, :-6], max_new_tokens=6, stop_ids=[])
        whole = torch.cat([ids[:, :-6], new], dim=1)
        assert torch.equal(ours(whole)[:, -7:-1].argmax(dim=-1), new)
    with pytest.raises(ValueError, match=f"sequence of {longest + 1} positions is longer than max"):
        ours(ids_of(37, 1, longest + 1))


def logits_of(model, ids):
    found = model(ids)
    return found if torch.is_tensor(found) else found.logits


def test_what_the_relative_has_no_setting_for_is_not_saved(tmp_path):
    model = Llama(
        LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, d_ff=20, window=3)
    )
    with pytest.raises(ValueError, match="window is None in every llama, got 3"):
        model.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_table_put_in_by_hand_is_not_saved(tmp_path):
    model = Llama(LlamaConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, d_ff=20))
    model.decoder.layers[0].self_attention.rotary = RotaryScaling(base=9.0).encoding(4, 2048)
    with pytest.raises(ValueError, match=r"self_attention.rotary is a Rotary"):
        model.save_pretrained(tmp_path)


def test_starting_values():
    model = Llama(
        LlamaConfig(vocab_size=200, d_model=60, num_heads=3, num_layers=2, d_ff=90),
        torch.Generator().manual_seed(0),
    )
    again = Llama(
        LlamaConfig(vocab_size=200, d_model=60, num_heads=3, num_layers=2, d_ff=90),
        torch.Generator().manual_seed(0),
    )
    for (name, parameter), other in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, other)
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        else:
            assert abs(float(parameter.detach().std()) / 0.02 - 1) < 0.06
