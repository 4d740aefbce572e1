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

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_ids
from minitransformer.layers.attention import padding_mask
from minitransformer.layers.dropout import Dropout
from minitransformer.layers.embeddings import TokenEmbedding
from minitransformer.layers.encoder_decoder import Encoder, EncoderLayer
from minitransformer.layers.feed_forward import FeedForward
from minitransformer.layers.layer_norm import LayerNorm
from minitransformer.layers.positional_encoding import LearnedPositionalEncoding
from minitransformer.models.bert_config import BERTConfig, DistilBERTConfig, RoBERTaConfig
from minitransformer.models.hub import Published
from minitransformer.models.published_config import ACTIVATION_NAMES

__all__ = ["BERT"]


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
        architecture = config.architecture(self.kind)
        vars(self).update(architecture=architecture, names=config.weight_names(architecture))
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
        x = self.embedding(ids)
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
            start = pad_id + 1 - (ids != pad_id).int().argmax(dim=1)
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
