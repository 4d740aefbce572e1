"""Right answers to the exercises of chapter 12, written differently from the solutions."""

import copy
import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "is_alpha_a_rate_1: line b_gradient >= 0",
    "too_sure_1: line -1.0",
    "too_sure_1: line 1.0",
    "too_sure_1: line max(0.0, z)",
    "too_sure_2: line +1",
    "too_sure_2: line 0",
    "too_sure_2: line 2",
}


def count_smollm2_1(d, f, vocab_size, layers, heads, kv):
    width = d // heads
    total = (vocab_size + 1) * d
    for _ in range(layers):
        total += 2 * d * (d + kv * width) + 3 * d * f + 2 * d
    return total


def count_smollm2_2(d, f, vocab_size, layers, heads, kv):
    narrow = kv * (d / heads)
    shapes = [(d, d), (narrow, d), (narrow, d), (d, d), (f, d), (f, d), (d, f), (d,), (d,)]
    return layers * sum(np.prod(shape) for shape in shapes) + np.prod((vocab_size, d)) + d


def too_sure_1(v, z):
    largest = max(z, 0.0)
    total = math.exp(z - largest) + (v - 1) * math.exp(-largest)
    return largest + math.log(total) - z / v


def too_sure_2(v, z):
    logits = np.zeros(v)
    logits[-1] = z
    powers = np.logaddexp.reduce(logits)
    return np.mean([powers - logit for logit in logits])


def which_one_starts_at_zero_1(a, b, x, g, s):
    of_a = s * torch.einsum("no,or,ni->ri", g, b, x)
    of_b = s * torch.einsum("no,ri,ni->or", g, a, x)
    return of_a, of_b


def which_one_starts_at_zero_2(a, b, x, g, s):
    of_a = np.zeros(a.shape)
    of_b = np.zeros(b.shape)
    for row, arriving in zip(x.numpy(), g.numpy(), strict=True):
        of_a += s * np.outer(b.numpy().T @ arriving, row)
        of_b += s * np.outer(arriving, a.numpy() @ row)
    return [of_a, of_b]


def is_alpha_a_rate_1(a, b_gradient, alpha, rate):
    b = torch.where(b_gradient > 0, -rate, rate) * (b_gradient != 0)
    return torch.einsum("or,ri->oi", b, a) * alpha / a.size(0)


def is_alpha_a_rate_2(a, b_gradient, alpha, rate):
    steps = np.sign(b_gradient.numpy()) * rate
    return -alpha / a.shape[0] * steps @ a.numpy()


def without_gains_1(model):
    model = copy.deepcopy(model)
    for layer in model.decoder.layers:
        attention, network = layer.self_attention, layer.feed_forward
        first = torch.diag(layer.residual_1.norm.weight.detach())
        second = layer.residual_2.norm.weight.detach()
        attention.w_q.weight.data = attention.w_q.weight.data @ first
        attention.w_k.weight.data = attention.w_k.weight.data @ first
        attention.w_v.weight.data = attention.w_v.weight.data @ first
        network.w_1.weight.data = torch.einsum("fd,d->fd", network.w_1.weight.data, second)
        network.w_3.weight.data = torch.einsum("fd,d->fd", network.w_3.weight.data, second)
        torch.nn.init.ones_(layer.residual_1.norm.weight)
        torch.nn.init.ones_(layer.residual_2.norm.weight)
    model.output_projection.weight.data *= model.decoder.norm.weight.data
    torch.nn.init.ones_(model.decoder.norm.weight)
    return model


@torch.no_grad()
def without_gains_2(model):
    weights = model.state_dict()
    for name in weights:
        if not name.endswith("norm.weight"):
            continue
        layer = name.split("residual")[0]
        readers = ["output_projection.weight"]
        if "residual_1" in name:
            readers = [f"{layer}self_attention.{part}.weight" for part in ("w_q", "w_k", "w_v")]
        if "residual_2" in name:
            readers = [f"{layer}feed_forward.{part}.weight" for part in ("w_1", "w_3")]
        for reader in readers:
            weights[reader].mul_(weights[name])
        weights[name].fill_(1)
