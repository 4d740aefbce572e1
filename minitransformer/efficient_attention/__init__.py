"""Attention that costs less: the same in less memory, and less of it in less time.

Functions take query, key, value and mask as `scaled_dot_product_attention` does, and say what they
cost. Those of `in_blocks` are exact; a `BlockMask` leaves out what its rule hides; those of
`linear` are another function than the softmax; `caches` is for what a model remembers while it
writes; `memory` counts bytes.
"""

from minitransformer.efficient_attention.block_mask import (
    BlockMask,
    all_of,
    any_of,
    causal_rule,
    dilated_rule,
    global_rule,
    random_rule,
    strided_rule,
    window_rule,
)
from minitransformer.efficient_attention.caches import (
    LatentAttention,
    LatentCache,
    QuantisedCache,
    RollingCache,
)
from minitransformer.efficient_attention.in_blocks import (
    flash_attention,
    flash_attention_with_lse,
    flash_backward,
    flash_forward,
    merge_attention,
)
from minitransformer.efficient_attention.linear import (
    delta_rule,
    elu_features,
    linear_attention,
    linear_attention_of_all_pairs,
    linear_attention_step,
    softmax_features,
)
from minitransformer.efficient_attention.memory import PeakMemory

__all__ = [
    "BlockMask",
    "LatentAttention",
    "LatentCache",
    "PeakMemory",
    "QuantisedCache",
    "RollingCache",
    "all_of",
    "any_of",
    "causal_rule",
    "delta_rule",
    "dilated_rule",
    "elu_features",
    "flash_attention",
    "flash_attention_with_lse",
    "flash_backward",
    "flash_forward",
    "global_rule",
    "linear_attention",
    "linear_attention_of_all_pairs",
    "linear_attention_step",
    "merge_attention",
    "random_rule",
    "softmax_features",
    "strided_rule",
    "window_rule",
]
