"""Right answers to the exercises of chapter 3, written differently from the solutions."""

import math

import numpy as np
import torch

from minitransformer.layers.positional_encoding import rotary_frequencies

# Changes of these answers that change nothing.
SAME = {
    "left_and_right_2: line torch.ones(n, n)",
    "vector_for_each_distance_2: line max(min(r, j - i), -r)",
    "vector_for_each_distance_2: line min(j - i, r)",
}


def same_hand_later_1(i, d):
    return np.exp(2 * i / d * np.log(10000))


def same_hand_later_2(i, d):
    turn = 10000 ** (-2 * i / d)
    return 1 / turn


def million_positions_1(wavelength, e):
    return math.exp(math.log(wavelength / 2 / math.pi) * e / (e - 2))


def million_positions_2(wavelength, e):
    slowest = e // 2 - 1
    return torch.tensor(wavelength / math.tau) ** (e / 2 / slowest)


def left_and_right_1(num_heads, n):
    def sees(h, i, j):
        return j <= i if h < num_heads / 2 else j >= i

    return [[[[sees(h, i, j) for j in range(n)] for i in range(n)] for h in range(num_heads)]]


def left_and_right_2(num_heads, n):
    mask = torch.ones(1, num_heads, n, n).bool()
    mask[:, : num_heads // 2].logical_and_(torch.ones(n, n).tril().bool())
    mask[:, num_heads // 2 :] &= torch.ones(n, n).triu().bool()
    return mask


def vector_for_each_distance_1(query, key, vectors):
    r = len(vectors) // 2
    c = (np.arange(len(key)) - np.arange(len(query))[:, None]).clip(-r, r)
    return torch.einsum("qe,qke->qk", query, key + vectors[c + r])


def vector_for_each_distance_2(query, key, vectors):
    scores = torch.zeros(len(query), len(key))
    r = len(vectors) // 2
    for i in range(len(query)):
        for j in range(len(key)):
            c = max(-r, min(r, j - i))
            scores[i, j] = query[i] @ key[j] + query[i] @ vectors[r + c]
    return scores


def stretching_1(e, factor, method):
    if method == "interpolated":
        return rotary_frequencies(e) / factor
    return rotary_frequencies(e, 10000 * factor ** (e / (e - 2)))


def stretching_2(e, factor, method):
    """The first pair and the last are known, and between them is a geometric series."""
    usual = [10000 ** (-2 * pair / e) for pair in range(e // 2)]
    slower = np.geomspace(1, factor, e // 2) if method == "larger base" else factor
    return np.array(usual) / slower
