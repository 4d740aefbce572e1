"""The exercises of chapter 9, training."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.training.loss import label_smoothing_loss
from minitransformer.training.schedules import noam_schedule

perplexity = Exercise(
    function="perplexity",
    arguments=lambda: [
        (torch.tensor([0.9]),),
        (torch.tensor([0.5, 0.125]),),
        (torch.full((3,), 1 / 305),),
        (random_tensors((7,))[0].sigmoid(),),
        (torch.tensor([0.5, 1e-12]),),
        (torch.full((100,), 0.001),),
    ],
    right=lambda probs: probs.double().prod().pow(-1 / len(probs)).item(),
    mistakes={
        "This is the loss. Its exponential is still to come.": lambda probs: -probs.log().mean(),
        "The minus is missing: the logarithm of a probability is negative, the loss is not.": (
            lambda probs: probs.log().mean().exp()
        ),
        "The losses are summed; the perplexity takes their mean, a loss per token.": (
            lambda probs: (-probs.log()).sum().exp()
        ),
        "This is 1 over the mean probability. The mean is taken of the losses, the logarithms.": (
            lambda probs: 1 / probs.mean()
        ),
        "This is the mean of 1 / p. The mean is taken of the losses, the logarithms.": (
            lambda probs: (1 / probs).mean()
        ),
        "The loss is in nats, so the power is one of e; this is one of 2.": (
            lambda probs: 2 ** -probs.log().mean()
        ),
        "These are bits, logarithms to the base 2, with a power of e: take the natural one.": (
            lambda probs: (-probs.log2().mean()).exp()
        ),
    },
    hints=(
        "First the loss of each token, from the probability that the right one got.",
        "Minus the logarithm of each probability, the mean of these, and e to that power.",
        "The loss is defined in The loss: how surprised was the model?",
    ),
)


where_the_schedule_peaks = Exercise(
    function="peak_rate",
    arguments=lambda: [(1, 1), (1, 4), (7, 3), (128, 40)],
    right=lambda d_model, warmup_steps: max(
        noam_schedule(step, d_model=d_model, warmup_steps=warmup_steps)
        for step in range(1, 2 * warmup_steps)
    ),
    mistakes={
        "The factor of the width, {d_model}, is missing.": lambda d_model, warmup_steps: (
            warmup_steps**-0.5
        ),
        "This is the rate of the first step, where the line begins.": (
            lambda d_model, warmup_steps: d_model**-0.5 * warmup_steps**-1.5
        ),
        "This is the rate one step after the peak: at step = warmup_steps both terms are equal.": (
            lambda d_model, warmup_steps: (d_model * (warmup_steps + 1)) ** -0.5
        ),
        "The root is missing: the rate falls with the root of the width times the warm-up.": (
            lambda d_model, warmup_steps: 1 / (d_model * warmup_steps)
        ),
        "The width's factor is a power of -0.5, too.": lambda d_model, warmup_steps: (
            warmup_steps**-0.5 / d_model
        ),
        "This is the step of the peak; the rate there is asked for.": (
            lambda d_model, warmup_steps: warmup_steps
        ),
    },
    hints=(
        "One term of the minimum grows with the step, the other falls. Where is the peak?",
        "Put step = warmup_steps into either term, and do not forget the factor in front.",
        "The formula stands in The size of the step: warm up, then come down.",
    ),
    tolerance=1e-6,
)


def smoothed(targets: Tensor, v: int, smoothing: float) -> Tensor:
    """Rows of smoothed targets, entry by entry."""
    return torch.tensor(
        [
            [smoothing / v + (1 - smoothing if token == target else 0.0) for token in range(v)]
            for target in targets.tolist()
        ]
    )  # (n, v)


def divergence_from(q: Tensor, logits: Tensor) -> Tensor:
    """The mean over rows of KL(q, p)."""
    return (q * (q.log() - logits.log_softmax(-1))).sum(-1).mean()


def right_divergence(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    q = smoothed(targets, logits.size(-1), smoothing)
    entropy = -(q * q.log()).sum(-1).mean()
    return q, F.cross_entropy(logits, targets, label_smoothing=smoothing) - entropy


def divergence_of_matrix(
    matrix: Callable[[Tensor, Tensor, float], Tensor],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A wrong answer: with these targets, and all else right."""

    def answer(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        q = matrix(logits, targets, smoothing)
        return q, divergence_from(q, logits)

    return answer


def divergence_as(number: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """A wrong answer: with right targets, and this made of them and the logits."""

    def answer(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, ...]:
        q = smoothed(targets, logits.size(-1), smoothing)
        return q, number(q, logits)

    return answer


def doubt_for_others(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The doubt spread over the wrong tokens only."""
    v = logits.size(-1)
    right = F.one_hot(targets, v)
    return right * (1 - smoothing) + (1 - right) * smoothing / (v - 1)


def no_doubt_for_the_right(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The right token without its part of the doubt: the rows do not add up to 1."""
    v = logits.size(-1)
    right = F.one_hot(targets, v)
    return right * (1 - smoothing) + (1 - right) * smoothing / v


def tasks(*sizes: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """Logits, (n, v), and targets, (n)."""
    logits = [random_tensors(size)[0] for size in sizes]
    return [(x, torch.arange(len(x)) * 2 % x.size(1)) for x in logits]


smoothed_target_as_a_matrix = Exercise(
    function="smoothed_divergence",
    arguments=lambda: [
        (*inputs, smoothing)
        for inputs, smoothing in zip(tasks((1, 2), (3, 4), (5, 31)), (0.1, 0.4, 0.1), strict=True)
    ],
    right=right_divergence,
    mistakes={
        "The doubt is spread over all tokens here: the right one gets its part, too.": (
            divergence_of_matrix(doubt_for_others)
        ),
        "Do the rows add up to 1? The right token gets 1 - smoothing and its part of the doubt.": (
            divergence_of_matrix(no_doubt_for_the_right)
        ),
        "The mean is over rows, of the sum over tokens; this is divided by v, too.": divergence_as(
            lambda q, logits: divergence_from(q, logits) / q.size(1)
        ),
        "This is the sum over rows. Their mean is asked for.": divergence_as(
            lambda q, logits: divergence_from(q, logits) * len(q)
        ),
        "This is the cross-entropy: the entropy of q is still in it.": divergence_as(
            lambda q, logits: F.cross_entropy(logits, q)
        ),
        "Here p and q are exchanged: the sum is weighted by the targets, q.": divergence_as(
            lambda q, logits: (
                (logits.softmax(-1) * (logits.log_softmax(-1) - q.log())).sum(-1).mean()
            )
        ),
        "The logits are not yet logarithms of probabilities: the softmax is missing.": (
            divergence_as(lambda q, logits: (q * (q.log() - logits)).sum(-1).mean())
        ),
    },
    hints=(
        "Fill a matrix with what every token gets, then add to the right ones.",
        "Every token gets smoothing / v, the right one 1 - smoothing more. F.kl_div wants log p.",
        "The formula of q stands in Label smoothing.",
    ),
)


class BagOfWords(nn.Module):
    """Scores from the mean of the source and the token just read: a model, and small."""

    def __init__(self) -> None:
        super().__init__()
        table, out = random_tensors((6, 3), (3, 6))
        self.table = nn.Parameter(table.double())
        self.out = nn.Parameter(out.double())

    def forward(self, src: Tensor, tgt_input: Tensor) -> Tensor:
        """Score the next token, (b, t, v)."""
        source = self.table[src].mean(1, keepdim=True)  # (b, 1, d)
        return (self.table[tgt_input] + source) @ self.out  # (b, t, v)


def used(model: nn.Module) -> nn.Module:
    """The model with gradients from another use in it."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


Batches = Sequence[tuple[Tensor, Tensor, Tensor]]


def small_batch(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target input and target output of such targets, padded with 0."""
    longest = max(map(len, rows))
    tgt = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])  # (b, t + 1)
    return tgt.flip(1)[:, :2], tgt[:, :-1], tgt[:, 1:]


def two_lists_of_batches() -> list[tuple[nn.Module, Batches]]:
    short, middle = [[1, 2]], [[1, 3, 2]]
    ragged = [[1, 5, 1, 4, 2], [1, 3, 2]]
    lists = [[short], [ragged, middle]]
    return [(BagOfWords(), [small_batch(rows) for rows in batches]) for batches in lists]


def gradient_of(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def gradient_of_all(model: nn.Module, batches: Batches, smoothing: float = 0.1) -> Tensor:
    """From all rows' scores at once."""
    logits = torch.cat([model(src, read).flatten(0, 1) for src, read, _ in batches])  # (n, v)
    targets = torch.cat([target.flatten() for _, _, target in batches])  # (n)
    loss = F.cross_entropy(logits, targets, ignore_index=0, label_smoothing=smoothing)
    return gradient_of(model, loss)


def weighted_by(
    weights: Callable[[list[Tensor]], list[float]],
) -> Callable[[nn.Module, Batches], Tensor]:
    """A wrong answer: the batches' losses, weighted so by their targets."""

    def answer(model: nn.Module, batches: Batches) -> Tensor:
        shares = weights([target for _, _, target in batches])
        losses = [label_smoothing_loss(model(src, read), target) for src, read, target in batches]
        loss = torch.stack([s * x for s, x in zip(shares, losses, strict=True)]).sum()
        return gradient_of(model, loss)

    return answer


def shares_of(counts: list[int]) -> list[float]:
    return [count / sum(counts) for count in counts]


def with_old_gradients(model: nn.Module, batches: Batches) -> Tensor:
    old = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return old + gradient_of_all(model, batches)


def last_gradient(model: nn.Module, batches: Batches) -> Tensor:
    """Of the last batch alone, with its weight."""
    tokens = [int((target != 0).sum()) for _, _, target in batches]
    return gradient_of_all(model, batches[-1:]) * tokens[-1] / sum(tokens)


gradient_accumulation = Exercise(
    function="gradient",
    arguments=two_lists_of_batches,
    right=lambda model, batches: gradient_of_all(model, batches),
    use=lambda mine, model, batches: mine(used(model), batches),
    mistakes={
        "Every batch has the same weight here; one with more tokens weighs more.": weighted_by(
            lambda targets: shares_of([1] * len(targets))
        ),
        "The loss is label_smoothing_loss, with its usual smoothing of 0.1; here is none.": (
            lambda model, batches: gradient_of_all(model, batches, smoothing=0.0)
        ),
        "The batches' gradients are added as they are: their weights have to add up to 1.": (
            weighted_by(lambda targets: [1.0] * len(targets))
        ),
        "The weights are numbers of rows; the mean is over tokens.": weighted_by(
            lambda targets: shares_of([len(target) for target in targets])
        ),
        "The weights count padding. The loss has only real tokens in its mean.": weighted_by(
            lambda targets: shares_of([target.numel() for target in targets])
        ),
        "Each batch's loss is weighted by its tokens; that is still to be divided by all tokens.": (
            weighted_by(lambda targets: [float((target != 0).sum()) for target in targets])
        ),
        "Gradients that were there before are in it: zero_grad first.": with_old_gradients,
        "Only the last batch is in it: is zero_grad called for every batch?": last_gradient,
    },
    hints=(
        "backward() adds to what .grad holds. So each batch's loss needs its weight before it.",
        "A batch's loss is a mean. To be a part of a larger mean it counts as often as it has "
        "tokens, padding left out.",
        "What zero_grad and backward do is in Teacher forcing: one sentence is many lessons.",
    ),
)


def share_known(train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> float:
    """By counting, one test text after another."""
    words = {word for text in train for word in text}
    return sum(words >= {*text} for text in test) / len(test)


def numbers(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


how_much_data = Exercise(
    function="reachable",
    arguments=lambda: [
        (numbers("two"), numbers("two")),
        (numbers("two"), numbers("two two", "two six", "six ten")),
        (numbers("two six", "one ten", "one"), numbers("six one", "ten", "six six four", "nine")),
        (numbers(), numbers("two", "six one")),
        (numbers("sixty"), numbers("six", "sixty", "sixty")),
    ],
    right=share_known,
    mistakes={
        "This is the share of words that are known. A text with one unknown word counts as lost.": (
            lambda train, test: (
                sum(any(word in text for text in train) for words in test for word in words)
                / sum(map(len, test))
            )
        ),
        "A text is counted if any of its words is known; all have to be.": lambda train, test: (
            sum(any(word in text for text in train for word in words) for words in test) / len(test)
        ),
        "This is the share of whole texts that training shows. New texts of known words count, "
        "too.": lambda train, test: sum(text in train for text in test) / len(test),
        "A text is counted only if one text of train has all its words; they may come from "
        "several.": lambda train, test: (
            sum(any({*words} <= {*text} for text in train) for words in test) / len(test)
        ),
        "train and test are exchanged: texts of test have to have words of train.": (
            lambda train, test: share_known(test, train) if train else 0.0
        ),
        "This is the share that cannot be reached.": lambda train, test: (
            1 - share_known(train, test)
        ),
        "This is a number of texts; divide it by how many there are.": lambda train, test: (
            share_known(train, test) * len(test)
        ),
    },
    hints=(
        "Collect all words of the training texts first.",
        "A test text counts if every one of its words is in that set. Then the share of them.",
        "What the splits have in common is said in The task: number words.",
    ),
)
