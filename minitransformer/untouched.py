"""Whether a model computes what the package's classes say, or somebody has changed it.

Decoding saves work: it stores keys and values, and goes around the modules' calls. Both are right
only where nothing has been put in another's place, and nobody listens.

Built in chapter 10.
"""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks_of_all

from minitransformer.attention import ScaledDotProductAttention
from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.dropout import Dropout
from minitransformer.embeddings import OutputProjection, TokenEmbedding
from minitransformer.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.feed_forward import FeedForward
from minitransformer.layer_norm import LayerNorm, ResidualConnection, RMSNorm
from minitransformer.multi_head_attention import MultiHeadAttention
from minitransformer.positional_encoding import (
    ALiBi,
    LearnedPositionalEncoding,
    RotaryPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from minitransformer.transformer import TokenModel, Transformer

PLACES: dict[str, tuple[type[nn.Module], ...]] = {
    "decoder": (Encoder, Decoder),
    "layers": (nn.ModuleList,),
    "a layer": (EncoderLayer, DecoderLayer),
    "attention": (ScaledDotProductAttention,),
    "rotary": (RotaryPositionalEncoding,),
    "alibi": (ALiBi,),
    "feed_forward": (FeedForward,),
    "norm": (LayerNorm, RMSNorm, nn.Identity),
    "dropout": (Dropout,),
    "positions": (SinusoidalPositionalEncoding, LearnedPositionalEncoding),
    "output_projection": (OutputProjection,),
    **dict.fromkeys(("embedding", "tgt_embedding"), (TokenEmbedding,)),
    **dict.fromkeys(("self_attention", "cross_attention"), (MultiHeadAttention,)),
    **dict.fromkeys(("residual_1", "residual_2", "residual_3"), (ResidualConnection,)),
    **dict.fromkeys(("w_q", "w_k", "w_v", "w_o", "w_1", "w_2", "w_3"), (nn.Linear,)),
}
"""The parts that decode, by the name they have in what they are a part of, and their classes."""

MODELS = (Transformer, DecoderOnlyTransformer)
METHODS = ("forward", "encode", "decode", "embed")


def functions_of(kind: type) -> dict[str, Any]:
    """The functions by which a class itself computes; not `__init__`, which PyTorch exchanges."""
    return {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) and (name == "__call__" or not name.startswith("__"))
    }


AT_IMPORT = {
    kind: functions_of(kind) for kind in {nn.Module, TokenModel, *MODELS}.union(*PLACES.values())
}
REPLACEABLE = frozenset(PLACES).union(*AT_IMPORT.values())


def is_untouched(model: nn.Module) -> bool:
    """Whether a step of decoding may go around the modules: see `is_own`; and nobody listens."""
    return is_own(model) and not any(has_hooks(part) for _, part in parts_of(model))


def is_own(model: nn.Module) -> bool:
    """Whether `model(...)` computes what the package says, so that caches may save work.

    Each part that decodes is of the very class that belongs in its place (compiled or not). No
    function of these classes has been exchanged since the import, neither for all nor for one
    part, and no model of a derived class scores in another way. Nobody listens to the whole model
    or to all modules at once; whoever listens to a part is shown the new positions only.
    """
    kind = type(model)
    base = next((base for base in kind.__mro__ if base in MODELS), kind)
    return (
        all(getattr(kind, name, None) is getattr(base, name, None) for name in METHODS)
        and all(functions_of(known) == functions for known, functions in AT_IMPORT.items())
        and not (hooks_of_all._global_forward_hooks or hooks_of_all._global_forward_pre_hooks)
        and not (has_hooks(model) or has_own_functions(model))
        and all(
            type(part) in PLACES[place] and not has_own_functions(part)
            for place, part in parts_of(model)
        )
    )


def parts_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each part that decodes, and its place; others, such as an encoder, are left out."""
    for name, child in module.named_children():
        place = "a layer" if name.isdigit() else name
        if place in PLACES:
            part = uncompiled(child)
            yield place, part
            yield from parts_of(part)


def uncompiled(module: nn.Module) -> Any:
    """What `torch.compile` was given, unless somebody listens to what it returned."""
    is_compiled = type(module).__name__ == "OptimizedModule" and not has_hooks(module)
    return module.get_submodule("_orig_mod") if is_compiled else module


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody listens to a module, and may change what goes in or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_own_functions(module: nn.Module) -> bool:
    """Whether an instance has a function of its own in place of its class's, or of a part."""
    return any(callable(vars(module)[name]) for name in REPLACEABLE.intersection(vars(module)))
