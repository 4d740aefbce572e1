"""Attention of all heads, by the kernel that is fastest where it runs."""

import torch.nn.functional as F
from torch import Tensor

from minitransformer.attention import Mask
from minitransformer.multi_head_attention import MultiHeadAttention


def attend(
    attention: MultiHeadAttention,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Mask | None,
) -> Tensor:
    """`MultiHeadAttention.attend`, without checks and without what empty rows would need.

    A row whose keys are all hidden has to be opened and zeroed. Where it takes no time to see that
    there is none, on a CPU, that is left out.
    """
    core, on_cpu = attention.attention, queries.device.type == "cpu"
    is_grouped = attention.num_kv_heads < attention.num_heads
    has_extras = attention.position_bias is not None or attention.window is not None
    if core.backend != "sdpa" or is_grouped or has_extras:
        return attention.attend(queries, keys, values, mask)
    dropout = core.dropout if core.training else 0.0
    if mask is None or (isinstance(mask, Tensor) and on_cpu and bool(mask.any(dim=-1).all())):
        return F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)
    return attention.attend(queries, keys, values, mask)
