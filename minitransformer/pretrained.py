"""Models in folders, laid out as on the Hugging Face Hub, for others to load.

| file | what it holds |
| --- | --- |
| `config.json` | the model's configuration |
| `model.safetensors` | its weights, each one once |
| `src_tokenizer.json`, `tgt_tokenizer.json` | the tokenizers of a `Transformer`, if given |
| `tokenizer.json` | the tokenizer of a `DecoderOnlyTransformer`, if given |
| `README.md` | the model card: what this is, and how to load it |

A checkpoint is for going on with the training; such a folder is for giving the result away.

Built in chapter 9.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, get_args, get_type_hints

import torch
from torch import Tensor, nn

from minitransformer.as_configured import check_as_configured
from minitransformer.config import TransformerConfig
from minitransformer.files import read_tensors, replacing, write_tensors
from minitransformer.model_card import model_card
from minitransformer.tokenization import Tokenizer
from minitransformer.tokenizer_file import read_json, write_json

__all__ = ["Pretrained"]

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
TOKENIZERS = {
    "src": "src_tokenizer.json",
    "tgt": "tgt_tokenizer.json",
    "text": "tokenizer.json",  # the name that the library `tokenizers` looks for
}
MODEL_TYPE = "minitransformer"


class Pretrained(nn.Module):
    """A model that can be saved for others, and loaded by them.

    Its class takes a `TransformerConfig` and keeps it as `config`; its state is its parameters.

    Built in chapter 9.
    """

    config: TransformerConfig

    def save_pretrained(self, folder: str | os.PathLike[str], **tokenizers: Tokenizer) -> None:
        """Write a folder that `from_pretrained` reads and the Hugging Face Hub takes as it is.

        Whoever stops it at any moment leaves what was there before, the new model, or a folder
        that does not load: never a mixture. A `README.md` that is there already stays.

        Args:
            folder: where to; made if it does not exist.
            tokenizers: what the model was trained with, `src` and `tgt`, or `text` if it has no
                encoder: `**trainer.tokenizers`. With them, `load_translator` and
                `load_language_model` read the folder.

        Raises:
            ValueError: if there are other tokenizers, or one does not fit the model; if a part of
                the model is not what its configuration says.

        Example:
            >>> import tempfile
            >>> from minitransformer import Transformer
            >>> model = Transformer(TransformerConfig(9, 9, d_model=4, num_heads=2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save_pretrained(folder)
            ...     sorted(os.listdir(folder))
            ['README.md', 'config.json', 'model.safetensors']

        Built in chapter 9.
        """
        check_tokenizers(self.config, tokenizers)
        check_as_configured(self)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        kind = type(self).__name__
        config = {"model_type": MODEL_TYPE, "architectures": [kind]} | asdict(self.config)
        with TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            finished = Path(name)
            with replacing(finished / WEIGHTS) as unfinished:
                write_tensors(unfinished, named_weights(self), {"format": "pt"})
            for side, tokenizer in tokenizers.items():
                tokenizer.save(finished / TOKENIZERS[side])
            if not (folder / CARD).exists():
                size = sum(parameter.numel() for parameter in self.parameters())
                card = model_card(folder.resolve().name, kind, self.config, size, list(tokenizers))
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

        Example:
            >>> import tempfile
            >>> from minitransformer import Transformer
            >>> model = Transformer(TransformerConfig(9, 9, d_model=4, num_heads=2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save_pretrained(folder)
            ...     again = Transformer.from_pretrained(folder)
            >>> torch.equal(again.src_embedding.weight, model.src_embedding.weight)
            True

        Built in chapter 9.
        """
        folder = local_folder(name_or_folder)
        kind, config = read_config(folder)
        if kind != cls.__name__:
            raise ValueError(f"{folder} holds a {kind}, not a {cls.__name__}")
        return cls.from_folder(folder, config, device)

    @classmethod
    def from_folder(
        cls, folder: Path, config: TransformerConfig, device: torch.device | str
    ) -> Self:
        """A model of that configuration with the weights of the folder, in evaluation mode."""
        weights, _ = read_tensors(existing(folder / WEIGHTS))
        try:
            return cls.with_weights(config, weights, device).eval()
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error

    @classmethod
    def with_weights(
        cls, config: TransformerConfig, weights: Mapping[str, Tensor], device: torch.device | str
    ) -> Self:
        """A model of that configuration with those weights, in their dtype.

        Raises:
            ValueError: if weights are missing or unknown, or have other shapes or several dtypes.
        """
        with torch.random.fork_rng([]):  # starting values are drawn in vain: nobody should notice
            model = cls(config)
        parameters = named_weights(model)
        names = sorted(parameters.keys() | weights.keys())
        found = {name: shape_of(weights.get(name)) for name in names}
        expected = {name: shape_of(parameters.get(name)) for name in names}
        wrong = [name for name in names if found[name] != expected[name]]
        if wrong:
            raise ValueError(
                f"{len(wrong)} of {len(names)} weights do not fit the configuration; the first, "
                f"{wrong[0]}, is {found[wrong[0]]}, expected {expected[wrong[0]]}"
            )
        dtypes = {weight.dtype for weight in weights.values()}
        if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
            raise ValueError(
                "weights must have a single floating-point dtype, "
                f"got {', '.join(sorted(map(str, dtypes)))}"
            )
        model.to(device, dtypes.pop())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        return model


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters by name: a tied one once, under the first of its names.

    A layer that `torch.compile` returned has all it had under a name of its own. What is saved
    must not depend on that.
    """
    return {name.replace("_orig_mod.", ""): p for name, p in model.named_parameters()}


def shape_of(weight: Tensor | None) -> str:
    """What an error says about a weight."""
    return "missing" if weight is None else str((*weight.shape,))


def local_folder(
    name_or_folder: str | os.PathLike[str],
    wanted: Sequence[str] = (CONFIG, WEIGHTS, CARD, *TOKENIZERS.values()),
) -> Path:
    """The folder itself, or where those files of that model of the Hub have been downloaded to."""
    if Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    if Path(name_or_folder).exists():
        raise ValueError(
            f"name_or_folder must be a folder, or a name on the Hugging Face Hub, got the file "
            f"{name_or_folder}; its folder is {Path(name_or_folder).parent}"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FileNotFoundError(
            f"there is no folder {name_or_folder}; if it is a name on the Hugging Face Hub, "
            "install what asks the Hub: pip install 'minitransformer[hub]'"
        ) from error
    try:
        return Path(snapshot_download(os.fspath(name_or_folder), allow_patterns=list(wanted)))
    except (OSError, ValueError) as error:  # the Hub's errors are one or the other
        raise FileNotFoundError(
            f"there is no folder {name_or_folder}, and from the Hugging Face Hub: {error}"
        ) from error


def read_config(folder: Path) -> tuple[str, TransformerConfig]:
    """The name of the model's class, and its configuration."""
    path = existing(folder / CONFIG)
    content = read_json(path)
    if (model_type := content.pop("model_type", None)) != MODEL_TYPE:
        raise ValueError(f"{path}: model_type is {model_type!r}, expected {MODEL_TYPE!r}")
    kinds = content.pop("architectures", None)
    if not isinstance(kinds, list) or len(kinds) != 1:
        raise ValueError(f"{path}: architectures is {kinds!r}, expected a list of one name")
    known = get_type_hints(TransformerConfig)
    if unknown := sorted(content.keys() - known.keys()):
        raise ValueError(
            f"{path} has settings that this version of minitransformer does not know: "
            f"{', '.join(unknown)}; it knows {', '.join(known)}"
        )
    needed = {field.name for field in fields(TransformerConfig) if field.default is MISSING}
    if missing := sorted(needed - content.keys()):
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    for name, value in content.items():
        types = get_args(known[name]) or (known[name],)
        if type(value) not in types and not (type(value) is int and float in types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise ValueError(f"{path}: {name} is {value!r}, expected {expected}")
    try:
        return kinds[0], TransformerConfig(**content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


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


def vocabularies(config: TransformerConfig) -> dict[str, int]:
    """The tokens that the model has on each side that needs a tokenizer."""
    if config.num_encoder_layers:
        return {"src": config.src_vocab_size, "tgt": config.tgt_vocab_size}
    return {"text": config.tgt_vocab_size}


def check_tokenizers(config: TransformerConfig, tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raise an error unless these are all the tokenizers of such a model, or none."""
    sizes = vocabularies(config)
    if tokenizers and tokenizers.keys() != sizes.keys():
        raise ValueError(f"tokenizers must be {list(sizes)} or none, got {list(tokenizers)}")
    for side, tokenizer in tokenizers.items():
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
