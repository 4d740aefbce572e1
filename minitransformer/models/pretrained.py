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
from minitransformer.tokenization.published import FILES as PUBLISHED_FILES
from minitransformer.tokenization.published import KINDS, PublishedTokenizer
from minitransformer.tokenization.tokenizer import ROLES, Tokenizer

__all__ = ["Pretrained"]

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
        values = [value for part in fresh.modules() for value in settings_of(part).values()]
        seen = not any(isinstance(value, Tensor) and value.is_meta for value in values)
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
    values, found = settings_of(other), settings_of(part)
    for key in sorted(values.keys() | part._buffers.keys()):
        value, has = values.get(key), found.get(key)
        if isinstance(value, Tensor) and isinstance(has, Tensor):
            same = value.shape == has.shape and torch.equal(value, has.to(value.device))
        else:
            same = not isinstance(value, Tensor) and not isinstance(has, Tensor) and has == value
        if not same:
            raise ValueError(
                f"{name}.{key} is not what the configuration says and would be lost: "
                f"{shown(has)}, expected {shown(value)}"
            )


def settings_of(part: nn.Module) -> dict[str, Any]:
    """What a module computes with beside its parameters: tensors, and attributes of its own."""
    return {
        name: value
        for name, value in {**vars(part), **part._buffers}.items()
        if isinstance(value, Tensor) or not (name.startswith("_") or name in OF_TRAINING)
    }


def shown(value: object) -> str:
    """A value in a line of an error."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
TOKENIZERS = {
    "src": "src_tokenizer.json",
    "tgt": "tgt_tokenizer.json",
    "text": "tokenizer.json",  # the name that the library `tokenizers` looks for
}
FILES = {*PUBLISHED_FILES, *TOKENIZERS.values()} - {CONFIG}
"""All files of tokenizers that may be in a folder, ours or published ones."""
MODEL_TYPE = "minitransformer"
INDEX, GENERATION = f"{WEIGHTS}.index.json", "generation_config.json"
HUB_FILES = f"""
{CONFIG} {CARD} {GENERATION} model*.safetensors model*.safetensors.index.json
*token*.json vocab.* merges.txt *.spm spiece.model tokenizer.model
""".split()
"""What is fetched from the Hub: what a model computes with, and its tokenizers' files."""
CLASS = "_minitransformer_class"
"""The class in a published model's `config.json`, where it is a user's own."""


class Pretrained(nn.Module):
    """A model that can be saved for others, and loaded by them.

    Its class takes a `TransformerConfig` and keeps it as `config`; its state is its parameters.
    A class derived from it is registered by that, and loads wherever it is defined.
    """

    config: Any
    config_class: ClassVar[type] = TransformerConfig
    is_published: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls)

    def save_pretrained(self, folder: str | os.PathLike[str], **tokenizers: Tokenizer) -> None:
        """Write a folder that `from_pretrained` reads and the Hugging Face Hub takes as it is.

        Stopped at any moment, it leaves what was there before, the new model, or a folder that
        does not load: never a mixture. A `README.md` that is there already stays. Saving a
        published model without tokenizers leaves those that are there.

        Args:
            folder: where to; made if it does not exist.
            tokenizers: `src` and `tgt`, or `text` if there is no encoder: `**trainer.tokenizers`.
                A `PublishedTokenizer` beside a published model has its own files.

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
        if around := described(self)["around"]:
            raise ValueError(
                f"a folder has no place for what is around {', '.join(around)}: merge it into the "
                "layers first (merge_lora), or save a checkpoint"
            )
        check_as_configured(self)
        check_dtype(named_weights(self))
        files, weights = self.contents()
        check_files_come_back(tokenizers, self, files[CONFIG])
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            finished = Path(name)
            write_tensors(finished / WEIGHTS, weights, {"format": "pt"})
            write_tokenizers(finished, tokenizers, own_files=self.is_published)
            if not self.is_published and not (folder / CARD).exists():
                card = model_card(folder.resolve().name, self, list(tokenizers))
                (finished / CARD).write_text(card, encoding="utf-8")
            for file, content in files.items():
                write_json(content, finished / file)
            # Without config.json nothing loads, so it goes first and comes back last.
            old_tokenizers = FILES if tokenizers or not self.is_published else ()
            for file in (CONFIG, INDEX, GENERATION, *old_tokenizers):
                if (folder / file).exists():
                    (folder / file).unlink()
            for path in sorted(finished.iterdir(), key=lambda path: path.name == CONFIG):
                os.replace(path, folder / path.name)

    def contents(self) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """The JSON files of a folder, by name, and the weights."""
        about = described(self)
        if about["config_class"] != (known := self.config_class.__name__):
            raise ValueError(f"config must be a {known}, got a {about['config_class']}")
        config = {"model_type": MODEL_TYPE, "architectures": [about["class"]]} | about["model"]
        return {CONFIG: config}, named_weights(self)

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
        folder = local_folder(name_or_folder, HUB_FILES)
        path = existing(folder / CONFIG)
        content = read_json(path)
        if (name := named_class(path, content)) != name_of(cls):
            raise ValueError(f"{folder} holds a {name}, not a {name_of(cls)}")
        settings = {k: v for k, v in content.items() if k not in ("model_type", "architectures")}
        about = {"class": name, "config_class": cls.config_class.__name__, "model": settings}
        try:
            model = rebuilt(about | {"besides": {}, "around": {}}, "cpu")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        weights, _ = read_tensors(existing(folder / WEIGHTS))
        try:
            return cast(Self, with_weights(model, weights, device).eval())
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error

    @classmethod
    def reads(cls, content: Mapping[str, Any]) -> bool:
        """Whether this is the class for a published model with that `config.json`."""
        return False


def model_card(name: str, model: "Pretrained", sides: Sequence[str]) -> str:
    """The text of a model card, by the folder's name, the model and the tokenizers' sides."""
    config, kind = model.config, described(model)["class"]
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
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

## What is missing here

What the model was trained on, how good it is, and under which licence others may use it. If you
publish it, say so, and name the licence in the first lines of this file, as `license:`.
"""


def named_class(path: Path, content: Mapping[str, Any]) -> str:
    """The class that a `config.json` of this package names."""
    if (model_type := content.get("model_type")) != MODEL_TYPE:
        raise ValueError(f"{path}: model_type is {model_type!r}, expected {MODEL_TYPE!r}")
    kinds = content.get("architectures")
    if not isinstance(kinds, list) or len(kinds) != 1:
        raise ValueError(f"{path}: architectures is {kinds!r}, expected a list of one name")
    return str(kinds[0])


def class_of(folder: Path) -> Any:
    """The class that reads a folder: the one that it names, or the published model's."""
    path = existing(folder / CONFIG)
    content = read_json(path)
    if (model_type := content.get("model_type")) == MODEL_TYPE:
        return registered(named_class(path, content))
    if (name := content.get(CLASS)) is not None:
        return registered(name)
    for kind in CLASSES.values():
        if issubclass(kind, Pretrained) and kind.reads(content):
            return kind
    raise ValueError(
        f"{path}: no class is known for model_type={model_type!r} with architectures="
        f"{content.get('architectures')!r}"
    )


def read_folder(folder: Path, device: torch.device | str) -> tuple[Any, dict[str, Tokenizer]]:
    """The model of a folder, of the class that it names, and its tokenizers."""
    model = class_of(folder).from_pretrained(folder, device)
    return model, read_tokenizers(folder, model.config)


def write_tokenizers(
    folder: Path, tokenizers: Mapping[str, Tokenizer], *, own_files: bool = True
) -> None:
    """Write the tokenizers' files; published ones have their own files, or ours like others."""
    for side, tokenizer in tokenizers.items():
        if own_files and isinstance(tokenizer, PublishedTokenizer):
            tokenizer.save_pretrained(folder)  # two share theirs
        else:
            tokenizer.save(folder / TOKENIZERS[side])


def read_tokenizers(folder: Path, config: Any) -> dict[str, Tokenizer]:
    """The tokenizers in a folder, ours or published ones, by side; none if there are no files."""
    found: dict[str, Tokenizer] = {}
    for side in vocabularies(config):
        path = folder / TOKENIZERS[side]
        try:
            found[side] = Tokenizer.load(path)
        except (FileNotFoundError, ValueError):  # none of this package's
            if any(all((folder / name).is_file() for name in names) for names in KINDS):
                target = side == "tgt" and (folder / "target.spm").is_file()
                published_side = "target" if target else "source"
                found[side] = PublishedTokenizer.from_pretrained(folder, published_side)
            elif path.is_file():
                raise
    if found:
        for side in vocabularies(config).keys() - found.keys():
            existing(folder / TOKENIZERS[side])
    try:
        check_tokenizers(config, found)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return found


def check_files_come_back(
    tokenizers: Mapping[str, Tokenizer], model: Pretrained, content: Mapping[str, Any]
) -> None:
    """Raise an error unless the tokenizers, beside that `config.json`, are read as they are."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_json(content, folder / CONFIG)
        write_tokenizers(folder, tokenizers, own_files=model.is_published)
        again = read_tokenizers(folder, model.config)
    for side, tokenizer in tokenizers.items():
        check_same_tokenizer(side, again.get(side), tokenizer)


def check_come_back(tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise an error unless each tokenizer would be read as what it is, from a single file."""
    for side, tokenizer in tokenizers.items():
        try:
            again = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
        except (AttributeError, TypeError, ValueError) as error:
            kind = type(tokenizer).__name__
            raise ValueError(f"tokenizer {side}, a {kind}, cannot be saved: {error}") from error
        check_same_tokenizer(side, again, tokenizer)


def check_same_tokenizer(side: str, found: Tokenizer | None, expected: Tokenizer) -> None:
    """Raise an error unless the tokenizer that was read is the one that was saved."""
    if found is None or content_of(found) != content_of(expected):
        raise ValueError(
            f"tokenizer {side}, a {type(expected).__name__}, cannot be saved: it would be read as "
            f"a {type(found).__name__} with other tokens or settings"
        )


def content_of(tokenizer: Tokenizer) -> tuple[Any, ...]:
    """What a tokenizer is, without the model's configuration, which is beside it."""
    if not isinstance(tokenizer, PublishedTokenizer):
        return type(tokenizer), tokenizer.to_dict()
    files = {name: content for name, content in tokenizer.files.items() if name != CONFIG}
    roles = [getattr(tokenizer, f"{role}_id") for role in ROLES]
    return type(tokenizer), files, tokenizer.side, roles


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
