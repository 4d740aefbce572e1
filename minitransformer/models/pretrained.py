"""Models in folders, laid out as on the Hugging Face Hub, for others to load.

| file | what it holds |
| --- | --- |
| `config.json` | the model's configuration |
| `model.safetensors` | its weights, each one once |
| `src_tokenizer.json`, `tgt_tokenizer.json` | the tokenizers of a `Transformer`, if given |
| `tokenizer.json` | the tokenizer of a `DecoderOnlyTransformer`, if given |
| `README.md` | the model card: what this is, and how to load it |

A checkpoint is for going on with the training, such a folder for giving the result away.

Built in chapter 9.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from minitransformer.checks import check_instance
from minitransformer.files import (
    local_folder,
    named_folder,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from minitransformer.models.config import TransformerConfig
from minitransformer.models.registry import (
    CLASSES,
    check_dtype,
    check_weights,
    described,
    name_of,
    named_parts,
    named_weights,
    plain_type,
    rebuilt,
    register,
    registered,
    with_weights,
)
from minitransformer.tokenization.tokenizer import Tokenizer

__all__ = ["Pretrained", "check_as_configured", "model_card"]

OF_TRAINING = {"training", "dropout", "p", "generator", "backend", "config"}
"""Attributes of modules that may differ from the configuration: evaluation gives the same."""


def check_as_configured(model: Any) -> None:
    """Raise an error unless what is saved of a model would come back as the same model.

    Another table of positions, ε or activation, put in place by hand, would be lost without a
    word; so would a module that was added. A ValueError has the first difference.
    """
    description = described(model)
    try:
        fresh = rebuilt(description, "meta")
        seen = not any(t.is_meta for part in fresh.modules() for t in constants(part).values())
    except (NotImplementedError, RuntimeError):  # it asks for numbers while it is made
        seen = False
    if not seen:
        fresh = rebuilt(description, "cpu")
    parts, expected = dict(named_parts(model)), dict(named_parts(fresh))
    if fresh.config != parts[""].config:
        raise ValueError(
            f"the configuration would not come back: {fresh.config}, not {parts[''].config}"
        )
    for name, part in parts.items():
        check_part(name, part, expected.get(name))
    if missing := sorted(expected.keys() - parts.keys()):
        raise ValueError(f"{missing[0]} is nothing, a part of the model as configured")
    check_weights(fresh, named_weights(model))


def check_part(name: str, part: nn.Module, other: nn.Module | None) -> None:
    """Raise an error unless a part is what is made in its place, its parameters left aside."""
    if other is None or plain_type(other) is not plain_type(part):
        kind = "nothing" if other is None else f"a {type(other).__name__}"
        raise ValueError(
            f"{name} is a {plain_type(part).__name__}, {kind} as configured: it would be lost; a "
            "part of the model belongs into its class, what is around a layer must be registered"
        )
    values, found = constants(other), constants(part)
    plain = {k: v for k, v in vars(other).items() if not k.startswith("_") and k not in OF_TRAINING}
    for key in sorted(values.keys() | plain.keys() | (found.keys() - vars(part).keys())):
        value, has = ({**vars(each), **each._buffers}.get(key) for each in (other, part))
        if isinstance(value, Tensor) and isinstance(has, Tensor):
            same = value.shape == has.shape and torch.equal(value, has.to(value.device))
        else:
            same = not isinstance(value, Tensor) and not isinstance(has, Tensor) and has == value
        if not same:
            raise ValueError(
                f"{name}.{key} is not what the configuration says and would be lost: "
                f"{shown(has)}, expected {shown(value)}"
            )


def constants(part: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module that are no parameters, whether PyTorch knows of them or not."""
    values = {**vars(part), **part._buffers}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shown(value: object) -> str:
    """A value in a line of an error."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def described_for_folder(model: Any) -> dict[str, Any]:
    """The description of a model that goes into a folder, where nothing is around layers."""
    about = described(model)
    if around := about["around"]:
        raise ValueError(
            f"a folder has no place for what is around {', '.join(around)}: merge it into the "
            "layers first (merge_lora), or save a checkpoint"
        )
    return about


def check_come_back(tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise an error unless each tokenizer that is saved would be read as what it is."""
    for side, tokenizer in tokenizers.items():
        kind = type(tokenizer).__name__
        try:
            content = json.loads(json.dumps(tokenizer.to_dict()))
            again = Tokenizer.from_dict(content)
            same = json.loads(json.dumps(again.to_dict())) == content
            if type(again) is not type(tokenizer) or not same:
                raise ValueError(f"read, it is a {type(again).__name__}")
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"tokenizer {side}, a {kind}, cannot be saved: {error}") from error


def model_card(
    name: str, kind: str, config: TransformerConfig, num_parameters: int, sides: Sequence[str]
) -> str:
    """Write the card of a model, by its folder's name, class, and the tokenizers' sides.

    Example:
        >>> config = TransformerConfig.decoder_only(30)
        >>> card = model_card("tales", "DecoderOnlyTransformer", config, 18_000_000, ["text"])
        >>> card.splitlines()[:5]
        ['---', 'library_name: minitransformer', '---', '', '# tales']
    """
    if config.num_encoder_layers:
        does = "An encoder-decoder Transformer, which reads a text and writes another one"
        loaded, use = "Translator", "translate"
    else:
        does = "A decoder-only Transformer, which reads the beginning of a text and continues it"
        loaded, use = "TextGenerator", "complete"
    if sides:
        example = f'model = mt.{loaded}.load("{name}")\nprint(model.{use}(["a text"]))'
    else:
        place = "" if "." in kind else "mt."
        example = f'model = {place}{kind}.from_pretrained("{name}")'
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in asdict(config).items())
    return f"""\
---
library_name: minitransformer
---

# {name}

{does}. It has {num_parameters:,} parameters and was saved by the Python package `minitransformer`.

## How to load it

Replace "{name}" by the path of this folder, or by the name on the Hub, such as "owner/{name}".

```python
import minitransformer as mt

{example}
```

## Settings

| setting | value |
| --- | --- |
{settings}

## What is not written here

What the model was trained on, how good it is, and under which licence others may use it. Whoever
publishes it should say so, and name the licence in the first lines of this file, as `license:`.
"""


CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
TOKENIZERS = {
    "src": "src_tokenizer.json",
    "tgt": "tgt_tokenizer.json",
    "text": "tokenizer.json",  # the name that the library `tokenizers` looks for
}
MODEL_TYPE = "minitransformer"
HUB_FILES = f"""
{CONFIG} {CARD} generation_config.json model*.safetensors model*.safetensors.index.json
*token*.json vocab.* merges.txt *.spm spiece.model tokenizer.model
""".split()
"""What is fetched from the Hub: what a model computes with, and its tokenizers' files."""
CLASS = "_minitransformer_class"
"""What a published model's `config.json` has beside, where the class is a user's own."""


class Pretrained(nn.Module):
    """A model that can be saved for others, and loaded by them.

    Its class takes a `TransformerConfig` and keeps it as `config`; its state is its parameters.
    A class derived from it is registered by that, and loads wherever it is defined.
    """

    config: TransformerConfig
    config_class: ClassVar[type] = TransformerConfig

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls)

    def save_pretrained(self, folder: str | os.PathLike[str], **tokenizers: Tokenizer) -> None:
        """Write a folder that `from_pretrained` reads and the Hugging Face Hub takes as it is.

        Whoever stops it at any moment leaves what was there before, the new model, or a folder
        that does not load: never a mixture. A `README.md` that is there already stays.

        Args:
            folder: where to; made if it does not exist.
            tokenizers: `src` and `tgt`, or `text` if there is no encoder: `**trainer.tokenizers`.

        Raises:
            ValueError: if `folder` is empty; if there are other tokenizers, or one does not fit the
                model; if model or tokenizers would come back as others.

        Example:
            >>> from minitransformer import Transformer
            >>> sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_model": 4}
            >>> model = Transformer(TransformerConfig(**sizes, num_heads=2))
            >>> with TemporaryDirectory() as folder:
            ...     model.save_pretrained(folder)
            ...     again = Transformer.from_pretrained(folder)
            >>> torch.equal(again.src_embedding.weight, model.src_embedding.weight)
            True
        """
        folder = named_folder(folder)
        check_tokenizers(self.config, tokenizers)
        check_come_back(tokenizers)
        about = described_for_folder(self)
        if about["config_class"] != self.config_class.__name__:
            known = self.config_class.__name__
            raise ValueError(f"config must be a {known}, got a {about['config_class']}")
        check_as_configured(self)
        check_dtype(named_weights(self))
        config = {"model_type": MODEL_TYPE, "architectures": [about["class"]]} | about["model"]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            finished = Path(name)
            write_tensors(finished / WEIGHTS, named_weights(self), {"format": "pt"})
            for side, tokenizer in tokenizers.items():
                tokenizer.save(finished / TOKENIZERS[side])
            if not (folder / CARD).exists():
                size = sum(parameter.numel() for parameter in self.parameters())
                place = folder.resolve().name
                card = model_card(place, about["class"], self.config, size, list(tokenizers))
                (finished / CARD).write_text(card, encoding="utf-8")
            write_json(config, finished / CONFIG)
            # Without config.json nothing loads, so it goes first and comes back last.
            (folder / CONFIG).unlink(missing_ok=True)
            for file in TOKENIZERS.values():
                (folder / file).unlink(missing_ok=True)
            for path in sorted(finished.iterdir(), key=lambda path: path.name == CONFIG):
                os.replace(path, folder / path.name)

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | os.PathLike[str], device: torch.device | str = "cpu"
    ) -> Self:
        """Read what `save_pretrained` wrote, from a folder or from the Hugging Face Hub.

        Args:
            name_or_folder: a folder; or, where there is none of that name, a model on the Hub,
                such as "owner/name", which takes `pip install 'minitransformer[hub]'`.
            device: where to put the model.

        Returns:
            The model, in evaluation mode, with weights of the dtype that they were saved with.

        Raises:
            FileNotFoundError: if there is no such folder or model, or a file is missing.
            ValueError: if a file is damaged, has settings that this package does not know, or
                holds another kind of model; if configuration and weights do not fit together.
        """
        return cast(Self, read_model(local_folder(name_or_folder, HUB_FILES), device, cls))

    @classmethod
    def of_folder(
        cls, folder: Path, device: torch.device | str
    ) -> tuple[Any, dict[str, Tokenizer]]:
        """The model of a folder, of the class that it names, and its tokenizers."""
        model = read_model(folder, device)
        return model, read_tokenizers(folder, model.config)


def class_of(folder: Path) -> Any:
    """The class that reads a folder: `Pretrained`, or the published model of its family."""
    content = read_json(existing(folder / CONFIG))
    if (model_type := content.get("model_type")) == MODEL_TYPE:
        return Pretrained
    if (name := content.get(CLASS)) is not None:
        return registered(name)
    for kind in CLASSES.values():
        if hasattr(kind, "reads") and kind.reads(content):
            return kind
    raise ValueError(
        f"{folder / CONFIG}: no class is known for model_type={model_type!r} with architectures="
        f"{content.get('architectures')!r}"
    )


def read_model(folder: Path, device: torch.device | str, wanted: type | None = None) -> Any:
    """The model of a folder, in evaluation mode, of the class that it names and that is wanted."""
    path = existing(folder / CONFIG)
    content = read_json(path)
    if (model_type := content.pop("model_type", None)) != MODEL_TYPE:
        raise ValueError(f"{path}: model_type is {model_type!r}, expected {MODEL_TYPE!r}")
    kinds = content.pop("architectures", None)
    if not isinstance(kinds, list) or len(kinds) != 1:
        raise ValueError(f"{path}: architectures is {kinds!r}, expected a list of one name")
    if wanted is not None and kinds[0] != name_of(wanted):
        raise ValueError(f"{folder} holds a {kinds[0]}, not a {name_of(wanted)}")
    try:
        kind = registered(kinds[0])
        about = {"class": kinds[0], "config_class": kind.config_class.__name__}
        model = rebuilt(about | {"model": content, "besides": {}, "around": {}}, "cpu")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    weights, _ = read_tensors(existing(folder / WEIGHTS))
    try:
        return with_weights(model, weights, device).eval()
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def read_tokenizers(folder: Path, config: TransformerConfig) -> dict[str, Tokenizer]:
    """The tokenizers that were saved with a model, by side; none if it was saved without."""
    paths = {side: folder / TOKENIZERS[side] for side in vocabularies(config)}
    if not any(path.exists() for path in paths.values()):
        return {}
    tokenizers = {side: Tokenizer.load(existing(path)) for side, path in paths.items()}
    try:
        check_tokenizers(config, tokenizers)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return tokenizers


def vocabularies(config: Any) -> dict[str, int]:
    """The tokens that the model has on each side that needs a tokenizer."""
    if not hasattr(config, "num_encoder_layers"):  # it reads only: texts as BERT, pictures as ViT
        return {"text": config.vocab_size} if hasattr(config, "vocab_size") else {}
    if config.num_encoder_layers:
        return {"src": config.src_vocab_size, "tgt": config.tgt_vocab_size}
    return {"text": config.tgt_vocab_size}


def check_tokenizers(config: TransformerConfig, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise an error unless these are all the tokenizers of such a model, or none."""
    sizes = vocabularies(config)
    if tokenizers and tokenizers.keys() != sizes.keys():
        raise ValueError(f"tokenizers must be {list(sizes)} or none, got {list(tokenizers)}")
    for side, tokenizer in tokenizers.items():
        check_instance(f"tokenizer {side}", tokenizer, Tokenizer)
        if tokenizer.vocab_size > sizes[side]:
            raise ValueError(
                f"tokenizer {side} has {tokenizer.vocab_size} tokens, "
                f"more than the {sizes[side]} of the model"
            )
        if config.pad_id >= 0 and tokenizer.pad_id != config.pad_id:
            raise ValueError(
                f"tokenizer {side} has pad_id={tokenizer.pad_id}, the model {config.pad_id}: "
                "one would take the padding of the other for a token"
            )


def existing(path: Path) -> Path:
    """The path, if it is a file."""
    if not path.is_file():
        raise FileNotFoundError(f"the folder {path.parent} has no {path.name}")
    return path
