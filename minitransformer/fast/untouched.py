"""Whether a model computes what the package's classes say, or somebody has changed it.

The fast way goes around the modules' calls. That is right only where nothing has been put in
another's place, and nobody listens.
"""

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
    SinusoidalPositionalEncoding,
)
from minitransformer.rotary import RotaryPositionalEncoding
from minitransformer.transformer import TokenModel, Transformer

PLACES: dict[str, tuple[type[nn.Module], ...]] = {
    "encoder": (Encoder,),
    "decoder": (Encoder, Decoder),
    "layers": (nn.ModuleList,),
    "a layer": (EncoderLayer, DecoderLayer),
    "attention": (ScaledDotProductAttention,),
    "rotary": (RotaryPositionalEncoding,),
    "position_bias": (ALiBi,),
    **dict.fromkeys(("norm_q", "norm_k"), (LayerNorm, RMSNorm)),
    "feed_forward": (FeedForward,),
    "norm": (LayerNorm, RMSNorm, nn.Identity),
    "dropout": (Dropout,),
    "positions": (SinusoidalPositionalEncoding, LearnedPositionalEncoding),
    "output_projection": (OutputProjection,),
    **dict.fromkeys(("embedding", "src_embedding", "tgt_embedding"), (TokenEmbedding,)),
    **dict.fromkeys(("self_attention", "cross_attention"), (MultiHeadAttention,)),
    **dict.fromkeys(("residual_1", "residual_2", "residual_3"), (ResidualConnection,)),
    **dict.fromkeys(("w_q", "w_k", "w_v", "w_o", "w_1", "w_2", "w_3"), (nn.Linear,)),
}
"""The parts of a model, by the name they have in what they are a part of, and their classes."""

MODELS = (Transformer, DecoderOnlyTransformer)
RELATIVES = "minitransformer.models."
HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


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
COMPUTING = {"__call__", "decode", "embed", "encode", "forward", "loss"}
REPLACEABLE = frozenset(PLACES).union(*AT_IMPORT.values())


def is_untouched(model: nn.Module) -> bool:
    """Whether `model(...)` computes what the package says, and nobody listens on the way.

    The model and each part are of the very class that belongs in their place; no part has been
    compiled. No function of these classes has been exchanged since the import, neither for all
    nor for one part. There is no hook on the model, on a part, or on all modules at once. What
    `torch.compile` made of a whole model is that model.
    """
    model = uncompiled(model)
    return (
        computes_as_a_model(type(model))
        and is_as_made(model)
        and not any(is_exchanged(kind, functions) for kind, functions in AT_IMPORT.items())
        and not any(getattr(hooks_of_all, f"_global_{hooks}") for hooks in HOOKS)
        and are_untouched(model)
    )


def is_exchanged(kind: type, functions: dict[str, Any]) -> bool:
    """Whether a class computes by other functions than these.

    That it has more of them means nothing: `transformers` gives `nn.Module` a method of its own.
    """
    now = functions_of(kind)
    return any(now.get(name) is not functions.get(name) for name in COMPUTING | functions.keys())


def computes_as_a_model(kind: type) -> bool:
    """Whether a class is one of the two, or a relative that is put together in another way only."""
    if kind in MODELS:
        return True
    own = [part for part in kind.__mro__ if part.__module__.startswith(RELATIVES)]
    computes = any(COMPUTING & vars(part).keys() for part in own)
    return issubclass(kind, MODELS) and kind in own and not computes


def is_unheard_relative(model: nn.Module) -> bool:
    """Whether a model is of the room of the relatives, and nobody listens or has changed a part."""
    return (
        type(model).__module__.startswith(RELATIVES)
        and not any(getattr(hooks_of_all, f"_global_{hooks}") for hooks in HOOKS)
        and all(map(is_as_made, model.modules()))
    )


def are_untouched(module: nn.Module) -> bool:
    """Whether all parts of a module are; what has no place in a model takes no part."""
    for name, part in module._modules.items():
        place = "a layer" if name.isdigit() else name
        if part is None or place not in PLACES:
            continue
        if type(part) not in PLACES[place] or part._compiled_call_impl is not None:
            return False
        # The fast way has no place for these two.
        if isinstance(part, OutputProjection) and part.bias is not None:
            return False
        if name == "cross_attention" and part.norm_q is not None:
            return False
        if not (is_as_made(part) and are_untouched(part)):
            return False
    return True


def is_as_made(module: nn.Module) -> bool:
    """Whether nobody listens to a module, or has given it a function of its own."""
    own = vars(module)
    return not has_hooks(module) and not any(
        callable(own[name]) for name in REPLACEABLE.intersection(own)
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody listens to a module, and may change what goes in or comes out."""
    return any(getattr(module, f"_{hooks}") for hooks in HOOKS)


def uncompiled(module: nn.Module) -> nn.Module:
    """What `torch.compile` was given, unless somebody listens to what it returned."""
    is_compiled = type(module).__name__ == "OptimizedModule" and not has_hooks(module)
    return module.get_submodule("_orig_mod") if is_compiled else module
