"""What a BERT is trained for: to guess hidden tokens, and to tell classes of texts apart.

Built in chapter 11. Paper: "BERT" (Devlin et al., 2019), section 3.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_targets
from minitransformer.layers.embeddings import OutputProjection
from minitransformer.layers.feed_forward import ACTIVATIONS
from minitransformer.layers.layer_norm import LayerNorm
from minitransformer.models.bert import BERT
from minitransformer.models.bert_config import RoBERTaConfig
from minitransformer.models.published_config import ACTIVATION_NAMES

__all__ = ["BERTForMaskedLM", "BERTForSequenceClassification", "mask_tokens"]


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
        >>> from minitransformer.models.bert_config import BERTConfig
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
        >>> from minitransformer.models.bert_config import BERTConfig
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
