"""Marian and BART: the encoder-decoder as it was published, for translating and for mending texts.

| | paper's model | Marian | BART | why |
| --- | --- | --- | --- | --- |
| positions | sines, cosines in turn | all sines first | learned, a table a side | not said |
| embeddings | times √d | times √d | as they are | BART's all start with σ = 0.02 |
| a norm of them | none | none | one a side | not said |
| activation | ReLU | swish | GELU | BART's as in GPT |
| bias of logits | none | one | one, which stays 0 | Marian's recurrent models had it |
| targets begin with | an id of their own | padding, a row of zeros | the end | not said |
| start | not said | Glorot, as in chapter 8 | σ = 0.02 | BART's as in GPT |

Marian is a toolkit, and the models meant here are those of OPUS-MT, trained with it. Its own angles
reach 1/10000 in the last pair of features, like those of the paper's code. Published files are read
by `transformers` with the paper's angles, which end one step before; so they are here. Both
have one vocabulary and one table of it, for reading, writing and scoring.

Built in chapter 13. Papers: "Marian: Fast Neural Machine Translation in C++" (Junczys-Dowmunt et
al., 2018); "BART: Denoising Sequence-to-Sequence Pre-training" (Lewis et al., 2020), section 2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minitransformer.layers.embeddings import TokenEmbedding
from minitransformer.layers.encoder_decoder import DecoderLayer, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import LayerNorm
from minitransformer.layers.positional_encoding import (
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
)
from minitransformer.models.hub import ACTIVATION_NAMES, Names, Published, PublishedConfig
from minitransformer.models.transformer import Transformer, start_normal

__all__ = ["BART", "BARTConfig", "Marian", "MarianConfig"]


def names_of(side: str, *norms: str) -> dict[str, str]:
    """The names in the layers of one side, theirs and ours; `norms` are theirs, in their order."""
    theirs, ours = f"model.{side}.layers.*", f"{side}.layers.*"
    names: dict[str, str] = {}
    for attention, own in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
        for letter, projection in zip("qkvo", ("q", "k", "v", "out"), strict=True):
            names[f"{theirs}.{attention}.{projection}_proj"] = f"{ours}.{own}.w_{letter}"
    for number in (1, 2):
        names[f"{theirs}.fc{number}"] = f"{ours}.feed_forward.w_{number}"
    for number, name in enumerate(norms, start=1):
        names[f"{theirs}.{name}_layer_norm"] = f"{ours}.residual_{number}.norm"
    return names


SIDES = ("encoder", "decoder")
NAMES: Names = {
    "final_logits_bias": "output_projection.bias",
    "model.shared": "src_embedding",
    "model.encoder.embed_tokens": "src_embedding",
    "model.decoder.embed_tokens": "tgt_embedding",
    "lm_head": "output_projection",
    "model.encoder.embed_positions": None,  # they follow from a formula
    "model.decoder.embed_positions": None,
    **names_of("encoder", "self_attn", "final"),
    **names_of("decoder", "self_attn", "encoder_attn", "final"),
}
NAMES_OF_BART: Names = {
    **NAMES,
    "model.encoder.embed_positions": "src_positions",
    "model.decoder.embed_positions": "tgt_positions",
    "model.encoder.layernorm_embedding": "src_norm",
    "model.decoder.layernorm_embedding": "tgt_norm",
    "model.encoder.version": None,
    "model.decoder.version": None,
}


@dataclass(frozen=True, kw_only=True)
class MarianConfig(PublishedConfig):
    """The shape of a `Marian`; left out, what `transformers` takes then.

    Args:
        encoder_num_heads: heads of each attention in the encoder, h.
        decoder_num_heads: the same in the decoder.
        encoder_d_ff: inner width of the feed-forward networks in the encoder, f.
        decoder_d_ff: the same in the decoder.
        scale_embedding: whether tokens' vectors are multiplied by √d.
        others: see `PublishedConfig`.

    Raises:
        ValueError: if the activation is unknown, or an id lies outside the vocabulary.
    """

    vocab_size: int = 58_101
    d_model: int = 1024
    num_encoder_layers: int = 12
    num_decoder_layers: int = 12
    encoder_num_heads: int = 16
    decoder_num_heads: int = 16
    encoder_d_ff: int = 4096
    decoder_d_ff: int = 4096
    max_len: int = 1024
    activation: str = "gelu"
    scale_embedding: bool = False
    dropout: float = 0.1
    pad_id: int = 58_100
    start_id: int = 58_100
    eos_ids: tuple[int, ...] = (0,)

    model_type: ClassVar[str] = "marian"
    keys: ClassVar[Mapping[str, str]] = {
        **{key: key for key in ("vocab_size", "d_model", "scale_embedding", "dropout")},
        **{f"{side}_layers": f"num_{side}_layers" for side in SIDES},
        **{f"{side}_attention_heads": f"{side}_num_heads" for side in SIDES},
        **{f"{side}_ffn_dim": f"{side}_d_ff" for side in SIDES},
        "max_position_embeddings": "max_len",
        "activation_function": "activation",
        "pad_token_id": "pad_id",
        "decoder_start_token_id": "start_id",
        "eos_token_id": "eos_ids",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "is_encoder_decoder": (True,),
        "is_decoder": (False,),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
        # Old files say these too:
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
        "add_bias_logits": (False, True),  # the bias counts, whatever this says
    }
    # Said twice, or of how the model was trained:
    without_effect = "num_hidden_layers|extra_pos_embeddings|save_step|decoder_vocab_size"
    positional_encoding: ClassVar[str] = "sinusoidal"
    norm_first: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-5
    tie_output: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pad_id", "start_id"):
            if not 0 <= (index := getattr(self, name)) < self.vocab_size:
                raise ValueError(
                    f"{name} must lie in the vocabulary of {self.vocab_size} tokens, got {index}"
                )

    @property
    def embedding_scale(self) -> float | None:
        """What tokens' vectors are multiplied by, √d where it is None."""
        return None if self.scale_embedding else 1.0

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        """As `from_published`, for a file of this very family; two vocabularies are refused."""
        size = content.get("vocab_size", cls.vocab_size)
        if (tgt_size := content.get("decoder_vocab_size")) not in (None, size):
            raise ValueError(f"decoder_vocab_size is {tgt_size}, expected vocab_size={size}")
        return super().of_family(content)


@dataclass(frozen=True, kw_only=True)
class BARTConfig(MarianConfig):
    """The shape of a `BART`; left out, that of the large one. See `MarianConfig`."""

    vocab_size: int = 50_265
    pad_id: int = 1
    start_id: int = 2
    eos_ids: tuple[int, ...] = (2,)

    model_type: ClassVar[str] = "bart"
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **MarianConfig.fixed,
        "normalize_embedding": (True,),
        "static_position_embeddings": (False,),
    }
    positional_encoding: ClassVar[str] = "learned"


class Marian(Published, Transformer):
    """Marian, with everything that a `Transformer` can do.

    Targets begin with `config.start_id`; `generate` knows it.

    Example:
        >>> sizes = {"encoder_num_heads": 3, "decoder_num_heads": 2, "pad_id": 29, "start_id": 29}
        >>> sizes |= {"vocab_size": 30, "d_model": 12, "encoder_d_ff": 20, "decoder_d_ff": 16}
        >>> model = Marian(MarianConfig(**sizes, num_encoder_layers=1, num_decoder_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, 29]]), torch.tensor([[29, 4], [29, 3]])).shape
        torch.Size([2, 2, 30])
    """

    config: Any
    config_class = MarianConfig
    architecture = "MarianMTModel"
    prefix = "model."
    names = NAMES

    def __init__(self, config: Any, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        self.output_projection.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def layer(self, index: int, *, cross: bool = False) -> nn.Module:
        """One layer; both sides have their own number of heads and inner width."""
        config, d, side = self.config, self.config.d_model, "decoder" if cross else "encoder"
        width, activation = getattr(config, f"{side}_d_ff"), ACTIVATION_NAMES[config.activation]
        return (DecoderLayer if cross else EncoderLayer)(
            d,
            getattr(config, f"{side}_num_heads"),
            feed_forward=FeedForward(d, width, activation=activation),
            dropout=config.dropout,
            norm_first=config.norm_first,
            norm=self.norm,
        )

    def add_positions(self) -> None:
        """The paper's table, its columns in another order: all sines, then all cosines."""
        self.positions = SinusoidalPositionalEncoding(self.config.d_model, self.config.max_len)
        table = self.positions.table
        self.positions.table = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, as a `Transformer`; the vector of padding is 0."""
        super().initialise(generator)
        nn.init.zeros_(self.src_embedding.weight[self.config.pad_id])

    def embed(self, embedding: TokenEmbedding, ids: Tensor, start: int | Tensor = 0) -> Tensor:
        """As a `Transformer`; what padding, the begin of targets, is read as learns nothing."""
        x = super().embed(embedding, ids, start)
        return torch.where((ids == self.config.pad_id)[..., None], x.detach(), x)

    def translated(
        self, weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Published weights under our names; the bias of logits, (1, v), may be left out."""
        table = next(iter(weights.values()), torch.empty(0))
        bias = weights.get("final_logits_bias", table.new_zeros(1, self.config.vocab_size))
        return super().translated({**weights, "final_logits_bias": bias[0]}, parameters)

    def published_weights(self) -> dict[str, Tensor]:
        """The weights under their published names."""
        weights = super().published_weights()
        return weights | {"final_logits_bias": weights["final_logits_bias"][None]}


class BART(Marian):
    """BART, with everything that a `Transformer` can do; its arguments are those of `Marian`.

    Example:
        >>> sizes = {"encoder_num_heads": 3, "decoder_num_heads": 2}
        >>> sizes |= {"vocab_size": 30, "d_model": 12, "encoder_d_ff": 20, "decoder_d_ff": 16}
        >>> model = BART(BARTConfig(**sizes, num_encoder_layers=1, num_decoder_layers=2))
        >>> model(torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([[2, 4], [2, 3]])).shape
        torch.Size([2, 2, 30])
    """

    config_class = BARTConfig
    architecture = "BartForConditionalGeneration"
    names = NAMES_OF_BART

    def __init__(self, config: Any, generator: torch.Generator | None = None) -> None:
        super().__init__(config, generator)
        # A second module with the same weight, by which `embed` knows the side.
        scale = config.embedding_scale
        self.tgt_embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=scale)
        self.tgt_embedding.weight = self.src_embedding.weight

    def add_positions(self) -> None:
        """A table and a norm for each side; the first two rows of a table are never read."""
        d_model, max_len = self.config.d_model, self.config.max_len
        for side in ("src", "tgt"):
            setattr(self, f"{side}_positions", LearnedPositionalEncoding(d_model, max_len + 2))
            setattr(self, f"{side}_norm", LayerNorm(d_model))

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every parameter anew, with σ = 0.02; the vector of padding is 0."""
        start_normal(self, 0.02, generator)
        nn.init.zeros_(self.src_embedding.weight[self.config.pad_id])

    def embed(self, embedding: TokenEmbedding, ids: Tensor, start: int | Tensor = 0) -> Tensor:
        """Vectors of tokens and positions, normed: with the table and the norm of their side."""
        side = "src" if embedding is self.src_embedding else "tgt"
        positions, norm = getattr(self, f"{side}_positions"), getattr(self, f"{side}_norm")
        return norm(positions(super().embed(embedding, ids, start), start + 2))
