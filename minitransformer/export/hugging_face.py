"""To the library `transformers`: a model of ours as a Marian, a Pegasus, a GPT-2 or a Llama.

| ours | theirs |
| --- | --- |
| encoder-decoder, one vocabulary, sinusoidal positions, post-norm | Marian |
| the same, pre-norm | Pegasus |
| decoder-only, pre-norm, layer norm, positions in the vectors, no gate | GPT-2 |
| decoder-only, pre-norm, RMSNorm, rotary positions, a gate | Llama |

The weights are those of the published model in `minitransformer.models`, reordered where it counts
its features in another order. What the architecture does not have is refused by its name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from minitransformer.export.folder import Exportable, export_folder, exportable_by_layers
from minitransformer.files import write_json
from minitransformer.models.gpt2 import GPT2, GPT2Config
from minitransformer.models.hub import Names
from minitransformer.models.llama import Llama, LlamaConfig
from minitransformer.models.marian import Marian, MarianConfig

__all__ = ["to_transformers"]

PLAIN = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_new", "reglu": "relu"}
OF_2017: dict[str, Any] = {"norm": ("layer_norm",), "activation": PLAIN, "num_kv_heads": (None,)}
KNOWN: dict[str, dict[str, Any]] = {
    "Marian or Pegasus": OF_2017
    | {"positional_encoding": ("sinusoidal",), "share_embeddings": (True,), "tie_output": (True,)},
    "GPT-2": OF_2017
    | {"norm_first": (True,), "positional_encoding": ("learned", "sinusoidal", "none")},
    "Llama": {"norm_first": (True,), "norm": ("rms_norm",), "activation": GATED},
}
"""What each architecture has, of the settings in which ours differ."""


@dataclass(frozen=True, kw_only=True)
class PegasusConfig(MarianConfig):
    """A Marian whose norms come first."""

    model_type: ClassVar[str] = "pegasus"
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "is_encoder_decoder": (True,),
        "tie_word_embeddings": (True,),
        "forced_eos_token_id": (None,),
    }
    norm_first: ClassVar[bool] = True


class Pegasus(Marian):
    """A Marian whose norms come first, and one more at the end of each stack."""

    config_class = PegasusConfig
    architecture = "PegasusForConditionalGeneration"
    names: ClassVar[Names] = {
        **Marian.names,
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.layer_norm": "decoder.norm",
    }


def as_published(model: Any) -> Marian | GPT2 | Llama:
    """The published model that computes the same, in evaluation mode, with its own weights.

    Raises:
        ValueError: if there is none; it names the setting.
    """
    config = model.config
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    common: dict[str, Any] = {"d_model": config.d_model, "max_len": config.max_len}
    common |= {"eos_ids": model.stop_ids, "activation": (PLAIN | GATED)[config.activation]}
    found: Marian | GPT2 | Llama
    if config.num_encoder_layers:
        check_settings("Marian or Pegasus", config)
        kind, shape = (Pegasus, PegasusConfig) if config.norm_first else (Marian, MarianConfig)
        for name, value in (("num_heads", config.num_heads), ("d_ff", config.d_ff)):
            common |= {f"encoder_{name}": value, f"decoder_{name}": value}
        found = kind(
            shape(
                vocab_size=config.tgt_vocab_size,
                num_encoder_layers=config.num_encoder_layers,
                num_decoder_layers=config.num_decoder_layers,
                scale_embedding=True,
                dropout=config.dropout,
                pad_id=max(config.pad_id, 0),
                start_id=1,
                **common,
            )
        )
        state = sines_first(with_biases(state), config.d_model)
        state["output_projection.bias"] = torch.zeros(config.tgt_vocab_size)
    else:
        common |= {"num_heads": config.num_heads, "num_layers": config.num_decoder_layers}
        common |= {"vocab_size": config.tgt_vocab_size, "d_ff": config.d_ff, "tie_output": False}
        state["embedding.weight"] = state["embedding.weight"] * model.embedding.scale
        if config.positional_encoding == "rotary":
            check_settings("Llama", config)
            common |= {"num_kv_heads": config.num_kv_heads, "eps": model.decoder.norm.eps}
            llama: Any = LlamaConfig(attention_bias=config.attention_bias, **common)
            found = Llama(llama)
            state = halves(state, config.d_model // config.num_heads)
        else:
            check_settings("GPT-2", config)
            gpt2: Any = GPT2Config(dropout=config.dropout, **common)
            found = GPT2(gpt2)
            nothing = state["embedding.weight"].new_zeros(1, config.max_len, config.d_model)
            table = nothing if model.positions is None else model.positions(nothing)
            state = with_biases(state) | {"positions.weight": table[0].detach()}
    found.to(model.output_projection.weight.dtype).load_state_dict(state)
    ids = {"bos_token_id": 1, "pad_token_id": config.pad_id}
    found.kept = {name: index for name, index in ids.items() if index >= 0}
    return found.eval()


def check_settings(name: str, config: Any) -> None:
    """Raise an error for the first setting that the architecture does not have."""
    for setting, values in KNOWN[name].items():
        found = getattr(config, setting)
        if found not in values:
            expected = " or ".join(map(repr, values))
            raise ValueError(f"{name} of transformers has {setting}={expected}, got {found!r}")


def with_biases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with zeros for the biases of attention where there are none."""
    missing = {
        name.replace("weight", "bias"): tensor.new_zeros(len(tensor))
        for name, tensor in state.items()
        if "attention.w_" in name and name.endswith("weight")
    }
    return missing | dict(state)


def halves(state: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The same for pairs (i, i + width/2) of a head in place of pairs (2i, 2i + 1)."""
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return {
        name: tensor.unflatten(0, (-1, width))[:, order].flatten(0, 1)
        if name.endswith(("w_q.weight", "w_k.weight", "w_q.bias", "w_k.bias"))
        else tensor
        for name, tensor in state.items()
    }


def sines_first(state: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The same with the features of every vector, d, in another order: sines, then cosines.

    Nothing in the model knows the order of its features but the table of positions.
    """
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    reads = ("w_q.weight", "w_k.weight", "w_v.weight", "w_1.weight", "embedding.weight")
    writes = ("w_o.weight", "w_o.bias", "w_2.weight", "w_2.bias", "norm.weight", "norm.bias")
    moved = {}
    for name, tensor in state.items():
        if name.endswith((*reads, "output_projection.weight")):
            tensor = tensor[:, order]
        elif name.endswith(writes):
            tensor = tensor[order]
        moved[name] = tensor
    return moved


def to_transformers(model: Exportable, folder: str | os.PathLike[str]) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM` reads.

    Args:
        model: a `Translator` or a `TextGenerator`, which `AutoTokenizer` reads too, beginning or
            ending a text as the model needs it; or a model alone.
        folder: where to; a new one, or an empty one.

    Raises:
        FileExistsError: if `folder` is not empty.
        TypeError: if the model is a published one, or none of the two kinds.
        ValueError: if `transformers` has no such architecture, which names the setting; if a part
            is not as configured; if there are two tokenizers.

    Example:
        >>> import tempfile
        >>> import minitransformer as mt
        >>> sizes = {"d_model": 8, "num_heads": 2, "d_ff": 4, "num_layers": 2, "norm_first": True}
        >>> model = mt.DecoderOnlyTransformer(mt.TransformerConfig.decoder_only(9, **sizes))
        >>> with tempfile.TemporaryDirectory() as name:
        ...     to_transformers(model, f"{name}/engine")
        ...     sorted(os.listdir(f"{name}/engine"))
        ['config.json', 'model.safetensors']
    """
    plain_model, tokenizers = exportable_by_layers(model)
    published = as_published(plain_model)
    files = [tokenizer.to_dict() for tokenizer in tokenizers.values()]
    if any(file != files[0] for file in files):
        raise ValueError("transformers has one tokenizer for both sides, got two different ones")
    with export_folder(folder, {}) as unfinished:
        published.save_pretrained(unfinished)
        for file in files[:1]:
            save_tokenizer(file, unfinished, plain_model.config)


def save_tokenizer(file: dict[str, Any], folder: Path, config: Any) -> None:
    """Write what `AutoTokenizer` reads: sources end with <eos>, prompts begin with <bos>."""
    parts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    token, index = ("<eos>", 2) if config.num_encoder_layers else ("<bos>", 1)
    added = {"SpecialToken": {"id": token, "type_id": 0}}
    file["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [parts[0], added] if index == 2 else [added, parts[0]],
        "pair": [*parts, added] if index == 2 else [added, *parts],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }
    write_json(file, folder / "tokenizer.json")
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.max_len}
    write_json(settings | names, folder / "tokenizer_config.json")
