"""A second device made of the CPU: a stand-in for a GPU where there is none.

A tensor on the device "second" holds a CPU tensor and computes with it, but refuses to mix with
tensors of the CPU, as a GPU's do. So a forgotten `device=` or `.to(device)` raises the error that
it would raise on a GPU. It uses PyTorch's experimental Python backend for the device PrivateUse1.

    second_device.register()    # changes PyTorch for the whole process: once, before all else

As on a GPU, scalars may mix, and a tensor may be indexed by one of the CPU. Unlike there:
- `torch.inference_mode` is `no_grad`, because wrapped tensors have no version counter in it;
- tied parameters cannot change their dtype;
- attention's kernels and LSTMs are PyTorch's formulas, and numbers are drawn as on the CPU;
- what reads a tensor's memory sees none: `numpy`, `safetensors.torch.save` (`write_tensors` copies
  to the CPU first), exports, compilation, other processes.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

NAME = "second"
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXING.add(aten._index_put_impl_.default)
INSTEAD = {
    aten._conj.default: aten._conj_physical.default,  # a wrapped tensor has no mark for it
    aten._neg_view.default: aten.neg.default,
}
VALUES = {aten._local_scalar_dense.default, aten.equal.default}  # what returns no tensor
MAKING = ["_copy_from", "arange", "arange.start", "arange.start_step", "empty.memory_format"]
MAKING += ["empty_strided", "eye", "eye.m", "linspace", "randperm", "randperm.generator"]
"""What makes tensors. Most of these would make an empty one and resize it, which a wrapper cannot
follow."""
MODULE = {
    "_is_in_bad_fork": False,
    "current_device": 0,
    "device_count": 1,
    "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
    "is_available": True,
    "is_initialized": True,
    "manual_seed_all": None,
    "set_rng_state": None,
    "synchronize": None,
}
"""What PyTorch asks the module of a device, and the answers."""


class OnSecond(torch.Tensor):
    """A tensor on the second device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "OnSecond":
        like = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        like |= {"dtype": inner.dtype, "device": torch.device(NAME, 0)}
        wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **like)
        wrapped.inner = inner
        return wrapped

    def __repr__(self) -> str:
        return f"OnSecond({self.inner!r})"

    def __format__(self, form: str) -> str:
        return format(self.inner, form)

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Generator(torch.Generator):
    """A generator that knows its device, at first the default one."""

    def __new__(cls, device: Any = None) -> "Generator":
        made = super().__new__(cls, "cpu")
        made.place = torch.get_default_device() if device is None else torch.device(device)
        return made

    def __init__(self, device: Any = None) -> None: ...

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0) if self.place.type == NAME else self.place


class CheckGenerators(TorchFunctionMode):
    """Refuses to draw for one device with a generator of another."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, generator = func(*args, **(kwargs or {})), (kwargs or {}).get("generator")
        if generator is not None and generator.device.type != result.device.type:
            raise RuntimeError(
                f"Expected a '{result.device}' device type for generator, got '{generator.device}'"
            )
        return result


class NoGrad(torch.no_grad):
    """`torch.inference_mode`, which may be called with a mode."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()


def unwrapped(value: Any) -> Any:
    """What lies on the CPU."""
    return value.inner if isinstance(value, OnSecond) else value


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on what the tensors hold, if all are on one device."""
    func, given = INSTEAD.get(func, func), list(tree_iter((args, kwargs)))
    here = any(isinstance(value, OnSecond) for value in given)
    others = [x for x in given if isinstance(x, torch.Tensor) and not isinstance(x, OnSecond)]
    if func in INDEXING and isinstance(args[0], OnSecond):
        others = [x for x in others if x is args[-1]]  # the values that are put
    if here and func not in COPIES and any(x.dim() for x in others):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found {NAME}:0 and cpu, in {func}"
        )
    if func is aten._fused_sdp_choice.default:
        return 0  # PyTorch's formula
    if kwargs.get("device") is not None:
        here = torch.device(kwargs["device"]).type == NAME
        kwargs = kwargs | {"device": torch.device("cpu")}
    with torch.no_grad():
        result = func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs))
    if func in VALUES:
        return result
    written = {}  # an operation in place returns its argument
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            written[id(unwrapped(value))] = value
            if isinstance(value, OnSecond) and value.shape != value.inner.shape:
                raise NotImplementedError(f"{func} resizes a tensor of the second device")

    def wrapped(value: Any) -> Any:
        is_new = isinstance(value, torch.Tensor) and not isinstance(value, OnSecond)
        return written.get(id(value), OnSecond(value) if here and is_new else value)

    return tree_map(wrapped, result)


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    """Copy between the devices."""
    unwrapped(target).copy_(unwrapped(source))
    return target


LIBRARIES: list[torch.library.Library] = []  # as long as they live, what they register holds


def register() -> None:
    """Make "second" a device of this process."""
    import torch.distributed.tensor  # it subclasses torch.Generator, which is exchanged below
    from torch._decomp.decompositions import lstm_impl
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    if LIBRARIES:
        return
    answers = {name: lambda *_, answer=answer: answer for name, answer in MODULE.items()}
    module = SimpleNamespace(**answers, get_rng_state=lambda *_: torch.get_rng_state())
    _setup_privateuseone_for_python_backend(NAME, module)
    every = torch.library.Library("_", "IMPL")
    every.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    some = torch.library.Library("aten", "IMPL")
    for name in MAKING:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        some.impl(name, lambda *a, func=func, **k: compute(func, a, k), "PrivateUse1")
    some.impl("_copy_from", copy_from, "CPU")
    LIBRARIES.extend([every, some])
    # Parameters keep their identity when they are moved, so that tied ones stay tied.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.Generator = Generator
    torch.inference_mode = NoGrad
    torch._VF.lstm = lstm_impl
    CheckGenerators().__enter__()
