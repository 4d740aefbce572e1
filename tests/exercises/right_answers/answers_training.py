"""Right answers to the exercises of chapter 9, written differently from the solutions."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from minitransformer import label_smoothing_loss

# Changes of these answers that change nothing.
SAME = {
    "where_the_schedule_peaks_2: line min(s * warmup_steps ** (-1.5), s ** (-0.5))",
    "where_the_schedule_peaks_2: line 2",
    "where_the_schedule_peaks_2: line 4",
}


def perplexity_1(probs):
    return math.exp(-sum(math.log(p) for p in probs.tolist()) / len(probs))


def perplexity_2(probs):
    return (1 / probs).log().mean().exp()


def where_the_schedule_peaks_1(d_model, warmup_steps):
    return 1 / math.sqrt(d_model * warmup_steps)


def where_the_schedule_peaks_2(d_model, warmup_steps):
    rates = [min(s**-0.5, s * warmup_steps**-1.5) for s in range(1, warmup_steps + 3)]
    return d_model**-0.5 * max(rates)


def smoothed_target_as_a_matrix_1(logits, targets, smoothing):
    n, v = logits.shape
    q = np.full((n, v), smoothing / v)
    q[np.arange(n), targets.numpy()] += 1 - smoothing
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    return q, (q * np.log(q / p)).sum(1).mean()


def smoothed_target_as_a_matrix_2(logits, targets, smoothing):
    one_hot = F.one_hot(targets, logits.size(1))
    q = (1 - smoothing) * one_hot + smoothing / logits.size(1)
    return [q, F.kl_div(F.log_softmax(logits, 1), q, reduction="sum") / len(q)]


def gradient_accumulation_1(model, batches):
    model.zero_grad()
    tokens = [int((batch[2] > 0).sum()) for batch in batches]
    for (src, read, target), count in zip(batches, tokens, strict=True):
        loss = label_smoothing_loss(model(src, read), target)
        (loss * count / sum(tokens)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_accumulation_2(model, batches):
    total, count = 0.0, 0
    for src, read, target in batches:
        real = target.ne(0).sum().item()
        loss = label_smoothing_loss(model(src, read), target)
        grads = torch.autograd.grad(loss, [*model.parameters()])
        total = total + real * np.concatenate([g.numpy().ravel() for g in grads])
        count += real
    return total / count


def how_much_data_1(train, test):
    known = set().union(*train)
    return sum(known.issuperset(text) for text in test) / len(test)


def how_much_data_2(train, test):
    right = 0
    for text in test:
        for word in text:
            if not any(word in other for other in train):
                break
        else:
            right += 1
    return right / len(test)
