"""Right answers to the exercises of chapter 14, written differently from the solutions."""

import numpy as np
import torch
from einops import rearrange

# Changes of these answers that change nothing.
SAME = {
    "a_head_that_is_a_convolution_1: line 199.0",
    "a_head_that_is_a_convolution_1: line 201.0",
    "a_head_that_is_a_convolution_1: line max(place // columns * columns, place - 1)",
    "a_head_that_is_a_convolution_1: line torch.zeros(n, n)",
    "a_head_that_is_a_convolution_2: line 11",
    "a_head_that_is_a_convolution_2: line 9",
}


def count_1(size, side, channels, d):
    tokens = (size // side) * (size // side) + 1
    return tokens, d * (channels * side * side + tokens + 2)


def count_2(size, side, channels, d):
    tokens = 1 + len(range(0, size, side)) ** 2
    shapes = [(channels, side, side, d), (d,), (1, d), (tokens, d)]
    return [tokens, sum(np.prod(shape) for shape in shapes)]


def there_and_back_1(patches, rows, high, wide):
    pattern = "b (r s) (c y x) -> b c (r y) (s x)"
    return rearrange(patches, pattern, r=rows, y=high, x=wide)


def there_and_back_2(patches, rows, high, wide):
    columns = patches.shape[1] // rows
    channels = patches.shape[2] // (high * wide)
    pictures = np.zeros((len(patches), channels, rows * high, columns * wide))
    for place in range(rows * columns):
        top = place // columns * high
        left = place % columns * wide
        patch = patches[:, place].numpy().reshape(len(patches), channels, high, wide)
        pictures[:, :, top : top + high, left : left + wide] = patch
    return pictures


def two_tables_1(of_rows, of_columns):
    repeated = of_rows.repeat_interleave(len(of_columns), dim=0)
    return repeated + of_columns.repeat(len(of_rows), 1)


def two_tables_2(of_rows, of_columns):
    columns = len(of_columns)
    places = np.arange(len(of_rows) * columns)
    return of_rows.numpy()[places // columns] + of_columns.numpy()[places % columns]


def what_a_patch_costs_1(size, side, d, f, layers):
    n = (size / side) ** 2 + 1
    return size * size * d, 2 * layers * n * d * (2 * d + f), 2 * layers * d * n**2


def what_a_patch_costs_2(size, side, d, f, layers):
    patches = (size // side) ** 2
    matrices = 0
    attention = 0
    for _ in range(layers):
        for _ in range(patches + 1):
            matrices += 4 * d * d + 2 * d * f
            attention += 2 * d * (patches + 1)
    return [patches * side * side * d, matrices, attention]


def a_head_that_is_a_convolution_1(rows, columns):
    n = rows * columns
    w_q = torch.zeros(n, n)
    for place in range(n):
        w_q[place, max(place - 1, place // columns * columns)] = 200.0
    return torch.eye(n), w_q, torch.eye(n)


def a_head_that_is_a_convolution_2(rows, columns):
    n = rows * columns
    looks_at = np.arange(n)
    looks_at[looks_at % columns > 0] -= 1
    positions = 10 * np.eye(n)
    return [positions, np.eye(n), 10 * np.eye(n)[looks_at].T]
