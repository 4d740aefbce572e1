"""T5: the encoder-decoder for which every task is text in and text out, as it was published.

| | paper's model | T5 | why |
| --- | --- | --- | --- |
| positions | sinusoidal, added | a bias of the scores, by distance | simple; any length |
| norms | layer norm after each sum | RMSNorm before each sub-layer | only rescaling is kept |
| biases | in feed-forward networks | none | not said |
| scores | divided by √e | as they are | W^Q starts smaller by √e instead |
| width of a head | d/h | its own number | wide attention in the largest ones |
| embeddings | times √d | as they are | they start with σ = 1 |
| logits | as they are | divided by √d | takes that σ back |
| dropout | on sums | also on weights, inner units, last rows | not said |
| a target begins with | its own id | padding | no id is spent |

T5 1.1 and FLAN-T5: a gated network with GELU, better at the same cost; the output is not tied, and
its logits are not divided.

Built in chapter 13. Papers: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (Raffel et al., 2020), section 2.1, and their code; Shazeer (2020).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minitransformer.layers.dropout import Dropout
from minitransformer.layers.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.hub import Published
from minitransformer.models.published_config import Stacked
from minitransformer.models.t5_config import FEED_FORWARDS, T5Config
from minitransformer.models.t5_layers import RelativePositionBias, Scaled
from minitransformer.models.transformer import Transformer

__all__ = ["T5"]

SUBLAYERS = {
    "SelfAttention": "self_attention",
    "EncDecAttention": "cross_attention",
    "DenseReluDense": "feed_forward",
}
PARTS = {"q": "w_q", "k": "w_k", "v": "w_v", "o": "w_o"}
PARTS |= {"wi": "w_1", "wi_0": "w_1", "wi_1": "w_3", "wo": "w_2"}


def names_of(stack: str, *sublayers: str) -> dict[str, str]:
    """The published names of a stack's weights, and ours."""
    block, layer = f"{stack}.block.*.layer", f"{stack}.layers.*"
    names = {f"{stack}.final_layer_norm.weight": f"{stack}.norm.0.weight"}
    for index, theirs in enumerate(sublayers):
        names[f"{block}.{index}.layer_norm.weight"] = f"{layer}.residual_{index + 1}.norm.weight"
        for part, our_part in PARTS.items():
            ours = f"{layer}.{SUBLAYERS[theirs]}.{our_part}.weight"
            names[f"{block}.{index}.{theirs}.{part}.weight"] = ours
    table = f"{block}.0.SelfAttention.relative_attention_bias.weight"
    return names | {table: f"{layer}.self_attention.position_bias.weight"}


class T5(Published, Transformer):
    """T5, with everything that a `Transformer` can do.

    Example:
        >>> sizes = {"d_model": 12, "d_k": 5, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 2}
        >>> model = T5(T5Config(vocab_size=30, **sizes))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[0, 4], [0, 3]])).shape
        torch.Size([2, 2, 30])
    """

    config: Any
    config_class = T5Config
    architecture = "T5ForConditionalGeneration"
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        "shared.weight": "src_embedding.weight",
        "encoder.embed_tokens.weight": "src_embedding.weight",
        "decoder.embed_tokens.weight": "tgt_embedding.weight",
        **names_of("encoder", "SelfAttention", "DenseReluDense"),
        **names_of("decoder", *SUBLAYERS),
        "decoder.block.*.layer.1.EncDecAttention.relative_attention_bias.weight": None,  # of no use
        "lm_head.weight": "output_projection.weight",
    }

    def attention(self, *, cross: bool = False, bias: nn.Module | None = None) -> nn.Module:
        """An attention of T5, whose scores are not divided by √e."""
        config = self.config
        return MultiHeadAttention(
            config.d_model,
            config.num_heads,
            d_k=config.d_k,
            bias=False,
            position_bias=bias,
            dropout=config.dropout,
            scale=1.0,
        )

    def stack(self, num_layers: int | None, *, cross: bool = False) -> Any:
        """An encoder or decoder of T5: one table of biases, and dropout after its last norm."""
        config, d, network = self.config, self.config.d_model, FEED_FORWARDS[self.config.network]
        bias = RelativePositionBias(
            config.num_heads,
            num_buckets=config.num_buckets,
            max_distance=config.max_distance,
            bidirectional=not cross,
        )
        layers = []
        for _ in range(config.num_encoder_layers if num_layers is None else num_layers):
            parts: dict[str, Any] = {"self_attention": self.attention(bias=bias)}
            if cross:
                parts["cross_attention"] = self.attention()
            parts["feed_forward"] = FeedForward(
                d, config.d_ff, activation=network, bias=False, dropout=config.dropout
            )
            parts |= {"dropout": config.dropout, "norm_first": True, "norm": self.norm}
            layers.append(DecoderLayer(d, **parts) if cross else EncoderLayer(d, **parts))
        norm = nn.Sequential(self.norm(d), Dropout(config.dropout))
        if cross and config.scale_output:
            norm.append(Scaled(d**-0.5))  # takes back the σ = 1 of the embedding
        return Decoder(layers, norm) if cross else Encoder(layers, norm)

    @classmethod
    def from_published(cls, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Self:
        """Tied is what the weights say: `transformers` 5 calls T5 1.1 tied, and stores both."""
        head, table = weights.get("lm_head.weight"), weights.get("shared.weight")
        tied = head is None or (table is not None and torch.equal(head, table))
        scaled = {"scale_decoder_outputs": content.get("tie_word_embeddings", True)}
        return super().from_published(scaled | {**content, "tie_word_embeddings": tied}, weights)

    def published_weights(self) -> dict[str, Tensor]:
        """The weights under their published names; a gated network's first has another."""
        gated, found = "gated" in self.config.network, super().published_weights()
        return {name.replace(".wi.", ".wi_0.") if gated else name: w for name, w in found.items()}

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw all parameters anew, as Raffel et al. did: products start with rows of size 1."""
        for name, parameter in self.named_parameters():
            kind, d_model = name.split(".")[-2], self.config.d_model
            if kind in ("norm", "0"):
                continue  # norms start at 1
            fan_in = parameter.size(1) * (self.config.d_k if kind == "w_q" else 1)
            std = {"src_embedding": 1.0, "position_bias": d_model**-0.5}.get(kind, fan_in**-0.5)
            nn.init.normal_(parameter, std=std, generator=generator)
