"""What decides the shape of a model: one frozen dataclass, checked when it is made.

Built in chapter 8. Paper: "Attention Is All You Need" (Vaswani et al., 2017), table 3.
"""

from dataclasses import dataclass
from typing import Any, Self

from minitransformer.checks import check_types
from minitransformer.layers.feed_forward import ACTIVATIONS
from minitransformer.layers.layer_norm import NORMS

__all__ = ["TransformerConfig"]

MAX_NUMBERS = 2**32  # in one table or matrix: 16 GB in float32
POSITIONAL_ENCODINGS = ("sinusoidal", "learned", "rotary", "alibi", "none")
KNOWN: dict[str, tuple[str, ...]] = {
    "positional_encoding": POSITIONAL_ENCODINGS,
    "rotary_layout": ("interleaved", "half"),
    "activation": tuple(sorted(ACTIVATIONS)),
    "norm": tuple(sorted(NORMS)),
}
SIZES = ("d_model", "src_vocab_size", "tgt_vocab_size", "num_heads", "num_decoder_layers", "d_ff")
LOWEST = dict.fromkeys((*SIZES, "num_kv_heads", "max_len"), 1) | {"num_encoder_layers": 0}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Everything that decides the shape of a `Transformer` or a `DecoderOnlyTransformer`.

    Args:
        src_vocab_size: tokens in the source vocabulary.
        tgt_vocab_size: tokens in the target vocabulary, v.
        d_model: width, d.
        num_heads: heads of each attention, h; divides d_model.
        num_encoder_layers: encoder layers, the paper's N; 0 in a decoder-only model.
        num_decoder_layers: decoder layers, the paper's N.
        d_ff: inner width of the feed-forward networks, f.
        dropout: probability of zeroing an element of a sub-layer's output or of the embedded
            tokens while training.
        activation: "relu" (the paper's) or another that `FeedForward` lists, as "gelu" or "swiglu".
        norm_first: False normalises after each residual connection (post-norm, the paper's),
            True before each sub-layer and once at the end of each stack (pre-norm).
        norm: "layer_norm" (the paper's) or "rms_norm".
        eps: ε of the norms.
        attention_bias: whether the attention projections have biases; the paper's have none.
        num_kv_heads: heads of keys and values (grouped-query attention); divides num_heads, which
            it is when left out.
        positional_encoding: "sinusoidal" (the paper's) or "learned", added to the embedded tokens;
            "rotary" or "alibi", inside every self-attention; or "none".
        rotary_base: the base of the angles of "rotary".
        rotary_layout: see `RotaryPositionalEncoding`.
        embedding_scale: what tokens' vectors are multiplied by; √d_model when left out.
        share_embeddings: source and target use one embedding (one vocabulary).
        tie_output: the output projection uses the target embedding's weight.
        max_len: longest sequence, in tokens, on either side; "alibi" and "none" have no longest.
        pad_id: the id that fills short rows of a batch; -1, which is no token, in a model whose
            every id is one.

    Raises:
        TypeError: if a value is of another type than is annotated here.
        ValueError: if a value is out of range, or two do not fit together.

    Example:
        >>> TransformerConfig(src_vocab_size=100, tgt_vocab_size=100, d_model=64, num_heads=5)
        Traceback (most recent call last):
        ...
        ValueError: num_heads must divide d_model, got 5 and 64

    Paper: table 3.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    activation: str = "relu"
    norm_first: bool = False
    norm: str = "layer_norm"
    eps: float = 1e-5
    attention_bias: bool = True
    num_kv_heads: int | None = None
    positional_encoding: str = "sinusoidal"
    rotary_base: float = 10_000.0
    rotary_layout: str = "interleaved"
    embedding_scale: float | None = None
    share_embeddings: bool = False
    tie_output: bool = True
    max_len: int = 1024
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name, lowest in LOWEST.items():
            size = getattr(self, name)
            if size is not None and size < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {size}")
            is_free = name == "max_len" and self.positional_encoding in ("alibi", "none")
            if not is_free and (size or 0) * self.d_model > MAX_NUMBERS:
                numbers = f"at most {MAX_NUMBERS}, got {size} and {self.d_model}"
                raise ValueError(f"{name} times d_model must be {numbers}")
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        for part, whole in (("num_heads", "d_model"), ("num_kv_heads", "num_heads")):
            divisor, number = getattr(self, part) or 1, getattr(self, whole)
            if number % divisor:
                raise ValueError(f"{part} must divide {whole}, got {divisor} and {number}")
        if self.positional_encoding == "rotary" and (d_k := self.d_model // self.num_heads) % 2:
            raise ValueError(f"rotary needs heads of even width d_model/num_heads, got {d_k}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        sizes = self.src_vocab_size, self.tgt_vocab_size
        if self.share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                f"share_embeddings needs one vocabulary, got {sizes[0]} and {sizes[1]} tokens"
            )
        if not -1 <= self.pad_id < min(sizes):
            raise ValueError(f"pad_id must be below {min(sizes)} tokens or -1, got {self.pad_id}")

    @classmethod
    def base(cls, vocab_size: int = 37_000) -> Self:
        """The paper's base model, English to German: 65 million parameters in its table 3.

        Example:
            >>> config = TransformerConfig.base()
            >>> config.d_model, config.num_heads, config.d_ff, config.norm_first
            (512, 8, 2048, False)
        """
        sizes: dict[str, Any] = dict.fromkeys(("src_vocab_size", "tgt_vocab_size"), vocab_size)
        return cls(**sizes, attention_bias=False, share_embeddings=True)

    @classmethod
    def decoder_only(cls, vocab_size: int, *, num_layers: int = 6, **options: Any) -> Self:
        """One vocabulary, one stack: the shape of a `DecoderOnlyTransformer`.

        Args:
            vocab_size: tokens in the vocabulary, v.
            num_layers: layers of the stack, the paper's N.
            options: any other field of the configuration.

        Example:
            >>> config = TransformerConfig.decoder_only(1000, num_layers=4, d_model=128)
            >>> config.num_encoder_layers, config.num_decoder_layers, config.tgt_vocab_size
            (0, 4, 1000)
        """
        sizes: dict[str, Any] = dict.fromkeys(("src_vocab_size", "tgt_vocab_size"), vocab_size)
        depth: dict[str, Any] = {"num_encoder_layers": 0, "num_decoder_layers": num_layers}
        return cls(**sizes, **depth, share_embeddings=True, **options)
