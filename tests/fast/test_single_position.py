"""One position at a time, with the layers unrolled: the same scores as the whole model's."""

import pytest
import torch
from helpers import SRC_IDS, TGT_IDS, assert_same, each_model, randn, small_model
from torch import nn

from minitransformer import generate, record_attention
from minitransformer.fast import Decoding
from minitransformer.fast.single_position import Product

VARIANTS = {
    "no attention biases": {"attention_bias": False},
    "untied": {"tie_output": False},
    "gelu": {"activation": "gelu_tanh"},
    "post-norm rms": {"norm": "rms_norm"},
}
each_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())


@torch.no_grad()
def assert_steps_equal_the_model(changes, src):
    model, tgt = small_model(**changes), TGT_IDS[: len(src)]
    step = Decoding(model, src, bos_id=1, max_new_tokens=5)
    logits = [step(None), *(step(tokens) for tokens in tgt[:, 1:].T)]
    assert_same(torch.stack(logits, dim=1), model(src, tgt))


@each_model
@pytest.mark.parametrize("src", [SRC_IDS, SRC_IDS[:1]], ids=["padded", "not padded"])
def test_steps_equal_the_model(changes, src):
    assert_steps_equal_the_model(changes, src)


@each_variant
def test_steps_equal_other_models_too(changes):
    assert_steps_equal_the_model(changes, SRC_IDS)


@each_model
@torch.no_grad()
def test_rows_of_one_source_share_its_memory(changes):
    model = small_model(**changes)
    step = Decoding(model, SRC_IDS, bos_id=1, max_new_tokens=5)
    step(None)
    step.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    new = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])
    logits = [step(tokens) for tokens in new]
    whole = torch.cat([torch.ones(6, 1, dtype=torch.int64), new.T], dim=1)
    expected = model(SRC_IDS.repeat_interleave(3, dim=0), whole)
    assert_same(torch.stack(logits, dim=1), expected[:, 1:])


def test_attention_can_still_be_recorded():
    model = small_model()
    with record_attention(model) as maps:
        generate(model, SRC_IDS, max_new_tokens=4, min_new_tokens=4)
    assert maps["decoder.layers.0.self_attention"].shape == (2, 3, 4, 4)
    assert maps["decoder.layers.2.cross_attention"].shape == (2, 3, 4, 7)


def test_training_between_two_texts_is_seen():
    model = small_model()
    before = generate(model, SRC_IDS, max_new_tokens=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = randn(*parameter.shape, seed=parameter.numel())
    assert not torch.equal(generate(model, SRC_IDS, max_new_tokens=4), before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 5])  # from 5 on the weight is transposed
def test_product_is_its_linear_maps_side_by_side(rows, bias):
    maps, x = [nn.Linear(5, width, bias=bias) for width in (3, 4, 2)], randn(rows, 5)
    assert_same(Product(*maps)(x), torch.cat([linear(x) for linear in maps], dim=-1))
