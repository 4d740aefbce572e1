"""The exercises of chapter 13, T5."""

import random
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.layers.attention import ScaledDotProductAttention
from minitransformer.layers.multi_head_attention import MultiHeadAttention
from minitransformer.models.t5 import RelativePositionBias
from minitransformer.tasks.span_corruption import corrupt_spans, draw_spans


def counted(n: int, rate: float, mean_length: float) -> tuple[float, float]:
    """The lengths of a text that is cut."""
    out = draw_spans(n, random.Random(0), rate=rate, mean_length=mean_length)
    source, target = corrupt_spans(range(n), out, range(-1, -n - 1, -1))
    return float(len(source)), float(len(target))


count_before_cutting = Exercise(
    function="lengths",
    arguments=lambda: [(4, 0.5, 2.0), (10, 0.3, 1.0), (60, 0.15, 3.0), (600, 0.4, 4.0)],
    right=counted,
    mistakes={
        "A sentinel begins each gap in the target, too.": (
            lambda n, rate, mean_length: (counted(n, rate, mean_length)[0], n * rate)
        ),
        "In the source a sentinel takes the place of each gap.": (
            lambda n, rate, mean_length: (n - n * rate, counted(n, rate, mean_length)[1])
        ),
        "These are the tokens alone, without sentinels.": (
            lambda n, rate, mean_length: (n - n * rate, n * rate)
        ),
        "The two are exchanged: the source comes first.": (
            lambda n, rate, mean_length: counted(n, rate, mean_length)[::-1]
        ),
        "The texts end with a gap: there is no last sentinel.": (
            lambda n, rate, mean_length: (
                counted(n, rate, mean_length)[0],
                counted(n, rate, mean_length)[1] + 1,
            )
        ),
        "n · r / m: the more tokens a span has, the fewer spans there are.": (
            lambda n, rate, mean_length: (
                n - n * rate + n * rate * mean_length,
                n * rate + n * rate * mean_length,
            )
        ),
        "Sentinels are added to both sides: in the source one stands for each span.": (
            lambda n, rate, mean_length: (
                n - n * rate * (1 + 1 / mean_length),
                n * rate * (1 + 1 / mean_length),
            )
        ),
        "{n} / {mean_length:g} sentinels are too many: only the share that is cut out, "
        "{rate:g}, is in spans of that length.": (
            lambda n, rate, mean_length: (
                n * (1 - rate + 1 / mean_length),
                n * (rate + 1 / mean_length),
            )
        ),
    },
    hints=(
        "How many tokens are cut out, and how many spans do they make?",
        "n · r tokens in n · r / m spans. Each side has a sentinel for each span.",
        "Both sides are shown in A text with gaps; the shares in What is cut out.",
    ),
)


def gradients(logits: Tensor, targets: Tensor) -> Tensor:
    """Those of PyTorch."""
    logits = logits.detach().requires_grad_()
    F.cross_entropy(logits, targets, ignore_index=0).backward()
    assert logits.grad is not None
    return logits.grad


def scored(vocab_size: int, *targets: int) -> tuple[Tensor, Tensor]:
    (logits,) = random_tensors((len(targets), vocab_size))
    return logits, torch.tensor(targets)


never_a_target = Exercise(
    function="logit_gradients",
    arguments=lambda: [
        scored(3, 2),
        scored(3, 1, 0),
        scored(7, 3, 0, 6, 0, 3),
    ],
    right=gradients,
    tolerance=1e-5,
    mistakes={
        "These are the probabilities. At the target, 1 is still to be subtracted.": (
            lambda logits, targets: (
                logits.softmax(-1) * (targets != 0)[:, None] / (targets != 0).sum()
            )
        ),
        "Positions whose target is 0 are in no loss: their gradients are zeros.": (
            lambda logits, targets: (
                (logits.softmax(-1) - F.one_hot(targets, logits.size(1))) / (targets != 0).sum()
            )
        ),
        "The mean is over the positions with a loss, not over all.": (
            lambda logits, targets: gradients(logits, targets) * (targets != 0).float().mean()
        ),
        "This is the gradient of the sum; the loss is a mean.": (
            lambda logits, targets: gradients(logits, targets) * (targets != 0).sum()
        ),
        "The sign is wrong: a gradient points to where the loss rises.": (
            lambda logits, targets: -gradients(logits, targets)
        ),
        "The softmax is over tokens, the last axis.": (
            lambda logits, targets: (
                (logits.softmax(0) - F.one_hot(targets, logits.size(1)))
                * (targets != 0)[:, None]
                / (targets != 0).sum()
            )
        ),
    },
    hints=(
        "One position first: the derivative of the logarithm of a softmax by each logit.",
        "Probabilities, less 1 at the target; zeros where nothing counts; divided by the count.",
        "The advice that it refutes is the trap in What is cut out.",
    ),
)


class Reverser:
    """Answers as a model that has learned to reverse lists up to a length does."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def __repr__(self) -> str:
        return f"Reverser({self.longest})"

    def __call__(self, sources: list[str]) -> list[str]:
        return [self.answer(source) for source in sources]

    def answer(self, source: str) -> str:
        task, _, rest = source.partition(": ")
        words = rest.split()
        if task != "reverse":
            return source
        if len(words) > self.longest:
            return " ".join([*words[:1:-1], *words[:2]])  # the last two are exchanged
        return " ".join(reversed(words))


Answer = Callable[[list[str]], list[str]]


def shares(
    answer: Answer,
    lists: list[list[str]],
    *,
    prefix: str = "reverse: ",
    right: Callable[[list[str], list[str]], float] = lambda found, words: found == words[::-1],
) -> dict[int, float]:
    """The share right of each length, with one thing done otherwise."""
    found: dict[int, list[float]] = {}
    for words in lists:
        (text,) = answer([prefix + " ".join(words)])
        found.setdefault(len(words), []).append(float(right(text.split(), words)))
    return {length: sum(marks) / len(marks) for length, marks in found.items()}


def as_rows(found: object) -> object:
    """A dict of numbers as rows of keys and values."""
    if not isinstance(found, dict) or not found:
        return found
    return torch.tensor([[float(key), float(found[key])] for key in sorted(found)])


LISTS = [text.split() for text in ("ab", "cd ab", "ab cd ef", "gh ab gh", "cd ab", "k cd ab l")]
LISTS += [["gh", "ab", "cd", "ef"], ["ab", "cd", "ab"]]

longer_than_trained = Exercise(
    function="right_by_length",
    arguments=lambda: [
        (Reverser(2), LISTS[:1]),
        (Reverser(9), LISTS[1:3]),
        (Reverser(2), LISTS),
        (Reverser(3), LISTS),
    ],
    use=lambda mine, answer, lists: as_rows(mine(answer, lists)),
    right=lambda answer, lists: as_rows(shares(answer, lists)),
    compared="Compared are rows of a length and a share.",
    mistakes={
        'The model is asked without its task: a source begins with "reverse: ".': partial(
            shares, prefix=""
        ),
        "Words are counted one by one here. A list is right only if all its words are.": (
            lambda answer, lists: shares(
                answer,
                lists,
                right=lambda found, words: (
                    sum(a == b for a, b in zip(found, words[::-1], strict=False)) / len(words)
                ),
            )
        ),
        "The order counts: the same words in another order are no reversal.": (
            lambda answer, lists: shares(
                answer, lists, right=lambda found, words: sorted(found) == sorted(words)
            )
        ),
        "The answer is compared with the list itself, not with its reversal.": (
            lambda answer, lists: shares(answer, lists, right=lambda found, words: found == words)
        ),
        "Each length is divided by all lists; divide by those of that length.": (
            lambda answer, lists: {
                length: share * sum(len(words) == length for words in lists) / len(lists)
                for length, share in shares(answer, lists).items()
            }
        ),
        "The letters are reversed here. Reverse the order of words.": (
            lambda answer, lists: shares(
                answer,
                lists,
                right=lambda found, words: " ".join(found) == " ".join(words)[::-1],
            )
        ),
    },
    hints=(
        "Sort the lists by how many words they have. What is the source of one, what its target?",
        "Ask for all lists of a length; compare each answer with the words from last to first.",
        "What a source looks like: A task is a prefix.",
    ),
)


class TinyModel(nn.Module):
    """Scores of tokens that depend on the source and on the token before."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.of_source, self.of_target = random_tensors((vocab_size, vocab_size), (vocab_size, 1))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        real = (src != 0)[..., None]
        source = (self.of_source[src] * real).sum(dim=1, keepdim=True)  # (b, 1, v)
        return source * self.of_target[tgt] + self.of_source[tgt]  # (b, t, v)


def asked(*rows: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A model, sources, the decoder's inputs and labels: digits are tokens, 1 begins, 2 ends."""
    width = max(map(len, rows)) + 1
    ids = [[int(digit) for digit in row] for row in rows]
    pad = [[0] * (width - len(row) - 1) for row in ids]
    tgt = [[1, *row, *zeros] for row, zeros in zip(ids, pad, strict=True)]
    labels = [[*row, 2, *zeros] for row, zeros in zip(ids, pad, strict=True)]
    src = torch.tensor([[3, 4, 5 + i % 2] for i in range(len(rows))])
    return TinyModel(9), src, torch.tensor(tgt), torch.tensor(labels)


def of_labels(
    model: nn.Module, src: Tensor, tgt: Tensor, labels: Tensor, *, axis: int = -1
) -> Tensor:
    """The log-probability of each label, (b, t)."""
    return model(src, tgt).log_softmax(axis).gather(-1, labels[..., None])[..., 0]


def product(model: nn.Module, src: Tensor, tgt: Tensor, labels: Tensor) -> Tensor:
    """One target after the other, by its probabilities."""
    found = []
    for row, before, wanted in zip(src, tgt, labels, strict=True):
        p = model(row[None], before[None])[0].double().softmax(-1)
        real = [p[place, token] for place, token in enumerate(wanted) if token]
        found.append(torch.stack(real).log().sum())
    return torch.stack(found).float()


probabilities_of_labels = Exercise(
    function="log_probability",
    arguments=lambda: [asked("3"), asked("34"), asked("345", "6"), asked("3", "4567", "83")],
    right=product,
    mistakes={
        "Padding, label 0, is no part of a target.": (
            lambda model, src, tgt, labels: of_labels(model, src, tgt, labels).sum(1)
        ),
        "The end, 2, is part of a target: a model that goes on has written another text.": (
            lambda model, src, tgt, labels: (of_labels(model, src, tgt, labels) * (labels > 2)).sum(
                1
            )
        ),
        "This is the mean over the tokens. The logarithm of a product is a sum.": (
            lambda model, src, tgt, labels: product(model, src, tgt, labels) / (labels != 0).sum(1)
        ),
        "These are logits: the softmax is missing.": (
            lambda model, src, tgt, labels: (
                model(src, tgt).gather(-1, labels[..., None])[..., 0] * (labels != 0)
            ).sum(1)
        ),
        "Taken at the decoder's inputs; the scores at a place are those of its label.": (
            lambda model, src, tgt, labels: (of_labels(model, src, tgt, tgt) * (labels != 0)).sum(1)
        ),
        "These are probabilities; asked for is their logarithm.": (
            lambda model, src, tgt, labels: product(model, src, tgt, labels).exp()
        ),
        "The sign is wrong: a probability is at most 1, its logarithm at most 0.": (
            lambda model, src, tgt, labels: -product(model, src, tgt, labels)
        ),
    },
    hints=(
        "The model gives scores, (b, t, v). Which of them belong to the labels?",
        "A log-softmax over tokens, the label's entry at each place, zeros at padding, a sum.",
        "How pairs become ids and batches: the function train in One model, six tasks.",
    ),
)


def attention(d: int, num_heads: int, *, biased: bool = False) -> MultiHeadAttention:
    """An attention as in T5, with random weights, the same at each call."""
    bias = RelativePositionBias(num_heads) if biased else None
    layer = MultiHeadAttention(d, num_heads, bias=False, position_bias=bias, scale=1.0)
    generator = torch.Generator().manual_seed(d + num_heads)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.5, generator=generator)
    return layer


def attended(layer: MultiHeadAttention) -> Tensor:
    (x,) = random_tensors((1, 3, layer.d_model))
    return layer(x, x, x)


def folded(change: Callable[[MultiHeadAttention], object], layer: MultiHeadAttention) -> Tensor:
    """The output with the usual scale, after the reader's change."""
    change(layer)
    layer.attention = ScaledDotProductAttention()
    return attended(layer)


def times(factor: float, *names: str) -> Callable[[MultiHeadAttention], None]:
    """Multiply some weights."""

    def change(layer: MultiHeadAttention) -> None:
        for name in names:
            getattr(layer, name).weight.data *= factor

    return change


fold_the_root = Exercise(
    function="fold_root",
    arguments=lambda: [
        (attention(4, 1),),
        (attention(3, 3),),
        (attention(12, 3),),
        (attention(12, 2, biased=True),),
    ],
    use=folded,
    right=lambda attention: attended(attention),
    compared="Compared are the layer's outputs, first with scale=1.0, then with the usual one.",
    mistakes={
        "Nothing has changed, so the scores are now too small by the root of the width.": (
            lambda attention: None
        ),
        "The factor is the root of a head's width e, not of the model's width d.": (
            lambda attention: times(attention.d_model**0.5, "w_q")(attention)
        ),
        "The other way round: scores will be divided by the root, so weights are multiplied.": (
            lambda attention: times(attention.d_k**-0.5, "w_q")(attention)
        ),
        "The scores get the root twice: multiply queries or keys, not both, and by the root.": (
            lambda attention: times(attention.d_k**0.5, "w_q", "w_k")(attention)
        ),
        "Values have no part in scores.": lambda attention: times(attention.d_k**0.5, "w_v")(
            attention
        ),
    },
    hints=(
        "A score is linear in the query and in the key. What multiplies it by a number?",
        "One of two weights, by the root of attention.d_k: that of queries or that of keys.",
        "Exchange 5 in The model: chapter 8's, with parts exchanged.",
    ),
)
