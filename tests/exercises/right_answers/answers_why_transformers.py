"""Right answers to the exercises of chapter 0, written differently from the solutions."""

import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "fixed_state_1: line torch.zeros(d, d)",
    "fixed_state_1: line 49",
    "fixed_state_1: line 51",
    "fixed_state_2: line 0",
    "how_long_2: line 10",
    "how_long_2: line 8",
}


def how_long_1(a, share):
    n, weight = 1, 1.0
    while weight >= share:
        n, weight = n + 1, weight * a
    return n


def how_long_2(a, share):
    return math.floor(round(math.log(share) / math.log(a), 9)) + 2


other_two_tokens_1 = (1.575, 1.0)
other_two_tokens_2 = torch.tensor([1.5752, 1.0])


def where_the_square_hurts_1(n, d):
    return 4 * n * d**2 + 2 * n**2 * d, 8 * n * d**2


def where_the_square_hurts_2(n, d):
    return 2 * n * d * (2 * d + n), n * 2 * d * 4 * d


def no_queue_1(a, x):
    rounds, reach = 0, 1
    while reach < len(x):
        before = torch.zeros_like(x)
        before[reach:] = x[:-reach]
        factors = torch.ones_like(a)
        factors[reach:] = a[:-reach]
        x, a = x + a * before, a * factors
        rounds, reach = rounds + 1, reach * 2
    return x, rounds


def no_queue_2(a, x):
    if len(x) == 1:
        return x.numpy(), 0
    half = 1 << (len(x) - 1).bit_length() - 1  # solve both halves, then carry the state over
    left, rounds = no_queue_2(a[:half], x[:half])
    right, _ = no_queue_2(a[half:], x[half:])
    carried = np.cumprod(a[half:].numpy()) * left[-1]
    return np.concatenate([left, right + carried]), rounds + 1


def fixed_state_1(keys, values):
    d = keys.size(1)
    memory = torch.zeros(d, d)
    for key, value in zip(keys, values, strict=True):
        memory += torch.outer(value, key)
    read = torch.stack([memory @ key for key in keys])
    powers = (50 * (keys @ keys.T) - 50).exp()
    return read, powers @ values / powers.sum(1, keepdim=True)


def fixed_state_2(keys, values):
    products = (keys @ keys.T).numpy()
    weights = np.exp(50 * products)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("qm,md->qd", products, values.numpy()), weights @ values.numpy()
