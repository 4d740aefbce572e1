"""The exercises of chapter 17, when it does not learn."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer.diagnosis.faults import FAULTY_MODELS
from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.exercises.comparing import Difference
from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import DecoderOnlyTransformer, Transformer
from minitransformer.training.loss import next_token_loss


def spread_by(
    *, log: Callable[[float], float] = math.log, factor: float = 2.0, power: float = 0.5
) -> Callable[[int, float], float]:
    """The standard deviation with one thing computed in another way."""
    return lambda vocab_size, loss: (factor * max(loss - log(vocab_size), 0.0)) ** power


first_loss = Exercise(
    function="spread_of_logits",
    arguments=lambda: [(2, 1.5), (3, math.log(3)), (7, 1.0), (50_257, 14.0), (50_257, 10.9)],
    right=lambda vocab_size, loss: spread_by()(vocab_size, loss),
    mistakes={
        "The loss lies σ²/2 above ln v, not σ².": spread_by(factor=1.0),
        "This is the variance; the standard deviation is its root.": spread_by(power=1.0),
        "Half of what is above ln v, where it has to be twice that: solve σ²/2 for σ².": (
            spread_by(factor=0.5)
        ),
        "ln is the natural logarithm; here it has the base 2.": spread_by(log=math.log2),
        "ln is the natural logarithm; here it has the base 10.": spread_by(log=math.log10),
        "This is the spread for the whole loss. ln v of it are there without any spread.": (
            spread_by(log=lambda _: 0.0)
        ),
        "A loss of {loss} is below ln v: no spread explains it, and the answer is 0.": (
            lambda vocab_size, loss: abs(2 * (loss - math.log(vocab_size))) ** 0.5
        ),
    },
    hints=(
        "What does a model without any opinion pay, and how much more does this one?",
        "The loss is about ln v + σ²/2. Solve for σ; below ln v there is nothing to explain.",
        "The formula is in the box of By hand: what a loss can be.",
    ),
)


@cache
def tiny(with_positions: bool) -> Transformer:
    sizes: dict[str, Any] = {"d_model": 4, "num_heads": 1, "d_ff": 4, "dropout": 0.0}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(src_vocab_size=9, tgt_vocab_size=9, **sizes)
    model = Transformer(config, torch.Generator().manual_seed(1)).eval()
    if not with_positions:
        FAULTY_MODELS["positions left out"](model)
    return model


def two_texts(rows: int, src_len: int, tgt_len: int) -> tuple[Tensor, Tensor]:
    """Rows of source and target, all different."""
    src = 3 + torch.arange(rows * src_len).reshape(rows, src_len) * 5 % 6
    return src, 3 + torch.arange(rows * tgt_len).reshape(rows, tgt_len) * 7 % 6


def moved_by(
    swap: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    size: Callable[[Tensor], Tensor] = lambda difference: difference.abs().max(),
) -> Callable[[nn.Module, Tensor, Tensor], float]:
    """How far logits move when source and target are exchanged for others."""

    def moved(model: nn.Module, src: Tensor, ids: Tensor) -> float:
        with torch.no_grad():
            return float(size(model(*swap(src, ids)) - model(src, ids)))

    return moved


def first_two(rows: Tensor) -> Tensor:
    """Each row with its first two tokens exchanged."""
    return torch.tensor([[second, first, *rest] for first, second, *rest in rows.tolist()])


without_positions = Exercise(
    function="order_matters",
    arguments=lambda: [
        (tiny(True), *two_texts(1, 3, 2)),
        (tiny(True), *two_texts(2, 5, 3)),
        (tiny(True), *two_texts(3, 4, 1)),
        (tiny(False), *two_texts(2, 4, 3)),
    ],
    right=lambda model, src, ids: moved_by(lambda s, t: (first_two(s), t))(model, src, ids),
    mistakes={
        "Rows of the batch change places here. Tokens should, within each row.": (
            moved_by(lambda src, ids: (src.flip(0), ids))
        ),
        "The whole source is reversed, its end too: only the first two tokens change places.": (
            moved_by(lambda src, ids: (src.flip(1), ids))
        ),
        "Both places have got the same token: the first was overwritten before it was read.": (
            moved_by(lambda src, ids: (torch.cat([src[:, 1:2], src[:, 1:]], 1), ids))
        ),
        "Both logits are of the same source: is a view changed, and the original with it?": (
            moved_by(lambda src, ids: (src, ids))
        ),
        "The source is rolled by one place, so that the end token moves too.": (
            moved_by(lambda src, ids: (src.roll(1, 1), ids))
        ),
        "Without abs(), a logit that falls by much does not count.": (
            moved_by(lambda src, ids: (first_two(src), ids), Tensor.max)
        ),
        "This is the mean of the differences; the law is about the largest.": (
            moved_by(lambda src, ids: (first_two(src), ids), lambda x: x.abs().mean())
        ),
    },
    hints=(
        "Call the model twice with the same ids: with the source, and with another order of it.",
        "Write src[:, [1, 0]] to the first two columns of a clone; take the largest difference.",
        "The same is done with other changes in A law tested by hand.",
    ),
)


def weights_by(
    weigh: Callable[[Tensor], float], *, whole: bool = True
) -> Callable[[Tensor, list[int]], Tensor]:
    """What each part's targets give, divided by what all give together."""

    def weights(targets: Tensor, sizes: list[int]) -> Tensor:
        each = torch.tensor([float(weigh(part)) for part in targets.split(sizes)])
        return each / each.sum() if whole else each

    return weights


def real(part: Tensor) -> float:
    return float((part != 0).sum())


unequal_parts = Exercise(
    function="weights_of_parts",
    arguments=lambda: [
        (torch.tensor([[5, 6, 7]]), [1]),
        (torch.tensor([[5, 0, 0], [6, 7, 8]]), [1, 1]),
        (torch.tensor([[5, 6, 0, 0], [6, 7, 8, 9], [7, 0, 0, 0]]), [2, 1]),
        (torch.tensor([[5, 0], [6, 7], [0, 0], [5, 5], [7, 0]]), [1, 1, 1, 2]),
    ],
    right=lambda targets, sizes: torch.tensor(
        [
            sum(token != 0 for row in part.tolist() for token in row) / int((targets > 0).sum())
            for part in targets.split(sizes)
        ]
    ),
    mistakes={
        "This is the mean of means: a part with few targets weighs as much as one with many.": (
            weights_by(lambda part: 1.0)
        ),
        "These are shares of rows, or of all places. Padding has no part in the loss.": (
            weights_by(len)
        ),
        "Divide by the targets of the whole batch, not by its rows.": (
            lambda targets, sizes: (
                weights_by(real, whole=False)(targets, sizes) / len(targets) + 1e-9
            )
        ),
        "Divide by the real targets of the whole batch: padding is counted in the divisor.": (
            lambda targets, sizes: (
                weights_by(real, whole=False)(targets, sizes) / targets.numel() + 1e-9
            )
        ),
        "Each part begins where the one before ended: here every one begins at the first row.": (
            lambda targets, sizes: torch.tensor([real(targets[:n]) / real(targets) for n in sizes])
        ),
        "Divide by the number of all targets; here it is a factor.": (
            lambda targets, sizes: (
                weights_by(real, whole=False)(targets, sizes) * real(targets) + 1e-9
            )
        ),
        "These are counts. Divide by the targets of the whole batch.": (
            weights_by(real, whole=False)
        ),
        "The other way round: a part with more targets weighs more.": (
            weights_by(lambda part: 1 / max(real(part), 1))
        ),
        "These are the shares that are padding: 0 is padding, the other ids count.": (
            weights_by(lambda part: part.numel() - real(part) + 1e-9)
        ),
        "These add up to the number of parts. They have to add up to 1.": (
            lambda targets, sizes: len(sizes) * weights_by(real)(targets, sizes) + 1e-9
        ),
    },
    hints=(
        "The loss of a batch is a mean. Over what?",
        "A part's mean times its number of targets is its sum; all sums together are the whole's.",
        "What counts in the loss: loss is the logits', in Sixteen laws, one table.",
    ),
)


class Steps(nn.Module):
    """Modules that run in another order than they are defined; between two is a bare division."""

    def __init__(self, *, divide_by: float = 1.0, **weights: float) -> None:
        super().__init__()
        self.divide_by = divide_by
        self.last = nn.Linear(2, 2)
        self.middle = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.inner = Divided(divide_by)
        self.tokens = nn.Embedding(3, 2)
        self.other = nn.Linear(2, 2)
        self.first = nn.Linear(2, 2)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5)
        for name, weight in weights.items():
            nn.init.constant_(self.get_parameter(name.replace("_", ".") + ".weight"), weight)

    def forward(self, src: Tensor, ids: Tensor) -> Tensor:
        x: Tensor = self.middle(self.first(src) + self.tokens(ids) + self.other(src))
        x = self.last(self.inner(x))
        return x


class Divided(nn.Module):
    """A division, and a layer behind it."""

    def __init__(self, divide_by: float) -> None:
        super().__init__()
        self.divide_by = divide_by
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x / self.divide_by))


def name_and_hooks(mine: Any, model: Steps, batch: Any) -> Any:
    """The name that is found; no hook may stay on the model."""
    name = mine(model, batch)
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise Difference("leaves hooks on the model: remove their handles in the end.")
    return name


def walk(model: Steps, batch: Any) -> list[tuple[str, bool, Tensor]]:
    """Of each module in the order of computation: its name, whether inputs are finite, output."""
    calls: list[tuple[str, bool, Tensor]] = []
    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(
                lambda _, inputs, output, name=name: calls.append(
                    (name, all(bool(x.isfinite().all()) for x in inputs), output)
                )
            )
    with torch.no_grad():
        model(*batch[:2])
    for module in model.modules():
        module._forward_hooks.clear()
    return calls


def first_by(
    wrong: Callable[[Tensor], Tensor] = lambda x: ~x.isfinite(),
    *,
    heed_inputs: bool = True,
    last: bool = False,
    by_definition: bool = False,
) -> Callable[[Steps, Any], str | None]:
    """The name of the first module with a wrong output, with one thing done in another way."""

    def first(model: Steps, batch: Any) -> str | None:
        found = [
            name
            for name, finite, output in walk(model, batch)
            if (finite or not heed_inputs) and wrong(output).any()
        ]
        if by_definition:
            found = [name for name, _ in model.named_modules() if name in found]
        return found[-1 if last else 0] if found else None

    return first


def infinite_weight(model: Steps, batch: Any) -> str | None:
    names = (name for name, p in model.named_parameters() if not p.isfinite().all())
    return next((name.rpartition(".")[0] for name in names), None)


def steps(**broken: float) -> tuple[Steps, tuple[Tensor, ...]]:
    """A model broken in a place, and a batch."""
    (src,) = random_tensors((3, 2))
    return Steps(**broken), (src, torch.tensor([0, 2, 1]), torch.tensor([7, 7, 7]))


first_nan = Exercise(
    function="first_not_finite",
    arguments=lambda: [
        steps(),
        steps(last=math.inf),
        steps(middle_1=math.nan),
        steps(middle_0=math.inf, inner_layer=math.nan),
        steps(first=1e30, middle_0=1e30),
        steps(divide_by=0.0),
        steps(first=math.inf, tokens=math.inf, other=math.inf),
    ],
    use=name_and_hooks,
    right=lambda model, batch: first_by()(model, batch),
    mistakes={
        "Infinite is not finite either: NaN alone is too little to look for.": (
            first_by(lambda x: x.isnan())
        ),
        "NaN is not finite either: infinity alone is too little to look for.": (
            first_by(lambda x: x.isinf())
        ),
        "This module has got numbers that were not finite: look at the inputs as well.": (
            first_by(heed_inputs=False)
        ),
        "This is the last one whose output breaks, or the one around it: you need the first.": (
            first_by(last=True)
        ),
        "The order of named_modules() is that of definition, not of computation: let the hooks "
        "collect.": first_by(by_definition=True),
        "This is about weights. A product of finite numbers can overflow too: look at outputs.": (
            infinite_weight
        ),
    },
    hints=(
        "A forward hook sees a module's inputs and output when the module has finished.",
        "Hooks run in the order of computation: let each add its module's name to a list, if the "
        "output is not finite and the inputs are. The first in the list is the answer.",
        "The first two rows of the table in From symptom to cause say what makes NaN.",
    ),
)


def small_model() -> DecoderOnlyTransformer:
    """A model of one layer, whose table of vectors is not its output projection."""
    sizes: dict[str, Any] = {"d_model": 4, "num_heads": 1, "d_ff": 4, "dropout": 0.0}
    sizes |= {"num_layers": 1, "tie_output": False}
    config = TransformerConfig.decoder_only(9, **sizes)
    model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(2))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(parameter, 0.25)
    return model


def with_optimizer(mine: Any, model: nn.Module, left_out: str, batch: Any) -> Any:
    """The names that are found, sorted, for an optimiser that lacks some parameters."""
    chosen = [p for name, p in model.named_parameters() if not (left_out and left_out in name)]
    found = mine(model, torch.optim.SGD(chosen, lr=0.5), batch)
    return sorted(map(str, found)) if isinstance(found, list | tuple | set | dict) else found


def step_and_compare(
    still: Callable[[Tensor, Tensor], bool] = torch.equal,
    *,
    steps: int = 1,
    cloned: bool = True,
    keys: bool = False,
    gradients: bool = False,
) -> Callable[..., list[str]]:
    """The parameters that do not move, with one thing done in another way."""

    def unmoved(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> list[str]:
        start = {n: p.detach().clone() if cloned else p for n, p in model.named_parameters()}
        optimizer.zero_grad()
        next_token_loss(model, *batch).backward()
        for _ in range(steps):
            optimizer.step()
        return [
            name
            for name, p in model.named_parameters()
            if (keys or not name.endswith("w_k.bias"))
            and ((p.grad is None or not p.grad.any()) if gradients else still(p, start[name]))
        ]

    return unmoved


def example(left_out: str, rows: int, n: int) -> tuple[Any, ...]:
    """A small model, what is not in the optimiser, and a batch of ids and targets."""
    ids = 3 + torch.arange(rows * (n + 1)).reshape(rows, n + 1) * 5 % 6
    return small_model(), left_out, (ids[:, :-1], ids[:, 1:])


def lacking(model: nn.Module, left_out: str, batch: Any) -> list[str]:
    """The names of what the optimiser lacks, without the keys' bias."""
    names = [name for name, _ in model.named_parameters() if left_out and left_out in name]
    return sorted(name for name in names if not name.endswith("w_k.bias"))


not_in_the_optimiser = Exercise(
    function="unmoved",
    arguments=lambda: [
        example("", 1, 4),
        example("feed_forward", 2, 3),
        example("self_attention", 1, 5),
        example("bias", 2, 4),
    ],
    use=with_optimizer,
    right=lacking,
    compared="left_out is what the names of the parameters that the optimiser lacks contain.",
    mistakes={
        "Everything seems unmoved: is the start a copy? p.detach() changes with p; clone it.": (
            step_and_compare(cloned=False)
        ),
        "The keys' bias is in your list: leave it out, for its gradient is 0.": (
            step_and_compare(keys=True)
        ),
        "Gradients arrive where the optimiser does nothing too. Compare values before and after.": (
            step_and_compare(gradients=True)
        ),
        "These are the parameters that have moved; the others are asked for.": (
            step_and_compare(lambda a, b: not torch.equal(a, b))
        ),
        "A parameter has moved if any of its numbers has: rows of tokens not read stay.": (
            step_and_compare(lambda a, b: bool((a == b).any()))
        ),
    },
    hints=(
        "Three steps: keep what all parameters are, make one step, compare.",
        "Keep clones. The step: zero_grad, backward of mt.next_token_loss(model, *batch), step.",
        "Why diagnose does not see it: What no law sees, in From symptom to cause.",
    ),
)
