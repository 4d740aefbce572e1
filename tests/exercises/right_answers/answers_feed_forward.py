"""Right answers to the exercises of chapter 6, written differently from the solutions."""

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "in_pieces_2: line -x.size(1) * size",  # pieces beyond the end are empty
    "let_it_through_2: line 11.0",
    "let_it_through_2: line shift / torch.ones(units)",
    "let_it_through_2: line -shift / torch.ones(d)",
    "gradient_by_hand_1: line np.maximum(0, X @ w_1 + b_1)",
    "gradient_by_hand_2: line asked >= 0",
}

another_row_1 = ([3, 14], [-1, 1])
another_row_2 = [np.array([3.0, 14.0]), torch.tensor([-3.0, 2.0])]


def let_it_through_1(d, units):
    eye = np.eye(d)
    if units == d:
        return 2 * eye, np.full(d, 25.0), eye / 2, np.full(d, -12.5)
    return np.hstack([-eye, eye]), np.zeros(units), np.vstack([-eye, eye]), np.zeros(d)


def let_it_through_2(d, units):
    w_1 = torch.zeros(d, units)
    for i in range(units):
        w_1[i // (units // d), i] = 1 - 2 * (i % (units // d))
    shift = 0.0 if units > d else 10.0
    return w_1, shift * torch.ones(units), w_1.T, -shift * torch.ones(d)


def the_larger_one_1():
    return [[-1, 1, -1], [1, 0, 0]], [0, 0, 0], [[1], [1], [-1]], [0]


def the_larger_one_2():
    halves = torch.tensor([[2.0], [0.5], [-0.5]])
    return torch.tensor([[0.5, 0, 0], [-0.5, 2, -2]]), torch.zeros(3), halves, torch.zeros(1)


def in_pieces_1(ffn, x, size):
    output = torch.empty_like(x)
    for start in range(0, x.size(1), size):
        output[:, start : start + size] = ffn(x[:, start : start + size])
    return output


def in_pieces_2(ffn, x, size):
    count = -(-x.size(1) // size)
    return torch.concatenate([ffn(x[:, i * size : (i + 1) * size]) for i in range(count)], 1)


def gradient_by_hand_1(X, w_1, b_1, w_2, b_2, G):
    X, w_1, b_1, w_2, G = (tensor.numpy() for tensor in (X, w_1, b_1, w_2, G))
    hidden = np.maximum(X @ w_1 + b_1, 0)
    to_asked = np.einsum("nd,fd->nf", G, w_2) * (hidden != 0)
    return (
        np.einsum("nf,df->nd", to_asked, w_1),
        np.einsum("nd,nf->df", X, to_asked),
        to_asked.sum(axis=0),
        np.einsum("nf,nd->fd", hidden, G),
        G.sum(axis=0),
    )


def gradient_by_hand_2(X, w_1, b_1, w_2, b_2, G):
    gradients = [torch.zeros_like(tensor) for tensor in (X, w_1, b_1, w_2, b_2)]
    for row, (x, g) in enumerate(zip(X, G, strict=True)):
        for unit in range(w_1.size(1)):
            asked = float(x @ w_1[:, unit] + b_1[unit])
            if asked > 0:
                back = float(g @ w_2[unit])
                gradients[0][row] += back * w_1[:, unit]
                gradients[1][:, unit] += back * x
                gradients[2][unit] += back
                gradients[3][unit] += asked * g
        gradients[4] += g
    return gradients
