"""The parts of a Transformer, each file named as its chapter (2 to 8)."""

from minitransformer.layers.attention import *
from minitransformer.layers.cache import *
from minitransformer.layers.embeddings import *
from minitransformer.layers.encoder_decoder import *
from minitransformer.layers.feed_forward import *
from minitransformer.layers.layer_norm import *
from minitransformer.layers.mixture_of_experts import *
from minitransformer.layers.multi_head_attention import *
from minitransformer.layers.packing import *
from minitransformer.layers.positional_encoding import *
