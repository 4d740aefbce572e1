"""Right answers to the exercises of chapter 15, written differently from the solutions."""

import math

import numpy as np
import torch

from minitransformer.efficient_attention import flash_attention_with_lse, merge_attention

# Changes of these answers that change nothing.
SAME = {
    "bias_as_rule_2: line 1.0",
    "bias_as_rule_2: line -1.0",
    "bias_as_rule_2: line max(score, largest)",
    "ring_1: line torch.ones(size, size)",
    "ring_2: line same(positions)",
    "ring_2: line 1",
    "ring_2: line -1",
    "ring_2: line 0",
    "state_that_fades_2: line max(0, i - j)",
    "state_that_fades_2: line -1",
}

merge_1 = 7 / 4
merge_2 = np.average([4.0, 1.0], weights=[2, 6])


def where_it_hurts_1(memory, heads, layers, width):
    numbers = memory / 2
    return [int((numbers / heads) ** 0.5), int(numbers / (2 * layers * heads * width))]


def where_it_hurts_2(memory, heads, layers, width):
    one_position = layers * heads * (width + width) * 2
    return np.sqrt(memory / heads / 2), memory / one_position


def bias_as_rule_1(query, key, value, size, bias):
    parts = []
    rows = torch.arange(query.size(0)).unsqueeze(1)
    for columns in torch.arange(key.size(0)).split(size):
        scores = query @ key[columns].mT / math.sqrt(query.size(1)) + bias(rows, columns[None])
        parts.append((scores.softmax(1) @ value[columns], scores.logsumexp(1)))
    return merge_attention(parts)[0]


def bias_as_rule_2(query, key, value, size, bias):
    output = torch.zeros(len(query), value.shape[1])
    for i, q in enumerate(query):
        largest, total, mixed = -math.inf, 0.0, 0.0
        for j, (k, v) in enumerate(zip(key, value, strict=True)):
            score = float(q @ k) / len(q) ** 0.5 + float(bias(torch.tensor(i), torch.tensor(j)))
            new = max(largest, score)
            shrink = math.exp(largest - new)
            weight = math.exp(score - new)
            total = total * shrink + weight
            mixed = mixed * shrink + weight * v
            largest = new
        output[i] = mixed / total
    return output


def ring_1(query, key, value, devices):
    size = len(query) // devices
    held = [
        (key[i * size : i * size + size], value[i * size : i * size + size]) for i in range(devices)
    ]
    parts = [[] for _ in range(devices)]
    idle = 0
    for step in range(devices):
        for device in range(devices):
            begin = (device + step) % devices * size
            mask = torch.ones(size, size).tril(device * size - begin) > 0
            idle += not mask.any()
            mine = query[device * size : device * size + size]
            parts[device].append(
                flash_attention_with_lse(mine, *held[(device + step) % devices], mask)
            )
    return torch.cat([merge_attention(some)[0] for some in parts]), idle


def ring_2(query, key, value, devices):
    numerator = torch.zeros(len(query), value.size(1))
    denominator = torch.zeros(len(query), 1)
    positions = torch.arange(len(query)).reshape(devices, -1)
    idle = 0
    for own in positions:
        for theirs in positions.flip(0):
            if theirs[0] > own[-1]:
                idle += 1
                continue
            scores = torch.einsum("qe,ke->qk", query[own], key[theirs]) / query.size(1) ** 0.5
            powers = scores.exp() * (own[:, None] >= theirs)
            numerator[own] += powers @ value[theirs]
            denominator[own] += powers.sum(dim=1, keepdim=True)
    return numerator / denominator, idle


def state_that_fades_1(query, key, value, gamma):
    output = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        for j in range(i + 1):
            output[i] += gamma ** (i - j) * float(query[i] @ key[j]) * value[j].numpy()
    return output


def state_that_fades_2(query, key, value, gamma):
    n = len(query)
    powers = torch.tensor([[gamma ** max(i - j, 0) for j in range(n)] for i in range(n)])
    return torch.einsum("qe,ke,qk,kv->qv", query, key, powers.tril(), value)
