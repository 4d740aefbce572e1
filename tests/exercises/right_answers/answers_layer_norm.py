"""Right answers to the exercises of chapter 7, written differently from the solutions."""

import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = set()

layer_norm_by_hand_1 = [[-0.905, -0.905, 0.302, 1.508], [-0.905, -0.905, 0.302, 1.508]]
layer_norm_by_hand_2 = np.tile(np.array([-3.0, -3.0, 1.0, 5.0]) / 11**0.5, (2, 1))


def repair_weights_1(weight):
    d = weight.numel()
    return [float(number) * math.sqrt(1 - 1 / d) for number in weight]


def repair_weights_2(weight):
    row = np.arange(len(weight))
    weight *= row.std() / row.std(ddof=1)
    return weight


def identity_path_1(share, sublayers, v):
    return (v / (share ** (-2 / sublayers) - 1)) ** 0.5


def identity_path_2(share, sublayers, v):
    squared = torch.tensor(share, dtype=torch.float64) ** (2 / sublayers)
    return (squared * v / (1 - squared)).sqrt()


def learn_1(losses, tokens):
    shares = [tokens.count(token) / len(tokens) for token in set(tokens)]
    return sum(losses[-10:]) / 10 / -sum(share * math.log(share) for share in shares)


def learn_2(losses, tokens):
    _, counts = np.unique(tokens, return_counts=True)
    unigram = np.log(len(tokens)) - (counts * np.log(counts)).sum() / len(tokens)
    return np.mean(losses[len(losses) - 10 :]) / unigram


def into_rms_norm_1(weights):
    new = dict(weights)
    first, second = new.pop("residual_1.norm.bias"), new.pop("residual_2.norm.bias")
    for name in ("self_attention.w_q", "self_attention.w_v"):  # a key's constant changes nothing
        new[f"{name}.bias"] = torch.addmv(new[f"{name}.bias"], new[f"{name}.weight"], first)
    new["feed_forward.w_1.bias"] = weights["feed_forward.w_1.bias"] + (
        weights["feed_forward.w_1.weight"] @ second
    )
    d = len(first)
    centre = torch.eye(d) - 1 / d
    for name in ("self_attention.w_o", "feed_forward.w_2"):
        for part in ("weight", "bias"):
            new[f"{name}.{part}"] = centre @ new[f"{name}.{part}"]
    return new


def into_rms_norm_2(weights):
    betas = {norm: weights.pop(f"residual_{norm}.norm.bias") for norm in (1, 2)}
    readers = {f"self_attention.w_{letter}": 1 for letter in "qkv"} | {"feed_forward.w_1": 2}
    for name, norm in readers.items():
        weights[f"{name}.bias"] += (weights[f"{name}.weight"] * betas[norm]).sum(1)
    for name in ("self_attention.w_o", "feed_forward.w_2"):
        weights[f"{name}.weight"] -= weights[f"{name}.weight"].mean(0)
        weights[f"{name}.bias"] -= weights[f"{name}.bias"].mean()
    return weights
