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
from pathlib import Path
from typing import Any

from minitransformer.decoder_only import DecoderOnlyTransformer
from minitransformer.export.architectures import as_published
from minitransformer.export.folder import export_folder, exportable_by_layers
from minitransformer.tokenizer_file import write_json
from minitransformer.transformer import Transformer
from minitransformer.translator import TextModel

__all__ = ["to_transformers"]


def to_transformers(
    model: TextModel | Transformer | DecoderOnlyTransformer,
    folder: str | os.PathLike[str],
) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM` reads.

    Args:
        model: a `Translator` or a `TextGenerator`, which `AutoTokenizer` reads too, beginning or
            ending a text as the model needs it; or a model alone.
        folder: where to; a new one, or an empty one.

    Raises:
        FileExistsError: if `folder` is not empty.
        TypeError: if the model is a published one, or none of the two kinds.
        ValueError: if `transformers` has no such architecture, which names the setting; if a part
            of the model is not what its configuration says; if there are
            two tokenizers.

    Example:
        >>> import tempfile
        >>> from minitransformer.config import TransformerConfig
        >>> sizes = {"d_model": 8, "num_heads": 2, "d_ff": 4, "num_layers": 2, "norm_first": True}
        >>> model = DecoderOnlyTransformer(TransformerConfig.decoder_only(9, **sizes))
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
