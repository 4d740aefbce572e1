"""To CTranslate2: an engine in C++ that translates and writes, on CPUs and GPUs, in int8 too.

Its models are lists of layers by name. Ours have the same layers; what differs is how they are
stacked: the projections of queries, keys and values are one matrix there, and a table of token
vectors has its factor √d in it.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.checks import library
from minitransformer.export.folder import Exportable, export_folder, exportable_by_layers, tokens_of
from minitransformer.layers.multi_head_attention import MultiHeadAttention

__all__ = ["to_ctranslate2"]

PLAIN = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
GATED = {"reglu": "RELU", "geglu": "GELU", "geglu_tanh": "GELUTanh", "swiglu": "SWISH"}
QUANTIZATIONS = (None, "int8", "int16", "float16", "bfloat16")


def to_ctranslate2(
    model: Exportable, folder: str | os.PathLike[str], *, quantization: str | None = None
) -> None:
    """Write a folder that `ctranslate2.Translator` or `ctranslate2.Generator` reads.

    Args:
        model: a `Translator` or a `TextGenerator`; or a model alone, whose id 7 is then "#7".
        folder: where to; a new one, or an empty one.
        quantization: "int8", "int16", "float16" or "bfloat16"; float32 when left out.

    Raises:
        FileExistsError, ImportError: if `folder` is not empty, or `ctranslate2` not installed.
        TypeError: if the model is a published one, or none of the two kinds.
        ValueError: if the engine does not compute it, or a part is not as configured.

    Example:
        >>> import ctranslate2, tempfile
        >>> import minitransformer as mt
        >>> sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_model": 8, "d_ff": 4}
        >>> model = mt.Transformer(mt.TransformerConfig(**sizes, num_heads=2)).eval()
        >>> with tempfile.TemporaryDirectory() as name:
        ...     to_ctranslate2(model, f"{name}/engine")
        ...     engine = ctranslate2.Translator(f"{name}/engine")
        ...     len(engine.translate_batch([["#7", "#8"], ["#5"]], max_decoding_length=3))
        2
    """
    library("ctranslate2", "export")
    plain_model, tokenizers = exportable_by_layers(model)
    config = plain_model.config
    if config.num_encoder_layers and config.positional_encoding in ("alibi", "rotary"):
        # Its encoders know no ALiBi, and turn the rows of a padded batch by wrong positions.
        raise ValueError(
            f"CTranslate2 has no encoder with positional_encoding={config.positional_encoding!r}; "
            "'sinusoidal', 'learned' and 'none' can be written, and all for decoder-only models"
        )
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {QUANTIZATIONS}, got {quantization!r}")
    with export_folder(folder, tokenizers) as unfinished:
        spec = specification(plain_model, tokens_of(plain_model, tokenizers))
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(os.fspath(unfinished))


def specification(model: Any, vocabularies: Sequence[Sequence[str]]) -> Any:
    """The model as the engine describes one; each vocabulary is the names of all ids."""
    from ctranslate2 import specs

    config, has_encoder = model.config, bool(model.config.num_encoder_layers)
    options: dict[str, Any] = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_first,
        "activation": getattr(specs.Activation, (PLAIN | GATED)[config.activation]),
        "ffn_glu": config.activation in GATED,
        "rms_norm": config.norm == "rms_norm",
        "num_heads_kv": config.num_kv_heads,
    }
    if config.positional_encoding == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": True}  # 0: the whole head
    decoder = specs.transformer_spec.TransformerDecoderSpec(
        config.num_decoder_layers,
        with_encoder_attention=has_encoder,
        alibi=config.positional_encoding == "alibi",
        **options,
    )
    set_stack(decoder, model.decoder)
    set_linear(decoder.projection, model.output_projection)
    if has_encoder:
        encoder = specs.transformer_spec.TransformerEncoderSpec(
            config.num_encoder_layers, **options
        )
        set_stack(encoder, model.encoder)
        set_embedding(encoder, encoder.embeddings[0], model.src_embedding, model)
        set_embedding(decoder, decoder.embeddings, model.tgt_embedding, model)
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(list(vocabularies[0]))
        spec.register_target_vocabulary(list(vocabularies[1]))
        spec.config.decoder_start_token = vocabularies[1][1]
        spec.config.add_source_eos = False  # as `generate`: the caller ends the source
    else:
        set_embedding(decoder, decoder.embeddings, model.embedding, model)
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(list(vocabularies[0]))
    special = vocabularies[-1][1:4]
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = special
    spec.config.layer_norm_epsilon = model.decoder.layers[0].residual_1.norm.eps
    return spec


def set_stack(spec: Any, stack: Any) -> None:
    """All layers of an encoder or a decoder, and its last norm if it has one."""
    for part, layer in zip(spec.layer, stack.layers, strict=True):
        last = layer.residual_2
        set_attention(part.self_attention, layer.self_attention, layer.residual_1.norm, 3)
        if hasattr(layer, "cross_attention"):
            set_attention(part.attention, layer.cross_attention, layer.residual_2.norm, 1)
            last = layer.residual_3
        network = layer.feed_forward
        set_norm(part.ffn.layer_norm, last.norm)
        set_linear(part.ffn.linear_0, network.w_1)
        set_linear(part.ffn.linear_1, network.w_2)
        if network.w_3 is not None:
            set_linear(part.ffn.linear_0_noact, network.w_3)
    if hasattr(spec, "layer_norm"):
        set_norm(spec.layer_norm, stack.norm)


def set_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, joined: int) -> None:
    """An attention's projections: the first `joined` of q, k, v in one matrix, then the rest."""
    set_norm(spec.layer_norm, norm)
    inputs = [attention.w_q, attention.w_k, attention.w_v]
    for part, together in zip(spec.linear, (inputs[:joined], inputs[joined:]), strict=False):
        if together:
            set_linear(part, *together)
    set_linear(spec.linear[-1], attention.w_o)


def set_embedding(spec: Any, table: Any, embedding: Any, model: Any) -> None:
    """A table of tokens with what it is multiplied by, and the positions added to it."""
    spec.scale_embeddings = False
    table.weight = numbers(embedding.weight * embedding.scale)
    kind, width = model.config.positional_encoding, model.config.d_model
    if kind in ("sinusoidal", "learned"):
        nothing = torch.zeros(1, model.config.max_len, width, device=embedding.weight.device)
        spec.position_encodings.encodings = numbers(model.positions(nothing)[0])
    elif kind == "none":  # the engine has sinusoids where it is given nothing
        spec.position_encodings.encodings = numbers(torch.zeros(model.config.max_len, width))


def set_linear(spec: Any, *projections: nn.Linear) -> None:
    """The matrices (out, in) of projections one below the other, and their biases."""
    spec.weight = numbers(torch.cat([projection.weight for projection in projections]))
    if projections[0].bias is not None:
        spec.bias = numbers(torch.cat([projection.bias for projection in projections]))


def set_norm(spec: Any, norm: Any) -> None:
    """A layer norm, or an RMSNorm, which has no bias."""
    spec.gamma = numbers(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = numbers(norm.bias)


def numbers(x: Tensor) -> Any:
    """A tensor's content, as float32 in NumPy's form."""
    return x.detach().float().cpu().contiguous().numpy()
