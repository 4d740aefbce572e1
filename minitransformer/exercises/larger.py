"""The exercises of chapter 18, larger: processes are threads here, which share what they send."""

import math
from collections.abc import Callable
from threading import Barrier, BrokenBarrierError, Thread
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference

PATIENCE = 10
"""Seconds that one process waits for the others."""


class Process:
    """What one of several processes sees of `torch.distributed`; counts the numbers it sends."""

    ReduceOp = SimpleNamespace(SUM="sum", MAX="max")

    def __init__(self, rank: int, held: list[Any], barrier: Barrier) -> None:
        self.rank = rank
        self.held = held
        self.barrier = barrier
        self.sent = 0

    def get_rank(self) -> int:
        """This process's number."""
        return self.rank

    def get_world_size(self) -> int:
        """How many processes there are."""
        return len(self.held)

    def gathered(self, x: Tensor) -> list[Tensor]:
        """The tensors of all processes."""
        self.held[self.rank] = x.detach().clone()
        self.sent += x.numel()
        self.barrier.wait(PATIENCE)
        everything = list(self.held)
        self.barrier.wait(PATIENCE)  # only now may the next message take the place
        return everything

    def all_reduce(self, x: Tensor, op: str = "sum") -> None:
        """Leave the sum, or the maximum, of all in each."""
        stacked = torch.stack(self.gathered(x))
        x.detach().copy_(stacked.amax(0) if op == "max" else stacked.sum(0))

    def reduce_scatter_tensor(self, output: Tensor, whole: Tensor) -> None:
        """Leave this process's part of the sum in `output`."""
        total = torch.stack(self.gathered(whole)).sum(0)
        output.detach().copy_(total.view(len(self.held), -1)[self.rank])

    def all_gather_into_tensor(self, output: Tensor, part: Tensor) -> None:
        """Leave all parts in `output`, by rank."""
        output.detach().copy_(torch.cat(self.gathered(part)))

    def all_gather(self, outputs: list[Tensor], part: Tensor) -> None:
        """Leave all parts in a list."""
        for output, x in zip(outputs, self.gathered(part), strict=True):
            output.copy_(x)


def in_threads(count: int, task: Callable[[int, Process], Any]) -> list[Any]:
    """What the task returns in each of some processes, by rank."""
    held: list[Any] = [None] * count
    barrier = Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = task(rank, Process(rank, held, barrier))
        except BaseException as error:  # TookTooLongError too
            errors.append(error)
            barrier.abort()

    threads = [Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        for error in errors:
            if not isinstance(error, BrokenBarrierError):
                raise error
        raise Difference("waits for ever: some processes send a message that others do not send.")
    return results


def count_devices(parameters: int, room: float, whole: float, shared: float) -> int | None:
    """The first number of devices that is enough, by trial."""
    enough = (p for p in range(1, 5000) if parameters * (whole + shared / p) <= room)
    return next(enough, None)


def devices_by(
    formula: Callable[[int, float, float, float], float],
    rounded: Callable[[float], int] = math.ceil,
) -> Callable[[int, float, float, float], int | None]:
    """Devices by a formula, where there is a solution."""

    def devices(parameters: int, room: float, whole: float, shared: float) -> int | None:
        if parameters * whole >= room:
            return None
        return max(rounded(formula(parameters, room, whole, shared)), 1)

    return devices


def solved(parameters: int, room: float, whole: float, shared: float) -> float:
    return parameters * shared / (room - parameters * whole)


fit = Exercise(
    function="fewest_devices",
    arguments=lambda: [
        (1, 20, 0, 16),
        (1, 8, 0, 16),
        (1, 8, 4, 12),
        (1, 5, 4, 12),
        (1, 4, 4, 12),
        (2, 7, 2, 14),
        (3, 10, 4, 12),
        (13_000_000_000, 50e9, 0, 16),
        (13_000_000_000, 50e9, 4, 12),
        (13_000_000_000, 50e9, 2, 14),
    ],
    right=lambda parameters, room, whole, shared: count_devices(parameters, room, whole, shared),
    mistakes={
        "Rounded down: then they lack a little. Round up.": devices_by(solved, math.floor),
        "Rounded to the nearest number: it may be too few. Round up.": devices_by(solved, round),
        "Where it fits exactly, one device more is one too many.": (
            devices_by(solved, lambda p: math.floor(p) + 1)
        ),
        "The {whole} bytes that stay whole on each device take room too.": (
            devices_by(lambda parameters, room, whole, shared: parameters * shared / room)
        ),
        "All bytes are shared out here, but {whole} for each parameter stay whole on each.": (
            devices_by(lambda parameters, room, whole, shared: parameters * (whole + shared) / room)
        ),
        "What stays whole on each leaves no room: no number of devices is enough, so None.": (
            lambda parameters, room, whole, shared: max(
                math.ceil(parameters * shared / ((room - parameters * whole) or 1)), 1
            )
        ),
    },
    hints=(
        "How many bytes does one of p devices need for each parameter?",
        "whole + shared / p. Times the parameters it must be at most room: solve for p.",
        "What is shared in each stage: the table in Sharding: ZeRO and FSDP.",
    ),
)


def parts_by(
    idle: Callable[[int, int], float], *, strict: bool = True, start: int = 1
) -> Callable[[int, float], int]:
    """The first number of parts whose idle share is small enough."""

    def parts(stages: int, bubble: float) -> int:
        return next(
            m
            for m in range(start, 10_000)
            if idle(stages, m) < bubble or (not strict and idle(stages, m) == bubble)
        )

    return parts


def timetable(stages: int, m: int) -> float:
    """The idle share of a timetable's fields."""
    slots = m + stages - 1
    busy = sum(0 <= slot - stage < m for stage in range(stages) for slot in range(slots))
    return 1 - busy / (stages * slots)


bubble = Exercise(
    function="fewest_parts",
    arguments=lambda: [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.26), (5, 0.11), (8, 0.05)],
    right=lambda stages, bubble: parts_by(lambda p, m: (p - 1) / (m + p - 1))(stages, bubble),
    mistakes={
        "With this number the bubble is {bubble}, and not below.": (
            parts_by(lambda p, m: (p - 1) / (m + p - 1), strict=False)
        ),
        "Idle are the slots of all {stages} stages but one: p - 1, not p.": (
            parts_by(lambda p, m: p / (m + p))
        ),
        "The whole time is m + p - 1 slots, not m.": parts_by(lambda p, m: (p - 1) / m),
        "The whole time is m + p - 1 slots: the first part needs p slots, each other one more.": (
            parts_by(lambda p, m: (p - 1) / (m + p))
        ),
        "A pipeline has at least one part.": (
            parts_by(lambda p, m: (p - 1) / max(m + p - 1, 1), start=0)
        ),
        "One part too many.": lambda *arguments: (
            1 + parts_by(lambda p, m: (p - 1) / (m + p - 1))(*arguments)
        ),
    },
    hints=(
        "How long is the whole time, in slots, and how many of them is a stage idle?",
        "(p - 1) / (m + p - 1) < bubble: try m from 1 on, or solve for m.",
        "The formula is in Layers one after another: pipeline.",
    ),
)


def put_together(mine: Any, count: int, gradient: Tensor) -> Tensor:
    """What the processes have in the end; each may send one number."""

    def task(rank: int, process: Process) -> Tensor:
        part = mine(gradient.chunk(count)[rank].clone(), process)
        if part is None or part is ...:
            raise Difference("returns nothing yet.")
        if process.sent > 1:
            raise Difference(f"sends {process.sent} numbers from each process: one is enough.")
        return torch.as_tensor(part)

    return torch.stack(in_threads(count, task))


def clip_by(
    own: Callable[[Tensor], Tensor] = lambda shard: shard.square().sum(),
    length: Callable[[Tensor], Tensor] = Tensor.sqrt,
    *,
    send: bool = True,
    least: float = 1.0,
) -> Callable[[Tensor, Any], Tensor]:
    """Clipping with one thing done in another way."""

    def clipped(shard: Tensor, dist: Any) -> Tensor:
        number = own(shard)
        if send:
            dist.all_reduce(number)
        return shard / length(number).clamp(min=least)

    return clipped


def gradient_of(count: int, size: int, scale: float) -> tuple[int, Tensor]:
    (gradient,) = random_tensors((count * size,))
    return count, scale * gradient * torch.arange(1, count * size + 1)


norm_of_shards = Exercise(
    function="clipped",
    arguments=lambda: [
        (1, torch.tensor([3.0, -4.0])),
        (2, torch.tensor([0.3, 0.0, 0.4, 0.1])),
        (2, torch.tensor([3.0, 0.0, 0.5, 0.5])),
        (2, torch.tensor([0.9, 0.0, 0.9, 0.1])),
        gradient_of(3, 5, 2.0),
    ],
    use=put_together,
    right=lambda count, gradient: (gradient * min(1.0, 1 / gradient.norm().item())).reshape(
        count, -1
    ),
    compared="Compared are the processes' parts, a row for each.",
    mistakes={
        "Each part is clipped by its own length: that changes the direction of the whole.": (
            clip_by(send=False)
        ),
        "Lengths do not add up, their squares do.": clip_by(torch.linalg.vector_norm, torch.abs),
        "Divided by the square of the length: the root is missing.": clip_by(length=torch.abs),
        "A gradient shorter than 1 stays as it is.": clip_by(least=1e-9),
        "The squares of {count} processes are averaged; they have to be added up.": (
            lambda shard, dist: clip_by(lambda x: x.square().sum() / dist.get_world_size())(
                shard, dist
            )
        ),
        "These are sums of absolute values. A length is the root of the sum of squares.": (
            clip_by(lambda shard: shard.abs().sum(), torch.abs)
        ),
        "The length is that of sums: square the numbers first.": (clip_by(torch.sum, torch.abs)),
    },
    hints=(
        "What is the length of the whole, if you know one number of each part?",
        "Add up the sums of squares with dist.all_reduce, take the root; divide only if it is "
        "above 1.",
        "all_reduce is in the section Many processes, one sum.",
    ),
)


def after_steps(mine: Any, count: int, weights: Tensor, lr: float, gradients: Tensor) -> Any:
    """All processes' weights after some steps, and how many means each keeps."""

    def task(rank: int, process: Process) -> tuple[Tensor, float]:
        step = mine(rank, count, weights.clone(), lr, process)
        if step is None or step is ...:
            raise Difference("returns nothing yet.")
        for gradient in gradients[rank]:
            result = step(gradient.clone())
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise Difference("gives a step that does not return two results, weights and a count.")
        return torch.as_tensor(result[0]).detach().clone(), float(result[1])

    weights_of, kept = zip(*in_threads(count, task), strict=True)
    return torch.stack(weights_of), torch.tensor(kept)


def whole_adam(count: int, weights: Tensor, lr: float, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's Adam, with the sum of gradients, in one process."""
    parameter = weights.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameter], lr=lr)
    for gradient in gradients.sum(0):
        parameter.grad = gradient.clone()
        optimizer.step()
    means = 2 * math.ceil(len(weights) / count)
    return parameter.detach().expand(count, -1), torch.full((count,), float(means))


def adam_by(
    *, add: bool = True, gather: bool = True, mean: bool = False, turned: bool = False,
    forget: bool = False, cut: bool = True, means: int = 2,
) -> Callable[..., Any]:  # fmt: skip
    """A sharded Adam with one thing done in another way."""

    def sharded_adam(rank: int, count: int, weights: Tensor, lr: float, dist: Any) -> Any:
        size = len(weights)
        whole = F.pad(weights, (0, -size % count))
        own = whole.chunk(count)[count - 1 - rank if turned else rank].clone().requires_grad_()
        optimizer = torch.optim.Adam([own], lr=lr)

        def step(gradient: Tensor) -> tuple[Tensor, int]:
            padded = F.pad(gradient, (0, -size % count))
            own.grad = padded.chunk(count)[rank].clone()
            if add:
                dist.reduce_scatter_tensor(own.grad, padded)
            if mean:
                own.grad /= count
            if forget:
                optimizer.state.clear()
            optimizer.step()
            if gather:
                dist.all_gather_into_tensor(whole, own.detach())
            else:
                whole.chunk(count)[rank].copy_(own.detach())
            return whole[:size] if cut else whole, means * len(own)

        return step

    return sharded_adam


def adam_everywhere(rank: int, count: int, weights: Tensor, lr: float, dist: Any) -> Any:
    """Plain data parallelism."""
    parameter = weights.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameter], lr=lr)

    def step(gradient: Tensor) -> tuple[Tensor, int]:
        dist.all_reduce(gradient)
        parameter.grad = gradient
        optimizer.step()
        return parameter.detach(), 2 * len(parameter)

    return step


def steps(count: int, size: int, number: int) -> tuple[int, Tensor, float, Tensor]:
    """Weights, and gradients of each process and step; the first of a size that ε is felt at."""
    weights, gradients = random_tensors((size,), (count, number, size))
    gradients[:, :, 0] = 1e-8
    return count, weights, 0.1, gradients


sharded_adam = Exercise(
    function="sharded_adam",
    arguments=lambda: [steps(1, 3, 1), steps(2, 4, 1), steps(2, 5, 3), steps(3, 7, 2)],
    use=after_steps,
    right=whole_adam,
    compared="Compared are all processes' weights after the last step, and their kept numbers.",
    mistakes={
        "Each process steps by its own gradient here: gradients of all have to be added up.": (
            adam_by(add=False)
        ),
        "The gradients are averaged here. They have to be added up.": adam_by(mean=True),
        "Of the other processes' weights, those of before are left: gather them all.": (
            adam_by(gather=False)
        ),
        "Process r keeps another part of the weights than of the gradient.": (adam_by(turned=True)),
        "Adam's means are forgotten after each step: make the optimiser once, before the steps.": (
            adam_by(forget=True)
        ),
        "What was padded is still there: cut it off before you return the weights.": (
            adam_by(cut=False)
        ),
        "Right weights, but each process keeps the means of all parameters: its share is enough.": (
            adam_everywhere
        ),
        "Adam keeps two means for each number, not one.": adam_by(means=1),
    },
    hints=(
        "Three parts: your share of the summed gradient, a step on your share, all shares.",
        "F.pad to a multiple of count, chunk, one torch.optim.Adam of your chunk, made before the "
        "first step; own.grad is what reduce_scatter_tensor fills.",
        "Reduce-scatter and all-gather in use: the class Gathered in Sharding: ZeRO and FSDP.",
    ),
)

MOST_SENT = 4
"""Numbers for each position."""


def entropies(mine: Any, count: int, logits: Tensor, targets: Tensor) -> Tensor:
    """What each process finds, from its columns."""

    def task(rank: int, process: Process) -> float:
        found = mine(rank, logits.chunk(count, dim=1)[rank].clone(), targets.clone(), process)
        if found is None or found is ...:
            raise Difference("returns nothing yet.")
        if process.sent > MOST_SENT * len(targets):
            raise Difference(
                f"sends {process.sent} numbers from each process for {len(targets)} positions: "
                f"{MOST_SENT} for each position are enough."
            )
        return float(found)

    return torch.tensor(in_threads(count, task))


def entropy_by(
    *, common: bool = True, largest: bool = True, shift: bool = True, inside: bool = True,
    mean: bool = True, sign: int = 1, total: bool = True, chosen: bool = True,
) -> Callable[..., Tensor]:  # fmt: skip
    """The cross-entropy with one thing done in another way."""

    def cross_entropy(rank: int, logits: Tensor, targets: Tensor, dist: Any) -> Tensor:
        top = logits.amax(1) * largest
        if common:
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
        powers = (logits - top[:, None]).exp().sum(1)
        if total:
            dist.all_reduce(powers)
        at = targets - rank * logits.size(1) * shift
        here = (at >= 0) & (at < logits.size(1)) if inside else torch.ones_like(at)
        of_target = logits.gather(1, at.clamp(0, logits.size(1) - 1)[:, None])[:, 0] * here
        if chosen:
            dist.all_reduce(of_target)
        each = sign * (powers.log() + top - of_target)
        return each.mean() if mean else each.sum()

    return cross_entropy


def halves(
    count: int, n: int, columns: int, scale: float, shift: float = 0.0
) -> tuple[int, Tensor, Tensor]:
    """Logits, (n, count·columns), and targets that are in all parts."""
    (logits,) = random_tensors((n, count * columns))
    targets = torch.arange(n) * 5 % (count * columns)
    return count, scale * logits + shift, targets


vocabulary = Exercise(
    function="cross_entropy_of_parts",
    arguments=lambda: [
        halves(1, 1, 2, 1.0),
        halves(1, 3, 5, 1.0),
        halves(2, 1, 6, 1.0),
        halves(2, 5, 7, 2.0),
        halves(3, 4, 5, 1.0),
        halves(2, 4, 9, 30.0, shift=500.0),
        halves(2, 3, 9, 30.0, shift=-500.0),
    ],
    use=entropies,
    right=lambda count, logits, targets: F.cross_entropy(logits, targets).expand(count),
    compared="Compared are the results of all processes.",
    mistakes={
        "Each process subtracts its own largest logit: then the sums do not fit together. Find "
        "the largest of all first.": entropy_by(common=False),
        "Large logits overflow. Subtract the largest of all processes first.": (
            entropy_by(largest=False)
        ),
        "The sum of the exponentials is this process's own; add up those of all.": (
            entropy_by(total=False)
        ),
        "The target's logit is in one process only: the others do not know it until it is sent.": (
            entropy_by(chosen=False)
        ),
        "The targets count from the start of the vocabulary, your columns from "
        "rank * logits.size(1).": entropy_by(shift=False),
        "A process without the target has to add 0, not some other logit.": (
            entropy_by(inside=False)
        ),
        "This is the sum over positions; the mean is asked for.": entropy_by(mean=False),
        "The sign is wrong: a loss is minus the logarithm of a probability.": entropy_by(sign=-1),
    },
    hints=(
        "The loss is ln of the sum of e^z, less the target's z. What has each process of both?",
        "Three all_reduce: the largest logit (op=dist.ReduceOp.MAX), the sum of exponentials less "
        "it, and the target's logit, which is 0 where the target is not.",
        "all_reduce: Many processes, one sum. Merging a softmax from parts is in chapter 15.",
    ),
)
