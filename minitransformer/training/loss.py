"""The loss of a batch: cross-entropy with label smoothing, of logits and without them.

Built in chapter 9. Papers: "Attention Is All You Need" (Vaswani et al., 2017), section 5.4; Hsu et
al., "Liger Kernel" (2024).
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from minitransformer.checks import check_loss, check_targets, known
from minitransformer.layers.embeddings import OutputProjection
from minitransformer.layers.packing import has_own_methods

__all__ = ["label_smoothing_loss", "linear_cross_entropy", "next_token_loss"]

MAX_LOGITS = 2**22  # that are in memory at a time: 16 MB


def next_token_loss(model: Any, *batch: Tensor, smoothing: float = 0.0, **options: Any) -> Tensor:
    """The `label_smoothing_loss` of a model's logits, for less work.

    What layers ask for besides while training, their `balance_loss` (see `MixtureOfExperts`), is
    added.

    Args:
        model: a `Transformer` or a `DecoderOnlyTransformer`.
        batch: source (b, s), target input (b, t) and targets (b, t); ids (b, t) and targets (b, t)
            where there is no encoder. Targets are the ids that follow, int64.
        smoothing: ε of the loss.
        options: what `model.forward` takes besides.

    Returns:
        The mean over all targets that are not padding, a scalar, float32.

    Raises:
        TypeError: if ids are not integers, or targets not int64.
        ValueError: as in `model.forward`; if `targets` and their inputs differ in shape, a target
            that is not padding lies outside the vocabulary, or all are padding.

    Example:
        >>> from minitransformer import DecoderOnlyTransformer, TransformerConfig
        >>> config = TransformerConfig.decoder_only(9, d_model=8, num_heads=2, dropout=0.0)
        >>> model, ids = DecoderOnlyTransformer(config), torch.tensor([[5, 6, 7], [8, 2, 0]])
        >>> logits, targets = model(ids[:, :-1]), ids[:, 1:]
        >>> expected = label_smoothing_loss(logits, targets, smoothing=0.0)
        >>> bool(torch.isclose(next_token_loss(model, ids[:, :-1], targets), expected))
        True
    """
    *inputs, targets = batch
    pad_id = model.config.pad_id
    check_targets(inputs[-1], targets, model.config.tgt_vocab_size, pad_id)
    real = targets != pad_id
    if known(real.any()) is None or not scores_hidden(model):
        logits = model(*inputs, **options)
        loss = label_smoothing_loss(logits, targets, smoothing=smoothing, pad_id=pad_id)
    else:
        hidden, output = model.hidden(*inputs, needed=real, **options), model.output_projection
        weight, bias, wanted = output.weight, output.bias, targets[real]
        loss = linear_cross_entropy(
            hidden, weight, wanted, bias=bias, smoothing=smoothing, pad_id=pad_id
        )
    asked = (getattr(part, "balance_loss", None) for part in model.modules())
    return sum((term for term in asked if term is not None), loss)


def scores_hidden(model: Any) -> bool:
    """Whether `model(...)` is the output projection of `model.hidden(...)`, and no hook listens.

    It need not be where a class overrides what computes the scores, but not `hidden`.
    """
    computing = {"forward", "encode", "decode", "hidden"}
    kind = next(kind for kind in type(model).__mro__ if computing & vars(kind).keys())
    output = getattr(model, "output_projection", None)
    if "hidden" not in vars(kind) or type(output) is not OutputProjection:
        return False
    return not any(has_hooks(part) or has_own_methods(part) for part in (model, output))


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks of a module, or of all modules, may change what it returns."""
    return any(
        getattr(module, f"_{name}") or getattr(hooks_of_all, f"_global_{name}")
        for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    )


def label_smoothing_loss(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.1, pad_id: int = 0
) -> Tensor:
    """Mean cross-entropy, in nats, against targets that leave a little to every token.

    The target distribution gives 1 − ε to the right token and spreads ε evenly over all v
    tokens (the right one too), so the loss of a position is

        (1 − ε)·(−log p[target]) + ε·mean over v of (−log p[v]).

    Positions whose target is padding are left out of the mean.

    Args:
        logits: (..., v), floating point.
        targets: (...), int64.
        smoothing: ε; 0 is plain cross-entropy against one-hot targets.
        pad_id: target id that does not count.

    Returns:
        A scalar, float32, or float64 if `logits` are.

    Raises:
        TypeError: if `targets` are not int64.
        ValueError: if shapes do not fit, ε is outside [0, 1), a target that is not padding lies
            outside the vocabulary, or every target is padding.

    Example:
        >>> targets = torch.tensor([[1, 2, 0], [3, 0, 0]])
        >>> loss = label_smoothing_loss(torch.zeros(2, 3, 5), targets)
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Paper: section 5.4; Szegedy et al. (2016), section 7.
    """
    check_loss("logits", logits, targets, logits.size(-1), smoothing, pad_id)
    real = targets != pad_id
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Whatever the scores at padding are, NaN too, nothing of them may reach the loss.
    log_probs = wide.masked_fill(~real[..., None], 0.0).log_softmax(dim=-1)
    losses = -log_probs.gather(-1, targets.where(real, 0)[..., None])[..., 0]
    if smoothing:  # 0 times the infinite loss of an impossible token would be no number
        losses = (1 - smoothing) * losses - smoothing * log_probs.mean(dim=-1)
    return losses.masked_fill(~real, 0.0).sum() / real.sum()


class LinearCrossEntropy(torch.autograd.Function):
    """The forward and backward pass of `linear_cross_entropy`, a chunk of positions at a time.

    The forward pass returns the loss and its gradients to `hidden`, (n, d), `weight`, (v, d), and
    `bias`, (v,), if there is one. Each of the `targets`, (n, 1), counts.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, ...]:
        v = weight.size(0)
        chunk = max(1, MAX_LOGITS // v)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss_sum = hidden.new_zeros((), dtype=wide)
        grads_hidden: list[Tensor] = []
        totals: list[Tensor] = []
        for h, target in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = F.linear(h, weight, bias).to(wide)  # (chunk, v)
            loss = (smoothing - 1) * logits.gather(-1, target)  # (chunk, 1)
            if smoothing:  # as in `label_smoothing_loss`
                loss = loss - smoothing * logits.mean(dim=-1, keepdim=True)
            highest = logits.amax(dim=-1, keepdim=True)
            exps = logits.sub_(highest).exp_()
            sums = exps.sum(dim=-1, keepdim=True)
            loss_sum = loss_sum + (loss + highest + sums.log()).sum()
            # What the loss of a position is to its logits: probabilities minus their targets.
            grad = exps.mul_(1 / sums).sub_(smoothing / v)
            grad = grad.scatter_add_(-1, target, torch.full_like(sums, smoothing - 1))  # (chunk, v)
            grads_hidden.append(grad.to(h.dtype) @ weight)  # (chunk, d)
            # In float32 even where weights are not: a sum of rounded sums would be far off.
            products = [(grad.T @ h.to(wide)).to(wide)]  # (v, d)
            if bias is not None:
                products.append(grad.sum(dim=0))  # (v,)
            for total, product in zip(totals, products, strict=False):
                total.add_(product)
            totals = totals or products
        inputs = (hidden, weight, *([] if bias is None else [bias]))
        grads = zip([torch.cat(grads_hidden), *totals], inputs, strict=True)
        n = len(targets)
        return loss_sum / n, *((grad / n).to(x.dtype) for grad, x in grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *of_gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if any(x is not None for x in of_gradients):
            raise RuntimeError("linear_cross_entropy can be differentiated only once")
        grads = [grad * each for each in ctx.saved_tensors]
        return *grads, *[None] * (5 - len(grads))


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    smoothing: float = 0.1,
    pad_id: int = 0,
) -> Tensor:
    """`label_smoothing_loss` of the logits x Wᵀ + b, which are never all in memory.

    With a large vocabulary the logits are by far the largest tensor of a training step. Their
    gradient is known as soon as they are: softmax minus the target distribution. So a chunk of
    positions is scored, its loss and its gradients are taken, and its logits forgotten.

    Targets, smoothing and padding, the scalar and the errors are those of `label_smoothing_loss`.

    Args:
        hidden: the decoder's output, (..., d), floating point.
        weight: of the output projection, (v, d).
        targets: (...), int64.
        bias: of the output projection, (v,), if it has one.
        smoothing: ε.
        pad_id: target id that does not count.

    Example:
        >>> hidden, weight = torch.randn(2, 3, 4), torch.zeros(5, 4)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([[1, 2, 0], [3, 0, 0]]))
        >>> bool(torch.isclose(loss, torch.tensor(5.0).log()))
        True

    Source: Hsu et al., "Liger Kernel" (2024).
    """
    check_loss("hidden", hidden, targets, weight.size(0), smoothing, pad_id)
    if hidden.size(-1) != weight.size(-1):
        raise ValueError(
            "hidden and weight must have the same width, "
            f"got {hidden.size(-1)} and {weight.size(-1)}"
        )
    real = targets != pad_id
    all_count = known(real.all())
    if all_count is None:  # what PyTorch traces or maps cannot leave out rows
        logits = F.linear(hidden, weight, bias)  # (..., v)
        return label_smoothing_loss(logits, targets, smoothing=smoothing, pad_id=pad_id)
    if not all_count:
        hidden, targets = hidden[real], targets[real]
    hidden = hidden.reshape(-1, hidden.size(-1))  # (n, d)
    targets = targets.reshape(-1, 1)  # (n, 1)
    return cast(Tensor, LinearCrossEntropy.apply(hidden, weight, bias, targets, smoothing)[0])
