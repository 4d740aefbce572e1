"""Attention that costs less: the same in less memory, and less of it in less time.

Functions take query, key, value and mask as `scaled_dot_product_attention` does, and say what they
cost. Those of `in_blocks` are exact; a `BlockMask` leaves out what its rule hides; those of
`linear` are another function than the softmax; `caches` is for what a model remembers while it
decodes; `memory` counts bytes.
"""

from minitransformer.efficient_attention.block_mask import *
from minitransformer.efficient_attention.caches import *
from minitransformer.efficient_attention.in_blocks import *
from minitransformer.efficient_attention.linear import *
from minitransformer.efficient_attention.memory import *
