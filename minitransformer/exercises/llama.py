"""The exercises of chapter 12, Llama."""

import math
from collections.abc import Callable, Collection
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.models.llama import Llama, LlamaConfig


@cache
def counted_by_class(d: int, f: int, vocab_size: int, layers: int, heads: int, kv: int) -> int:
    config: Any = LlamaConfig(
        vocab_size=vocab_size,
        d_model=d,
        num_heads=heads,
        num_layers=layers,
        d_ff=f,
        num_kv_heads=kv,
        tie_output=True,
    )
    with torch.device("meta"):
        model = Llama(config)
    return sum(parameter.numel() for parameter in model.parameters())


def counted(
    *, tables: int = 1, matrices: int = 3, norms: int = 2, last: int = 1, biases: int = 0
) -> Callable[..., int]:
    """The count with some parts as often as told."""

    def count(d: int, f: int, vocab_size: int, layers: int, heads: int, kv: int) -> int:
        attention = 2 * d * d + 2 * d * (kv * d // heads)
        layer = attention + matrices * d * f + norms * d
        bias = biases * layers * (2 * d + 2 * (kv * d // heads))
        return tables * vocab_size * d + layers * layer + last * d + bias

    return count


count_smollm2 = Exercise(
    function="parameters",
    arguments=lambda: [
        (2, 3, 5, 1, 1, 1),
        (12, 7, 5, 1, 3, 3),
        (24, 10, 31, 3, 6, 2),
        (576, 1536, 49_152, 30, 9, 3),
    ],
    right=counted_by_class,
    mistakes={
        "The output is tied: the table of tokens is the output projection too, and counts once.": (
            counted(tables=2)
        ),
        "Keys and values have kv={kv} heads of width d / heads here, not heads={heads}: their "
        "matrices are smaller.": (
            lambda d, f, vocab_size, layers, heads, kv: counted()(
                d, f, vocab_size, layers, heads, heads
            )
        ),
        "The gated network of a Llama has three matrices, not two.": counted(matrices=2),
        "One norm is missing: the one after the last layer.": counted(last=0),
        "A layer has two norms, one before each sub-layer.": counted(norms=1),
        "An RMSNorm has a gain and no bias: d numbers, not 2d.": counted(norms=4, last=2),
        "A Llama has no biases.": counted(biases=1),
    },
    hints=(
        "The table once; then for each layer attention, network and norms; then one norm more.",
        "Queries and output cost d² each. Keys and values cost d times the width of a head, "
        "d / heads, times their number of heads, each.",
        "The larger Llama is counted in the section By hand: count GPT-2.",
    ),
)


def loss_of_all(v: int, z: float) -> float:
    logits = torch.zeros(v, v, dtype=torch.float64)
    logits[:, 0] = z
    return F.cross_entropy(logits, torch.arange(v)).item()


def exp_sum(v: int, z: float) -> float:
    return torch.tensor([z] + [0.0] * (v - 1), dtype=torch.float64).logsumexp(0).item()


too_sure = Exercise(
    function="random_loss",
    arguments=lambda: [(2, 0.0), (2, 1.0), (5, -2.0), (500, 0.0), (500, 64.0), (7, 1000.0)],
    right=loss_of_all,
    mistakes={
        "This is ln v, the loss when all logits are equal. Here one of them is {z:g}.": (
            lambda v, z: math.log(v)
        ),
        "Sometimes the sure token is the right one: once in {v} times.": exp_sum,
        "This is the loss when the sure token is right. That happens once in {v} times.": (
            lambda v, z: exp_sum(v, z) - z
        ),
        "v - 1 tokens have logit 0, not v.": (
            lambda v, z: (
                torch.tensor([z] + [0.0] * v, dtype=torch.float64).logsumexp(0).item() - z / v
            )
        ),
        "e^z overflows for z = 1000. torch.logsumexp avoids that.": (
            lambda v, z: (torch.tensor(z).double().exp() + v - 1).log() - z / v
        ),
        "The sign is wrong: a loss is minus the logarithm of a probability.": (
            lambda v, z: -loss_of_all(v, z)
        ),
        "This is in bits. With the natural logarithm it is in nats.": (
            lambda v, z: loss_of_all(v, z) / math.log(2)
        ),
    },
    hints=(
        "Cross-entropy of one target is ln(sum of all e^logit) minus the logit of the target.",
        "The sum is e^z + v - 1 for each target. What is the mean logit of a random target?",
        "Tied outputs are in the section By hand: count GPT-2; cross-entropy is in chapter 2.",
    ),
)


def by_autograd(a: Tensor, b: Tensor, x: Tensor, g: Tensor, s: float) -> tuple[Tensor, Tensor]:
    a.requires_grad_()
    b.requires_grad_()
    y = s * x @ a.T @ b.T
    gradients = torch.autograd.grad((y * g).sum(), (a, b))
    return gradients[0], gradients[1]


def lora_gradients(
    *, scaled: bool = True, mean: bool = False, sign: int = 1, swapped: bool = False
) -> Callable[..., tuple[Tensor, Tensor]]:
    """The gradients with one thing done in another way."""

    def gradients(a: Tensor, b: Tensor, x: Tensor, g: Tensor, s: float) -> tuple[Tensor, Tensor]:
        factor = sign * (s if scaled else 1.0) / (len(x) if mean else 1)
        of_a = factor * (g @ b).T @ x
        of_b = factor * g.T @ (x @ a.T)
        return (of_b, of_a) if swapped else (of_a, of_b)

    return gradients


def lora_case(a_factor: float, b_factor: float, s: float, n: int) -> tuple[Any, ...]:
    a, b, x, g = random_tensors((2, 5), (3, 2), (n, 5), (n, 3))
    return a_factor * a, b_factor * b, x, g, s


which_one_starts_at_zero = Exercise(
    function="first_gradients",
    arguments=lambda: [
        lora_case(1, 0, 1.0, 1),
        lora_case(0, 1, 2.0, 1),
        lora_case(0, 0, 2.0, 4),
        lora_case(1, 1, 0.5, 4),
    ],
    right=by_autograd,
    mistakes={
        "Both gradients contain the scale: s = {s:g}.": lora_gradients(scaled=False),
        "These are means over the inputs; each input adds to the gradient.": (
            lora_gradients(mean=True)
        ),
        "The results are exchanged: first the gradient of A, then that of B.": (
            lora_gradients(swapped=True)
        ),
        "The sign is wrong: this is the direction that lowers the loss.": lora_gradients(sign=-1),
        "The gradient of A contains B, and where B is zero it is zero.": (
            lambda a, b, x, g, s: (
                s * (g @ torch.ones_like(b)).T @ x,
                lora_gradients()(a, b, x, g, s)[1],
            )
        ),
        "The gradient of B contains A, and where A is zero it is zero.": (
            lambda a, b, x, g, s: (
                lora_gradients()(a, b, x, g, s)[0],
                s * g.T @ (x @ torch.ones_like(a).T),
            )
        ),
    },
    hints=(
        "For one input x and one g the chapter has both formulas. For more, add up.",
        "Rows of x and g belong together: g.T @ (something of x) adds up over them. "
        "The result has the shape of A, or of B.",
        "The formulas are in Fine-tune with few parameters: LoRA, under The start.",
    ),
)


def by_adam(a: Tensor, b_gradient: Tensor, alpha: float, rate: float) -> Tensor:
    b = nn.Parameter(torch.zeros_like(b_gradient))
    b.grad = b_gradient
    torch.optim.Adam([b], lr=rate).step()
    return (alpha / len(a) * b @ a).detach()


def adam_case(rank: int, alpha: float, rate: float) -> tuple[Tensor, Tensor, float, float]:
    a, gradient = random_tensors((rank, 5), (3, rank))
    gradient = torch.where(gradient.abs() < 0.1, 0.1, 2 * gradient)
    gradient[0, 0] = 0.0
    return a, gradient, alpha, rate


def change(
    direction: Callable[[Tensor], Tensor], power: int = 1, sign: int = -1
) -> Callable[..., Tensor]:
    """The change of W if B moves that way, with the scale to that power."""
    return lambda a, b_gradient, alpha, rate: (
        sign * rate * (alpha / len(a)) ** power * direction(b_gradient) @ a
    )


is_alpha_a_rate = Exercise(
    function="first_change",
    arguments=lambda: [
        (torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]]), 1.0, 0.1),
        adam_case(2, 4.0, 0.1),
        adam_case(4, 4.0, 0.2),
        adam_case(4, 8.0, 0.1),
    ],
    right=by_adam,
    mistakes={
        "This is plain gradient descent. Adam's first step ignores the size of a gradient.": (
            change(lambda gradient: gradient)
        ),
        "The sign is wrong: a step goes against the gradient.": change(torch.sign, sign=1),
        "α is not divided by the rank, the number of rows of A: the scale is α / r.": (
            lambda a, b_gradient, alpha, rate: -rate * alpha * b_gradient.sign() @ a
        ),
        "This is the change of BA; the change of W is α / r times that.": (
            change(torch.sign, power=0)
        ),
        "α counts twice here. That is so in plain gradient descent; Adam's step forgets the size "
        "of the gradient, and α with it.": change(torch.sign, power=2),
        "The sign is taken of the product with A. Adam takes it of each number of B's gradient.": (
            lambda a, b_gradient, alpha, rate: -rate * alpha / len(a) * torch.sign(b_gradient @ a)
        ),
    },
    hints=(
        "In its first step Adam divides each gradient by its own absolute value.",
        "So each number of B, 0 before, becomes minus the rate or plus the rate. And W changes by "
        "the product of B and A, times the scale.",
        "The layer's formula opens Fine-tune with few parameters: LoRA; Adam is in chapter 9.",
    ),
)


def example(heads: int, kv: int, layers: int) -> Llama:
    """A small Llama with an untied output, whose gains are not 1."""
    generator = torch.Generator().manual_seed(heads)
    config: Any = LlamaConfig(
        vocab_size=7, d_model=4 * heads, num_heads=heads, num_layers=layers, d_ff=6, num_kv_heads=kv
    )
    model = Llama(config, generator).double().eval()
    with torch.no_grad():
        for gain in gains_of(model):
            gain += torch.rand(gain.shape, generator=generator)
    return model


def gains_of(model: Any) -> list[Tensor]:
    inner = [
        part.norm.weight for x in model.decoder.layers for part in (x.residual_1, x.residual_2)
    ]
    return [*inner, model.decoder.norm.weight]


IDS = torch.tensor([[0, 3, 5, 1], [6, 2, 2, 4]])


def logits_and_gains(mine: Any, model: Llama) -> Any:
    """What the model gives after its gains were moved, and its gains."""
    before = [gain.clone() for gain in gains_of(model)]
    answer = mine(model)
    if answer is None:  # perhaps it works in place
        pairs = zip(before, gains_of(model), strict=True)
        if all(torch.equal(one, other) for one, other in pairs):
            return None
        answer = model
    if not isinstance(answer, nn.Module):
        return answer
    with torch.no_grad():
        return answer(IDS), torch.stack(gains_of(answer)).detach()


def moved(
    forgotten: Collection[str] = (), *, divide: bool = False, rows: bool = False, keep: bool = False
) -> Callable[[Llama], Llama]:
    """What moves the gains, except into the matrices named."""

    def move(model: Any) -> Llama:
        readers = {
            (0, "w_q"): lambda x: x.self_attention.w_q,
            (0, "w_k"): lambda x: x.self_attention.w_k,
            (0, "w_v"): lambda x: x.self_attention.w_v,
            (1, "w_1"): lambda x: x.feed_forward.w_1,
            (1, "w_3"): lambda x: x.feed_forward.w_3,
        }
        gains = gains_of(model)
        pairs = [
            (gains[2 * place + which], name, of(layer).weight)
            for (place, layer), ((which, name), of) in product(
                enumerate(model.decoder.layers), readers.items()
            )
        ]
        pairs.append((gains[-1], "output", model.output_projection.weight))
        with torch.no_grad():
            for gain, name, weight in pairs:
                if name not in forgotten:
                    by_row = rows and weight.size(0) == len(gain)
                    factor = gain[:, None] if by_row else gain
                    weight.copy_(weight / factor if divide else weight * factor)
            for gain in gains:
                gain.fill_(1.0) if not keep else None
        return model

    return move


without_gains = Exercise(
    function="fold_gains",
    arguments=lambda: [(example(1, 1, 1),), (example(2, 2, 2),), (example(4, 2, 2),)],
    use=logits_and_gains,
    compared="The results are the logits of the model for some ids, and its gains.",
    right=lambda model: (model(IDS).detach(), torch.ones_like(torch.stack(gains_of(model)))),
    mistakes={
        "This is the model as it was: the gains are not 1 yet.": lambda model: model,
        "The gains are 1, but no matrix has taken them over.": (
            moved(("w_q", "w_k", "w_v", "w_1", "w_3", "output"))
        ),
        "The matrices have taken the gains over, but the norms apply them still: set them to 1.": (
            moved(keep=True)
        ),
        "The norm after the last layer has a gain too, and the output projection reads it.": (
            moved(("output",))
        ),
        "The values read the first norm too, beside queries and keys.": moved(("w_v",)),
        "A gated network has two matrices that read the norm, w_1 and w_3.": moved(("w_3",)),
        "The matrices are divided by the gains; the norm multiplied by them.": moved(divide=True),
        "A gain belongs to an input, a column of the matrix. Here it multiplies rows.": (
            moved(rows=True)
        ),
    },
    hints=(
        "W (γ ⊙ x) = (W diag γ) x: multiply each column of W by its gain.",
        "residual_1.norm is read by w_q, w_k and w_v of self_attention, residual_2.norm by w_1 "
        "and w_3 of feed_forward, decoder.norm by output_projection.",
        "The order of norms and matrices is in the figure of What changed, and why.",
    ),
)
