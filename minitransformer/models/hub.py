"""Weights that others publish, in and out of a folder, under their names.

A model class says where each published tensor goes; the rest is here. Nothing is unpickled, and
nothing that is not known is passed over in silence.

Built in chapter 12.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minitransformer.files import local_folder, named_folder, read_tensors, replacing, write_tensors
from minitransformer.models import beside
from minitransformer.models.as_configured import check_as_configured, described_for_folder
from minitransformer.models.pretrained import (
    CLASS,
    CONFIG,
    HUB_FILES,
    WEIGHTS,
    check_tokenizers,
    existing,
)
from minitransformer.models.published_config import PublishedConfig, Stacked, check_said
from minitransformer.models.registry import check_dtype, name_of, named_weights, register, shape_of
from minitransformer.tokenization.tokenizer_file import read_json, write_json

__all__ = ["Published"]

INDEX = f"{WEIGHTS}.index.json"
GENERATION = "generation_config.json"
BEGIN_AND_END = ("decoder_start_token_id", "eos_token_id")
"""What `generation_config.json` says in place of `config.json`."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Published(nn.Module):
    """A model whose weights others publish, and read.

    Args:
        config: the model's configuration, a `config_class` or one derived from it.
        generator: source of the starting values; PyTorch's global one when left out.

    Attributes:
        config_class: the class of its configuration.
        architecture: what `transformers` calls this model, when it is written.
        prefix: what stands before each name where the model is part of a larger one.
        names: for each published tensor ours, or `Stacked` ones, or None for what is no parameter;
            a star is the number of a layer.
    """

    config: Any
    config_class: ClassVar[type[PublishedConfig]]
    architecture: ClassVar[str]
    prefix: ClassVar[str] = ""
    names: ClassVar[Mapping[str, str | Stacked | None]]
    kept: Mapping[str, Any] = {}
    """Settings of the `config.json` that was read, which are written back."""
    generation: Mapping[str, Any] = {}
    """The `generation_config.json` that was read, which is written back."""
    besides: ClassVar[tuple[str, ...]] = ("kept", "generation")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """What ends a text: the configuration's `eos_ids`, as far as they are tokens here."""
        ids = getattr(self.config, "eos_ids", ())
        return tuple(index for index in ids if 0 <= index < self.config.vocab_size)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register(cls)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Read published weights, from a folder or from the Hugging Face Hub.

        Args:
            name_or_folder: a folder with `config.json` and `model.safetensors`, or its shards and
                their index; or, where there is none of that name, a model on the Hub, which takes
                `pip install 'minitransformer[hub]'`.
            device: where to put the model, which is in evaluation mode.
            dtype: of the weights; when left out, as they are stored, all in the same one.

        Raises:
            FileNotFoundError: if there is no such folder or model, or a file is missing.
            ValueError: if the model is of another family, or quantised; if a file is damaged, has
                settings or weights that are not known, or lacks some; if weights have several
                dtypes and `dtype` does not say which one it is to be.
        """
        if dtype not in (None, *FLOATS):
            raise ValueError(f"dtype must be a floating-point one or None, got {dtype}")
        folder = local_folder(name_or_folder, HUB_FILES)
        content = read_json(existing(folder / CONFIG))
        generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
        said = {key: generation.get(key) for key in BEGIN_AND_END if key in cls.config_class.keys}
        content |= {key: value for key, value in said.items() if value is not None}
        try:
            cls.config_class.from_published(content)  # before gigabytes are read
            weights = read_weights(folder)
            if dtype is not None:
                weights = {n: w.to(dtype) if w.dtype in FLOATS else w for n, w in weights.items()}
            model = cls.from_published(content, weights)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder}: {error}") from error
        model.kept, model.generation = content, generation
        return model.to(device).eval()

    @classmethod
    def from_published(cls, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Self:
        """The model of that `config.json` with those weights, under their published names."""
        with torch.device("meta"):  # nothing is drawn that would be thrown away
            model = cls(cls.config_class.from_published(content))
        parameters = dict(model.named_parameters(remove_duplicate=False))
        ours = model.translated(weights, parameters)
        new: dict[nn.Parameter, nn.Parameter] = {}
        for name, parameter in parameters.items():
            found = ours.get(name)
            if found is None:
                continue  # tied, perhaps: it may be there under its other name
            if found.shape != parameter.shape:
                raise ValueError(
                    f"{name} is {shape_of(found)}, expected {shape_of(parameter)} as configured"
                )
            if parameter in new and not torch.equal(new[parameter], found):
                raise ValueError(
                    f"{name} differs from the table that it is tied to; tie_word_embeddings=False "
                    "in config.json keeps two apart"
                )
            # Fused optimisers take every parameter for contiguous memory.
            new.setdefault(parameter, nn.Parameter(found.contiguous()))
        missing = [name for name, parameter in parameters.items() if parameter not in new]
        if missing:
            raise ValueError(f"{len(missing)} weights are missing; the first is {missing[0]}")
        for module in model.modules():
            for name, empty in module._parameters.items():
                if empty is not None:
                    module._parameters[name] = new[empty]
        return model

    def translated(
        self, weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Published weights under our names."""
        ours: dict[str, Tensor] = {}
        dtypes: dict[torch.dtype, str] = {}
        unknown = []
        for name, tensor in weights.items():
            place, number = self.place_of(name)
            if place is None:
                continue
            if tensor.dtype not in FLOATS:
                raise ValueError(
                    f"{name} holds {tensor.dtype}: the weights are quantised, and only "
                    f"floating-point ones are read, {', '.join(map(str, FLOATS))}"
                )
            dtypes.setdefault(tensor.dtype, name)
            if place == "":
                unknown.append(name)
            elif isinstance(place, str):
                ours[place.replace("*", number)] = tensor
            else:
                names = [part.replace("*", number) for part in place.names]
                if wrong := [part for part in names if part not in parameters]:
                    raise ValueError(f"{name} has no place: there is no {wrong[0]} as configured")
                parts = place.take_apart(tensor, [parameters[part].shape for part in names])
                ours.update(zip(names, parts, strict=True))
        unknown += [name for name in ours if name not in parameters]
        if unknown:
            raise ValueError(f"{len(unknown)} weights are not known; the first is {unknown[0]}")
        if len(dtypes) > 1:
            found = ", ".join(f"{kind} ({name})" for kind, name in dtypes.items())
            raise ValueError(f"weights have several dtypes, {found}; say which one by `dtype`")
        return ours

    def place_of(self, name: str) -> tuple[str | Stacked | None, str]:
        """Where a published tensor goes, and the number of its layer; "" if it is not known."""
        for found in (name, self.prefix + name):
            pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", found, count=1)
            if pattern in self.names:
                number = re.search(r"(?<=\.)\d+(?=\.)", found)
                return self.names[pattern], number[0] if number else ""
        return "", ""

    def published_weights(self) -> dict[str, Tensor]:
        """The weights under their published names, each one once."""
        left = dict(self.named_parameters())
        numbers = sorted({*re.findall(r"\.(\d+)\.", " ".join(left))}, key=int)
        published: dict[str, Tensor] = {}
        for name, place in self.names.items():
            if place is None:
                continue
            wanted = (place,) if isinstance(place, str) else place.names
            for number in numbers if "*" in name else [""]:
                parts = [left.pop(part.replace("*", number), None) for part in wanted]
                whole = [part.detach() for part in parts if part is not None]
                if whole:
                    published[name.replace("*", number)] = (
                        whole[0] if isinstance(place, str) else place.put_together(whole)
                    )
        if left:
            first = next(iter(left))
            raise ValueError(f"{len(left)} weights have no published name; the first is {first}")
        return published

    @classmethod
    def reads(cls, content: Mapping[str, Any]) -> bool:
        """Whether this is the package's class for the model of that `config.json`."""
        config = getattr(cls, "config_class", None)
        types = {config.model_type, *vars(config).get("also", ())} if config else set()
        return "." not in name_of(cls) and content.get("model_type") in types

    @classmethod
    def of_folder(cls, folder: Path, device: torch.device | str) -> tuple[Self, dict[str, Any]]:
        """The model of a folder, and its tokenizers, ours or published ones."""
        model = cls.from_pretrained(folder, device)
        return model, beside.read_tokenizers(folder, model.config)

    def save_pretrained(self, folder: str | os.PathLike[str], **tokenizers: Any) -> None:
        """Write `config.json` and `model.safetensors`, for `transformers` and `from_pretrained`.

        Args:
            folder: where to; made if it does not exist.
            tokenizers: what lies beside them: `text`, or `src` and `tgt` of a model with encoder
                and decoder, so `**trainer.tokenizers`. Of a `PublishedTokenizer` its own files.

        Raises:
            ValueError: if `folder` is empty; if a tokenizer does not fit the model; if model or
                tokenizers would come back as others.
        """
        folder = named_folder(folder)
        check_tokenizers(self.config, tokenizers)
        about = described_for_folder(self)
        check_as_configured(self)
        check_dtype(named_weights(self))
        published = self.config.to_published()
        content = {**self.kept, "architectures": [self.architecture], **published}
        if published.get("num_labels") not in (None, len(content.get("id2label") or ())):
            for names in ("id2label", "label2id"):  # of other classes, which it had before
                content.pop(names, None)
        for key in content.keys() & {"dtype", "torch_dtype"}:
            content[key] = str(next(self.parameters()).dtype).removeprefix("torch.")
        told = {key for key in BEGIN_AND_END if self.generation.get(key) is not None}
        generation = {**self.generation, **{key: content[key] for key in told & content.keys()}}
        content.pop(CLASS, None)
        if not self.reads(content):
            content[CLASS] = about["class"]
        weights = self.published_weights()
        again = self.from_published(json.loads(json.dumps(content)), weights)
        check_said(again.config, self.config)
        beside.check_files_come_back(tokenizers, self.config, content)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            finished = Path(name)
            with replacing(finished / WEIGHTS) as unfinished:
                write_tensors(unfinished, weights, {"format": "pt"})
            beside.write_tokenizers(finished, tokenizers)
            write_json(content, finished / CONFIG)
            if generation:
                write_json(generation, finished / GENERATION)
            for file in (CONFIG, INDEX, GENERATION, *(beside.FILES if tokenizers else ())):
                (folder / file).unlink(missing_ok=True)
            for path in sorted(finished.iterdir(), key=lambda path: path.name == CONFIG):
                os.replace(path, folder / path.name)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The published weights of a folder, in one file or in shards."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():  # shards may be older
        if not (folder / WEIGHTS).is_file() and (found := sorted(folder.glob("*.bin"))):
            raise FileNotFoundError(
                f"the folder {folder} has no {WEIGHTS}, only {found[0].name}, a pickle, which runs "
                "code when it is read; convert it where you trust it"
            )
        return read_tensors(existing(folder / WEIGHTS))[0]
    shard_of = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shard_of, dict):
        raise ValueError(f"{folder / INDEX} has no weight_map")
    weights: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        weights |= read_tensors(existing(folder / Path(shard).name))[0]
    if weights.keys() != shard_of.keys():
        wrong = sorted(weights.keys() ^ shard_of.keys())
        raise ValueError(
            f"{folder}: shards and index differ in {len(wrong)} weights; the first is {wrong[0]}"
        )
    return weights
