"""Many feed-forward networks, of which each token uses a few: a sparse mixture of experts.

Axes: `n` token, `g` expert (its gate), `a` active expert of a token: k, in code `top_k`.

Built in "Mixture of experts", a deeper page of chapter 12. Papers: Shazeer et al. (2017); "Switch
Transformers" (Fedus et al., 2021); "Mixtral of Experts" (Jiang et al., 2024); "DeepSeek-V3
Technical Report" (2024).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from minitransformer.checks import check_at_least_1, known, without_autocast
from minitransformer.layers.packing import PACKABLE

__all__ = ["MixtureOfExperts", "load_balancing_loss", "mix_experts", "route"]

Scoring = Literal["softmax", "sigmoid"]


def route(
    logits: Tensor,
    top_k: int,
    *,
    scoring: Scoring = "softmax",
    normalise: bool = True,
    bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the experts of each token, and their weights.

    The scores p are softmax or σ of the logits. The k experts with the largest p + b are chosen.
    Their weights are their p, without b; normalised, these are divided by their sum.

    Args:
        logits: one for each expert, (n, g).
        top_k: experts of a token, a.
        scoring: "softmax" or "sigmoid".
        normalise: whether the weights of a token sum to 1.
        bias: b, (g,), which decides who is chosen and nothing else.
        num_groups: how many groups of neighbouring experts there are.
        top_groups: how many groups the experts of a token may come from, those with the largest
            sum of their two best p + b. A group is a machine, and a token should visit few.

    Returns:
        Scores, (n, g), weights, (n, a), and the indices of the experts chosen, (n, a). Scores and
        weights are at least float32.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0, 1.0]])
        >>> scores, weights, chosen = route(logits, top_k=2)
        >>> chosen.tolist(), [round(w, 3) for w in weights[0].tolist()]
        ([[1, 2]], [0.731, 0.269])

    Source: Jiang et al. (2024), section 2.1; DeepSeek-AI (2024), equations 12 to 16.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = wide.softmax(dim=-1) if scoring == "softmax" else wide.sigmoid()  # (n, g)
    ranked = scores if bias is None else scores + bias
    if num_groups > 1:
        grouped = ranked.unflatten(-1, (num_groups, -1))
        best = grouped.topk(min(2, grouped.size(-1)), dim=-1).values.sum(dim=-1)
        kept = torch.zeros_like(best).scatter(-1, best.topk(top_groups, dim=-1).indices, 1.0)
        ranked = grouped.masked_fill(kept[..., None] == 0, -math.inf).flatten(-2)  # (n, g)
    chosen = ranked.topk(top_k, dim=-1).indices  # (n, a)
    weights = scores.gather(-1, chosen)  # (n, a)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
    return scores, weights, chosen


def mix_experts(
    x: Tensor,
    experts: Sequence[nn.Module],
    weights: Tensor,
    chosen: Tensor,
    capacity: int | None = None,
) -> Tensor:
    """The weighted sum of each token's experts, Σ wᵢ Eᵢ(x).

    Tokens are sorted by expert, so that each expert is called once, with all of its tokens.

    Args:
        x: (n, d).
        experts: g modules from (n, d) to (n, d).
        weights: of the experts of each token, (n, a).
        chosen: their indices, (n, a).
        capacity: how many tokens an expert takes at most, the first ones in order. It adds
            nothing to the sums of the others.

    Returns:
        (n, d).

    Example:
        >>> x, experts = torch.ones(2, 3), [nn.Identity(), torch.neg]
        >>> mix_experts(x, experts, torch.tensor([[0.75, 0.25], [0.5, 0.25]]),
        ...             torch.tensor([[0, 1], [0, 1]]))
        tensor([[0.5000, 0.5000, 0.5000],
                [0.2500, 0.2500, 0.2500]])

    Source: Gale et al., "MegaBlocks" (2022), section 4, without its kernels.
    """
    counts = load_of(chosen, len(experts))  # (g,)
    if known(counts.any()) is None:  # a trace or `vmap`, where the counts have no values
        gates = weights.new_zeros(x.size(0), len(experts)).scatter(-1, chosen, weights)  # (n, g)
        found = torch.stack([expert(x) for expert in experts], dim=1)  # (n, g, d)
        return (gates[..., None] * found).sum(dim=1).to(found.dtype)  # (n, d)
    order = chosen.flatten().argsort(stable=True)  # (n·a,)
    places = [part[:capacity] for part in order.split(counts.tolist())]
    inputs = x[torch.cat(places) // chosen.size(1)].split([len(part) for part in places])
    found = torch.cat([expert(part) for expert, part in zip(experts, inputs, strict=True)])
    whole = found.new_zeros(chosen.numel(), x.size(-1))
    whole = whole.index_copy(0, torch.cat(places), found)  # (n·a, d)
    mixed = weights[..., None] * whole.view(*chosen.shape, -1)  # (n, a, d)
    return mixed.sum(dim=1).to(found.dtype)  # (n, d)


def load_balancing_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    """g Σᵢ fᵢ Pᵢ, a scalar: 1 for an even load, up to g if one expert does everything.

    fᵢ is the share of choices that went to expert i, Pᵢ its mean share of the scores. f is a
    count, without a gradient; P carries it, and is pushed down most where f is largest. 1 is not
    the least: the loss is below where the scores favour experts that are chosen less. Scores,
    (n, g), and indices, (n, a), are those of `route`.

    Example:
        >>> scores, chosen = torch.eye(4), torch.arange(4)[:, None]
        >>> load_balancing_loss(scores, chosen), load_balancing_loss(scores[:1], chosen[:1])
        (tensor(1.), tensor(4.))

    Source: Fedus et al. (2021), equations 4 to 6; for several experts of a token DeepSeek-AI
    (2024), equations 17 to 20, of all tokens at once.
    """
    num_experts = scores.size(-1)
    load = load_of(chosen, num_experts) / chosen.numel()  # (g,)
    share = (scores / scores.sum(dim=-1, keepdim=True).clamp_min(1e-20)).mean(dim=0)  # (g,)
    return num_experts * (load * share).sum()


def load_of(chosen: Tensor, num_experts: int) -> Tensor:
    """How many tokens chose each expert, (g,)."""
    return (chosen[..., None] == torch.arange(num_experts, device=chosen.device)).sum((0, 1))


class MixtureOfExperts(nn.Module):
    """MoE(x) = scale · Σ of the k chosen wᵢ Eᵢ(x) + shared(x); a router chooses for each token.

    It replaces a `FeedForward`: `EncoderLayer(d_model, feed_forward=MixtureOfExperts(...))`.

    While training, `balance_loss` is `balance_weight` times the `load_balancing_loss` of the last
    call, and `next_token_loss` adds it; in evaluation it is None. Positions of padding must not
    count, so `next_token_loss` packs them away; if you call a model in training mode yourself,
    they do. Capacity holds while training only: otherwise the output of a text would depend on
    the other texts of its batch.

    Args:
        d_model: width, d.
        experts: modules from (n, d) to (n, d), usually `FeedForward`.
        top_k: experts of a token.
        scoring: see `route`.
        normalise: whether the weights of a token sum to 1. None: yes, unless `top_k` is 1, since
            a weight that is always 1 gives the router no gradient.
        scale: a factor of the sum.
        shared: an expert that every token uses.
        capacity_factor: how many tokens an expert takes at most, as a multiple of an even load.
            None: all that choose it.
        balance_weight: α of the balance loss.
        load_bias: whether experts have the bias b of `route`, which `BalanceExperts` moves after
            each step.
        num_groups: see `route`.
        top_groups: see `route`.

    Raises:
        ValueError: if a number is out of range, or more experts are to be chosen than there are.

    Example:
        >>> from minitransformer.layers import FeedForward
        >>> experts = [FeedForward(8, 12, activation="swiglu") for _ in range(4)]
        >>> MixtureOfExperts(8, experts)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])

    Source: Jiang et al. (2024), section 2.1; DeepSeek-AI (2024), section 2.1.2.
    """

    def __init__(
        self,
        d_model: int,
        experts: Iterable[nn.Module],
        *,
        top_k: int = 2,
        scoring: Scoring = "softmax",
        normalise: bool | None = None,
        scale: float = 1.0,
        shared: nn.Module | None = None,
        capacity_factor: float | None = None,
        balance_weight: float = 0.01,
        load_bias: bool = False,
        num_groups: int = 1,
        top_groups: int = 1,
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        count = len(self.experts)
        check_at_least_1(
            d_model=d_model,
            experts=count,
            top_k=top_k,
            num_groups=num_groups,
            top_groups=top_groups,
        )
        if scoring not in ("softmax", "sigmoid"):
            raise ValueError(f"scoring must be 'softmax' or 'sigmoid', got {scoring!r}")
        if count % num_groups:
            raise ValueError(f"num_groups must divide {count} experts, got {num_groups}")
        most = min(top_groups, num_groups) * count // num_groups
        if top_k > most or top_groups > num_groups:
            raise ValueError(
                f"top_k must be at most {most}, the experts of top_groups={top_groups} of "
                f"{num_groups} groups, got {top_k}"
            )
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"capacity_factor must be above 0, got {capacity_factor}")
        if not balance_weight >= 0:
            raise ValueError(f"balance_weight must be at least 0, got {balance_weight}")
        self.router = nn.Linear(d_model, count, bias=False)
        self.shared = shared
        self.load_bias: nn.Parameter | None = None
        if load_bias:  # a parameter, so that files keep it, but no gradient moves it
            self.load_bias = nn.Parameter(torch.zeros(count), requires_grad=False)
        self.top_k, self.scoring, self.scale = top_k, scoring, scale
        self.normalise = top_k > 1 if normalise is None else normalise
        self.num_groups, self.top_groups = num_groups, top_groups
        self.capacity_factor, self.balance_weight = capacity_factor, balance_weight
        self._noted: dict[str, Tensor] = {}  # what no file and no copy keeps

    @property
    def balance_loss(self) -> Tensor | None:
        """α times the balance loss of the last call, a scalar; None in evaluation."""
        return self._noted.get("balance_loss")

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, (n, g), weights and indices of the chosen, (n, a), of tokens (n, d)."""
        with without_autocast(x):  # rounded logits would choose other experts
            logits = self.router(x.to(self.router.weight.dtype))  # (n, g)
        return route(
            logits,
            self.top_k,
            scoring=self.scoring,
            normalise=self.normalise,
            bias=self.load_bias,
            num_groups=self.num_groups,
            top_groups=self.top_groups,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position of x, (..., d), by its own experts; the same shape comes back."""
        flat = x.reshape(-1, x.size(-1))  # (n, d)
        scores, weights, chosen = self.route(flat)
        capacity = self.note_load(scores, chosen)
        mixed = self.scale * mix_experts(flat, [*self.experts], weights, chosen, capacity)
        if self.shared is not None:
            mixed = mixed + self.shared(flat)
        return mixed.view_as(x)  # (..., d)

    def note_load(self, scores: Tensor, chosen: Tensor) -> int | None:
        """While training, note the balance loss and the load; the capacity, if there is one."""
        self._noted.pop("balance_loss", None)
        if not self.training:
            return None
        if self.balance_weight:
            loss = self.balance_weight * load_balancing_loss(scores, chosen)
            self._noted["balance_loss"] = loss
        if self.load_bias is not None:  # tokens since the last move
            self._noted["load"] = self._noted.get("load", 0) + load_of(chosen, scores.size(-1))
        if self.capacity_factor is None:
            return None
        return math.ceil(self.capacity_factor * chosen.numel() / scores.size(-1))

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes along: not the graph of a loss."""
        return {**vars(self), "_noted": {}}

    def move_bias(self, rate: float = 1e-3) -> None:
        """Raise the bias of experts below the mean load since the last call, lower it above.

        b ← b + γ · sign(mean load − load); without any load since then nothing changes.

        Source: DeepSeek-AI (2024), section 2.1.2; Wang et al. (2024).
        """
        if self.load_bias is None:
            raise ValueError("there is no bias to move: load_bias must be True, got False")
        if (load := self._noted.pop("load", None)) is not None:
            self.load_bias.data += rate * (load.float().mean() - load).sign()


PACKABLE[MixtureOfExperts.forward] = None
