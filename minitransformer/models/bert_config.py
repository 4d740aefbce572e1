"""The configurations of BERT, RoBERTa and DistilBERT, and what their files call our weights.

Built in chapter 11.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from minitransformer.models.published_config import HIDDEN, PublishedConfig

__all__ = ["BERTConfig", "DistilBERTConfig", "RoBERTaConfig"]

Names = Mapping[str, str]
EMBEDDINGS = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
}
KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
"""What a part has, as files and as we call it; old files have gammas and betas."""


@dataclass(frozen=True, kw_only=True)
class BERTConfig(PublishedConfig):
    """The shape of a `BERT`; left out, that of the smaller one that was published.

    Args:
        num_segments: segments that have a vector; with 0 there are none.
        num_labels: classes that a `BERTForSequenceClassification` tells apart.
        pooler: whether a `BERT` has the layer that makes a vector for each text. Files of models
            that were trained without do not hold it, and a DistilBERT never has it.
        others: see `PublishedConfig`.

    Paper: Devlin et al. (2019), section 3.
    """

    vocab_size: int = 30_522
    d_model: int = 768
    num_heads: int = 12
    num_layers: int = 12
    d_ff: int = 3072
    max_len: int = 512
    num_segments: int = 2
    activation: str = "gelu"
    eps: float = 1e-12
    dropout: float = 0.1
    pad_id: int = 0
    tie_output: bool = True
    num_labels: int = 2
    pooler: bool = True

    model_type: ClassVar[str] = "bert"
    also: ClassVar[tuple[str, ...]] = ("roberta", "distilbert")
    keys: ClassVar[Names] = HIDDEN | {
        "type_vocab_size": "num_segments",
        "layer_norm_eps": "eps",
        "hidden_dropout_prob": "dropout",
        "pad_token_id": "pad_id",
        "num_labels": "num_labels",
        "pooler": "pooler",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }
    # Old files say so how BERT's pooler is, for every BERT.
    without_effect: ClassVar[str] = "directionality|pooler_(fc_size|type|size_per_head|num_.*)"
    layer: ClassVar[Names] = {
        "encoder.layer.*.attention.self.query": "self_attention.w_q",
        "encoder.layer.*.attention.self.key": "self_attention.w_k",
        "encoder.layer.*.attention.self.value": "self_attention.w_v",
        "encoder.layer.*.attention.output.dense": "self_attention.w_o",
        "encoder.layer.*.attention.output.LayerNorm": "residual_1.norm",
        "encoder.layer.*.intermediate.dense": "feed_forward.w_1",
        "encoder.layer.*.output.dense": "feed_forward.w_2",
        "encoder.layer.*.output.LayerNorm": "residual_2.norm",
    }
    heads: ClassVar[Mapping[str, Names]] = {
        "BertModel": {"bert.pooler.dense": "pooler"},
        "BertForMaskedLM": {
            "cls.predictions.transform.dense": "dense",
            "cls.predictions.transform.LayerNorm": "dense_norm",
            "cls.predictions.decoder": "output_projection",
        },
        "BertForSequenceClassification": {
            "bert.pooler.dense": "pooler",
            "classifier": "classifier",
        },
        "BertForNextSentencePrediction": {"cls.seq_relationship": "next_sentence"},
    }
    """What each architecture has besides the encoder. A file may have it in vain."""
    output_bias: ClassVar[str | None] = "cls.predictions.bias"
    """Where the output is tied, its bias has a name of its own; else it is the decoder's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_settings()

    @classmethod
    def of_family(cls, content: Mapping[str, Any]) -> Self:
        labels = content.get("id2label")
        return super().of_family({**content, "num_labels": len(labels)} if labels else content)

    def to_published(self) -> dict[str, Any]:
        """What `config.json` says of this configuration; of the pooler it says nothing."""
        return {key: value for key, value in super().to_published().items() if key != "pooler"}

    def architecture(self, kind: str) -> str:
        """What `transformers` calls a model of this kind, such as "ForMaskedLM"."""
        return next(name for name in self.heads if name.endswith(kind))

    def weight_names(self, architecture: str) -> dict[str, str | None]:
        """What a file of the family calls the weights of one architecture; None for the others'."""
        prefix, own = f"{self.model_type}.", self.heads[architecture]
        parts = {prefix + theirs: ours for theirs, ours in EMBEDDINGS.items()}
        layers = self.layer.items()
        parts |= {prefix + theirs: f"encoder.layers.*.{ours}" for theirs, ours in layers}
        parts |= own
        others = {theirs for head in self.heads.values() for theirs in head} - own.keys()
        names: dict[str, str | None] = dict.fromkeys([prefix + "embeddings.position_ids"])
        names |= {f"{theirs}.{kind}": None for theirs in sorted(others) for kind in KINDS}
        if self.output_bias:
            asked = self.tie_output and "output_projection" in own.values()
            names[self.output_bias] = "output_projection.bias" if asked else None
        for theirs, ours in parts.items():
            for kind, our_kind in KINDS.items():
                names[f"{theirs}.{kind}"] = f"{ours}.{our_kind}"
        if architecture.endswith("Model"):  # which has no prefix where it stands alone
            names = {name.removeprefix(prefix): ours for name, ours in names.items()} | names
        return names


@dataclass(frozen=True, kw_only=True)
class RoBERTaConfig(BERTConfig):
    """The shape of a RoBERTa. Its positions begin after the one that padding has, `pad_id`.

    Example:
        >>> RoBERTaConfig().max_len, RoBERTaConfig().pad_id
        (512, 1)
    """

    vocab_size: int = 50_265
    pad_id: int = 1

    model_type: ClassVar[str] = "roberta"
    output_bias: ClassVar[str | None] = "lm_head.bias"
    heads: ClassVar[Mapping[str, Names]] = {
        "RobertaModel": {"roberta.pooler.dense": "pooler"},
        "RobertaForMaskedLM": {
            "lm_head.dense": "dense",
            "lm_head.layer_norm": "dense_norm",
            "lm_head.decoder": "output_projection",
        },
        "RobertaForSequenceClassification": {
            "classifier.dense": "pooler",
            "classifier.out_proj": "classifier",
        },
    }


@dataclass(frozen=True, kw_only=True)
class DistilBERTConfig(BERTConfig):
    """The shape of a DistilBERT: half the layers, no segments.

    Example:
        >>> DistilBERTConfig().num_layers, DistilBERTConfig().num_segments
        (6, 0)
    """

    num_layers: int = 6
    num_segments: int = 0

    model_type: ClassVar[str] = "distilbert"
    output_bias: ClassVar[str | None] = None
    keys: ClassVar[Names] = {
        **{key: key for key in ("vocab_size", "activation", "dropout", "num_labels")},
        "dim": "d_model",
        "n_heads": "num_heads",
        "n_layers": "num_layers",
        "hidden_dim": "d_ff",
        "max_position_embeddings": "max_len",
        "pad_token_id": "pad_id",
        "tie_word_embeddings": "tie_output",
    }
    fixed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "sinusoidal_pos_embds": (False, True),  # how positions started; they are stored
        "tie_weights_": (True,),
    }
    layer: ClassVar[Names] = {
        "transformer.layer.*.attention.q_lin": "self_attention.w_q",
        "transformer.layer.*.attention.k_lin": "self_attention.w_k",
        "transformer.layer.*.attention.v_lin": "self_attention.w_v",
        "transformer.layer.*.attention.out_lin": "self_attention.w_o",
        "transformer.layer.*.sa_layer_norm": "residual_1.norm",
        "transformer.layer.*.ffn.lin1": "feed_forward.w_1",
        "transformer.layer.*.ffn.lin2": "feed_forward.w_2",
        "transformer.layer.*.output_layer_norm": "residual_2.norm",
    }
    heads: ClassVar[Mapping[str, Names]] = {
        "DistilBertModel": {},
        "DistilBertForMaskedLM": {
            "vocab_transform": "dense",
            "vocab_layer_norm": "dense_norm",
            "vocab_projector": "output_projection",
        },
        "DistilBertForSequenceClassification": {
            "pre_classifier": "pooler",
            "classifier": "classifier",
        },
    }
