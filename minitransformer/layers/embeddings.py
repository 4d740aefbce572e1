"""Token embedding and the output projection that may share its weights.

Built in chapter 2. Paper: "Attention Is All You Need" (Vaswani et al., 2017), section 3.4.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1

__all__ = ["OutputProjection", "TokenEmbedding"]


class TokenEmbedding(nn.Module):
    """A row of numbers for each token of the vocabulary, times a scale: √d_model in the paper.

    Rows start with entries of standard deviation 1/√d_model, so that after the factor they
    are of size 1, like the positional encodings added to them; without the factor, a row has
    length 1, right for the output projection that may share it.

    Args:
        vocab_size: number of tokens, v.
        d_model: width, d.
        scale: what rows are multiplied by; √d_model when left out, 1 in most later models.

    Raises:
        ValueError: if a size is below 1.

    Paper: section 3.4.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scale: float | None = None) -> None:
        super().__init__()
        check_at_least_1(vocab_size=vocab_size, d_model=d_model)
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) / math.sqrt(d_model))
        self.scale = math.sqrt(d_model) if scale is None else scale

    def forward(self, ids: Tensor) -> Tensor:
        """Look up each id.

        Args:
            ids: (b, q), an integer dtype, from 0 to vocab_size - 1.

        Returns:
            (b, q, d).

        Raises:
            TypeError: if `ids` are not integers.
            ValueError: if an id lies outside the vocabulary.

        Example:
            >>> TokenEmbedding(10, 4)(torch.tensor([[3, 1, 9]])).shape
            torch.Size([1, 3, 4])
        """
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
        vocab_size = self.weight.size(0)
        try:
            return F.embedding(ids, self.weight) * self.scale  # (b, q, d)
        except IndexError as error:  # on a GPU nothing is raised: there CUDA itself asserts
            outside = ids[(ids < 0) | (ids >= vocab_size)]
            raise ValueError(
                f"id {int(outside[0])} lies outside the vocabulary of {vocab_size} tokens"
            ) from error


class OutputProjection(nn.Module):
    """Score every token of the vocabulary: logits = x Wᵀ + b, with W of shape (v, d).

    Args:
        vocab_size: number of tokens, v.
        d_model: width, d.
        tied_to: a `TokenEmbedding` whose weight serves here too (Press & Wolf, 2017).
        bias: whether each token has a number b that is added to its score; the paper has none.

    Raises:
        ValueError: if a size is below 1, or `tied_to` has another shape.

    Paper: section 3.4.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        tied_to: TokenEmbedding | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_at_least_1(vocab_size=vocab_size, d_model=d_model)
        if tied_to is None:
            tied_to = TokenEmbedding(vocab_size, d_model)
        if tied_to.weight.shape != (vocab_size, d_model):
            raise ValueError(
                f"tied_to must have weight of shape {(vocab_size, d_model)}, "
                f"got {tuple(tied_to.weight.shape)}"
            )
        self.weight = tied_to.weight
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (..., d), to logits, (..., v).

        Example:
            >>> embedding = TokenEmbedding(10, 4)
            >>> project = OutputProjection(10, 4, tied_to=embedding)
            >>> project(torch.randn(2, 3, 4)).shape, project.weight is embedding.weight
            (torch.Size([2, 3, 10]), True)
        """
        return F.linear(x, self.weight, self.bias)  # (..., v)
