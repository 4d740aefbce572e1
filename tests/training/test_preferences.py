"""DPO and GRPO: known values, signs and limits, trl's numbers, and the gradient they stand for."""

import copy
import itertools
import math

import pytest
import torch
from helpers import assert_same, assert_same_weights, decoder_only_model, randn, refuses, shaken
from test_answers import EXAMPLES, ROWS

import minitransformer as mt
from minitransformer.training import (
    collate_answers,
    dpo_loss,
    encode_answer,
    group_advantages,
    grpo_loss,
    grpo_step,
    sample_answers,
    sequence_log_probs,
    token_log_probs,
)

# What `DPOTrainer` and `GRPOTrainer` of trl 1.16.0 compute from the numbers below: "sigmoid", "aot"
# of single pairs (where its sorting changes nothing) for label smoothing, and "bnpo".
TRL_DPO = {
    (0.1, 0.0): 0.7276254704824174,
    (0.5, 0.0): 1.230890112018728,
    (2.0, 0.0): 4.051726206421228,
    (0.1, 0.1): 0.7259765934056128,
    (0.5, 0.3): 1.2061569558666585,
}
TRL_GRPO = {  # by clip and beta: the loss, and the length of its gradient
    (0.2, 0.04): (0.48593614895147313, 0.24852467726055336),
    (0.1, 0.5): (0.5866107409049927, 0.2636370907410859),
    (0.3, 0.0): (0.44435849934411453, 0.2616358453544843),
}
LOG_PROBS = [-10 + 4 * randn(4, seed=seed, dtype=torch.float64) for seed in range(4)]
ANSWERED = torch.arange(5) < torch.tensor([[5], [2], [3], [1]])


def tokens(seed):
    """Log-probabilities of tokens, (4, 5)."""
    return -1 + 0.5 * randn(4, 5, seed=seed, dtype=torch.float64)


# --- log-probabilities


@pytest.mark.parametrize("pad_id", [0, 14])
def test_log_probs_padded_together_are_those_alone_by_a_loop(pad_id):
    model = decoder_only_model(pad_id=pad_id).double()
    together = token_log_probs(model, *collate_answers(EXAMPLES, pad_id))
    assert together.shape == (4, 7)
    for found, (prompt, answer) in zip(together, ROWS, strict=True):
        row, by_hand = list(prompt), []
        for token in answer:
            by_hand.append(model(torch.tensor([row]))[0, -1].log_softmax(-1)[token])
            row.append(token)
        begin = len(prompt) - 1
        assert_same(found[begin : begin + len(answer)], torch.stack(by_hand), 1e-10)
        assert found.count_nonzero() == len(answer)
    sums = sequence_log_probs(model, *collate_answers(EXAMPLES, pad_id))
    assert_same(sums, together.sum(-1), 1e-12)


def test_log_probs_are_the_loss():
    model, rows = decoder_only_model(), collate_answers(EXAMPLES)
    mean = -sequence_log_probs(model, *rows).sum() / (rows[1] != 0).sum()
    assert_same(mean, mt.next_token_loss(model, *rows))
    half = copy.deepcopy(model).bfloat16()
    assert token_log_probs(half, *rows).dtype == torch.float32


# --- DPO


@pytest.mark.parametrize(("beta", "label_smoothing"), TRL_DPO)
def test_dpo_is_trls(beta, label_smoothing):
    loss = dpo_loss(*LOG_PROBS, beta=beta, label_smoothing=label_smoothing)
    assert loss.item() == pytest.approx(TRL_DPO[beta, label_smoothing], rel=1e-12)


@pytest.mark.parametrize("beta", [0.01, 0.1, 3.0])
def test_dpo_of_the_reference_is_log_2_and_points_from_rejected_to_chosen(beta):
    chosen, rejected = (x.clone().requires_grad_() for x in LOG_PROBS[:2])
    loss = dpo_loss(chosen, rejected, *LOG_PROBS[:2], beta=beta)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-12)
    loss.backward()
    assert_same(
        chosen.grad, torch.full((4,), -beta / 8, dtype=torch.float64), 1e-12
    )  # β σ(0) / pairs
    assert_same(rejected.grad, -chosen.grad, 0.0)


def test_dpo_at_the_limits_of_beta():
    """A small β leaves log 2, a large one β times the margin of the pairs that are wrong."""
    margin = (LOG_PROBS[0] - LOG_PROBS[2]) - (LOG_PROBS[1] - LOG_PROBS[3])
    assert (margin > 0).any()
    assert (margin < 0).any()
    assert dpo_loss(*LOG_PROBS, beta=1e-9).item() == pytest.approx(math.log(2), rel=1e-6)
    expected = 1e4 * -margin.clamp(max=0).mean()
    assert dpo_loss(*LOG_PROBS, beta=1e4).item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_dpo_swapped_has_the_opposite_margin(label_smoothing):
    """log σ(m) − log σ(−m) = m, so two losses differ by the margin's mean, times 1 − 2ε."""
    chosen, rejected, ref_chosen, ref_rejected = LOG_PROBS
    options = {"beta": 0.7, "label_smoothing": label_smoothing}
    swapped = dpo_loss(rejected, chosen, ref_rejected, ref_chosen, **options)
    margin = 0.7 * ((chosen - ref_chosen) - (rejected - ref_rejected)).mean()
    difference = swapped - dpo_loss(*LOG_PROBS, **options)
    assert_same(difference, (1 - 2 * label_smoothing) * margin, 1e-12)


def test_dpo_learns_which_answer_is_chosen():
    policy = decoder_only_model()
    reference = copy.deepcopy(policy)
    chosen, rejected = (collate_answers([encode_answer([1, 8, 3], a)]) for a in ([5, 2], [6, 7, 2]))
    before = [sequence_log_probs(reference, *rows).detach() for rows in (chosen, rejected)]
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(9):
        after = [sequence_log_probs(policy, *rows) for rows in (chosen, rejected)]
        optimizer.zero_grad()
        dpo_loss(*after, *before, beta=1.0).backward()
        optimizer.step()
    assert after[0] - before[0] > after[1] - before[1] + 1


# --- GRPO


@pytest.mark.parametrize(("clip", "beta"), TRL_GRPO)
def test_grpo_is_trls_with_its_gradient(clip, beta):
    log_probs, advantages = tokens(10).requires_grad_(), randn(4, seed=20, dtype=torch.float64)
    options = {"clip": clip, "beta": beta}
    loss = grpo_loss(log_probs, tokens(11), tokens(12), advantages, ANSWERED, **options)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert (loss.item(), gradient.norm().item()) == pytest.approx(TRL_GRPO[clip, beta], rel=1e-9)
    assert not gradient[~ANSWERED].any()


def test_advantages_have_mean_0_and_std_1_whatever_the_scale():
    rewards = randn(3, 5, dtype=torch.float64)
    found = group_advantages(rewards)
    assert_same(found.mean(-1), torch.zeros(3).double(), 1e-12)
    assert_same(found.std(-1), torch.ones(3).double(), 1e-3)
    assert_same(group_advantages(7 * rewards - 100), found, 1e-3)
    assert not group_advantages(torch.full((2, 5), 0.3)).abs().gt(1e-2).any()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_equal_rewards_give_no_gradient_but_that_of_the_divergence(beta):
    log_probs, start = tokens(10).requires_grad_(), tokens(12)
    advantages = group_advantages(torch.ones(1, 4).double()).flatten()
    sampled = log_probs.detach()
    grpo_loss(log_probs, sampled, start, advantages, ANSWERED, beta=beta).backward()
    expected = beta * (1 - (start - sampled).exp()) / ANSWERED.sum()  # d/dx of e^(r - x) + x
    assert_same(log_probs.grad, expected.masked_fill(~ANSWERED, 0.0), 1e-12)


@pytest.mark.parametrize(("ratio", "advantage", "moves"), [
    (1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True),
])  # fmt: skip
def test_clipping_stops_only_what_has_gone_far_enough(ratio, advantage, moves):
    log_probs = torch.full((1, 3), math.log(ratio)).requires_grad_()
    zeros, advantages = torch.zeros(1, 3), torch.tensor([advantage])
    grpo_loss(log_probs, zeros, zeros, advantages, zeros == 0, beta=0.0).backward()
    assert bool(log_probs.grad.any()) == moves


def test_divergence_is_estimated_without_bias_and_never_negative():
    """The mean of e^δ − δ − 1 under π is KL(π ‖ π_ref), summed over a vocabulary."""
    policy, start = (randn(7, seed=seed, dtype=torch.float64).log_softmax(0) for seed in range(2))
    rows = policy[:, None], policy[:, None], start[:, None]
    each = torch.stack([
        grpo_loss(*(x[i : i + 1] for x in rows), torch.zeros(1), torch.ones(1, 1).bool(), beta=1.0)
        for i in range(7)
    ])  # fmt: skip
    assert (each >= 0).all()
    assert_same((policy.exp() * each).sum(), (policy.exp() * (policy - start)).sum(), 1e-12)


# A vocabulary of four, of which 2 ends an answer, and no padding: all answers of at most three
# tokens to one prompt can be listed.
PROMPT = [1, 3, 0]
REWARDS = {(2,): 0.1, (0, 2): 1.0, (3, 0, 2): 2.0, (3, 3, 3): -1.0, (1, 2): 0.5}


def tiny_model():
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 20, "max_len": 8}
    config = mt.TransformerConfig.decoder_only(4, dropout=0.0, pad_id=-1, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    return shaken(model).double().eval()


def all_answers():
    for length in (1, 2, 3):
        for answer in itertools.product(range(4), repeat=length):
            ends = answer[-1] == 2 or length == 3
            if 2 not in answer[:-1] and ends:
                yield answer


def expected_reward(model):
    """By enumeration: Σ over all answers of their probability times their reward."""
    rows = collate_answers([encode_answer(PROMPT, answer) for answer in all_answers()], -1)
    probs = sequence_log_probs(model, *rows).exp()
    assert_same(probs.sum(), torch.ones(()).double(), 1e-12)  # they are all there is
    return (probs * torch.tensor([REWARDS.get(a, 0.0) for a in all_answers()])).sum()


def numerical_gradient(model, directions):
    """The slope of the expected reward along each direction in the space of parameters."""
    start, slopes = torch.nn.utils.parameters_to_vector(model.parameters()).detach(), []
    with torch.no_grad():
        for direction in directions:
            found = []
            for sign in (1, -1):
                moved = start + sign * 1e-5 * direction
                torch.nn.utils.vector_to_parameters(moved, model.parameters())
                found.append(expected_reward(model))
            slopes.append((found[0] - found[1]) / 2e-5)
        torch.nn.utils.vector_to_parameters(start, model.parameters())
    return torch.stack(slopes)


def gradient_of(loss, model):
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([grad.flatten() for grad in grads])


@pytest.mark.parametrize("baseline", [0.0, 3.0])
def test_gradient_is_the_policy_gradient_by_finite_differences(baseline):
    """All answers, each weighted with its probability: any baseline cancels."""
    model, answers = tiny_model(), list(all_answers())
    rows = collate_answers([encode_answer(PROMPT, answer) for answer in answers], -1)
    log_probs, answered = token_log_probs(model, *rows), rows[1] != -1
    fixed = log_probs.detach()
    rewards = torch.tensor([REWARDS.get(answer, 0.0) for answer in answers]).double()
    weighted = fixed.sum(-1).exp() * (rewards - baseline)
    loss = grpo_loss(log_probs, fixed, fixed, weighted, answered)
    gradient = -answered.sum() * gradient_of(loss, model)
    directions = randn(5, len(gradient), seed=3, dtype=torch.float64)
    assert_same(directions @ gradient, numerical_gradient(model, directions), 1e-6)


def test_sampled_answers_follow_their_probabilities():
    model, draws = tiny_model(), 20_000
    generator = torch.Generator().manual_seed(0)
    found = sample_answers(model, [PROMPT], draws, max_new_tokens=3, generator=generator)
    rows = collate_answers([encode_answer(PROMPT, answer) for answer in all_answers()], -1)
    probs = sequence_log_probs(model, *rows).exp()
    for answer, p in zip(all_answers(), probs.tolist(), strict=True):
        spread = math.sqrt(p * (1 - p) / draws)
        assert abs(found.count([*answer]) / draws - p) < 5 * spread


@pytest.mark.parametrize("updates", [1, 3])
def test_a_step_raises_the_expected_reward_and_leaves_the_reference(updates):
    policy = tiny_model()
    reference = copy.deepcopy(policy)
    before, generator = expected_reward(policy).item(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    row = grpo_step(
        policy, reference, optimizer, [PROMPT, PROMPT],
        lambda prompt, answer: REWARDS.get((*answer,), 0.0),
        num_samples=200, updates=updates, beta=0.0, max_new_tokens=3, generator=generator,
    )  # fmt: skip
    assert expected_reward(policy).item() > before + 1e-3
    assert row["reward"] == pytest.approx(before, abs=0.1)
    assert row["kl"] == 0
    assert 1 <= row["length"] <= 3
    assert_same_weights(reference, tiny_model())


def test_reward_is_called_with_each_prompt_and_its_answers():
    policy, seen = tiny_model(), []

    def reward(prompt, answer):
        seen.append((prompt, answer))
        return len(answer)

    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    options = {"num_samples": 3, "max_new_tokens": 2}
    grpo_step(policy, copy.deepcopy(policy), optimizer, [[1], [1, 3]], reward, **options)
    assert [prompt for prompt, _ in seen] == [[1]] * 3 + [[1, 3]] * 3
    assert all(1 <= len(answer) <= 2 for _, answer in seen)


ONE = torch.ones(2)
TOKENS = (tokens(0), tokens(1), tokens(2), torch.ones(4), ANSWERED)
test_what_does_not_fit_is_refused = refuses(
    (r"same shape, got \[\(2,\), \(3,\)\]", lambda: dpo_loss(ONE, ONE, ONE, torch.ones(3))),
    ("beta must be above 0, got 0", lambda: dpo_loss(ONE, ONE, ONE, ONE, beta=0.0)),
    ("below 0.5, got 0.5", lambda: dpo_loss(ONE, ONE, ONE, ONE, label_smoothing=0.5)),
    ("at least 2 answers, got 1", lambda: group_advantages(torch.ones(3, 1))),
    ("got clip=0 and beta=0.04", lambda: grpo_loss(*TOKENS, clip=0)),
    ("got clip=0.2 and beta=-1", lambda: grpo_loss(*TOKENS, beta=-1)),
    ("got clip=0.2 and beta=nan", lambda: grpo_loss(*TOKENS, beta=math.nan)),
    (
        "must be int64",
        lambda: token_log_probs(decoder_only_model(), *[torch.ones(1, 2)] * 2),
        TypeError,
    ),
)
