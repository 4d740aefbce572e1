"""What Llama, Mistral and Qwen have beside the laws of all published families."""

from dataclasses import replace

import pytest
import torch
from alike import assert_close, ids_of, loaded, published
from families import LLAMA3, YARN, theirs_of

from minitransformer import generate
from minitransformer.models import Llama, LlamaConfig, RotaryScaling

LLAMA = "Llama ForCausalLM as published"
IDS = ids_of(37, 2, 7)
SMALL = {"vocab_size": 30, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20}


def small(**changes):
    """A shaken model of ours."""
    return published(Llama(LlamaConfig(**(SMALL | changes)), torch.Generator().manual_seed(0)))


def test_all_layers_share_one_table():
    assert len({id(layer.self_attention.rotary) for layer in small().decoder.layers}) == 1


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_scaled_frequencies_are_theirs(kind):
    found = {"linear": {"factor": 3.0}, "dynamic": {"factor": 3.0}, "llama3": LLAMA3, "yarn": YARN}
    rope = {"rope_theta": 5000.0, **found.get(kind, {}), "rope_type": kind}
    theirs = theirs_of(LLAMA, head_dim=32, rope_parameters=rope).model.rotary_emb
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
def test_old_spelling_of_rotary_settings_is_read(rope, name):
    scaling = {name if key == "rope_type" else key: value for key, value in rope.items()}
    base = scaling.pop("rope_theta")
    old = {"rope_theta": base, "rope_scaling": scaling if len(scaling) > 1 else None}
    read = RotaryScaling.from_published
    assert read(old) == read({"rope_parameters": rope})


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
    theirs = theirs_of(LLAMA, rope_parameters=rope | {"rope_theta": 10_000.0})
    ours = loaded(Llama, theirs, tmp_path)
    assert ours.max_len == longest
    ids = ids_of(37, 2, longest)
    with torch.no_grad():
        # Their angles are in float32.
        assert_close(ours(ids), theirs(ids).logits, 1e-4)
        new = generate(ours, ids[:, :-6], max_new_tokens=6, stop_ids=[])
        whole = torch.cat([ids[:, :-6], new], dim=1)
        assert torch.equal(ours(whole)[:, -7:-1].argmax(dim=-1), new)
    with pytest.raises(ValueError, match=f"sequence of {longest + 1} positions is longer than max"):
        ours(ids_of(37, 1, longest + 1))


def test_what_the_family_has_no_setting_for_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="window is None in every llama, got 3"):
        small(window=3).save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
