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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1
from minitransformer.layers.encoder_decoder import Decoder, DecoderLayer, Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import Dropout
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.layers.packing import PACKABLE
from minitransformer.models.hub import Names, Published, PublishedConfig
from minitransformer.models.transformer import Transformer

__all__ = ["T5", "RelativePositionBias", "Scaled", "T5Config", "position_buckets"]

FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-relu": "reglu",
    "gated-gelu": "geglu_tanh",
    "gated-silu": "swiglu",
}
"""What `config.json` calls a feed-forward network, and what `FeedForward` does."""


@dataclass(frozen=True, kw_only=True)
class T5Config(PublishedConfig):
    """The shape of a `T5`; left out, that of the smallest one that was published.

    Args:
        num_decoder_layers: layers of the decoder; as many when left out.
        num_buckets: see `RelativePositionBias`.
        max_distance: see `RelativePositionBias`.
        network: the feed-forward networks, as `config.json` calls them.
        dropout: of weights, inner units, sums, embedded tokens and last rows, while training.
        scale_output: logits are divided by √d.
        others: see `PublishedConfig`.

    Raises:
        ValueError: if `network` is unknown.

    Paper: Raffel et al. (2020), section 2.1.
    """

    vocab_size: int = 32_128
    d_model: int = 512
    d_k: int = 64
    d_ff: int = 2048
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int | None = None
    num_buckets: int = 32
    max_distance: int = 128
    network: str = "relu"
    eps: float = 1e-6
    dropout: float = 0.1
    tie_output: bool = True
    scale_output: bool = True
    pad_id: int = 0
    start_id: int = 0
    eos_ids: tuple[int, ...] = (1,)

    model_type: ClassVar[str] = "t5"
    keys: ClassVar[Mapping[str, str]] = {
        **{key: key for key in ("vocab_size", "d_model", "d_ff", "num_heads")},
        "num_decoder_layers": "num_decoder_layers",
        "d_kv": "d_k",
        "num_layers": "num_encoder_layers",
        "relative_attention_num_buckets": "num_buckets",
        "relative_attention_max_distance": "max_distance",
        "feed_forward_proj": "network",
        "layer_norm_epsilon": "eps",
        "dropout_rate": "dropout",
        "tie_word_embeddings": "tie_output",
        "scale_decoder_outputs": "scale_output",
        "pad_token_id": "pad_id",
        "decoder_start_token_id": "start_id",
        "eos_token_id": "eos_ids",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
    }
    # They follow from `feed_forward_proj`, or say how long the texts of training were.
    without_effect: ClassVar[str] = "dense_act_fn|is_gated_act|n_positions"
    norm: ClassVar[str] = "rms_norm"
    embedding_scale: ClassVar[float] = 1.0
    positional_encoding: ClassVar[str] = "none"
    """Of vectors; `max_len` has no end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in FEED_FORWARDS:
            known = ", ".join(sorted(FEED_FORWARDS))
            raise ValueError(f"network must be one of {known}, got {self.network!r}")

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        """As `from_published`; an older file says by "untied" that nothing is scaled."""
        scaled = {"scale_decoder_outputs": content.get("tie_word_embeddings", True)}
        return super().of_family({**scaled, **content})


def position_buckets(
    distance: Tensor, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """The bucket of each distance: near ones have one each, far ones share, ever more of them.

    Half of the buckets hold one distance each, from 0 on. The other half divide what comes up to
    `max_distance` evenly on a logarithmic scale, and the last takes all that is farther. With two
    directions each has half of all buckets, keys behind the query the second one. With one
    direction all keys behind the query count as distance 0; a causal mask hides them.

    Args:
        distance: position of the key minus that of the query, int64, any shape; the result's too.
        num_buckets: how many there are.
        max_distance: where the logarithmic scale ends.
        bidirectional: whether keys behind the query have buckets of their own.

    Example:
        >>> distance = torch.tensor([-200, -9, -8, -1, 0, 1, 8, 9, 200])
        >>> position_buckets(distance).tolist()
        [15, 8, 8, 1, 0, 17, 24, 24, 31]
        >>> position_buckets(distance, bidirectional=False).tolist()
        [31, 9, 8, 1, 0, 0, 0, 0, 0]

    Paper: section 2.1; the formula is that of its authors' code.
    """
    if bidirectional:
        num_buckets //= 2
        first, far = num_buckets * (distance > 0), distance.abs()
    else:
        first, far = torch.zeros_like(distance), -distance.clamp(max=0)
    alone = num_buckets // 2
    # In float32, as there: where a border is a whole number, its rounding decides.
    share = torch.log(far.clamp(min=alone).float() / alone) / math.log(max_distance / alone)
    shared = alone + (share * (num_buckets - alone)).long()
    return first + torch.where(far < alone, far, shared.clamp(max=num_buckets - 1))


class RelativePositionBias(nn.Module):
    """A learned bias for each head and each bucket of distances, in the place of `ALiBi`.

    Its numbers start at 0, where attention knows no order. All layers of a stack may share one
    table. Any length has a bias: there is no longest sequence.

    Args:
        num_heads: number of heads, h.
        num_buckets, max_distance, bidirectional: see `position_buckets`.

    Raises:
        ValueError: if `num_heads` is below 1, there are too few buckets for two halves, or
            `max_distance` is not beyond the distances that have a bucket each.

    Example:
        >>> bias = RelativePositionBias(2, num_buckets=8, max_distance=10)
        >>> bias(3, 5).shape
        torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_at_least_1(num_heads=num_heads)
        fewest = 4 if bidirectional else 2
        if num_buckets < fewest:
            raise ValueError(f"num_buckets must be at least {fewest}, got {num_buckets}")
        alone = num_buckets // fewest
        if max_distance <= alone:
            raise ValueError(
                f"max_distance must be above the {alone} distances that have a bucket each, "
                f"got {max_distance}"
            )
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads))
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(
        self, num_queries: int, num_keys: int, device: torch.device | str | None = None
    ) -> Tensor:
        """The biases, (h, q, k), the weights' dtype; the last query stands at the last key.

        Raises:
            ValueError: if there are more queries than keys: the first would have no position.
        """
        if num_queries > num_keys:
            raise ValueError(
                f"num_queries must not exceed num_keys, got {num_queries} queries, {num_keys} keys"
            )
        position = torch.arange(num_keys, device=device or self.weight.device)
        buckets = position_buckets(
            position - position[num_keys - num_queries :, None],
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return self.weight[buckets].permute(2, 0, 1)  # (h, q, k)


class Scaled(nn.Module):
    """Multiply by a number that is not learned.

    Example:
        >>> Scaled(0.5)(torch.tensor([4.0]))
        tensor([2.])
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Scale x, of any shape."""
        return x * self.factor


PACKABLE[Scaled.forward] = None


ATTENTION = {"q": "w_q", "k": "w_k", "v": "w_v", "o": "w_o"}
SUBLAYERS: dict[str, tuple[str, dict[str, str]]] = {
    "SelfAttention": ("self_attention", ATTENTION | {"relative_attention_bias": "position_bias"}),
    "EncDecAttention": ("cross_attention", ATTENTION),
    "DenseReluDense": (
        "feed_forward",
        {"wi": "w_1", "wi_0": "w_1", "wi_1": "w_3", "wo": "w_2"},
    ),
}
"""What files call the parts of a layer."""


def names_of(stack: str, *sublayers: str) -> Names:
    """The published names in a stack, and ours."""
    names = {f"{stack}.final_layer_norm": f"{stack}.norm.0"}
    for index, theirs in enumerate(sublayers):
        sublayer, ours = f"{stack}.block.*.layer.{index}", f"{stack}.layers.*"
        names[f"{sublayer}.layer_norm"] = f"{ours}.residual_{index + 1}.norm"
        our_name, parts = SUBLAYERS[theirs]
        for part, our_part in parts.items():
            names[f"{sublayer}.{theirs}.{part}"] = f"{ours}.{our_name}.{our_part}"
    return names


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
    names: ClassVar[Names] = {
        "shared": "src_embedding",
        "encoder.embed_tokens": "src_embedding",
        "decoder.embed_tokens": "tgt_embedding",
        **names_of("encoder", "SelfAttention", "DenseReluDense"),
        **names_of("decoder", *SUBLAYERS),
        "decoder.block.*.layer.1.EncDecAttention.relative_attention_bias": None,  # of no use
        "lm_head": "output_projection",
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
