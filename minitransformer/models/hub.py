"""What others publish, in and out of a folder: their settings and their weights, by their names.

A family says which settings of `config.json` are fields of its configuration, which must have one
value, and which leave its outputs as they are. Any other setting passes if its value does nothing
(false, null, 0 or empty), and is refused by its name and value if not. A model class says where
each published tensor goes. Nothing is unpickled, and nothing unknown is passed over in silence.

Built in chapter 12.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor, nn

from minitransformer.checks import check_types
from minitransformer.files import local_folder, read_json, read_tensors
from minitransformer.models.pretrained import (
    CLASS,
    CONFIG,
    GENERATION,
    HUB_FILES,
    INDEX,
    WEIGHTS,
    Pretrained,
    existing,
)
from minitransformer.models.registry import name_of, plain_type, shape_of, with_derived

__all__ = ["DecoderConfig", "Published", "PublishedConfig", "Stacked"]

ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""What `config.json` calls an activation, and what `FeedForward` does."""

OF_FILES = (
    r"_.*|architectures|model_type|(torch_)?dtype|transformers_version|transformers\.js.*|unsloth_.*"
    "|use_cache|return_dict|torchscript|xla_device|output_(attentions|hidden_states|scores|past)"
)
OF_TRAINING = (
    ".*dropout.*|.*_pdrop|(en|de)coder_layerdrop|initializer_.*|init_std|gradient_checkpointing"
    "|chunk_size_feed_forward|problem_type|pretraining_tp|finetuning_task|tf_legacy_loss"
)
OF_TEXTS = (
    "(bos|eos|pad|sep|mask|cls|unk|decoder_start)_token_id|tokenizer_class|prefix|id2label|label2id"
    "|num_labels|task_specific_params|summary_.*"
)
OF_GENERATION = (
    "(max|min)_(length|new_tokens|time)|early_stopping|do_sample|num_beams|num_beam_groups"
    "|num_return_sequences|temperature|top_[kph]|min_p|typical_p|(epsilon|eta)_cutoff|penalty_alpha"
    "|(diversity|(encoder_)?repetition|(exponential_decay_)?length)_penalty|guidance_scale"
    "|(encoder_)?no_repeat_ngram_size|bad_words_ids|sequence_bias|(begin_)?suppress_tokens"
    "|forced?_[be]os_token.*|renormalize_logits|remove_invalid_values|return_dict_in_generate"
)
WITHOUT_EFFECT = re.compile("|".join([OF_FILES, OF_TRAINING, OF_TEXTS, OF_GENERATION]))
"""Settings that leave the outputs of every family as they are, whatever their value."""

QUANTISED = ("quantization_config", "compression_config")

HIDDEN = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_len",
    "hidden_act": "activation",
    "tie_word_embeddings": "tie_output",
}
"""Settings that several families call the same, and our fields."""


@dataclass(frozen=True)
class PublishedConfig:
    """The base of each family's configuration, a frozen dataclass with some of these fields.

    Args:
        vocab_size: tokens, v, in the one vocabulary of a model.
        d_model: width, d.
        num_heads: heads, h.
        num_layers: layers, N; an encoder-decoder has `num_encoder_layers`, `num_decoder_layers`.
        d_ff: inner width of the feed-forward networks, f.
        d_k: width of a head, e.
        max_len: longest text, in tokens.
        activation: as `config.json` calls it.
        eps: ε of the norms.
        dropout: as in `TransformerConfig`.
        tie_output: the output projection uses the embedding's weight.
        pad_id: what fills short rows.
        start_id: what targets begin with, the `bos_id` of `generate`.
        eos_ids: each of them ends a text.

    Attributes:
        model_type: what `config.json` calls the family.
        also: other families that the same model class reads.
        keys: settings of `config.json` that are fields here, by their names there.
        fixed: settings that must have one of these values; the first is what it is when left out.
        without_effect: settings that leave the outputs of this family as they are, a pattern.
    """

    model_type: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    without_effect: ClassVar[str] = ""
    norm: ClassVar[str] = "layer_norm"
    share_embeddings: ClassVar[bool] = True

    @classmethod
    def from_published(cls, content: Mapping[str, Any]) -> Self:
        """The configuration that a `config.json` says.

        Raises:
            ValueError: if it is of a family that the class does not read, says that weights are
                quantised, has a setting that may change outputs and is not known, or one with a
                value that this package does not compute.
        """
        family = cls.family(content)
        for key in QUANTISED:
            if value := content.get(key):
                said = f"{key}={brief(value)}; only floating-point weights are read"
                raise ValueError(f"the weights are quantised, {said}")
        return family.of_family(content)

    @classmethod
    def family(cls, content: Mapping[str, Any]) -> type[Self]:
        """The class for the family that a `config.json` names; this one where it names none."""
        families: dict[str, type[Any]] = {
            vars(kind)["model_type"]: kind
            for kind in with_derived(PublishedConfig).values()
            if "model_type" in vars(kind) and kind.__module__.startswith(__package__)
        }
        families[cls.model_type] = cls
        expected = [cls.model_type, *vars(cls).get("also", ())]
        found = content.get("model_type")
        if found is None and (architectures := content.get("architectures")):
            # Files of 2019 name no family; their architecture begins with its name.
            part = r"(for\w+|((with)?lmhead|mt|doubleheads|encoder)?model)"
            first = str(architectures[0]).lower()
            found = next((name for name in families if re.fullmatch(name + part, first)), first)
        if found not in (None, *expected):
            raise ValueError(
                f"model_type is {found!r}, expected {' or '.join(expected)}; families that can be "
                f"read are {', '.join(sorted(families))}"
            )
        return families[found or cls.model_type]

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        """As `from_published`, for a file of this very family."""
        own = re.compile(cls.without_effect)
        unknown = {
            key: value
            for key, value in content.items()
            if value  # False, None, 0 and what is empty do nothing
            and not (key in cls.keys or key in cls.fixed)
            and not (WITHOUT_EFFECT.fullmatch(key) or own.fullmatch(key))
        }
        if unknown:
            said = ", ".join(f"{key}={brief(unknown[key])}" for key in sorted(unknown))
            raise ValueError(f"these settings are not known: {said}")
        for key, values in cls.fixed.items():
            if content.get(key) is not None and content[key] not in values:
                raise ValueError(f"{key} is {content[key]!r}, expected {values[0]!r}")
        hints = get_type_hints(cls)
        nullable = {"eos_ids", *(name for name in hints if type(None) in get_args(hints[name]))}
        return cls(
            **{
                ours: content[key]
                for key, ours in cls.keys.items()
                if content.get(key) is not None or (key in content and ours in nullable)
            }
        )

    def __post_init__(self) -> None:
        if hasattr(self, "eos_ids"):
            object.__setattr__(self, "eos_ids", ids_of(self.eos_ids))  # it is frozen
        check_types(self)
        if (activation := getattr(self, "activation", "gelu")) not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise ValueError(f"activation must be one of {known}, got {activation!r}")

    @property
    def src_vocab_size(self) -> int:
        """The one vocabulary, of what is read."""
        return self.vocab_size  # type: ignore[attr-defined]

    tgt_vocab_size = src_vocab_size

    def check_settings(self) -> None:
        """Raise an error if a field that `config.json` does not hold is not as it is left out."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in self.keys.values() and value != field.default:
                raise ValueError(
                    f"{field.name} is {field.default} in every {self.model_type}, got {value}"
                )

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration."""
        said = {key: getattr(self, ours) for key, ours in self.keys.items()}
        if "eos_token_id" in said:
            ids = list(said["eos_token_id"])
            said["eos_token_id"] = ids if len(ids) > 1 else (ids or [None])[0]
        return {"model_type": self.model_type} | said


def ids_of(ids: Any) -> tuple[int, ...]:
    """One id, several or none, as files and users say them.

    Example:
        >>> ids_of(2), ids_of([41, 48]), ids_of(None)
        ((2,), (41, 48), ())
    """
    several = (ids,) if isinstance(ids, int) else ids or ()
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in several):
        raise TypeError(f"eos_ids must be an id, or several, got {ids!r}")
    return tuple(several)


def brief(value: object) -> str:
    """A value in a line of an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(PublishedConfig):
    """The base for models that write: what `generate` asks of a configuration."""

    vocab_size: int

    num_encoder_layers: ClassVar[int] = 0
    pad_id: ClassVar[int] = -1
    norm_first: ClassVar[bool] = True
    embedding_scale: ClassVar[float] = 1.0

    @property
    def num_decoder_layers(self) -> int:
        """All layers."""
        return int(vars(self)["num_layers"])


@dataclass(frozen=True)
class Stacked:
    """Parts of ours that are published as one, each below the other, and matrices as (in, out)."""

    names: tuple[str, ...]

    def take_apart(self, tensor: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
        """Ours, of these shapes."""
        return list(tensor.t().split([shape[0] for shape in shapes]))

    def put_together(self, tensors: list[Tensor]) -> Tensor:
        """Theirs."""
        return torch.cat(tensors).t()


Names = Mapping[str, str | Stacked | None]
Place = TypeVar("Place")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BEGIN_AND_END = ("decoder_start_token_id", "eos_token_id")
"""What `generation_config.json` says in place of `config.json`."""


def looked_up(names: Mapping[str, Place], name: str) -> tuple[Place, str, tuple[str, ...]] | None:
    """The entry of a tensor or of the part that it belongs to, its kind in that part, its numbers.

    Example:
        >>> looked_up({"h.*.ln_1": "norm"}, "h.3.ln_1.weight")
        ('norm', '.weight', ('3',))
    """
    numbers = tuple(NUMBER.findall(name))
    for stars in range(len(numbers) + 1):  # of the layer, and of an expert in it
        pattern = NUMBER.sub("*", name, count=stars) if stars else name
        part, _, kind = pattern.rpartition(".")
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)  # the first files of BERT
        for key, rest in ((pattern, ""), (part, f".{kind}")):
            if key in names:
                return names[key], rest, numbers[:stars]
    return None


def numbered(name: str, numbers: Iterable[str]) -> str:
    """The name with its stars replaced by numbers.

    Example:
        >>> numbered("h.*.expert.*.w", ("3", "1"))
        'h.3.expert.1.w'
    """
    for number in numbers:
        name = name.replace("*", number, 1)
    return name


class Published(Pretrained):
    """A model whose weights others publish, and read.

    Args:
        config: the model's configuration, a `config_class` or one derived from it.
        generator: source of the starting values; PyTorch's global one when left out.

    Attributes:
        config_class: the class of its configuration.
        architecture: what `transformers` calls this model, when it is written.
        prefix: what precedes each name where the model is part of a larger one.
        names: for each published part or tensor ours, or `Stacked` ones, or None for what is no
            parameter; a star is the number of a layer, a second one that of an expert. Where
            several are one of ours, the first is written.
    """

    config_class: ClassVar[type[PublishedConfig]]
    is_published = True
    architecture: ClassVar[str]
    prefix: ClassVar[str] = ""
    names: ClassVar[Names]
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

    @classmethod
    def reads(cls, content: Mapping[str, Any]) -> bool:
        """Whether this is the package's class for the model of that `config.json`."""
        about = vars(cls.config_class)
        families = (about.get("model_type"), *about.get("also", ()))
        return "." not in name_of(cls) and content.get("model_type", "") in families

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
            found = looked_up(self.names, name) or looked_up(self.names, self.prefix + name)
            if found is not None and found[0] is None:
                continue
            if tensor.dtype not in FLOATS:
                raise ValueError(
                    f"{name} holds {tensor.dtype}: the weights are quantised, and only "
                    f"floating-point ones are read, {', '.join(map(str, FLOATS))}"
                )
            dtypes.setdefault(tensor.dtype, name)
            place, kind, numbers = found or ("", "", ())
            parts = place.names if isinstance(place, Stacked) else (str(place),)
            names = [numbered(part + kind, numbers) for part in parts]
            if not parameters.keys() >= {*names}:
                unknown.append(name)
            elif isinstance(place, Stacked):
                shapes = [parameters[part].shape for part in names]
                ours.update(zip(names, place.take_apart(tensor, shapes), strict=True))
            else:
                ours[names[0]] = tensor
        if unknown:
            raise ValueError(
                f"{len(unknown)} weights have no place in the model as configured; the first is "
                f"{unknown[0]}"
            )
        if len(dtypes) > 1:
            said = ", ".join(f"{kind} ({name})" for kind, name in dtypes.items())
            raise ValueError(f"weights have several dtypes, {said}; say which one by `dtype`")
        return ours

    def published_weights(self) -> dict[str, Tensor]:
        """The weights under their published names, each one once."""
        theirs: dict[str, str] = {}
        for name, place in self.names.items():
            for ours in place.names if isinstance(place, Stacked) else [place or ""]:
                theirs.setdefault(ours, name)
        parts: dict[tuple[str, str, tuple[str, ...]], list[Tensor]] = {}
        for ours, parameter in self.named_parameters():
            found = looked_up(theirs, ours)
            if found is None:
                raise ValueError(f"{ours} has no published name")
            parts.setdefault(found, []).append(parameter.detach())
        published: dict[str, Tensor] = {}
        for (name, kind, numbers), tensors in parts.items():
            place = self.names[name]
            whole = place.put_together(tensors) if isinstance(place, Stacked) else tensors[0]
            published[numbered(name + kind, numbers)] = whole
        return published

    def contents(self) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """The JSON files for `transformers` and `from_pretrained`, and the weights."""
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
            content[CLASS] = name_of(plain_type(self))
        weights = self.published_weights()
        again = self.from_published(json.loads(json.dumps(content)), weights).config
        for key, value in vars(self.config).items():
            if value not in (None, getattr(again, key)):  # None may be written as its number
                raise ValueError(
                    f"config.json would be read with {key} as {getattr(again, key)!r}, "
                    f"not {value!r}"
                )
        return {CONFIG: content} | ({GENERATION: generation} if generation else {}), weights


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
