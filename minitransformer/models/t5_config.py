"""The configuration of T5 and T5 1.1, as `config.json` says it.

Built in chapter 13.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from minitransformer.models.published_config import PublishedConfig

__all__ = ["T5Config"]

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
    share_embeddings: ClassVar[bool] = True
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
