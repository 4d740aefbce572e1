"""Recording what a model computes on the way, and computing again with one thing changed.

An activation is named by its site: the module that makes it, and a part of it. For a layer of a
decoder these are

| site | shape | what it is |
| --- | --- | --- |
| `decoder.layers.0.residual_1.before` | (b, q, d) | the residual stream that enters a sub-layer |
| `decoder.layers.0.self_attention.weights` | (b, h, q, k) | the attention weights of each head |
| `decoder.layers.0.self_attention.heads` | (b, h, q, e) | the output of each head, before W^O |
| `decoder.layers.0.self_attention` | (b, q, d) | what the sub-layer adds to the stream |
| `decoder.layers.0.residual_1.after` | (b, q, d) | the residual stream that leaves the sub-layer |
| `logits` | (b, q, v) | the scores, or what else the model returns |

and likewise for `residual_2` with `feed_forward`, or with `cross_attention`. They are the same for
every model of the package whose layers are `EncoderLayer` and `DecoderLayer`. Where padding is not
computed (`hidden`), the axes b and q are one.

Built in chapter 19. Method: Vig et al. (2020), "Causal Mediation Analysis for Interpreting Neural
NLP"; Meng et al. (2022), "Locating and Editing Factual Associations in GPT", section 2.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minitransformer.layers.attention import ScaledDotProductAttention, attention_weights
from minitransformer.layers.layer_norm import ResidualConnection

__all__ = ["ablate", "patch", "record_activations", "sites"]

SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
Change = Callable[[Tensor], Tensor | None]


def sites(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Every site of a model, with its module, and what of it is meant: input, weights or output.

    Example:
        >>> from minitransformer.layers.encoder_decoder import Encoder, EncoderLayer
        >>> names = list(sites(Encoder([EncoderLayer(12, num_heads=3, d_ff=20)])))
        >>> names[0], names[1], len(names)
        ('layers.0.self_attention', 'layers.0.self_attention.weights', 9)
    """
    found: dict[str, tuple[nn.Module, str]] = {}
    for name, module in model.named_modules():
        owner, _, attribute = name.rpartition(".")
        if isinstance(module, ResidualConnection):
            found[f"{name}.before"], found[f"{name}.after"] = (module, "input"), (module, "output")
        elif isinstance(module, ScaledDotProductAttention):
            prefix = f"{owner}." if owner else ""
            found[f"{prefix}weights"] = module, "weights"
            found[f"{prefix}heads"] = module, "output"
        elif attribute in SUBLAYERS and hasattr(model.get_submodule(owner), "residual_1"):
            found[name] = module, "output"
    found["logits"] = getattr(model, "output_projection", model), "output"
    return found


def attach(module: nn.Module, what: str, change: Change) -> RemovableHandle:
    """Call `change` with an activation; what it returns, unless None, takes its place."""

    def before(_: nn.Module, args: tuple[Any, ...]) -> Any:
        new = change(args[0])
        return None if new is None else (new, *args[1:])

    def attended(core: Any, args: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Any:
        inputs = dict(zip(("query", "key", "value", "mask", "bias"), args, strict=False)) | named
        value = inputs.pop("value")
        weights = getattr(output, "made_of", None)  # what an earlier patch put there
        new = change(attention_weights(**inputs, scale=core.scale) if weights is None else weights)
        if new is None:
            return None
        made: Any = new @ value  # (b, h, q, e)
        made.made_of = new
        return made

    if what == "input":
        return module.register_forward_pre_hook(before)
    if what == "weights":
        return module.register_forward_hook(attended, with_kwargs=True)
    return module.register_forward_hook(lambda _module, _args, output: change(output))


def site_of(model: nn.Module, site: str) -> tuple[nn.Module, str]:
    """The module of a site and what of it is meant; a ValueError if there is no such site."""
    known = sites(model)
    if site not in known:
        near = get_close_matches(site, known, 3) or list(known)[:3]
        raise ValueError(f"site must be one of sites(model), such as {near}, got {site!r}")
    return known[site]


@contextmanager
def record_activations(model: nn.Module, *names: str) -> Iterator[dict[str, Tensor]]:
    """Collect the activations at some sites, or at all.

    The model computes as before, with gradients if they are on; the last call's activations stay.

    Args:
        model: called inside the `with` block.
        names: see `sites`; all of them when left out.

    Yields:
        The activations by site, in the order in which they are computed.

    Raises:
        ValueError: if there is no site of a name.

    Example:
        >>> from minitransformer.layers.encoder_decoder import EncoderLayer
        >>> layer = EncoderLayer(12, num_heads=3, d_ff=20)
        >>> with record_activations(layer, "residual_1.before", "self_attention.heads") as found:
        ...     _ = layer(torch.zeros(2, 5, 12))
        >>> {site: tuple(x.shape) for site, x in found.items()}
        {'residual_1.before': (2, 5, 12), 'self_attention.heads': (2, 3, 5, 4)}
    """
    found: dict[str, Tensor] = {}

    def keep(site: str, x: Tensor) -> None:
        found.pop(site, None)  # so that the order is the last call's
        found[site] = x

    with ExitStack() as hooks:
        for site in names or sites(model):
            hooks.enter_context(attach(*site_of(model, site), partial(keep, site)))
        yield found


@contextmanager
def patch(
    model: nn.Module,
    site: str,
    value: Tensor | Callable[[Tensor], Tensor],
    *,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> Iterator[None]:
    """Put another activation in the place of one that the model computes.

    With an activation of another run this is activation patching: what the model then computes
    differently was carried by this site. Several patches are several `with`; at a site the later
    one sees what the earlier one put there. Patched `weights` make all `heads` anew: patch them
    before `heads`.

    Args:
        model: called inside the `with` block.
        site: see `sites`.
        value: what to put there, of a shape that broadcasts to the activation's, or a function
            that makes it of the activation.
        heads: of a site with an axis of heads, those to change; all when left out.
        positions: those to change, along axis q; all when left out. They count in what a call
            computes: with a cache, from the first new position.

    Raises:
        ValueError: if there is no such site. Inside the block: if shapes do not fit, a head or
            position does not exist, or the site has no such axis.

    Example:
        >>> from minitransformer.layers.encoder_decoder import EncoderLayer
        >>> layer, x = EncoderLayer(12, num_heads=3, d_ff=20).eval(), torch.randn(2, 5, 12)
        >>> with record_activations(layer, "self_attention.heads") as found:
        ...     plain = layer(x)
        >>> with patch(layer, "self_attention.heads", found["self_attention.heads"], heads=[1]):
        ...     torch.equal(layer(x), plain)  # patched with itself: unchanged
        True
    """

    def change(x: Tensor) -> Tensor:
        new = value if isinstance(value, Tensor) else value(x)
        try:
            new = new.expand_as(x)
        except RuntimeError:
            shapes = f"{tuple(x.shape)}, got {tuple(new.shape)}"
            raise ValueError(f"value must broadcast to the shape of {site}, {shapes}") from None
        where = chosen(x, site, heads, positions)
        return new if where is None else torch.where(where, new, x)

    with attach(*site_of(model, site), change):
        yield


def chosen(
    x: Tensor, site: str, heads: Sequence[int] | None, positions: Sequence[int] | None
) -> Tensor | None:
    """Which parts of an activation to change, broadcastable to it; None for all."""
    where = None
    for name, wanted, axis, axes in (("heads", heads, -3, 4), ("positions", positions, -2, 3)):
        if wanted is None:
            continue
        if x.dim() < axes:
            raise ValueError(f"{name} must be None where {site} has shape {tuple(x.shape)}")
        size = x.size(axis)
        wrong = [index for index in wanted if not -size <= index < size]
        if wrong:
            raise ValueError(f"{name} must lie below {size}, which {site} has, got {wrong[0]}")
        one = torch.zeros(size, dtype=torch.bool, device=x.device)
        one[list(wanted)] = True
        one = one.view(-1, *[1] * (-axis - 1))  # (h, 1, 1) or (q, 1)
        where = one if where is None else where & one
    return where


def ablate(
    model: nn.Module,
    site: str,
    kind: Literal["zero", "mean", "resample"] = "mean",
    *,
    reference: Tensor | None = None,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Take what an activation says about its input away, and leave the rest of the model as it is.

    Zeros may be far from anything that the model has seen; the mean says nothing of the input; a
    resampled activation is a real one, of another row.

    Args:
        model: called inside the `with` block.
        site: see `sites`.
        kind: "zero"; "mean", over all rows and positions; or "resample", rows in another order.
        reference: activations to take the mean or the rows of, as recorded, axes as at the site;
            those of the batch itself when left out. Padding counts in a mean: leave it out there.
        heads: as in `patch`.
        positions: as in `patch`.
        generator: draws the order of rows.

    Returns:
        A context manager, as `patch`.

    Raises:
        ValueError: if `kind` is unknown; inside the block as in `patch`, and if there are fewer
            rows to draw from than the batch has.

    Example:
        >>> from minitransformer.layers.encoder_decoder import EncoderLayer
        >>> layer, x = EncoderLayer(12, num_heads=3, d_ff=20).eval(), torch.randn(2, 5, 12)
        >>> with ablate(layer, "feed_forward", "zero"):
        ...     torch.allclose(layer(x), layer.residual_2.norm(layer.residual_1(x, lambda x:
        ...         layer.self_attention(x, x, x))))
        True
    """
    if kind not in ("zero", "mean", "resample"):
        raise ValueError(f"kind must be zero, mean or resample, got {kind!r}")

    def value(x: Tensor) -> Tensor:
        source = x if reference is None else reference
        if kind == "zero":
            return torch.zeros_like(x)
        if kind == "mean":
            kept = (-3, -1) if x.dim() == 4 else (-1,)  # heads and width
            axes = [axis for axis in range(-source.dim(), 0) if axis not in kept]
            return source.mean(axes, keepdim=True)
        if source.size(0) < x.size(0):
            raise ValueError(f"reference must have {x.size(0)} rows or more, got {source.size(0)}")
        order = torch.randperm(source.size(0), generator=generator)[: x.size(0)]
        return source[order.to(x.device)]

    return patch(model, site, value, heads=heads, positions=positions)
