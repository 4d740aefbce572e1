"""The parts of a Transformer, each a file named as its chapter (2 to 8)."""

from minitransformer.layers.attention import (
    ScaledDotProductAttention,
    SelfAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from minitransformer.layers.cache import KVCache
from minitransformer.layers.dropout import Dropout
from minitransformer.layers.embeddings import (
    OutputProjection,
    TokenEmbedding,
)
from minitransformer.layers.encoder_decoder import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
)
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import (
    LayerNorm,
    ResidualConnection,
    RMSNorm,
    layer_norm,
    rms_norm,
)
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.layers.packing import (
    PackedMask,
    Packing,
)
from minitransformer.layers.positional_encoding import (
    ALiBi,
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    alibi_slopes,
    sinusoidal_positions,
)
from minitransformer.layers.rotary import (
    RotaryPositionalEncoding,
    rotary_frequencies,
)

__all__ = [
    "ALiBi",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KVCache",
    "LayerNorm",
    "LearnedPositionalEncoding",
    "MultiHeadAttention",
    "OutputProjection",
    "PackedMask",
    "Packing",
    "RMSNorm",
    "ResidualConnection",
    "RotaryPositionalEncoding",
    "ScaledDotProductAttention",
    "SelfAttention",
    "SinusoidalPositionalEncoding",
    "TokenEmbedding",
    "alibi_slopes",
    "attention_weights",
    "causal_mask",
    "layer_norm",
    "padding_mask",
    "rms_norm",
    "rotary_frequencies",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
]
