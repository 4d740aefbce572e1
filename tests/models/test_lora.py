"""A low-rank change begins as nothing, learns alone, and merges into the weights."""

import copy

import pytest
import torch
from helpers import TGT_IDS, assert_same, assert_same_weights, decoder_only_model, randn, shaken
from torch import nn

from minitransformer import next_token_loss
from minitransformer.models import GPT2, GPT2Config
from minitransformer.models.lora import LoRALinear, add_lora, merge_lora

LAYERS = ["w_q", "w_k", "w_v", "w_o", "w_1", "w_2"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def changed(model, seed=3):
    """The model with all its changes moved off zero."""
    for part in model.modules():
        if isinstance(part, LoRALinear):
            nn.init.normal_(part.b, generator=generator(seed))
    return model


@pytest.mark.parametrize(("bias", "alpha"), [(False, 6.0), (True, None)])
def test_layer_is_the_sum_by_hand(bias, alpha):
    linear = nn.Linear(7, 5, bias=bias, dtype=torch.float64)
    layer = LoRALinear(linear, 3, alpha, generator=generator())
    nn.init.normal_(layer.b, generator=generator(1))
    x = randn(2, 4, 7, dtype=torch.float64)
    weight = linear.weight + (alpha or 3) / 3 * layer.b @ layer.a  # α is the rank if left out
    assert_same(layer(x), nn.functional.linear(x, weight, linear.bias), 1e-12)
    assert torch.linalg.matrix_rank(layer.b @ layer.a) == 3


@pytest.mark.parametrize("names", [None, ("w_q", "w_v"), ("w_2",)])
def test_model_begins_as_it_was_and_only_the_change_learns(names):
    model = decoder_only_model(norm_first=True)
    before, weights = model(TGT_IDS), copy.deepcopy(model.state_dict())
    found = add_lora(model, 2, names=names, generator=generator())
    expected = LAYERS if names is None else list(names)
    assert sorted({name.split(".")[-1] for name in found}) == sorted(expected)
    assert len(found) == 2 * len(expected)  # two layers
    assert torch.equal(model(TGT_IDS), before)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        next_token_loss(model, TGT_IDS[:, :-1], TGT_IDS[:, 1:], smoothing=0.1).backward()
        optimizer.step()
    assert not torch.allclose(model(TGT_IDS), before, atol=1e-3)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert name.endswith((".a", ".b"))
            assert parameter.grad.isfinite().all()
        else:
            assert parameter.grad is None
            assert torch.equal(parameter, weights[name.replace(".linear.", ".")])


def test_first_gradient_reaches_b_alone_and_from_zeros_none_does():
    for start, moves in ((randn(2, 7), True), (torch.zeros(2, 7), False)):
        layer = LoRALinear(nn.Linear(7, 5), 2)
        layer.a.data = start
        layer(randn(3, 7)).square().sum().backward()
        assert not layer.a.grad.any()
        assert bool(layer.b.grad.any()) == moves


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.5)]
)
def test_merged_is_the_same_model(dtype, tolerance):
    model = decoder_only_model(norm_first=True).to(dtype)
    kinds, weights = [type(part) for part in model.modules()], copy.deepcopy(model.state_dict())
    add_lora(model, 2, alpha=3.0, generator=generator())
    merge_lora(model)
    assert_same_weights(model.state_dict(), weights)  # without training, the very weights
    add_lora(model, 2, alpha=3.0, generator=generator())
    before = changed(model)(TGT_IDS)
    merge_lora(model)
    assert_same(model(TGT_IDS), before, tolerance)
    assert [type(part) for part in model.modules()] == kinds
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_narrow_weights_are_rounded_once():
    """Many changes, each lost in the last digits of bfloat16, together are not."""
    linear = nn.Linear(6, 1, bias=False, dtype=torch.bfloat16)
    linear.weight.data.fill_(1.0)
    layer = LoRALinear(linear, 1)
    layer.a.data.fill_(1.0)
    layer.b.data.fill_(2.0**-8)  # half of the step between two numbers above 1
    assert torch.equal(layer.merged().weight.float(), torch.full((1, 6), 1.0))  # tie, to even
    layer.b.data.fill_(1.5 * 2.0**-8)
    assert torch.equal(layer.merged().weight.float(), torch.full((1, 6), 1.0 + 2.0**-7))


def test_seed_decides_and_nothing_else():
    weights = []
    for number in range(2):
        torch.manual_seed(number)
        layer = LoRALinear(nn.Linear(7, 5), 2, generator=generator(5))
        weights.append(layer.a)
    assert torch.equal(*weights)


def test_model_with_lora_is_saved_when_merged(tmp_path):
    config = GPT2Config(vocab_size=31, d_model=12, num_heads=3, num_layers=2, max_len=16)
    model = shaken(GPT2(config, generator())).eval()
    add_lora(model, 2, generator=generator())
    changed(model)
    with pytest.raises(ValueError, match=r"what is around .*w_q.*merge_lora"):
        model.save_pretrained(tmp_path)
    before = model(TGT_IDS)
    merge_lora(model)
    model.save_pretrained(tmp_path)
    assert_same(GPT2.from_pretrained(tmp_path)(TGT_IDS), before, 1e-4)


def test_what_cannot_be_is_refused():
    model = decoder_only_model()
    linear = nn.Linear(7, 5)
    for refuse, message in (
        (lambda: LoRALinear(linear, 0), "rank must lie between 1 and 5, got 0"),
        (lambda: LoRALinear(linear, 6), "rank must lie between 1 and 5, got 6"),
        (lambda: merge_lora(model), "has no low-rank change to merge"),
        (lambda: add_lora(model, 1, names=("w_9",)), r"no linear layer of the names \('w_9',\)"),
    ):
        with pytest.raises(ValueError, match=message):
            refuse()
    assert all(parameter.requires_grad for parameter in model.parameters())
    add_lora(model, 1, names=("w_q",))
    with pytest.raises(ValueError, match="has low-rank changes already"):
        add_lora(model, 1, names=("w_v",))
