"""Right answers to the exercises of chapter 18, written differently from the solutions."""

import math

import numpy as np
import torch

# Changes of these answers that change nothing.
SAME = {
    "bubble_1: line 0",
    "bubble_1: line 499",
    "bubble_1: line 501",
    "fit_1: line 0",
    "fit_1: line max(-int(-parameters * shared // left), 1)",
    "fit_2: line 999",
    "fit_2: line 1001",
    "norm_of_shards_1: line length >= 1",
    "norm_of_shards_2: line np.minimum(squares.numpy() ** (-0.5), 1.0)",
    "sharded_adam_1: line -1",
}


def fit_1(parameters, room, whole, shared):
    left = room - parameters * whole
    if left <= 0:
        return None
    return max(1, -int(-parameters * shared // left))


def fit_2(parameters, room, whole, shared):
    for p in range(1, 1000):
        if parameters * whole + parameters * shared / p <= room:
            return p
    return None


def bubble_1(stages, bubble):
    for m in range(1, 500):
        if (stages - 1) < bubble * (m + stages - 1):
            return m
    return None


def bubble_2(stages, bubble):
    return math.floor((stages - 1) / bubble - (stages - 1)) + 1


def norm_of_shards_1(shard, dist):
    length = torch.tensor([sum(x * x for x in shard.tolist())])
    dist.all_reduce(length)
    if length > 1:
        shard /= math.sqrt(length)
    return shard


def norm_of_shards_2(shard, dist):
    squares = torch.linalg.vector_norm(shard) ** 2
    dist.all_reduce(squares)
    return (shard.numpy() * np.minimum(1.0, squares.numpy() ** -0.5)).tolist()


def sharded_adam_1(rank, count, weights, lr, dist):
    share = math.ceil(len(weights) / count)
    first, second = torch.zeros(share), torch.zeros(share)
    padding = torch.zeros(share * count - len(weights))
    held = torch.cat([weights, padding])
    done = [0]

    def step(gradient):
        done[0] += 1
        own = torch.empty(share)
        dist.reduce_scatter_tensor(own, torch.cat([gradient, padding]))
        first.mul_(0.9).add_(0.1 * own)
        second.mul_(0.999).add_(0.001 * own.square())
        top = first / (1 - 0.9 ** done[0])
        bottom = (second / (1 - 0.999 ** done[0])).sqrt() + 1e-8
        mine = held.view(count, share)[rank] - lr * top / bottom
        dist.all_gather_into_tensor(held, mine)
        return held[: len(weights)], first.numel() + second.numel()

    return step


def sharded_adam_2(rank, count, weights, lr, dist):
    padding = -len(weights) % count
    padded = torch.nn.functional.pad(weights, [0, padding])
    own = torch.nn.Parameter(padded.reshape(count, -1)[rank].clone())
    adam = torch.optim.Adam([own], lr=lr)

    def step(gradient):
        dist.all_reduce(gradient)
        everything = torch.nn.functional.pad(gradient, [0, padding])
        own.grad = everything.reshape(count, -1)[rank]
        adam.step()
        parts = [torch.zeros(len(own)) for _ in range(count)]
        dist.all_gather(parts, own.data)
        return [torch.cat(parts)[: len(weights)], own.numel() + own.numel()]

    return step


def vocabulary_1(rank, logits, targets, dist):
    largest = logits.max(dim=1).values
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    total = torch.exp(logits - largest[:, None]).sum(dim=1)
    dist.all_reduce(total)
    chosen = torch.zeros(len(targets))
    for i, target in enumerate(targets.tolist()):
        if target // logits.size(1) == rank:
            chosen[i] = logits[i, target % logits.size(1)]
    dist.all_reduce(chosen)
    return torch.mean(torch.log(total) + largest - chosen)


def vocabulary_2(rank, logits, targets, dist):
    n, v = logits.shape
    largest = logits.logsumexp(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    columns = torch.arange(rank * v, rank * v + v)
    at_target = (logits * (columns == targets.unsqueeze(1))).sum(1)
    both = torch.stack([(logits.logsumexp(1) - largest).exp(), at_target])
    dist.all_reduce(both)
    total, chosen = both.numpy()
    return float((np.log(total) + largest.numpy() - chosen).sum() / n)
