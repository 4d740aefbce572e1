"""Attention of all heads, by the kernel that is fastest where it runs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from minitransformer.attention import Mask, scaled_dot_product_attention
from minitransformer.multi_head_attention import MultiHeadAttention

SHORT = 64
"""Keys up to which, in bfloat16 on a CPU, the formula is faster than the fused kernel."""


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
    if queries.dtype == torch.bfloat16 and on_cpu and keys.size(-2) <= SHORT:
        return scaled_dot_product_attention(
            queries, keys, values, mask, dropout=dropout, backend="reference"
        )
    if mask is None or (isinstance(mask, Tensor) and on_cpu and bool(mask.any(dim=-1).all())):
        return F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)
    return attention.attend(queries, keys, values, mask)
