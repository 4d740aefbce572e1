"""Weights that are turned once and kept: whatever changes them, what is written changes too."""

import copy
import gc
import io
import pickle
import threading

import pytest
import torch
from helpers import SRC_IDS, TGT_IDS, assert_same, decoder_only_model, randn, small_model
from torch import nn

from minitransformer import fast, generate, next_token_loss
from minitransformer.fast import Decoding
from minitransformer.fast.turned import KEPT, turned

OPTIONS = {"max_new_tokens": 6, "min_new_tokens": 6}


def scores(model):
    """What the fast way scores after each of three tokens."""
    with torch.no_grad():
        step = Decoding(model, SRC_IDS, bos_id=1, max_new_tokens=5)
        return torch.stack([step(None), *(step(tokens) for tokens in TGT_IDS[:, 1:4].T)], dim=1)


def trained(model, optimizer):
    next_token_loss(model, SRC_IDS, TGT_IDS, TGT_IDS.roll(-1, 1), smoothing=0.1).backward()
    optimizer(model.parameters()).step()
    model.zero_grad()


def with_parameters(change):
    """A change of each parameter of a model, outside of autograd."""

    def change_all(model):
        with torch.no_grad():
            for parameter in model.parameters():
                change(parameter)

    return change_all


def exchange_columns(parameter):
    parameter.data = parameter.data.flip(-1)


def exchange_columns_where_they_lie(parameter):
    parameter.data.copy_(parameter.data.flip(-1).clone())


def exchange_rows(model):
    for layer in model.decoder.layers:
        weight = layer.self_attention.w_v.weight.data
        weight[[0, 5]] = weight[[5, 0]]


def change_one_number(model):
    model.decoder.layers[1].cross_attention.w_q.weight.data[3, 7] += 2.0


def change_one_bias(model):
    model.decoder.layers[0].feed_forward.w_1.bias.data[:] += 1.0


def change_within_inference_mode(model):
    with torch.inference_mode():
        model.decoder.layers[2].feed_forward.w_1.weight.mul_(-1)


def change_through_numpy(model):
    model.output_projection.weight.detach().numpy()[:] *= 1.5


def load_others(model):
    model.load_state_dict({name: 0.9 * x.flip(0) for name, x in model.state_dict().items()})


def load_others_by_assigning(model):
    others = {name: 0.9 * x.flip(0) for name, x in model.state_dict().items()}
    model.load_state_dict(others, assign=True)


def exchange_a_parameter(model):
    attention = model.decoder.layers[0].self_attention
    attention.w_k.weight = nn.Parameter(randn(12, 12, seed=8))


def exchange_a_layer(model):
    attention = model.decoder.layers[0].self_attention
    attention.w_q = nn.Linear(12, 12)
    nn.init.ones_(attention.w_q.weight)


CHANGES = {
    "in place": with_parameters(lambda p: p.mul_(1.3)),
    "data in place": with_parameters(lambda p: p.data.mul_(1.3)),
    "other data": with_parameters(exchange_columns),
    "columns": with_parameters(exchange_columns_where_they_lie),
    "rows": exchange_rows,
    "one number": change_one_number,
    "one bias": change_one_bias,
    "inference mode": change_within_inference_mode,
    "numpy": change_through_numpy,
    "loaded": load_others,
    "assigned": load_others_by_assigning,
    "a parameter": exchange_a_parameter,
    "a layer": exchange_a_layer,
    "AdamW": lambda model: trained(model, lambda p: torch.optim.AdamW(p, 0.1, fused=True)),
    "SGD": lambda model: trained(model, lambda p: torch.optim.SGD(p, 0.5, foreach=True)),
    "initialised": lambda model: model.initialise(torch.Generator().manual_seed(9)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_weights_changes_what_is_scored(change):
    model = small_model()
    before = scores(model)
    change(model)
    after = scores(model)
    with torch.no_grad():
        assert_same(after, model(SRC_IDS, TGT_IDS[:, :4]).float())
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_dtypes_are_written_with(dtype):
    model = small_model()
    generate(model, SRC_IDS, **OPTIONS)
    model.to(dtype)
    with torch.no_grad():
        found, expected = scores(model), model(SRC_IDS, TGT_IDS[:, :4]).float()
    assert_same(found, expected, 0.2 if dtype != torch.float64 else 1e-5)
    model.float()
    with torch.no_grad():
        assert_same(scores(model), model(SRC_IDS, TGT_IDS[:, :4]))


def test_weights_are_turned_once():
    linear = nn.Linear(5, 7)
    first = turned([linear])
    assert torch.equal(first, linear.weight.T)
    assert first.is_contiguous()
    assert turned([linear]) is first
    with torch.inference_mode():
        assert turned([linear]) is first


def test_maps_lie_side_by_side():
    maps = [nn.Linear(5, width) for width in (4, 2, 3)]
    assert torch.equal(turned(maps), torch.cat([part.weight for part in maps]).T)
    maps[2].weight.data[1, 1] = 3.0
    assert torch.equal(turned(maps), torch.cat([part.weight for part in maps]).T)
    assert torch.equal(turned(maps[:1]), maps[0].weight.T)  # the same first one, but alone


def test_weights_that_give_the_same_but_have_another_shape_are_turned():
    linear = nn.Linear(5, 7)
    linear.weight.data.zero_()
    turned([linear])
    linear.weight.data = torch.zeros(7, 6)
    assert turned([linear]).shape == (6, 7)


def test_nothing_is_kept_in_the_model():
    model = small_model()
    names, size = list(model.state_dict()), len(pickle.dumps(model))
    generate(model, SRC_IDS, **OPTIONS)
    assert list(model.state_dict()) == names
    assert len(pickle.dumps(model)) <= size + 100


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_copy_and_original_write_with_their_own_weights(how):
    model = small_model()
    before = scores(model)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert_same(scores(other), before, 0)
    with_parameters(lambda p: p.mul_(-1.2))(other)
    assert (scores(other) - before).abs().max() > 1e-3
    assert_same(scores(model), before, 0)


def test_what_is_kept_goes_with_its_model():
    gc.collect()
    before = len(KEPT)
    model = small_model()
    generate(model, SRC_IDS, **OPTIONS)
    assert len(KEPT) > before
    del model
    gc.collect()
    assert len(KEPT) == before


def test_threads_write_the_same():
    models = [decoder_only_model(), decoder_only_model(num_kv_heads=1)]
    prompts = torch.tensor([[8, 3, 28, 5]])
    with fast.disabled():
        expected = [generate(model, prompts, **OPTIONS) for model in models]
    found = {}

    def write(number):
        found[number] = [
            generate(models[(number + turn) % 2], prompts, **OPTIONS) for turn in range(4)
        ]

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for number, texts in found.items():
        for turn, text in enumerate(texts):
            assert torch.equal(text, expected[(number + turn) % 2])


def test_model_can_be_trained_between_texts():
    """Tensors of inference mode are kept; nothing of them must reach what is trained."""
    model = small_model()
    for _ in range(2):
        generate(model, SRC_IDS, **OPTIONS)
        trained(model, lambda parameters: torch.optim.SGD(parameters, 0.1))
    assert_same(scores(model), model(SRC_IDS, TGT_IDS[:, :4]).detach())
