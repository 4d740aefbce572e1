"""The configuration of ViT, as `config.json` says it.

Built in chapter 14.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from minitransformer.models.published_config import PublishedConfig

__all__ = ["Rectangle", "ViTConfig"]

HEADS = ("classifier", "pooler", "none")


class Rectangle(NamedTuple):
    """A height and a width: of a picture or a patch in pixels, of a grid in patches."""

    height: int
    width: int


def sides(size: int | Rectangle) -> Rectangle:
    """Height and width; one number is a square's."""
    return Rectangle(size, size) if isinstance(size, int) else size


@dataclass(frozen=True, kw_only=True)
class ViTConfig(PublishedConfig):
    """The shape of a `ViT`; left out, that of ViT-Base, the smallest one that was published.

    Args:
        image_size: of the pictures, in pixels: one number for squares, or a `Rectangle`.
        patch_size: of a patch, likewise; it divides the picture's.
        num_channels: numbers a pixel, 1 in grey and 3 in colour.
        num_classes: what the classifier tells apart.
        qkv_bias: whether queries, keys and values have biases.
        head: what reads the class token: "classifier"; "pooler", a matrix and tanh; or "none".
        pooler_size: width of what the pooler makes; d when left out.
        others: see `PublishedConfig`.

    Raises:
        TypeError: if a value is of another type than is annotated here.
        ValueError: if `head` or `activation` is unknown.

    Example:
        >>> ViTConfig(image_size=Rectangle(6, 8), patch_size=2, num_channels=1).image_size.width
        8

    Paper: Dosovitskiy et al. (2021), table 1.
    """

    image_size: int | Rectangle = 224
    patch_size: int | Rectangle = 16
    num_channels: int = 3
    num_classes: int = 2
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int = 3072
    activation: str = "gelu"
    qkv_bias: bool = True
    eps: float = 1e-12
    dropout: float = 0.0
    head: str = "classifier"
    pooler_size: int | None = None

    model_type: ClassVar[str] = "vit"
    keys: ClassVar[Mapping[str, str]] = {
        **{key: key for key in ("image_size", "patch_size", "num_channels", "qkv_bias", "head")},
        "num_labels": "num_classes",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "intermediate_size": "d_ff",
        "hidden_act": "activation",
        "layer_norm_eps": "eps",
        "hidden_dropout_prob": "dropout",
        "pooler_output_size": "pooler_size",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {"pooler_act": ("tanh",)}
    without_effect: ClassVar[str] = "encoder_stride"  # of a decoder of pictures, which is not here

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head not in HEADS:
            raise ValueError(f"head must be one of {HEADS}, got {self.head!r}")

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        content = dict(content)
        if "id2label" in content:
            content["num_labels"] = len(content["id2label"])
        for key in ("image_size", "patch_size"):
            if isinstance(content.get(key), list):
                content[key] = Rectangle(*content[key])
        return super().of_family(content)

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration; there the head has no name."""
        content = super().to_published()
        kind = "ViTForImageClassification" if content.pop("head") == "classifier" else "ViTModel"
        return content | {"architectures": [kind]}
