"""What others write into `config.json`, as the configuration of a relative.

A relative says which settings are fields of its configuration, and which must have one value. Any
other setting is refused by its name, unless it is known to leave the outputs as they are.

Built in chapter 12.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from minitransformer.checks import check_types

__all__ = ["DecoderConfig", "PublishedConfig"]

ACTIVATION_NAMES = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""What `config.json` calls an activation, and what `FeedForward` does."""

WITHOUT_EFFECT = re.compile(
    r"_.*|.*dropout.*|.*_pdrop|architectures|model_type|torch_dtype|dtype|transformers_version|use_cache|return_dict"
    "|output_.*|chunk_size_feed_forward|gradient_checkpointing|problem_type|initializer_.*"
    "|(bos|eos|pad|sep|mask|cls|unk)_token_id|id2label|label2id|num_labels|task_specific_params"
    "|summary_.*|finetuning_task|tokenizer_class|prefix|pretraining_tp|torchscript"
)
"""Settings that leave the outputs as they are. They are kept, and written back."""


class PublishedConfig:
    """The base of each relative's configuration, a frozen dataclass.

    Attributes:
        model_type: what `config.json` calls the family; others in `also`.
        keys: settings of `config.json` that are fields here, by their names there.
        fixed: settings that must have one of these values; the first is what it is when left out.
    """

    model_type: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @classmethod
    def from_published(cls, content: Mapping[str, Any]) -> Self:
        """The configuration that a `config.json` says.

        Raises:
            ValueError: if it is of another family, has a setting that is not known, or one with a
                value that this package does not do.
        """
        known = [cls.model_type, *cls.also]
        if content.get("model_type") not in known:
            raise ValueError(
                f"model_type is {content.get('model_type')!r}, expected {' or '.join(known)}"
            )
        others = content.keys() - cls.keys.keys() - cls.fixed.keys()
        if unknown := sorted(key for key in others if not WITHOUT_EFFECT.fullmatch(key)):
            raise ValueError(f"these settings are not known: {', '.join(unknown)}")
        for key, values in cls.fixed.items():
            if key in content and content[key] not in values:
                raise ValueError(f"{key} is {content[key]!r}, expected {values[0]!r}")
        return cls(**{ours: content[key] for key, ours in cls.keys.items() if key in content})

    def __post_init__(self) -> None:
        check_types(self)
        if (activation := getattr(self, "activation", "gelu")) not in ACTIVATION_NAMES:
            known = ", ".join(ACTIVATION_NAMES)
            raise ValueError(f"activation must be one of {known}, got {activation!r}")

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration."""
        fixed = {key: values[0] for key, values in self.fixed.items()}
        fields = {key: getattr(self, ours) for key, ours in self.keys.items()}
        return {"model_type": self.model_type} | fixed | fields


@dataclass(frozen=True)
class DecoderConfig(PublishedConfig):
    """The base for models that write: what `generate` asks of a configuration.

    Args:
        vocab_size: tokens, v.
    """

    vocab_size: int

    num_encoder_layers: ClassVar[int] = 0
    pad_id: ClassVar[int] = -1

    @property
    def tgt_vocab_size(self) -> int:
        """The vocabulary of what is written."""
        return self.vocab_size
