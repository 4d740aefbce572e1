"""Right answers to the exercises of chapter 13, written differently from the solutions."""

import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "fold_the_root_1: line 1",
    "fold_the_root_1: line -1",
    "longer_than_trained_1: line -1",
    "never_a_target_1: line -1",
}


def count_before_cutting_1(n, rate, mean_length):
    out = round(n * rate)
    spans = round(out / mean_length)
    return [n - out + spans, out + spans]


def count_before_cutting_2(n, rate, mean_length):
    sentinels = n * rate / mean_length
    target = n * rate + sentinels
    return n + 2 * sentinels - target, target


def never_a_target_1(logits, targets):
    logits.requires_grad_()
    kept = targets != 0
    logs = logits[kept].log_softmax(dim=1)
    loss = -logs[torch.arange(len(logs)), targets[kept]].mean()
    return torch.autograd.grad(loss, logits)[0]


def never_a_target_2(logits, targets):
    p = np.exp(logits.numpy())
    p /= p.sum(axis=1, keepdims=True)
    for place, target in enumerate(targets.tolist()):
        p[place, target] -= 1
        p[place] *= target != 0
    return p / np.count_nonzero(targets)


def longer_than_trained_1(answer, lists):
    right, count = {}, {}
    for words in lists:
        found = answer([f"reverse: {' '.join(words)}"])[0]
        right[len(words)] = right.get(len(words), 0) + (found == " ".join(words[::-1]))
        count[len(words)] = count.get(len(words), 0) + 1
    return {length: right[length] / count[length] for length in count}


def longer_than_trained_2(answer, lists):
    answers = answer(["reverse: " + " ".join(words) for words in lists])
    marks = [a.split() == [*reversed(words)] for a, words in zip(answers, lists, strict=True)]
    lengths = [len(words) for words in lists]
    return {
        length: np.mean([mark for mark, own in zip(marks, lengths, strict=True) if own == length])
        for length in set(lengths)
    }


def probabilities_of_labels_1(model, src, tgt, labels):
    losses = torch.nn.functional.cross_entropy(
        model(src, tgt).permute(0, 2, 1), labels, ignore_index=0, reduction="none"
    )
    return -losses.sum(dim=1)


def probabilities_of_labels_2(model, src, tgt, labels):
    logits = model(src, tgt).tolist()
    found = [0.0] * len(labels)
    for b, row in enumerate(labels.tolist()):
        for place, token in enumerate(row):
            if token != 0:
                total = sum(math.exp(score) for score in logits[b][place])
                found[b] += logits[b][place][token] - math.log(total)
    return found


def fold_the_root_1(attention):
    width = attention.w_q.weight.size(0) // attention.num_heads
    with torch.no_grad():
        attention.w_k.weight.mul_(math.sqrt(width))


def fold_the_root_2(attention):
    root = attention.d_k**0.25
    for layer in (attention.w_q, attention.w_k):
        layer.weight = torch.nn.Parameter(layer.weight * root)
    return attention
