"""ViT: the encoder with patches of a picture as its tokens, as it was published.

| | paper's encoder | ViT | why |
| --- | --- | --- | --- |
| tokens | rows of a table | patches, each times one matrix | a token a pixel would be too many |
| positions | sinusoidal | learned, in one list | with two axes they were no better |
| what is read | every position | a class token in front | as in BERT |
| norms | after each residual | before each sub-layer, one at the end | as Wang et al. (2019) |
| activation | ReLU | GELU | no reason was given |
| masks | padding | none | every picture has as many patches |
| start | not said | Xavier; positions σ = 0.02; class token, classifier 0 | σ is BERT's |

Built in chapter 14. Paper: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021), section 3.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.layers.encoder_decoder import Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import Dropout, LayerNorm
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.hub import ACTIVATION_NAMES, Names, Published, PublishedConfig

__all__ = ["PatchEmbedding", "Rectangle", "ViT", "ViTConfig"]

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


class PatchEmbedding(nn.Module):
    """Patches of a picture, each times one matrix; a class token in front; positions added.

    A convolution whose stride is its width does both, the cutting and the product. Patches are
    counted row by row. The class token is a learned vector, the same for every picture.

    Args:
        image_size, patch_size, num_channels, d_model: see `ViTConfig`.

    Raises:
        ValueError: if a size is below 1, or patches do not fill a picture.

    Example:
        >>> embed = PatchEmbedding(Rectangle(6, 8), patch_size=2, num_channels=3, d_model=10)
        >>> embed(torch.zeros(5, 3, 6, 8)).shape  # 3 rows of 4 patches, and the class token
        torch.Size([5, 13, 10])

    Paper: Dosovitskiy et al., equation 1.
    """

    def __init__(
        self,
        image_size: int | Rectangle,
        patch_size: int | Rectangle,
        num_channels: int,
        d_model: int,
    ) -> None:
        super().__init__()
        check_at_least_1(num_channels=num_channels, d_model=d_model)
        self.patch_size, self.image_size = sides(patch_size), sides(image_size)
        rows, columns = self.grid(*self.image_size)
        self.projection = nn.Conv2d(num_channels, d_model, self.patch_size, stride=self.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d_model))
        self.positions = nn.Parameter(torch.zeros(1, 1 + rows * columns, d_model))
        self.initialise(None)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw positions with σ = 0.02, the matrix with variance 1 / its inputs; the rest is 0."""
        std = self.projection.weight[0].numel() ** -0.5
        nn.init.normal_(self.projection.weight, std=std, generator=generator)
        nn.init.normal_(self.positions, std=0.02, generator=generator)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name in ("projection.bias", "class_token"):
                    parameter.zero_()

    def grid(self, height: int, width: int) -> Rectangle:
        """Rows and columns of patches in a picture of that size."""
        high, wide = self.patch_size
        if min(high, wide, height, width) < 1 or height % high or width % wide:
            # A convolution would leave out what is over, without a word.
            raise ValueError(
                f"patches must fill a picture, got {high} × {wide} for {height} × {width} pixels"
            )
        return Rectangle(height // high, width // wide)

    def forward(self, pictures: Tensor, *, interpolate: bool = False) -> Tensor:
        """Make tokens of pictures.

        Args:
            pictures: (b, channels, height, width), floating point.
            interpolate: take pictures of another size too, with positions read off between the
                learned ones, as points of a smooth surface (bicubic).

        Returns:
            (b, 1 + patches, d), the class token first.

        Raises:
            ValueError: if pictures have other channels or another size, or patches do not fill
                them.
        """
        channels = self.projection.in_channels
        if pictures.dim() != 4 or pictures.size(1) != channels:
            raise ValueError(
                f"pictures must be (b, {channels}, height, width), got {tuple(pictures.shape)}"
            )
        size = Rectangle(*pictures.shape[2:])
        if size != self.image_size and not interpolate:
            (height, width), (high, wide) = size, self.image_size
            raise ValueError(
                f"pictures must be {high} × {wide} pixels, got {height} × {width}; "
                "with interpolate=True other sizes are taken"
            )
        positions = self.positions_of(self.grid(*size))
        patches = self.projection(pictures).flatten(2).transpose(1, 2)  # (b, patches, d)
        class_token = self.class_token.expand(len(patches), -1, -1)  # (b, 1, d)
        return torch.cat([class_token, patches], dim=1) + positions

    def positions_of(self, grid: Rectangle) -> Tensor:
        """Vectors of the positions in a grid, (1, 1 + patches, d)."""
        learned = self.grid(*self.image_size)
        if grid == learned:
            return self.positions
        surface = self.positions[:, 1:].transpose(1, 2).unflatten(2, learned)  # (1, d, rows, cols)
        points = F.interpolate(surface, grid, mode="bicubic", align_corners=False)
        return torch.cat([self.positions[:, :1], points.flatten(2).transpose(1, 2)], dim=1)


LAYER, OURS = "vit.encoder.layer.*", "encoder.layers.*"
NAMES: Names = {
    "vit.embeddings.cls_token": "embedding.class_token",
    "vit.embeddings.position_embeddings": "embedding.positions",
    "vit.embeddings.patch_embeddings.projection": "embedding.projection",
    f"{LAYER}.layernorm_before": f"{OURS}.residual_1.norm",
    f"{LAYER}.attention.attention.query": f"{OURS}.self_attention.w_q",
    f"{LAYER}.attention.attention.key": f"{OURS}.self_attention.w_k",
    f"{LAYER}.attention.attention.value": f"{OURS}.self_attention.w_v",
    f"{LAYER}.attention.output.dense": f"{OURS}.self_attention.w_o",
    f"{LAYER}.layernorm_after": f"{OURS}.residual_2.norm",
    f"{LAYER}.intermediate.dense": f"{OURS}.feed_forward.w_1",
    f"{LAYER}.output.dense": f"{OURS}.feed_forward.w_2",
    "vit.layernorm": "encoder.norm",
    "vit.pooler.dense": "head.0",
    "classifier": "head",
}


class ViT(Published):
    """The Vision Transformer: pictures in, a score for each class out.

    Example:
        >>> sizes = {"d_model": 12, "num_heads": 3, "d_ff": 20}
        >>> config = ViTConfig(image_size=8, patch_size=2, num_classes=10, **sizes)
        >>> ViT(config)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 10])
    """

    config_class = ViTConfig
    architecture = "ViTForImageClassification"
    prefix = "vit."
    names = NAMES

    def __init__(self, config: ViTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, d = config, config.d_model
        sizes = config.image_size, config.patch_size, config.num_channels
        self.embedding = PatchEmbedding(*sizes, d)
        self.dropout = Dropout(config.dropout)
        activation = ACTIVATION_NAMES[config.activation]
        norm = partial(LayerNorm, eps=config.eps)
        layers = (
            EncoderLayer(
                d,
                self_attention=MultiHeadAttention(
                    d, config.num_heads, bias=config.qkv_bias, output_bias=True
                ),
                feed_forward=FeedForward(d, config.d_ff, activation=activation),
                dropout=config.dropout,
                norm_first=True,
                norm=norm,
            )
            for _ in range(config.num_layers)
        )
        self.encoder = Encoder(layers, norm(d))
        self.head: nn.Module = nn.Identity()
        if config.head == "classifier":
            self.head = nn.Linear(d, config.num_classes)
        elif config.head == "pooler":
            self.head = nn.Sequential(nn.Linear(d, config.pooler_size or d), nn.Tanh())
        self.initialise(generator)

    @classmethod
    def from_published(cls, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Self:
        """The model of that `config.json` with those weights, which say what its head is."""
        parts = {name.removeprefix(cls.prefix).split(".")[0] for name in weights}
        head = next((head for head in HEADS if head in parts), "none")
        return super().from_published({**content, "head": head}, weights)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as in the authors' code; a classifier starts at 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module._parameters["bias"] is not None:
                    nn.init.zeros_(module.bias)
        self.embedding.initialise(generator)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)

    def encode(self, pictures: Tensor, *, interpolate: bool = False) -> Tensor:
        """Vectors of the class token and the patches, (b, 1 + patches, d); see `PatchEmbedding`."""
        return self.encoder(self.dropout(self.embedding(pictures, interpolate=interpolate)))

    def forward(self, pictures: Tensor, *, interpolate: bool = False) -> Tensor:
        """Score pictures, (b, channels, height, width): (b, classes), or what the head makes."""
        return self.head(self.encode(pictures, interpolate=interpolate)[:, 0])
