"""BERT, RoBERTa and DistilBERT: the paper's encoder alone, which reads both ways.

| | paper's encoder | BERT | why |
| --- | --- | --- | --- |
| task | read for a decoder | say which tokens were hidden | any text teaches it |
| positions | sinusoidal | learned | as in GPT-1; no reason was given |
| segments | none | a vector for text A, one for text B | two texts in one sequence |
| embeddings | times √d | as they are, with a norm | all start with σ = 0.02 |
| activation | ReLU | GELU | as in GPT-1 |
| scores | of a decoder | dense, GELU, norm, tied projection with bias | of hidden tokens |
| whole text | none | dense and tanh of the first vector | what classes are read from |

RoBERTa counts positions from `pad_id` + 1 on, and has one segment. DistilBERT has half the layers,
no segments and no pooler. The configuration says which one a model is. In training all three drop
attention weights too; here dropout is where the paper has it.

Built in chapter 11. Papers: "BERT" (Devlin et al., 2019), section 3; "RoBERTa" (Liu et al., 2019);
"DistilBERT" (Sanh et al., 2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_ids, check_targets
from minitransformer.layers.attention import padding_mask
from minitransformer.layers.embeddings import OutputProjection, TokenEmbedding
from minitransformer.layers.encoder_decoder import Encoder, EncoderLayer
from minitransformer.layers.feed_forward import ACTIVATIONS, FeedForward
from minitransformer.layers.layer_norm import Dropout, LayerNorm
from minitransformer.layers.positional_encoding import LearnedPositionalEncoding
from minitransformer.models.hub import ACTIVATION_NAMES, HIDDEN, Names, Published, PublishedConfig

__all__ = [
    "BERT",
    "BERTConfig",
    "BERTForMaskedLM",
    "BERTForSequenceClassification",
    "DistilBERTConfig",
    "RoBERTaConfig",
    "mask_tokens",
]

EMBEDDINGS = {
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "segments",
    "embeddings.LayerNorm": "norm",
}
LAYER = {
    "encoder.layer.*.attention.self.query": "self_attention.w_q",
    "encoder.layer.*.attention.self.key": "self_attention.w_k",
    "encoder.layer.*.attention.self.value": "self_attention.w_v",
    "encoder.layer.*.attention.output.dense": "self_attention.w_o",
    "encoder.layer.*.attention.output.LayerNorm": "residual_1.norm",
    "encoder.layer.*.intermediate.dense": "feed_forward.w_1",
    "encoder.layer.*.output.dense": "feed_forward.w_2",
    "encoder.layer.*.output.LayerNorm": "residual_2.norm",
}
LAYER_OF_DISTILBERT = {
    "transformer.layer.*.attention.q_lin": "self_attention.w_q",
    "transformer.layer.*.attention.k_lin": "self_attention.w_k",
    "transformer.layer.*.attention.v_lin": "self_attention.w_v",
    "transformer.layer.*.attention.out_lin": "self_attention.w_o",
    "transformer.layer.*.sa_layer_norm": "residual_1.norm",
    "transformer.layer.*.ffn.lin1": "feed_forward.w_1",
    "transformer.layer.*.ffn.lin2": "feed_forward.w_2",
    "transformer.layer.*.output_layer_norm": "residual_2.norm",
}
HEADS = {
    "bert": {
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
    },
    "roberta": {
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
    },
    "distilbert": {
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
    },
}
"""What each architecture has besides the encoder. A file may have those of another one too."""
OUTPUT_BIAS = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}
"""The name that the bias of the output has where the output is tied; else it is the decoder's."""


def weight_names(config: "BERTConfig", architecture: str) -> Names:
    """What a file of the family calls the weights of one architecture; None for the others'."""
    family, own = config.model_type, HEADS[config.model_type][architecture]
    names: dict[str, str | None] = {f"{family}.embeddings.position_ids": None}
    names |= {theirs: None for head in HEADS[family].values() for theirs in head}
    names |= own
    if family in OUTPUT_BIAS:
        asked = config.tie_output and "output_projection" in own.values()
        names[OUTPUT_BIAS[family]] = "output_projection.bias" if asked else None
    names |= {f"{family}.{theirs}": ours for theirs, ours in EMBEDDINGS.items()}
    layer = LAYER_OF_DISTILBERT if family == "distilbert" else LAYER
    names |= {f"{family}.{theirs}": f"encoder.layers.*.{ours}" for theirs, ours in layer.items()}
    if architecture.endswith("Model"):  # its own files have no prefix
        names = {name.removeprefix(f"{family}."): ours for name, ours in names.items()} | names
    return names


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
    keys: ClassVar[Mapping[str, str]] = HIDDEN | {
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
    keys: ClassVar[Mapping[str, str]] = {
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


class BERT(Published):
    """Token ids in, for each a vector that has seen all others.

    Args:
        config: a `BERTConfig`, `RoBERTaConfig` or `DistilBERTConfig`.
        generator: source of the starting values; PyTorch's global one when left out.

    Example:
        >>> model = BERT(BERTConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2))
        >>> hidden = model(torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]]))
        >>> hidden.shape, model.pool(hidden).shape
        (torch.Size([2, 4, 12]), torch.Size([2, 12]))
    """

    config_class = BERTConfig
    kind: ClassVar[str] = "Model"

    def __init__(self, config: BERTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        # What files call a model depends on the family, so on the configuration, not on the class.
        family = config.model_type
        architecture = next(name for name in HEADS[family] if name.endswith(self.kind))
        vars(self).update(architecture=architecture, prefix=f"{family}.")
        vars(self).update(names=weight_names(config, architecture))
        d, segments = config.d_model, config.num_segments
        self.embedding = TokenEmbedding(config.vocab_size, d, scale=1.0)
        self.segments = TokenEmbedding(segments, d, scale=1.0) if segments else None
        self.positions = LearnedPositionalEncoding(d, config.max_len)
        self.norm = LayerNorm(d, config.eps)
        self.dropout = Dropout(config.dropout)
        activation = ACTIVATION_NAMES[config.activation]
        self.encoder = Encoder(
            EncoderLayer(
                d,
                config.num_heads,
                feed_forward=FeedForward(d, config.d_ff, activation=activation),
                dropout=config.dropout,
                norm=partial(LayerNorm, eps=config.eps),
            )
            for _ in range(config.num_layers)
        )
        self.pooler: nn.Linear | None = None
        self.add_head()
        self.initialise(generator)

    @classmethod
    def reads(cls, content: Mapping[str, Any]) -> bool:
        """Whether this is the class for that `config.json`: of the family, with this head."""
        heads = content.get("architectures") or ["Model"]
        return super().reads(content) and any(str(head).endswith(cls.kind) for head in heads)

    def add_head(self) -> None:
        """Make what stands behind the encoder."""
        if self.config.pooler and not isinstance(self.config, DistilBERTConfig):
            self.pooler = nn.Linear(self.config.d_model, self.config.d_model)

    @classmethod
    def from_published(cls, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Self:
        """The model of that `config.json` with those weights, which say whether it has a pooler."""
        if cls.kind == "Model" and "pooler" in cls.config_class.family(content).keys:
            pooler = any(name.endswith("pooler.dense.weight") for name in weights)
            content = {**content, "pooler": pooler}
        heads = content.get("architectures") or [cls.kind]
        if cls.kind != "Model" and all(str(head).endswith("Model") for head in heads):
            raise ValueError(
                f"{heads[0]} has no head for {cls.__name__}: read it with BERT, and load its "
                "weights into a new model, model.load_state_dict(bert.state_dict(), strict=False)"
            )
        return super().from_published(content, weights)

    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw every matrix anew as Devlin et al. did: normal, σ = 0.02, nothing beyond 2σ."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                bounds = {"std": 0.02, "a": -0.04, "b": 0.04}
                nn.init.trunc_normal_(parameter, **bounds, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def encode(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """A vector for each token.

        Args:
            ids: (b, s), an integer dtype, short rows filled with `config.pad_id` on the right.
            segments: the segment of each token, (b, s), an integer dtype; all 0 when left out.

        Returns:
            (b, s, d); what stands at padding means nothing.

        Raises:
            TypeError: if ids or segments are not integers.
            ValueError: if ids are empty, not (b, s), outside the vocabulary or too long; if
                segments are not of their shape, too large, or the model has none.
        """
        check_ids("ids", ids)
        pad_id = self.config.pad_id
        x = self.embedding(ids)  # (b, s, d)
        if segments is not None and self.segments is None:
            raise ValueError(f"this {self.architecture} has no segments, got {(*segments.shape,)}")
        if segments is not None and segments.shape != ids.shape:
            raise ValueError(
                "ids and segments must have the same shape, "
                f"got {(*ids.shape,)} and {(*segments.shape,)}"
            )
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        start: int | Tensor = 0
        if isinstance(self.config, RoBERTaConfig):  # padding on the left is not counted
            start = torch.arange(pad_id + 1, pad_id + 1 + ids.size(1), device=ids.device)
            start = start - (ids != pad_id).int().argmax(dim=1, keepdim=True)  # (b, q)
        x = self.dropout(self.norm(self.positions(x, start)))
        return self.encoder(x, padding_mask(ids, pad_id))

    def pool(self, hidden: Tensor) -> Tensor:
        """A vector for each text, (b, d), made of that of its first token, of hidden (b, s, d)."""
        if self.pooler is None:
            raise ValueError(f"a {self.architecture} has no pooler")
        pooled = self.pooler(hidden[:, 0])
        return F.relu(pooled) if isinstance(self.config, DistilBERTConfig) else pooled.tanh()

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """As `encode`."""
        return self.encode(ids, segments)


def mask_tokens(
    ids: Tensor,
    vocab_size: int,
    mask_id: int,
    special_ids: Sequence[int],
    *,
    share: float = 0.15,
    masked: float = 0.8,
    replaced: float = 0.1,
    pad_id: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose tokens to be guessed; most of them are hidden.

    Each token that is not special is chosen with probability `share`. Of those chosen, a share
    `masked` becomes the token "mask", a share `replaced` some token of the vocabulary, drawn
    evenly, and the rest stays as it is.

    Args:
        ids: (b, s), int64.
        vocab_size: tokens, v.
        mask_id: the id of the token "mask".
        special_ids: never chosen and never drawn: padding, begin, end, "mask" itself.
        share, masked, replaced: see above.
        pad_id: the target where nothing is asked.
        generator: source of the choice, on the device of `ids`; the global one when left out.

    Returns:
        What a model sees and what it is asked, its targets, both (b, s), int64.

    Raises:
        ValueError: if a share, or `masked` and `replaced` together, is below 0 or above 1.

    Example:
        >>> ids = torch.tensor([[1, 7, 8, 9, 2, 0]])
        >>> mask_tokens(ids, 30, 4, range(5), share=1.0, masked=1.0, replaced=0.0)
        (tensor([[1, 4, 4, 4, 2, 0]]), tensor([[0, 7, 8, 9, 0, 0]]))

    Paper: Devlin et al. (2019), section 3.1, task 1.
    """
    if not (0 <= share <= 1 and min(masked, replaced) >= 0 and masked + replaced <= 1):
        raise ValueError(
            "share, masked, replaced and the sum of these two must lie between 0 and 1, "
            f"got {share}, {masked} and {replaced}"
        )
    special = torch.tensor(list(special_ids), device=ids.device)
    tokens = torch.arange(vocab_size, device=ids.device)
    tokens = tokens[~torch.isin(tokens, special)]
    choice, kind = torch.rand(2, *ids.shape, generator=generator, device=ids.device)
    drawn = torch.randint(len(tokens), ids.shape, generator=generator, device=ids.device)
    chosen = (choice < share) & ~torch.isin(ids, special)
    seen = ids.masked_fill(chosen & (kind < masked), mask_id)
    seen = torch.where(chosen & (masked <= kind) & (kind < masked + replaced), tokens[drawn], seen)
    return seen, ids.masked_fill(~chosen, pad_id)


class BERTForMaskedLM(BERT):
    """Scores, at each position, of every token that may stand there.

    Example:
        >>> from minitransformer.models.bert import BERTConfig
        >>> config = BERTConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2)
        >>> BERTForMaskedLM(config)(torch.tensor([[5, 4, 7, 2]])).shape
        torch.Size([1, 4, 30])

    Paper: Devlin et al. (2019), section 3.1, task 1.
    """

    kind: ClassVar[str] = "ForMaskedLM"

    def add_head(self) -> None:
        config = self.config
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.dense_norm = LayerNorm(config.d_model, config.eps)
        self.output_projection = OutputProjection(
            config.vocab_size,
            config.d_model,
            tied_to=self.embedding if config.tie_output else None,
            bias=True,
        )

    def score(self, hidden: Tensor) -> Tensor:
        """Logits, (..., v), of vectors, (..., d)."""
        is_roberta = isinstance(self.config, RoBERTaConfig)  # which has GELU here, whatever inside
        activation = ACTIVATIONS["gelu" if is_roberta else ACTIVATION_NAMES[self.config.activation]]
        return self.output_projection(self.dense_norm(activation(self.dense(hidden))))

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits, (b, s, v); arguments as in `encode`."""
        return self.score(self.encode(ids, segments))

    def loss(self, ids: Tensor, targets: Tensor, segments: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the tokens that were asked for; only they are scored.

        Args:
            ids: what the model sees, (b, s), with some tokens hidden; segments as in `encode`.
            targets: (b, s), int64, the ids asked for; `config.pad_id` where nothing is asked.

        Raises:
            TypeError: as in `encode`; if targets are not int64.
            ValueError: as in `encode`; if `targets` and `ids` differ in shape, or nothing is asked.
        """
        pad_id = self.config.pad_id
        check_targets(ids, targets, self.config.vocab_size, pad_id)
        asked = targets != pad_id
        logits = self.score(self.encode(ids, segments)[asked])
        return F.cross_entropy(logits, targets[asked])


class BERTForSequenceClassification(BERT):
    """Scores of classes for each text, read from its first token.

    Example:
        >>> from minitransformer.models.bert import BERTConfig
        >>> config = BERTConfig(vocab_size=30, d_model=12, num_heads=3, num_layers=2, num_labels=5)
        >>> BERTForSequenceClassification(config)(torch.tensor([[5, 4, 7, 2]])).shape
        torch.Size([1, 5])

    Paper: Devlin et al. (2019), section 3.2.
    """

    kind: ClassVar[str] = "ForSequenceClassification"

    def add_head(self) -> None:
        self.pooler = nn.Linear(self.config.d_model, self.config.d_model)
        self.classifier = nn.Linear(self.config.d_model, self.config.num_labels)

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Logits, (b, num_labels); arguments as in `encode`."""
        return self.classifier(self.dropout(self.pool(self.encode(ids, segments))))

    def loss(self, ids: Tensor, labels: Tensor, segments: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of labels, (b,), int64; other arguments as in `encode`."""
        return F.cross_entropy(self(ids, segments), labels)
