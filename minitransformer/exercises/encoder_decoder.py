"""The exercises of chapter 8, encoder and decoder."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.exercises.checking import Exercise, random_tensors
from minitransformer.layers.attention import causal_mask
from minitransformer.layers.encoder_decoder import DecoderLayer
from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import Transformer

CONFIG = TransformerConfig(
    src_vocab_size=17,
    tgt_vocab_size=13,
    d_model=4,
    num_heads=2,
    d_ff=7,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.0,
    max_len=16,
)
LARGER = replace(CONFIG, d_model=6, num_encoder_layers=2, num_decoder_layers=3)


@lru_cache
def parameters_built(config: TransformerConfig) -> int:
    """Counted in the built model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def off_by(
    wrong: Callable[[TransformerConfig, int], int],
) -> Callable[[TransformerConfig], int]:
    """A wrong answer: off by so many parameters of a configuration and its width."""
    return lambda config: parameters_built(config) + wrong(config, config.d_model)


count_any_model = Exercise(
    function="parameters",
    arguments=lambda: [
        (CONFIG,),
        (LARGER,),
        (replace(LARGER, attention_bias=False),),
        (replace(LARGER, norm_first=True),),
        (replace(LARGER, tie_output=False),),
        (replace(LARGER, tgt_vocab_size=17, share_embeddings=True),),
    ],
    right=parameters_built,
    mistakes={
        "A decoder layer has two attentions.": off_by(
            lambda config, d: (
                -config.num_decoder_layers * (4 * d * d + 4 * d * config.attention_bias)
            )
        ),
        "A decoder layer has three norms, one for each sub-layer.": off_by(
            lambda config, d: -config.num_decoder_layers * 2 * d
        ),
        "A norm has a gain and a bias: 2 d.": off_by(
            lambda config, d: (
                -d
                * (
                    2 * config.num_encoder_layers
                    + 3 * config.num_decoder_layers
                    + 2 * config.norm_first
                )
            )
        ),
        "The feed-forward network has two biases, one of d_ff and one of d_model.": off_by(
            lambda config, d: (
                -(config.num_encoder_layers + config.num_decoder_layers) * (config.d_ff + d)
            )
        ),
        "With norm_first each stack ends with one norm more.": off_by(
            lambda config, d: -4 * d * config.norm_first
        ),
        "Without attention_bias the four matrices of an attention have no biases.": off_by(
            lambda config, d: (
                (not config.attention_bias)
                * 4
                * d
                * (config.num_encoder_layers + 2 * config.num_decoder_layers)
            )
        ),
        "The output has a table only if it is not tied to the target embedding.": off_by(
            lambda config, d: config.tie_output * config.tgt_vocab_size * d
        ),
        "With share_embeddings source and target use one table.": off_by(
            lambda config, d: config.share_embeddings * config.src_vocab_size * d
        ),
    },
    hints=(
        "Count one attention, one feed-forward network and one norm, then how many there are.",
        "An encoder layer has one attention and two norms, a decoder layer two and three. Then "
        "tables and, with norm_first, last norms.",
        "The four rules are in The paper's base model, counted.",
    ),
)


def shaken(module: nn.Module) -> nn.Module:
    """With all parameters moved, so that no norm or bias is what it starts as."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return module.eval()


def models_and_ids() -> list[tuple[Any, ...]]:
    model = shaken(Transformer(CONFIG, torch.Generator().manual_seed(0)))
    one = torch.tensor([[5, 9, 2]])
    two = torch.tensor([[5, 9, 11, 7, 2], [8, 6, 2, 0, 0]])
    return [
        (model, one, torch.tensor([[1]]), torch.tensor([1, 2, 0])),
        (model, two, torch.tensor([[1, 6, 4, 9], [1, 7, 3, 0]]), torch.tensor([3, 0, 4, 2, 1])),
    ]


def decoded(
    change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """An answer that changes memory and mask so between encoding and decoding."""

    def answer(
        model: Transformer, src_ids: Tensor, tgt_ids: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        memory, mask = change(*model.encode(src_ids), order)
        return memory, mask, model.decode(tgt_ids, memory, mask)

    return answer


def memory_as_a_set(
    model: Transformer, src_ids: Tensor, tgt_ids: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Position by position; the scores are those of the memory in its order."""
    memory, mask = model.encode(src_ids)
    places = order.tolist()
    shuffled = torch.stack([memory[:, place] for place in places], 1)
    return shuffled, torch.stack([mask[..., p] for p in places], -1), model(src_ids, tgt_ids)


the_memory_is_a_set = Exercise(
    function="shuffled_memory",
    arguments=models_and_ids,
    right=memory_as_a_set,
    mistakes={
        "Nothing is shuffled here.": decoded(lambda memory, mask, order: (memory, mask)),
        "The mask goes with its memory: shuffle it, too, or padding is read.": decoded(
            lambda memory, mask, order: (memory[:, order], mask)
        ),
        "Only the mask is shuffled.": decoded(
            lambda memory, mask, order: (memory, mask[..., order])
        ),
        "The order is applied the other way round: position i gets what was at order[i].": decoded(
            lambda memory, mask, order: (memory[:, order.argsort()], mask[..., order.argsort()])
        ),
    },
    hints=(
        "Call encode and decode by themselves; what encode gives are two tensors.",
        "The memory is (b, s, d), its mask (b, 1, 1, s): which axis is s in each?",
        "What decode takes is shown in The whole model.",
    ),
)


def running_sum(x: Tensor) -> Tensor:
    """Reads itself and what came before; each vector less its own mirror image."""
    y = x.cumsum(1)
    return y - y.flip(-1)


def next_one(x: Tensor) -> Tensor:
    """Reads the next position alone, and weakly."""
    return -0.05 * F.pad(x[:, 1:], (0, 0, 0, 1))


def first_feature_apart(x: Tensor) -> Tensor:
    """The first feature of an output reads its own position, the others those before, too."""
    return torch.cat([x[..., :1], x[..., 1:].cumsum(1)], -1)


def two_outputs(x: Tensor) -> Tensor:
    """The first reads all, the second the first position."""
    return torch.stack([x.mean(1), x[:, 0].tanh()], 1)


def measured(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """By changing one position after another."""
    before = f(x)[0]
    columns = []
    for j in range(x.size(1)):
        changed = x.clone()
        changed[:, j] += torch.linspace(0.3, 1.0, x.size(2))
        columns.append((f(changed)[0] - before).abs().amax(-1) > 1e-5)
    return torch.stack(columns, -1)  # (t, s)


def by_gradients(
    number: Callable[[Tensor], Tensor], size: Callable[[Tensor], Tensor]
) -> Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]:
    """A wrong answer: gradients of such a number of each output, and so much of each."""

    def answer(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        x = x.requires_grad_()
        rows = [torch.autograd.grad(number(y), x, retain_graph=True)[0][0] for y in f(x)[0]]
        return size(torch.stack(rows)) > 0  # (t, s)

    return answer


who_can_influence_whom = Exercise(
    function="influence",
    arguments=lambda: [
        (running_sum, *random_tensors((1, 1, 4))),
        (running_sum, *random_tensors((1, 3, 4))),
        (next_one, *random_tensors((1, 4, 2))),
        (first_feature_apart, *random_tensors((1, 3, 2))),
        (two_outputs, *random_tensors((1, 5, 4))),
    ],
    right=measured,
    mistakes={
        "Rows and columns are exchanged: rows are outputs, columns what they read.": (
            lambda f, x: measured(f, x).T
        ),
        "Negative derivatives are an influence, too: take their size.": by_gradients(
            lambda y: y.square().sum(), lambda gradients: gradients.sum(-1)
        ),
        "The sum of an output's numbers may not change where they do: these derivatives cancel. "
        "Take the sum of squares, or each number.": by_gradients(
            lambda y: y.sum(), lambda gradients: gradients.norm(dim=-1)
        ),
        "This is the causal mask. Which positions f reads is to be found out.": (
            lambda f, x: causal_mask(x.size(1))
        ),
        "Every row says the same: take the gradient for one output at a time.": (
            lambda f, x: measured(f, x).any(0).expand(f(x).size(1), -1)
        ),
    },
    hints=(
        "One output position gives one row: the gradient with respect to all of x.",
        "torch.autograd.grad of a number made of output i, with retain_graph; then the length of "
        "the gradient at each position of x.",
        "What may depend on what: Three kinds of attention.",
    ),
)


def prefix(s: int, t: int, *, sees: Callable[[int, int], bool]) -> Tensor:
    """Row i may see column j."""
    return torch.tensor([[sees(i, j) for j in range(s + t)] for i in range(s + t)])


one_stack_does_both = Exercise(
    function="prefix_mask",
    arguments=lambda: [(1, 1), (2, 1), (1, 3), (4, 3)],
    right=lambda s, t: prefix(s, t, sees=lambda i, j: j < s or s <= j <= i),
    mistakes={
        "This is the causal mask: the source, {s} long, sees all of itself.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: j <= i)
        ),
        "Everything sees everything: the target must not see what follows.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: True)
        ),
        "Source positions see the target here.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: i < s or j <= i)
        ),
        "The target does not see the source here.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: (i < s) == (j < s) and (j < s or j <= i))
        ),
        "A target position sees itself, too.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: j < s or j < i)
        ),
        "The source comes first, with {s} positions; here it is as long as the target.": (
            lambda s, t: prefix(s, t, sees=lambda i, j: j < t or j <= i)
        ),
    },
    hints=(
        "Draw the square: which of its four blocks are full, empty, or a triangle?",
        "Begin with the causal mask. One block has to be opened.",
        "The masks of the two stacks are in Three kinds of attention.",
    ),
)


def around(residual: Any, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    """What a residual connection does, written out."""
    if residual.norm_first:
        return x + sublayer(residual.norm(x))
    return residual.norm(x + sublayer(x))


def layer_with(wrong: str = "") -> Callable[..., Tensor]:
    """The layer that queries the memory first, with one thing done wrong."""

    def answer(
        layer: DecoderLayer, tgt: Tensor, memory: Tensor, tgt_mask: Tensor, memory_mask: Tensor
    ) -> Tensor:
        to_memory: Callable[[Tensor], Tensor] = lambda x: layer.cross_attention(  # noqa: E731
            x, memory, memory, None if wrong == "memory mask" else memory_mask
        )
        to_target: Callable[[Tensor], Tensor] = lambda x: layer.self_attention(  # noqa: E731
            x, x, x, None if wrong == "target mask" else tgt_mask
        )
        steps = [(layer.residual_2, to_memory), (layer.residual_1, to_target)]
        if wrong == "residuals":
            steps = [(layer.residual_1, to_memory), (layer.residual_2, to_target)]
        if wrong == "order":
            steps.reverse()
        x = tgt
        for residual, sublayer in steps:
            x = around(residual, x, sublayer)
        return x if wrong == "end" else around(layer.residual_3, x, layer.feed_forward)

    return answer


def layers() -> list[tuple[Any, ...]]:
    inputs = []
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    for norm_first, (b, t, s) in ((False, (1, 1, 2)), (True, (2, 3, 5))):
        layer = shaken(DecoderLayer(4, 2, 7, dropout=0.0, norm_first=norm_first))
        mask = torch.ones(b, 1, 1, s, dtype=torch.bool)
        mask[-1, ..., -1] = False
        inputs.append((layer, *random_tensors((b, t, 4), (b, s, 4)), causal_mask(t), mask))
    torch.set_rng_state(torch_state)
    return inputs


the_other_order = Exercise(
    function="memory_first",
    arguments=layers,
    right=layer_with(),
    mistakes={
        "This is the usual order: the target first.": layer_with("order"),
        "Each sub-layer keeps its residual connection: residual_2 is that of cross-attention.": (
            layer_with("residuals")
        ),
        "The memory's mask is missing: padding is read.": layer_with("memory mask"),
        "The target's mask is missing: positions see what follows.": layer_with("target mask"),
        "The feed-forward network is missing at the end.": layer_with("end"),
    },
    hints=(
        "Copy the three lines of DecoderLayer.forward. Which two change places?",
        "Each line keeps its residual connection; what it reads and writes changes.",
        "The lines are in The layers of the package.",
    ),
)
