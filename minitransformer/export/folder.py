"""What all exports begin and end with: a model that can be written, a folder that is whole."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitransformer.files import new_folder
from minitransformer.models.pretrained import check_as_configured, vocabularies, write_tokenizers
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.training.translator import TextModel

__all__ = ["Exportable", "export_folder", "exportable", "exportable_by_layers", "tokens_of"]

Exportable = TextModel | Transformer | DecoderOnlyTransformer


def exportable(model: Any) -> tuple[Any, dict[str, Tokenizer]]:
    """The model and the tokenizers of a `TextModel`; of a model alone, no tokenizers."""
    if isinstance(model, TextModel):
        return model.model, model.tokenizers
    if not isinstance(model, Transformer | DecoderOnlyTransformer):
        raise TypeError(
            f"model must be a Transformer or a DecoderOnlyTransformer, got a {type(model).__name__}"
        )
    return model, {}


def exportable_by_layers(model: Any) -> tuple[Any, dict[str, Tokenizer]]:
    """The same for formats that name layers, not operations: each is as configured."""
    model, tokenizers = exportable(model)
    if type(model) not in (Transformer, DecoderOnlyTransformer):
        raise TypeError(
            "model must be a Transformer or a DecoderOnlyTransformer itself, "
            f"got a {type(model).__name__}; `save_pretrained` of a published one writes what "
            "transformers, and the converters of other engines, read"
        )
    for side, tokenizer in tokenizers.items():
        if "model" not in tokenizer.to_dict():
            raise ValueError(
                f"{side} is a {type(tokenizer).__name__}, expected a tokenizer of this package"
            )
    check_as_configured(model)
    return model, tokenizers


@contextmanager
def export_folder(
    folder: str | os.PathLike[str], tokenizers: Mapping[str, Tokenizer]
) -> Iterator[Path]:
    """A folder to write into, which is there when the block is done: whole, or not at all.

    The tokenizers' files lie in it already, as `Pretrained.save_pretrained` names them.
    """
    with new_folder(Path(folder)) as unfinished:
        write_tokenizers(unfinished, tokenizers)
        yield unfinished


def tokens_of(model: Any, tokenizers: Mapping[str, Tokenizer]) -> list[list[str]]:
    """A name for each id that the model has, on each side: its token, or "#7" for id 7.

    Example:
        >>> from minitransformer.models.config import TransformerConfig
        >>> from minitransformer.tokenization.tokenizer import CharacterTokenizer
        >>> config = TransformerConfig.decoder_only(8, d_model=4, num_heads=2, num_layers=1)
        >>> letters = CharacterTokenizer.train(["ab"])
        >>> tokens_of(DecoderOnlyTransformer(config), {"text": letters})
        [['<pad>', '<bos>', '<eos>', '<unk>', '<mask>', 'a', 'b', '#7']]
    """
    names = []
    for side, size in vocabularies(model.config).items():
        tokens = tokenizers[side].tokens if side in tokenizers else Tokenizer.special_tokens[:size]
        names.append([*tokens, *(f"#{index}" for index in range(len(tokens), size))])
    return names
