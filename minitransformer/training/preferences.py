"""Learning from preferences (DPO) and from rewards (GRPO), after supervised fine-tuning.

Built in chapter 12, on the page about answers. Papers: Rafailov et al. (2023), section 4; Shao et
al. (2024), section 4.1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from minitransformer.checks import check_targets
from minitransformer.inference.generate import generate
from minitransformer.tokenization.tokenizer import pad_rows
from minitransformer.training.answers import collate_answers, encode_answer

__all__ = [
    "dpo_loss",
    "group_advantages",
    "grpo_loss",
    "grpo_step",
    "sample_answers",
    "sequence_log_probs",
    "token_log_probs",
]


def token_log_probs(model: Any, ids: Tensor, targets: Tensor) -> Tensor:
    """log p(target | the row up to there), in nats; 0 where the target is padding.

    Args:
        model: a `DecoderOnlyTransformer`.
        ids, targets: what is read and what follows, (b, t), see `collate_answers`.

    Returns:
        (b, t), at least float32.

    Raises:
        TypeError: if ids are not integers, or targets not int64.
        ValueError: if shapes differ, a target is no token of the model, or all are padding.

    Example:
        >>> from minitransformer import DecoderOnlyTransformer, TransformerConfig
        >>> config = TransformerConfig.decoder_only(9, d_model=8, num_heads=2)
        >>> rows = collate_answers([encode_answer([1, 5], [6, 2]), encode_answer([1], [7, 8, 2])])
        >>> token_log_probs(DecoderOnlyTransformer(config), *rows).shape
        torch.Size([2, 3])
    """
    pad_id = model.config.pad_id
    check_targets(ids, targets, model.config.tgt_vocab_size, pad_id)
    real = targets != pad_id
    logits = model(ids)  # (b, t, v)
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    found = log_probs.gather(-1, targets.where(real, 0)[..., None])[..., 0]  # (b, t)
    return found.masked_fill(~real, 0.0)


def sequence_log_probs(model: Any, ids: Tensor, targets: Tensor) -> Tensor:
    """log p(answer | prompt) of each row, (b,): the sum of its `token_log_probs`.

    Example:
        >>> from minitransformer import DecoderOnlyTransformer, TransformerConfig
        >>> config = TransformerConfig.decoder_only(9, d_model=8, num_heads=2)
        >>> rows = collate_answers([encode_answer([1, 5], [6, 2]), encode_answer([1], [7, 8, 2])])
        >>> sequence_log_probs(DecoderOnlyTransformer(config), *rows).shape
        torch.Size([2])
    """
    return token_log_probs(model, ids, targets).sum(dim=-1)  # (b,)


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Direct preference optimisation: the loss −log σ(m) of pairs of answers, their mean.

    With label smoothing ε it is the mean of

        −(1 − ε) log σ(m) − ε log σ(−m),
        m = β [log π(chosen)/π_ref(chosen) − log π(rejected)/π_ref(rejected)].

    Args:
        policy_chosen, policy_rejected: `sequence_log_probs` of the model in training, (b,).
        reference_chosen, reference_rejected: of the model that it started as, (b,).
        beta: β; the smaller, the further the model may go from the reference.
        label_smoothing: ε, the share of pairs that are taken to be the wrong way round.

    Returns:
        A scalar; log 2 where policy and reference are equal.

    Raises:
        ValueError: if shapes differ, β is not above 0, or ε is outside [0, 0.5).

    Example:
        >>> equal = torch.tensor([-3.0, -5.0])
        >>> dpo_loss(equal, equal, equal, equal)
        tensor(0.6931)

    Papers: Rafailov et al. (2023), equation 7; Mitchell (2023) for ε.
    """
    parts = (policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    if len(shapes := {tuple(part.shape) for part in parts}) > 1:
        raise ValueError(f"all log-probabilities must have the same shape, got {sorted(shapes)}")
    if not beta > 0:
        raise ValueError(f"beta must be above 0, got {beta}")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must be at least 0 and below 0.5, got {label_smoothing}")
    chosen, rejected = policy_chosen - reference_chosen, policy_rejected - reference_rejected
    margin = beta * (chosen - rejected)  # (b,)
    right, wrong = F.logsigmoid(margin), F.logsigmoid(-margin)
    return -((1 - label_smoothing) * right + label_smoothing * wrong).mean()


def sample_answers(
    model: Any, prompts: Sequence[Sequence[int]], num_samples: int, **options: Any
) -> list[list[int]]:
    """Draw `num_samples` answers to each prompt, one after the other, with their ends if drawn.

    The temperature is 1: an answer is drawn as often as the model says. `options` are `generate`'s.

    Example:
        >>> from minitransformer import DecoderOnlyTransformer, TransformerConfig
        >>> config = TransformerConfig.decoder_only(9, d_model=8, num_heads=2)
        >>> model = DecoderOnlyTransformer(config)
        >>> len(sample_answers(model, [[1, 5], [1, 6, 7]], 4, max_new_tokens=3))
        8
    """
    pad_id, device = model.config.pad_id, next(model.parameters()).device
    options = {"temperature": 1.0, "num_samples": num_samples} | options
    new = generate(model, pad_rows(prompts, pad_id).to(device), **options)  # (b·g, n)
    return [[token for token in row if token != pad_id] for row in new.tolist()]


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better than its group each answer is: (r − mean) / (std + 10⁻⁴).

    `rewards` are those of g answers to one question, (..., g), and so is what is returned: 0 where
    all are equal. A g below 2 is a `ValueError`.

    Example:
        >>> group_advantages(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).round(decimals=2)
        tensor([[-0.7100,  0.7100],
                [ 0.0000,  0.0000]])

    Paper: Shao et al. (2024), section 4.1.2.
    """
    if rewards.size(-1) < 2:
        raise ValueError(f"a group must have at least 2 answers, got {rewards.size(-1)}")
    centred = rewards - rewards.mean(dim=-1, keepdim=True)
    return centred / (rewards.std(dim=-1, keepdim=True) + 1e-4)


def grpo_loss(
    log_probs: Tensor,
    sampled_log_probs: Tensor,
    reference_log_probs: Tensor,
    advantages: Tensor,
    answered: Tensor,
    *,
    clip: float = 0.2,
    beta: float = 0.04,
) -> Tensor:
    """Group relative policy optimisation: the loss of drawn answers, a mean over their tokens.

    Each token's is

        −min(ρ A, clamp(ρ, 1 − ε, 1 + ε) A) + β (e^δ − δ − 1),
        ρ = π / π_sampled,  δ = log π_ref − log π.

    Args:
        log_probs: `token_log_probs` of the model in training, (b, t).
        sampled_log_probs: of the model that drew the answers, (b, t), without a gradient.
        reference_log_probs: of the model that it started as, (b, t), without a gradient.
        advantages: A of each answer, (b,).
        answered: True at the tokens of answers, boolean, (b, t).
        clip: ε.
        beta: β, the price of a nat away from the reference.

    Returns:
        A scalar.

    Raises:
        ValueError: if `clip` is not above 0 or `beta` is below 0.

    Example:
        >>> log_probs, advantages = torch.tensor([[0.0, -1.0], [0.0, -2.0]]), torch.tensor([1., 3.])
        >>> grpo_loss(log_probs, log_probs, log_probs, advantages, log_probs < 0)
        tensor(-2.)

    Papers: Shao et al. (2024), equations 3 and 4; Schulman (2020) for the term with β. The mean is
    over tokens, as in Yu et al. (2025), and not within each answer first.
    """
    if not clip > 0 or not beta >= 0:
        raise ValueError(
            f"clip must be above 0 and beta at least 0, got clip={clip} and beta={beta}"
        )
    ratio = (log_probs - sampled_log_probs).exp()  # (b, t)
    advantages = advantages[:, None]  # (b, 1)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    away = reference_log_probs - log_probs
    losses = beta * (away.exp() - away - 1) - gain  # (b, t)
    return losses.masked_fill(~answered, 0.0).sum() / answered.sum()


def grpo_step(
    policy: Any,
    reference: Any,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[Sequence[int]],
    reward: Callable[[Sequence[int], Sequence[int]], float],
    *,
    num_samples: int = 8,
    updates: int = 1,
    clip: float = 0.2,
    beta: float = 0.04,
    **options: Any,
) -> dict[str, float]:
    """Draw answers to prompts (rows of ids), reward each, and learn from them by `grpo_loss`.

    `policy` is the model in training, in evaluation mode, because dropout would change the ratio;
    `reference` is the model that it started as. `reward` is called with the ids of a prompt and of
    an answer, with its end, if it has one. `updates` are made of one draw; `options` are
    `generate`'s. Returns means over the answers: `reward`, `length`, and `kl` in nats a token.
    """
    answers = sample_answers(policy, prompts, num_samples, **options)
    asked = [prompt for prompt in prompts for _ in range(num_samples)]
    pairs = list(zip(asked, answers, strict=True))
    device, pad_id = next(policy.parameters()).device, policy.config.pad_id
    rewards = torch.tensor([float(reward(*pair)) for pair in pairs]).view(-1, num_samples)
    advantages = group_advantages(rewards).flatten().to(device)  # (b·g,)
    rows = collate_answers([encode_answer(*pair) for pair in pairs], pad_id)
    ids, targets = (part.to(device) for part in rows)  # (b·g, t)
    answered = targets != pad_id
    with torch.no_grad():
        sampled, start = (token_log_probs(model, ids, targets) for model in (policy, reference))
    for _ in range(updates):
        log_probs = token_log_probs(policy, ids, targets)  # (b·g, t)
        loss = grpo_loss(log_probs, sampled, start, advantages, answered, clip=clip, beta=beta)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    count = answered.sum()
    kl = ((start - sampled).exp() - (start - sampled) - 1).sum() / count
    length = count / len(pairs)
    return {"reward": rewards.mean().item(), "length": length.item(), "kl": kl.item()}
