"""Linear attention is one function in three forms, and not the softmax."""

import pytest
import torch
from helpers import assert_same, randn, refuses
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minitransformer import causal_mask, scaled_dot_product_attention
from minitransformer.efficient_attention import (
    delta_rule,
    elu_features,
    linear_attention,
    linear_attention_of_all_pairs,
    linear_attention_step,
    softmax_features,
)

B, H, E, V = 2, 3, 4, 6
FEATURES = {"elu": elu_features, "softmax": softmax_features(randn(9, E, seed=7))}
each_features = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
each_length = pytest.mark.parametrize("n", [1, 2, 13])


def inputs(q, k):
    options = {"dtype": torch.float64, "grad": True}
    return (
        randn(B, H, q, E, seed=1, **options),
        randn(B, H, k, E, seed=2, **options),
        randn(B, H, k, V, seed=3, **options),
    )


def padding(k):
    mask = randn(B, 1, 1, k, seed=4) > 0
    mask[0] = False  # nothing can be seen there
    return mask


def assert_same_with_gradients(ours, theirs, tensors):
    assert_same(ours, theirs, 1e-11)
    seed = randn(*ours.shape, seed=6, dtype=torch.float64)
    for pair in zip(
        torch.autograd.grad(ours, tensors, seed),
        torch.autograd.grad(theirs, tensors, seed),
        strict=True,
    ):
        assert_same(*pair, 1e-11)


@each_features
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("q", "k"), [(5, 7), (1, 9), (13, 4)])
def test_sums_equal_pairs(features, padded, q, k):
    tensors, mask = inputs(q, k), padding(k) if padded else None
    assert_same_with_gradients(
        linear_attention(*tensors, mask, features=features),
        linear_attention_of_all_pairs(*tensors, mask, features=features),
        tensors,
    )


@each_length
@each_features
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("block_size", [1, 3, 64])
def test_sums_over_prefixes_equal_pairs_with_a_causal_mask(n, features, before, block_size):
    tensors = inputs(n, before + n)
    mask = causal_mask(n, before + n)
    assert_same_with_gradients(
        linear_attention(*tensors, "causal", features=features, block_size=block_size),
        linear_attention_of_all_pairs(*tensors, mask, features=features),
        tensors,
    )


@each_length
@each_features
def test_one_step_after_the_other_gives_the_same(n, features):
    query, key, value = tensors = inputs(n, n)
    state, outputs = None, []
    for i in range(n):
        step = query[..., i, :], key[..., i, :], value[..., i, :]
        output, state = linear_attention_step(*step, state, features=features)
        outputs.append(output)
    whole = linear_attention(*tensors, "causal", features=features)
    assert_same_with_gradients(torch.stack(outputs, dim=-2), whole, tensors)
    assert state[0].shape[:2] == (B, H)
    assert state[0][0, 0].numel() == features(query).size(-1) * V  # whatever the length


def test_more_directions_come_closer_to_the_softmax():
    query, key, value = (x.detach() for x in inputs(5, 7))
    expected = scaled_dot_product_attention(query, key, value)

    def error(num_features):
        directions = randn(num_features, E, seed=8, dtype=torch.float64)
        features = softmax_features(directions)
        return (linear_attention(query, key, value, features=features) - expected).abs().mean()

    assert error(100_000) < error(1_000) / 3 < error(10) / 9
    assert (linear_attention(query, key, value) - expected).abs().mean() > 10 * error(100_000)


@pytest.mark.parametrize("gated", [False, True])
def test_delta_rule_equals_its_loop(gated):
    query, key, value = (x.detach() for x in inputs(7, 7))
    strength, decay = (randn(B, H, 7, seed=s, dtype=torch.float64).sigmoid() for s in (5, 6))
    output = delta_rule(query, key, value, strength, decay if gated else None)
    for b in range(B):
        for h in range(H):
            state = torch.zeros(E, V, dtype=torch.float64)
            for n in range(7):
                k = key[b, h, n] / key[b, h, n].norm()
                if gated:
                    state = decay[b, h, n] * state
                old = state.T @ k
                state = state + strength[b, h, n] * torch.outer(k, value[b, h, n] - old)
                assert_same(output[b, h, n], state.T @ query[b, h, n], 1e-12)


class Made(TorchDispatchMode):
    """Adds up the elements of all that operations return."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.numbers += sum(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        return result


def test_gradients_of_the_delta_rule_cost_n_and_not_its_square():
    made = []
    for n in (40, 80):
        tensors = [randn(n, E, seed=s, grad=True) for s in (1, 2, 3)]
        strength, decay = (randn(n, seed=s, grad=True) for s in (4, 5))
        with Made() as counting:
            delta_rule(*tensors, strength, decay).sum().backward()
        made.append(counting.numbers)
    assert made[1] / made[0] < 2.1


def test_delta_rule_replaces_where_sums_only_add():
    key = torch.eye(3)[[0, 1, 0, 2]]
    value = torch.tensor([[1.0], [2.0], [7.0], [4.0]])
    replaced = delta_rule(key, key, value, torch.ones(4))
    assert replaced.flatten().tolist() == [1, 2, 7, 4]
    added = linear_attention(key, key, value, "causal", features=lambda x: x)
    assert added[2].item() == 4  # the mean of 1 and 7


QUERY, KEY, VALUE = inputs(5, 7)
test_what_does_not_fit_is_refused = refuses(
    ("one for 5", lambda: linear_attention(QUERY, KEY, VALUE, torch.ones(5, 7) > 0)),
    ("got 7 and 6", lambda: linear_attention(QUERY, KEY, VALUE[..., :6, :])),
    (r"shape \(2, 3, 7\), got \(7,\)", lambda: delta_rule(KEY, KEY, VALUE, torch.ones(7))),
    ("width 4, got 6", lambda: FEATURES["softmax"](VALUE)),
)
