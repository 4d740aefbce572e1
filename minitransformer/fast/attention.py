"""Attention of all heads, by the kernel that is fastest where it runs."""

import math

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
    if attention.num_kv_heads < attention.num_heads or not is_plain(attention):
        return attention.attend(queries, keys, values, mask)
    dropout = core.dropout if core.training else 0.0
    if queries.dtype == torch.bfloat16 and on_cpu and keys.size(-2) <= SHORT:
        return scaled_dot_product_attention(
            queries, keys, values, mask, dropout=dropout, backend="reference"
        )
    if mask is None or (isinstance(mask, Tensor) and on_cpu and bool(mask.any(dim=-1).all())):
        return F.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)
    return attention.attend(queries, keys, values, mask)


def attend_while_writing(
    attention: MultiHeadAttention,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """`attend` for the few queries of one step, all of which may ask the same row of keys.

    Then two products are quicker than the preparations of the fused kernel. Heads that share keys
    are further queries to them: nothing is repeated.
    """
    core, has_digits = attention.attention, queries.dtype in (torch.float32, torch.float64)
    dropout = core.dropout if core.training else 0.0
    if keys.size(0) > 1 or mask is not None or dropout or not (has_digits and is_plain(attention)):
        return attend(attention, queries, keys, values, mask)
    asked = queries.reshape(keys.size(1), -1, queries.size(-1)) / math.sqrt(queries.size(-1))
    weights = torch.bmm(asked, keys[0].mT).softmax(dim=-1)
    return torch.bmm(weights, values[0]).view(queries.shape)


def is_plain(attention: MultiHeadAttention) -> bool:
    """Whether the fused kernel computes what an attention does, without a bias or a window."""
    has_extras = attention.position_bias is not None or attention.window is not None
    return attention.attention.backend == "sdpa" and not has_extras
