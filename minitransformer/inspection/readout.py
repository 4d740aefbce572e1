"""What the residual stream says: the logit lens, effects of its parts on a logit, and probes.

Built in chapter 19. Sources: nostalgebraist (2020), "interpreting GPT: the logit lens"; Elhage et
al. (2021), "A Mathematical Framework for Transformer Circuits"; Hewitt & Liang (2019), "Designing
and Interpreting Probes with Control Tasks".
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer.inspection.activations import SUBLAYERS
from minitransformer.layers.layer_norm import LayerNorm, RMSNorm

__all__ = ["Probe", "direct_effect", "linear_probe", "logit_lens", "residual_parts"]


def read_stack(model: Any) -> tuple[str, Any]:
    """The stack whose output a model scores, and its name; a ValueError if it scores nothing."""
    name = "decoder" if hasattr(model, "decoder") else "encoder"
    if not hasattr(model, name) or not hasattr(model, "output_projection"):
        raise ValueError(f"model must have layers and an output_projection, {type(model).__name__}")
    return name, getattr(model, name)


def logit_lens(model: nn.Module, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Score the residual stream after each sub-layer as if it were the last one.

    Args:
        model: one that ends in a stack's norm and an `output_projection`.
        found: from `record_activations`, with all sites `….after` of the stack that is scored.

    Returns:
        Logits, (b, q, v), by site in order; the last are the model's own.

    Raises:
        ValueError: if the model has no `output_projection`.

    Example:
        >>> from minitransformer.inspection import record_activations
        >>> from minitransformer.models import GPT2, GPT2Config
        >>> model = GPT2(GPT2Config(vocab_size=30, d_model=12, num_heads=3, num_layers=2)).eval()
        >>> with record_activations(model) as found:
        ...     logits = model(torch.tensor([[5, 6, 7]]))
        >>> lens = logit_lens(model, found)
        >>> len(lens), torch.equal(lens["decoder.layers.1.residual_2.after"], logits)
        (4, True)
    """
    name, stack = read_stack(model)
    return {
        site: model.get_submodule("output_projection")(stack.norm(x))  # (b, q, v)
        for site, x in found.items()
        if site.startswith(f"{name}.layers.") and site.endswith(".after")
    }


def residual_parts(
    model: nn.Module, found: Mapping[str, Tensor], stack: str = "decoder"
) -> dict[str, Tensor]:
    """Cut the residual stream that leaves a stack's layers into what was added to it.

    x = embedding + Σ heads + Σ networks + biases. Where norms follow (post-norm), each part goes
    through them too, with the mean and deviation of the whole: then a norm is linear in its parts.

    Args:
        model: any whose layers are `EncoderLayer` or `DecoderLayer`.
        found: from `record_activations`, with all sites of the stack.
        stack: "encoder" or "decoder".

    Returns:
        The parts by name, (b, q, d), whose sum is the stream. Names are "embedding", for an
        attention "….self_attention.heads.0" and so on, "….feed_forward", and biases of W^O and of
        norms.

    Example:
        >>> from minitransformer.inspection import record_activations
        >>> from minitransformer.models import GPT2, GPT2Config
        >>> model = GPT2(GPT2Config(vocab_size=30, d_model=12, num_heads=3, num_layers=1)).eval()
        >>> with record_activations(model) as found:
        ...     _ = model(torch.tensor([[5, 6, 7]]))
        >>> [part.removeprefix("decoder.layers.0.") for part in residual_parts(model, found)][:3]
        ['embedding', 'self_attention.heads.0', 'self_attention.heads.1']

    Source: Elhage et al. (2021).
    """
    layers: Any = model.get_submodule(stack).layers
    parts = {"embedding": found[f"{stack}.layers.0.residual_1.before"]}
    for index, layer in enumerate(layers):
        present = [name for name in SUBLAYERS if hasattr(layer, name)]
        for number, name in enumerate(present, start=1):
            prefix = f"{stack}.layers.{index}."
            parts |= added_by(getattr(layer, name), found, prefix + name)
            residual = getattr(layer, f"residual_{number}")
            if not residual.norm_first:
                parts = through(residual.norm, parts, f"{prefix}residual_{number}.norm")
    return parts


def added_by(sublayer: nn.Module, found: Mapping[str, Tensor], site: str) -> dict[str, Tensor]:
    """What a sub-layer adds: a part for each head and W^O's bias, or one for a network."""
    heads, w_o = found.get(f"{site}.heads"), getattr(sublayer, "w_o", None)
    if heads is None or w_o is None:
        return {site: found[site]}
    weight = w_o.weight.unflatten(1, (heads.size(1), -1))  # (d, h, e)
    each = torch.einsum("bhqe,dhe->hbqd", heads, weight)
    parts = {f"{site}.heads.{head}": x for head, x in enumerate(each)}
    return parts if w_o.bias is None else {**parts, f"{site}.bias": w_o.bias.expand_as(each[0])}


def through(norm: nn.Module, parts: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The parts of what a norm makes of a sum: with its statistics fixed it is linear."""
    if isinstance(norm, nn.Sequential):
        for index, module in enumerate(norm):
            parts = through(module, parts, f"{name}.{index}")
        return parts
    x = torch.stack([*parts.values()]).sum(0)
    if isinstance(norm, LayerNorm):
        scale = norm.weight / (x.var(-1, keepdim=True, correction=0) + norm.eps).sqrt()
        parts = {key: (p - p.mean(-1, keepdim=True)) * scale for key, p in parts.items()}
        return {**parts, f"{name}.bias": norm.bias.expand_as(x)}
    if isinstance(norm, RMSNorm):
        scale = norm.weight / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return {key: p * scale for key, p in parts.items()}
    return {key: norm(p) for key, p in parts.items()}  # identity, dropout, a constant factor


def direct_effect(
    model: nn.Module,
    found: Mapping[str, Tensor],
    tokens: Tensor,
    against: Tensor | None = None,
) -> dict[str, Tensor]:
    """How much each head and network adds to a logit by itself, not through later layers.

    logit = Σ parts · w + bias, with w the token's row of the output projection and the parts
    of `residual_parts` after the last norm, whose mean and deviation are kept.

    Args:
        model: one that ends in a stack's norm and an `output_projection`.
        found: from `record_activations`, with all sites.
        tokens: ids, broadcastable to (b, q).
        against: ids too: then effects are those on the difference of the two logits.

    Returns:
        Effects, (b, q), by part; their sum is the logit, or the difference.

    Raises:
        ValueError: if the model has no `output_projection`, or its logits are no sum of these
            parts, as behind a layer between the stack and the projection.

    Example:
        >>> from minitransformer.inspection import record_activations
        >>> from minitransformer.models import GPT2, GPT2Config
        >>> model = GPT2(GPT2Config(vocab_size=30, d_model=12, num_heads=3, num_layers=1)).eval()
        >>> with record_activations(model) as found:
        ...     logits = model(torch.tensor([[5, 6, 7]]))
        >>> effects = direct_effect(model, found, torch.tensor([[6, 7, 8]]))
        >>> torch.allclose(sum(effects.values())[0, 0], logits[0, 0, 6], atol=1e-5)
        True

    Source: Elhage et al. (2021).
    """
    name, stack = read_stack(model)
    parts = through(stack.norm, residual_parts(model, found, name), f"{name}.norm")
    projection: Any = model.get_submodule("output_projection")

    def of(values: Tensor) -> Tensor:
        """What `values`, one for each token of the vocabulary, say of the logit asked for."""
        ids = tokens.expand(found["logits"].shape[:2])  # (b, q)
        return values[ids] if against is None else values[ids] - values[against.expand_as(ids)]

    direction = of(projection.weight)  # (b, q, d)
    effects = {part: (x * direction).sum(-1) for part, x in parts.items()}  # (b, q)
    if projection.bias is not None:
        effects["output_projection.bias"] = of(projection.bias)
    off = (projection(torch.stack([*parts.values()]).sum(0)) - found["logits"]).abs().max().item()
    if not off < 1e-3 * (1 + found["logits"].abs().max().item()):
        raise ValueError(f"the parts must add up to the logits, but are off by up to {off:.3g}")
    return effects


class Probe(NamedTuple):
    """What `linear_probe` found."""

    accuracy: float
    """The share of the examples kept apart whose label the classifier gives."""
    control: float
    """The same for labels drawn at random for each type, which only memory can give."""
    weight: Tensor
    """The classifier's directions, (classes, d)."""

    @property
    def selectivity(self) -> float:
        """Accuracy less that of the control task."""
        return self.accuracy - self.control


def linear_probe(
    features: Tensor,
    labels: Tensor,
    types: Tensor,
    *,
    weight_decay: float = 1e-3,
    seed: int = 0,
) -> Probe:
    """Fit a linear classifier to activations, and the same one to a control task.

    softmax(W x + b) is fitted to half of the examples, by L-BFGS, and tested on the other half.
    The control task gives every type, such as a word, one label at random: a probe that is good
    at this too is good at remembering types, not at reading what the model knows.

    Args:
        features: activations, (n, d); standardised here.
        labels: class of each, (n,), int64, from 0 on.
        types: what the control task's labels depend on, (n,), int64.
        weight_decay: how much the mean loss pays for each squared weight.
        seed: draws the halves and the control's labels.

    Raises:
        ValueError: if there are fewer than 4 examples, or not as many features, labels and types.

    Example:
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
        >>> features[:, 2] += 6 * labels
        >>> found = linear_probe(features, labels, types=torch.arange(200))
        >>> found.accuracy > 0.95, found.control < 0.7
        (True, True)

    Source: Hewitt & Liang (2019), sections 2 and 3.
    """
    sizes = [len(features), len(labels), len(types)]
    if min(sizes) < 4 or len({*sizes}) > 1:
        raise ValueError(f"features, labels and types must be as many, at least 4, got {sizes}")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    known, number = types.unique(return_inverse=True)
    drawn = labels[torch.randint(len(labels), (len(known),), generator=generator)]  # as frequent
    train, test = order.chunk(2)
    features = features.detach()
    mean, std = features[train].mean(0), features[train].std(0) + 1e-6
    x = (features - mean) / std
    found = [fitted(x, target, train, weight_decay) for target in (labels, drawn[number])]
    right = [
        (F.linear(x[test], *classifier).argmax(-1) == target[test]).float().mean().item()
        for classifier, target in zip(found, (labels, drawn[number]), strict=True)
    ]
    accuracy, control = right
    return Probe(accuracy, control, found[0][0] / std)


def fitted(x: Tensor, target: Tensor, rows: Tensor, weight_decay: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear classifier that is best for some rows."""
    weight = x.new_zeros(int(target.max()) + 1, x.size(1), requires_grad=True)
    bias = x.new_zeros(len(weight), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(x[rows], weight, bias), target[rows])
        value = value + weight_decay * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return weight.detach(), bias.detach()
