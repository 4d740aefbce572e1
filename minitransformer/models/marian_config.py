"""The configurations of Marian and BART, and what their files call our weights.

Built in chapter 13.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from minitransformer.models.published_config import PublishedConfig, Stacked, linear

__all__ = ["BARTConfig", "MarianConfig"]


class Row(Stacked):
    """A vector of ours that is published as a matrix of one row."""

    def take_apart(self, tensor: Tensor, shapes: Iterable[torch.Size]) -> list[Tensor]:
        """Ours."""
        return [tensor.squeeze(0)]

    def put_together(self, tensors: list[Tensor]) -> Tensor:
        """Theirs."""
        return tensors[0][None]


def names_of(side: str, *norms: str) -> dict[str, str]:
    """The names in the layers of one side, theirs and ours; `norms` are theirs, in their order."""
    theirs, ours = f"model.{side}.layers.*", f"{side}.layers.*"
    names: dict[str, str] = {}
    for attention, own in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
        for letter, projection in zip("qkvo", ("q", "k", "v", "out"), strict=True):
            names |= linear(f"{theirs}.{attention}.{projection}_proj", f"{ours}.{own}.w_{letter}")
    for number in (1, 2):
        names |= linear(f"{theirs}.fc{number}", f"{ours}.feed_forward.w_{number}")
    for number, name in enumerate(norms, start=1):
        names |= linear(f"{theirs}.{name}_layer_norm", f"{ours}.residual_{number}.norm")
    return names


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
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "encoder_num_heads",
        "decoder_attention_heads": "decoder_num_heads",
        "encoder_ffn_dim": "encoder_d_ff",
        "decoder_ffn_dim": "decoder_d_ff",
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
    without_effect: ClassVar[str] = (
        "num_hidden_layers|extra_pos_embeddings|save_step|decoder_vocab_size"
    )
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        "final_logits_bias": Row(("output_projection.bias",)),
        "model.shared.weight": "src_embedding.weight",
        "model.encoder.embed_tokens.weight": "src_embedding.weight",
        "model.decoder.embed_tokens.weight": "tgt_embedding.weight",
        "lm_head.weight": "output_projection.weight",
        "model.encoder.embed_positions.weight": None,  # they follow from a formula
        "model.decoder.embed_positions.weight": None,
        **names_of("encoder", "self_attn", "final"),
        **names_of("decoder", "self_attn", "encoder_attn", "final"),
    }
    positional_encoding: ClassVar[str] = "sinusoidal"
    norm: ClassVar[str] = "layer_norm"
    norm_first: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-5
    share_embeddings: ClassVar[bool] = True
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
    names: ClassVar[Mapping[str, str | Stacked | None]] = {
        **MarianConfig.names,
        "model.encoder.embed_positions.weight": "src_positions.weight",
        "model.decoder.embed_positions.weight": "tgt_positions.weight",
        **linear("model.encoder.layernorm_embedding", "src_norm"),
        **linear("model.decoder.layernorm_embedding", "tgt_norm"),
        "model.encoder.version": None,
        "model.decoder.version": None,
    }
    positional_encoding: ClassVar[str] = "learned"
