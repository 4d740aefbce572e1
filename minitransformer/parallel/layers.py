"""What is done to a model's layers before it is trained: shared out, computed again, compiled.

All three are PyTorch's. The model stays the same object, and its parameters keep their names.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minitransformer.layers.encoder_decoder import DecoderLayer, EncoderLayer
from minitransformer.parallel.processes import Processes

OLDEST_TORCH = "2.6"  # that has FSDP2's functions for all to use


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model's stacks: what is shared out, computed again, compiled as one."""
    return [part for part in model.modules() if isinstance(part, EncoderLayer | DecoderLayer)]


def compute_again(model: nn.Module) -> None:
    """Keep of each layer its input only; the backward pass computes it again, dropout the same."""
    for layer in layers_of(model):
        # The layer's own forward goes in under the same name: hooks and sharding see no change.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(model: nn.Module) -> None:
    """Have PyTorch compile each layer; one program serves all layers of a kind."""
    for layer in layers_of(model):
        layer.compile()


def share_out(model: nn.Module, processes: Processes) -> None:
    """Leave in each process only its share of every parameter of the first one's model (FSDP2).

    A layer's parameters are put together just before the layer computes, and parted just after.

    Raises:
        ImportError: if PyTorch is older than `OLDEST_TORCH`.
    """
    if torch.__version__ < OLDEST_TORCH:
        raise ImportError(
            f"engine 'fsdp' needs PyTorch {OLDEST_TORCH} or newer, got {torch.__version__}; "
            "engine 'ddp' does not"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(processes.device.type, (processes.count,))
    for parameter in model.parameters():  # DDP does the same, FSDP2 would mix different models
        dist.broadcast(parameter.detach(), 0)
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """This process's share of a tensor that is shared out as the parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole = whole.to(parameter.device)
    if not isinstance(parameter, DTensor) or whole.shape != parameter.shape:
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor, put together from its shares if it was shared out."""
    gather: Any = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()
