"""Right answers to the exercises of chapter 4, written differently from the solutions."""

import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "derivative_1: line -1",
    "derivative_1: line torch.outer(w, w)",
    "hard_to_average_2: line key.transpose(1, 0)",
    "one_key_at_a_time_1: line -1",
    "one_key_at_a_time_2: line 1.0",
    "one_key_at_a_time_2: line -1.0",
    "one_key_at_a_time_2: line score >= largest",
    "sliding_window_2: line torch.ones(n, n, dtype=torch.bool)",
}

another_question_1 = [0.787, 0.1065, 0.1065]
another_question_2 = np.exp([2.0, 0.0, 0.0]) / np.exp([2.0, 0.0, 0.0]).sum()


def hard_to_average_1(query, key, value, c):
    return torch.nn.functional.scaled_dot_product_attention(c * query, key, value)


def hard_to_average_2(query, key, value, c):
    scores = c * (query @ key.transpose(0, 1)) / math.sqrt(query.size(1))
    powers = (scores - scores.max(dim=1, keepdim=True).values).exp()
    return powers @ value / powers.sum(dim=1, keepdim=True)


def sliding_window_1(n, size):
    return [[i - size < j <= i for j in range(n)] for i in range(n)]


def sliding_window_2(n, size):
    ones = torch.ones(n, n, dtype=torch.bool)
    return ones.tril() & ones.triu(1 - size)


def derivative_1(s):
    w = s.softmax(0)
    return torch.diag(w) - torch.outer(w, w)


def derivative_2(s):
    w = np.exp(s.numpy()) / np.exp(s.numpy()).sum()
    return [[w[i] * ((i == j) - w[j]) for j in range(len(w))] for i in range(len(w))]


def one_key_at_a_time_1(query, key, value):
    scores = key @ query / math.sqrt(len(query))
    return torch.softmax(scores, 0) @ value


def one_key_at_a_time_2(query, key, value):
    largest, total, mixture = -math.inf, 0.0, 0.0
    for k, v in zip(key, value, strict=True):
        score = float(query @ k) / len(query) ** 0.5
        if score > largest:
            shrink = math.exp(largest - score)
            total, mixture, largest = total * shrink, mixture * shrink, score
        total += math.exp(score - largest)
        mixture = mixture + math.exp(score - largest) * v
    return mixture / total
