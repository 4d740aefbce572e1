"""The processes that train one model: how they join, agree, and notice that one is silent.

PyTorch's `torchrun` starts them, and `torch.distributed` carries what they say to each other.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Processes", "join_processes"]

LOST = re.compile("tim(ed|e) ?out|connection|reset by peer|broken pipe", re.IGNORECASE)
"""What Gloo and NCCL say of a process that does not answer, in their many ways."""
GRACE = 5.0  # seconds in which those that wait hear of each other


@dataclass(frozen=True)
class Processes:
    """This process among all that train the same model. `join_processes` makes it.

    Example:
        >>> with join_processes() as processes:
        ...     isinstance(processes, Processes), processes.rank, processes.totals(2, 0.5)
        (True, 0, [2.0, 0.5])
    """

    rank: int  # which one this is, from 0 on
    count: int
    device: torch.device
    time_limit: float  # seconds for which one waits for the others
    store: Any  # where each can leave a message, also when they no longer compute together

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes, prints and draws progress."""
        return self.rank == 0

    def totals(self, *numbers: float) -> list[float]:
        """Each number, summed over all processes."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def everyones(self, thing: Any) -> list[Any]:
        """What each process has given here, in their order."""
        things: list[Any] = [None] * self.count
        dist.all_gather_object(things, thing)
        return things

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """A block whose first error is raised in all processes: else others would wait in vain."""
        error = None
        try:
            yield
        except (OSError, ValueError) as caught:
            error = caught
        for found in self.everyones(error):
            if found is not None:
                raise found

    def check_same(self, **things: Any) -> None:
        """Raise a ValueError if these are not the same in all processes."""
        for rank, others in enumerate(self.everyones(things)):
            for name, thing in things.items():
                if others[name] != thing:
                    raise ValueError(
                        f"{name} must be the same in all processes, got {thing!r} in process "
                        f"{self.rank} and {others[name]!r} in process {rank}"
                    )

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """A block in which processes wait for each other, `what` being a name for this time.

        Raises:
            TimeoutError: if one does not come within the time limit, or has ended.
        """
        try:
            yield
        except RuntimeError as error:
            if not LOST.search(str(error)):
                raise
            reason = str(error).strip().splitlines()[0]
            raise TimeoutError(
                f"{what}: process {self.rank} waited for {self.silent(what)} in vain, which ended "
                f"or has hung for {self.time_limit:g} seconds ({reason})"
            ) from error

    def silent(self, what: str) -> str:
        """Which processes do not say here that they wait, too."""
        missing = list(range(self.count))
        end = time.monotonic() + min(GRACE, self.time_limit)
        try:
            self.store.set(f"{what}: {self.rank}", "waits")
            while missing and time.monotonic() < end:
                missing = [r for r in missing if not self.store.check([f"{what}: {r}"])]
                time.sleep(0.05)
        except RuntimeError:  # the store is gone, and with it the first process, which had it
            missing = [0]
        names = ", ".join(map(str, missing)) or "another"
        return f"process {names} of {self.count}"


def name_of_start(store: Any, rank: int, count: int, limit: timedelta) -> str:
    """A name that the processes which start now share, and none before them had.

    Processes that `torchrun` restarts get the store of the killed ones, with their addresses in it.
    So each asks under a new name; the first one answers all questions, old ones too, until every
    process has heard it. A RuntimeError, if not all come in time.
    """
    if rank > 0:
        question = token_hex(8)
        store.set(f"process {rank} asks", question)
        store.wait([question], limit)
        name = str(store.get(question).decode())
        store.set(f"{name}: {rank}", "heard")
        return name
    name, missing = token_hex(8), set(range(1, count))
    end = time.monotonic() + limit.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"timed out without process {', '.join(map(str, sorted(missing)))}")
        for other in missing:
            if store.check([f"process {other} asks"]):
                store.set(store.get(f"process {other} asks").decode(), name)
        missing = {other for other in missing if not store.check([f"{name}: {other}"])}
        time.sleep(0.01)
    return name


@contextmanager
def join_processes(device: str = "cpu", *, time_limit: float = 600.0) -> Iterator[Processes]:
    """Inside the block this process is one of those that `torchrun` has started.

    A process that was started without is the only one: everything works in it, too.

    Of several "cuda" devices each process has its own. `time_limit` is for how many seconds to wait
    for another process, before it counts as lost.

    Raises:
        ImportError: if PyTorch was built without `torch.distributed`.
        TimeoutError: if not all come within the time limit.
        ValueError: if `time_limit` is not above 0.

    Example:
        >>> with join_processes() as processes:
        ...     processes.is_first, processes.everyones("here")
        (True, ['here'])
    """
    if time_limit <= 0:
        raise ValueError(f"time_limit must be above 0 seconds, got {time_limit}")
    if not dist.is_available():
        raise ImportError(f"PyTorch {torch.__version__} was built here without torch.distributed")
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=time_limit)
    here = torch.device(device)
    if here.type == "cuda":
        here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(here)
    backend = "cpu:gloo,cuda:nccl" if here.type == "cuda" else "gloo"
    pytorch: Any = dist  # whose stores have no types
    store, rank, count = pytorch.HashStore(), 0, 1
    try:
        if "RANK" in os.environ:
            store, rank, count = next(rendezvous("env://", timeout=limit))
            store = pytorch.PrefixStore(name_of_start(store, rank, count, limit), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise TimeoutError(
            f"not all {os.environ.get('WORLD_SIZE')} processes came within {time_limit:g} seconds: "
            f"{str(error).splitlines()[0]}"
        ) from error
    try:
        yield Processes(rank, count, here, time_limit, store)
    finally:
        dist.destroy_process_group()
