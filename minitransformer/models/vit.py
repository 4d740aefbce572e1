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
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minitransformer.layers.dropout import Dropout
from minitransformer.layers.encoder_decoder import Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import LayerNorm
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.hub import Published
from minitransformer.models.patch_embedding import PatchEmbedding
from minitransformer.models.published_config import ACTIVATION_NAMES, Stacked, linear
from minitransformer.models.vit_config import HEADS, ViTConfig

__all__ = ["ViT"]

LAYER, OURS = "vit.encoder.layer.*", "encoder.layers.*"


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
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        "vit.embeddings.cls_token": "embedding.class_token",
        "vit.embeddings.position_embeddings": "embedding.positions",
        **linear("vit.embeddings.patch_embeddings.projection", "embedding.projection"),
        **linear(f"{LAYER}.layernorm_before", f"{OURS}.residual_1.norm"),
        **linear(f"{LAYER}.attention.attention.query", f"{OURS}.self_attention.w_q"),
        **linear(f"{LAYER}.attention.attention.key", f"{OURS}.self_attention.w_k"),
        **linear(f"{LAYER}.attention.attention.value", f"{OURS}.self_attention.w_v"),
        **linear(f"{LAYER}.attention.output.dense", f"{OURS}.self_attention.w_o"),
        **linear(f"{LAYER}.layernorm_after", f"{OURS}.residual_2.norm"),
        **linear(f"{LAYER}.intermediate.dense", f"{OURS}.feed_forward.w_1"),
        **linear(f"{LAYER}.output.dense", f"{OURS}.feed_forward.w_2"),
        **linear("vit.layernorm", "encoder.norm"),
        **linear("vit.pooler.dense", "head.0"),
        **linear("classifier", "head"),
    }

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
