"""What others write into `config.json`, as the configuration of a published model.

A family says which settings are fields of its configuration, which must have one value, and which
leave its outputs as they are. Any other setting passes if its value does nothing (false, null, 0 or
empty), and is refused by its name and value if not.

Built in chapter 12.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, get_args, get_type_hints

import torch
from torch import Tensor

from minitransformer.checks import check_types

__all__ = ["DecoderConfig", "PublishedConfig", "Stacked"]

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
        families = families_of(PublishedConfig) | {cls.model_type: cls}
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


def families_of(base: type[Any]) -> dict[str, type[Any]]:
    """The families that can be read, which are those in this subpackage, by their names."""
    families: dict[str, type[Any]] = {}
    for kind in base.__subclasses__():
        if "model_type" in vars(kind) and kind.__module__.startswith(__package__):
            families[kind.model_type] = kind
        families |= families_of(kind)
    return families


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
    norm: ClassVar[str] = "layer_norm"
    norm_first: ClassVar[bool] = True
    embedding_scale: ClassVar[float] = 1.0

    @property
    def num_decoder_layers(self) -> int:
        """All layers."""
        return int(vars(self)["num_layers"])


@dataclass(frozen=True)
class Stacked:
    """A published tensor that holds several of ours, one after the other."""

    names: tuple[str, ...]
    transposed: bool = False  # whether matrices are stored (in, out)

    def take_apart(self, tensor: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
        """Ours, of these shapes."""
        tensor = tensor.T if self.transposed else tensor
        return list(tensor.split([shape[0] for shape in shapes]))

    def put_together(self, tensors: list[Tensor]) -> Tensor:
        """Theirs."""
        tensor = torch.cat(tensors)
        return tensor.T if self.transposed else tensor


def linear(theirs: str, ours: str) -> dict[str, str]:
    """The names of the weight and the bias of a linear map or a norm."""
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in ("weight", "bias")}


def check_said(again: Any, config: Any) -> None:
    """Raise an error unless a `config.json` is read as it was meant; None may be its number."""
    theirs, ours = vars(again), vars(config)
    changed = [key for key, value in ours.items() if value not in (None, theirs[key])]
    if changed:
        said = ", ".join(f"{key} as {theirs[key]!r}, not {ours[key]!r}" for key in changed)
        raise ValueError(f"config.json would be read with {said}")
