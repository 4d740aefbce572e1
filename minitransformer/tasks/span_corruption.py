"""Text with gaps: what T5 learned from before it was shown any task.

Built in chapter 13. Paper: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (Raffel et al., 2020), sections 3.1.4 and 3.3.
"""

import random
from collections.abc import Sequence

__all__ = ["corrupt_spans", "draw_spans", "restore_spans"]


def draw_spans(
    length: int, generator: random.Random, *, rate: float = 0.15, mean_length: float = 3.0
) -> list[bool]:
    """Draw which tokens of a text are cut out, in spans, with spans that stay between them.

    How many tokens are cut out, and in how many spans, follows from the length; how long each
    span is, and where it lies, is drawn, all ways alike. The first token stays, the last does not.

    Args:
        length: tokens of the text, at least 2.
        generator: source of the draw.
        rate: share of the tokens that are cut out, about; 15 % in the paper.
        mean_length: mean length of these spans, about; 3 in the paper.

    Raises:
        ValueError: if `length` is below 2, `rate` not between 0 and 1, or `mean_length` below 1.

    Example:
        >>> "".join("x" if is_out else "." for is_out in draw_spans(40, random.Random(0)))
        '.........................xxxx.........xx'

    Paper: section 3.3.4, and its authors' code.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2, got {length}")
    if not 0 < rate < 1 or mean_length < 1:
        raise ValueError(
            f"rate must lie between 0 and 1 and mean_length be at least 1, got {rate} and "
            f"{mean_length}"
        )
    num_out = min(max(round(length * rate), 1), length - 1)
    num_spans = min(max(round(num_out / mean_length), 1), length - num_out)

    def lengths(total: int) -> list[int]:
        borders = sorted(generator.sample(range(1, total), num_spans - 1))
        return [b - a for a, b in zip([0, *borders], [*borders, total], strict=True)]

    spans = zip(lengths(length - num_out), lengths(num_out), strict=True)
    return [is_out for kept, out in spans for is_out in [False] * kept + [True] * out]


def corrupt_spans(
    ids: Sequence[int], cut_out: Sequence[bool], sentinels: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The source, a text with a sentinel in place of each gap, and the target, which fills them.

    Source and target are made in the same way: one leaves out what the other holds. So the target
    is the first sentinel, the first gap, the second sentinel, and so on; where the text goes on
    after the last gap, one more sentinel ends it.

    Args:
        ids: tokens of the text.
        cut_out: for each token whether it is cut out; not the first.
        sentinels: ids that occur in no text; the n-th stands for the n-th gap.

    Raises:
        ValueError: if lengths differ, the first token is cut out, or there are too few sentinels.

    Example:
        >>> corrupt_spans([5, 6, 7, 8, 9], [False, True, True, False, True], [99, 98, 97])
        ([5, 99, 8, 98], [99, 6, 7, 98, 9])
        >>> corrupt_spans([5, 6, 7, 8, 9], [False, True, True, False, False], [99, 98, 97])
        ([5, 99, 8, 9], [99, 6, 7, 98])

    Paper: section 3.3, table 3, and its authors' code.
    """
    if len(ids) != len(cut_out):
        raise ValueError(f"cut_out must be as long as ids, {len(ids)}, got {len(cut_out)}")
    if cut_out and cut_out[0]:
        raise ValueError("the first token must stay: the target begins with a sentinel for it")

    def with_sentinels(left_out: Sequence[bool]) -> list[int]:
        """The ids with one sentinel for each run of those that are left out."""
        found, used = [], 0
        for index, (token, is_left_out) in enumerate(zip(ids, left_out, strict=True)):
            if not is_left_out:
                found.append(token)
            elif index == 0 or not left_out[index - 1]:
                if used == len(sentinels):
                    raise ValueError(f"sentinels must be more: {used} do not do for this text")
                found.append(sentinels[used])
                used += 1
        return found

    return with_sentinels(cut_out), with_sentinels([not is_out for is_out in cut_out])


def restore_spans(
    source: Sequence[int], target: Sequence[int], sentinels: Sequence[int]
) -> list[int]:
    """The text: a source of `corrupt_spans` with what the target says in the place of sentinels.

    The target may be what a model has written. A gap that it leaves out stays empty.

    Example:
        >>> restore_spans([5, 99, 8, 98], [99, 6, 7, 98, 9], [99, 98, 97])
        [5, 6, 7, 8, 9]
    """
    gaps: dict[int, list[int]] = {}
    gap: list[int] = []
    for token in target:
        if token in sentinels:
            gap = gaps[token] = []
        else:
            gap.append(token)
    return [
        found
        for token in source
        for found in (gaps.get(token, []) if token in sentinels else [token])
    ]
