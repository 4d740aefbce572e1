"""How much memory a computation takes at once: counted, the same on every machine.

Built in chapter 15.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakMemory"]


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that are made, and alive, while it is entered.

    What was there before is not counted, nor what a kernel needs for itself between two tensors.
    `peak` is the most bytes at any one time, `now` those that are alive still, `largest` the most
    elements of one tensor.

    Example:
        >>> with PeakMemory() as memory:
        ...     x = torch.ones(10) + 1  # both are alive together, 4 bytes a number
        >>> memory.peak, memory.now, memory.largest
        (80, 40, 10)
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.now = self.largest = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count what it made."""
        kwargs = kwargs or {}
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor):
                self._see(x.untyped_storage(), is_new=False)
        result = function(*args, **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self._see(x.untyped_storage(), is_new=True)
                self.largest = max(self.largest, x.numel())
        return result

    def _see(self, storage: torch.UntypedStorage, is_new: bool) -> None:
        """Count a storage that was not seen before, until it is gone."""
        number, size = storage._cdata, storage.nbytes() if is_new else 0
        if number in self.known:
            return

        def forget(_: object) -> None:
            del self.known[number]
            self.now -= size

        self.known[number] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)
