"""Dates as people write them, into ISO form: "3/5/98 (UK)" becomes "1998-05-03".

Everything is yours, from nn.Linear and nn.Embedding up. The pairs to train on are in pairs.tsv.
"""

from torch import Tensor, nn

PAD, BOS, EOS = 0, 1, 2  # of padding, the beginning and the end of a target


def encode(text: str) -> list[int]:
    """One id for each character, without special ids."""


def decode(ids: list[int]) -> str:
    """The text of ids up to the first EOS, without special ids."""


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scaled dot-product attention, (b, h, q, e), of keys (b, h, k, e) and values (b, h, k, v).

    The mask is boolean, True = may be attended, and fits (b, h, q, k).
    A query that may attend to nothing gets zeros.
    """


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer normalisation over the last axis, with 1e-5 added to the variance."""


class Translator(nn.Module):
    """An encoder-decoder Transformer. Translator() is a new one, with the sizes you chose."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits, (b, t, v), of the id after each position of tgt.

        Args:
            src: ids of the source, (b, s), with PAD behind.
            tgt: ids of the target, (b, t), from BOS on, with PAD behind.
        """


def loss(model: Translator, src: Tensor, tgt: Tensor) -> Tensor:
    """Mean cross-entropy of the real tokens of tgt, (b, t), which has BOS, a date, EOS, and PAD."""


def train(pairs: list[tuple[str, str]]) -> Translator:
    """A model trained on the pairs."""


def translate(model: Translator, texts: list[str]) -> list[str]:
    """Greedy translations of the texts, of at most 10 tokens."""
