"""Rules that know the text so far: equal to those of transformers, in every way of decoding."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from helpers import PROMPTS, assert_same, each_kind, model_and_ids, randn, refuses, shaken
from transformers import LogitsProcessorList
from transformers.generation import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from minitransformer import generate
from minitransformer.inference.logits_processors import (
    no_repeat_ngrams,
    occurrence_penalty,
    repetition_penalty,
    suppress_tokens,
)
from minitransformer.models import GPT2, GPT2Config

IDS = torch.randint(0, 7, (3, 19), generator=torch.Generator().manual_seed(0))  # with repetitions
LOGITS = 2 * randn(3, 11)
RULES = [
    partial(repetition_penalty, penalty=1.5),
    partial(occurrence_penalty, presence=0.2, frequency=0.4),
    partial(no_repeat_ngrams, size=2),
    partial(suppress_tokens, tokens=[3, 7]),
]


# --- each alone


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
@pytest.mark.parametrize("start", [0, 4])
def test_repetition_penalty_is_that_of_transformers(penalty, start):
    theirs = RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=start)
    assert_same(repetition_penalty(IDS, LOGITS, penalty, start=start), theirs(IDS, LOGITS))


@pytest.mark.parametrize("size", [1, 2, 3, 18, 19, 20, 25])
def test_ngrams_and_suppressed_tokens_are_those_of_transformers(size):
    ours = no_repeat_ngrams(IDS, LOGITS, size)
    assert torch.equal(ours, NoRepeatNGramLogitsProcessor(size)(IDS, LOGITS))
    assert (ours == -torch.inf).any() == (size < 4)
    overlapping = no_repeat_ngrams(torch.tensor([[5, 5, 5]]), torch.zeros(1, 7), 3)
    assert overlapping[0].tolist() == [0, 0, 0, 0, 0, -torch.inf, 0]
    theirs = SuppressTokensLogitsProcessor([2, 9])
    assert torch.equal(suppress_tokens(IDS, LOGITS, [2, 9]), theirs(IDS, LOGITS))
    assert torch.equal(suppress_tokens(IDS, LOGITS, []), LOGITS)


@pytest.mark.parametrize("start", [0, 4])
def test_occurrence_penalty_is_a_sum_over_occurrences(start):
    expected = LOGITS.clone()
    for row, ids in enumerate(IDS[:, start:].tolist()):
        for token in ids:
            expected[row, token] -= 0.3
        for token in set(ids):
            expected[row, token] -= 0.7
    ours = occurrence_penalty(IDS, LOGITS, presence=0.7, frequency=0.3, start=start)
    assert_same(ours, expected)
    assert torch.equal(occurrence_penalty(IDS, LOGITS), LOGITS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_type_of_the_scores_stays_and_they_are_not_changed(dtype):
    logits = LOGITS.to(dtype)
    for rule in RULES:
        assert rule(IDS, logits).dtype == dtype
    assert torch.equal(logits, LOGITS.to(dtype))


test_bad_settings_are_refused = refuses(
    (r"penalty must be above 0, got 0\.0", lambda: repetition_penalty(IDS, LOGITS, 0.0)),
    ("size must be at least 1, got 0", lambda: no_repeat_ngrams(IDS, LOGITS, 0)),
)


# --- in every way of decoding

WAYS = [{}, {"num_beams": 3}, {"temperature": 0.8, "min_p": 0.01}]
each_way = pytest.mark.parametrize("options", WAYS, ids=["greedy", "beams", "drawn"])


def generated(kind, rules, **options):
    """What a small model generates with these rules."""
    options = {"max_new_tokens": 9, "stop_ids": (2, 9)} | options
    generator = torch.Generator().manual_seed(5)
    return generate(*model_and_ids(kind), generator=generator, logits_processors=rules, **options)


@pytest.mark.parametrize("options", WAYS[:2], ids=["greedy", "beams"])
@pytest.mark.parametrize("pad_id", [0, -1])
@pytest.mark.parametrize("rules", [RULES, *([rule] for rule in RULES)])
def test_a_row_in_a_batch_is_the_row_alone(options, rules, pad_id):
    """Padding, which is no token in a published model, is not seen as one."""
    model, prompts = model_and_ids("texts")
    if pad_id == -1:
        config = GPT2Config(vocab_size=31, d_model=12, num_heads=3, num_layers=1, max_len=16)
        model, prompts = shaken(GPT2(config)), prompts.masked_fill(prompts == 0, -1)
    settings = {"max_new_tokens": 9, "stop_ids": (2, 9), "logits_processors": rules} | options
    together = generate(model, prompts, **settings).tolist()
    for prompt, row in zip(prompts, together, strict=True):
        (alone,) = generate(model, prompt[prompt != pad_id][None], **settings).tolist()
        assert [token for token in row if token != pad_id] == alone


@each_way
@each_kind
def test_no_run_comes_twice_and_what_is_forbidden_never(kind, options):
    rules = [partial(no_repeat_ngrams, size=2), partial(suppress_tokens, tokens=[3, 7])]
    options = {"stop_ids": (), "max_new_tokens": 11, **options}
    prompts = PROMPTS.new_ones(2, 1) if kind == "pairs" else PROMPTS
    prompts = [[token for token in prompt if token] for prompt in prompts.tolist()]

    def repeats(rows):
        runs = [list(pairwise([*p, *row])) for p, row in zip(prompts, rows.tolist(), strict=True)]
        new = [pairs[len(prompt) - 1 :] for pairs, prompt in zip(runs, prompts, strict=True)]
        return [
            any(run in pairs[: len(pairs) - len(last) + i] for i, run in enumerate(last))
            for pairs, last in zip(runs, new, strict=True)
        ]

    rows = generated(kind, rules, **options)
    assert not any(repeats(rows))
    assert not torch.isin(rows, torch.tensor([3, 7])).any()
    assert any(repeats(generated(kind, [], **options)))
    with pytest.raises(ValueError, match="every token"):
        generated(kind, [partial(suppress_tokens, tokens=range(31))], **options)
    theirs = LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])
    ours = generated(kind, rules[:1], **options)
    assert torch.equal(generated(kind, [theirs], **options), ours)


@each_way
def test_rules_see_the_text_so_far(options):
    seen = []
    generated("pairs", [lambda ids, logits: seen.append(ids) or logits], bos_id=6, max_new_tokens=1)
    assert seen.pop().tolist() == [[6], [6]]

    def look(ids, logits):
        seen.append(ids.clone())
        assert logits.shape == (len(ids), 31)
        return logits

    rows = generated("texts", [look], stop_ids=(), **options)
    assert [ids.size(1) for ids in seen] == [*range(5, 14)]
    prompts = [[8, 3, 28, 5, 11], [0, 0, 0, 9, 22], [0, 30, 6, 19, 12], [0, 0, 0, 0, 4]]
    assert seen[0].tolist() == prompts
    beginnings = {tuple(row) for row in seen[-1].tolist()}
    for prompt, row in zip(prompts, rows.tolist(), strict=True):
        assert (*prompt, *row[:-1]) in beginnings


@each_way
def test_padding_is_never_chosen_and_the_end_not_too_early(options):
    def praise(ids, logits):
        return logits.index_add(-1, torch.tensor([0, 2]), torch.full((len(ids), 2), 50.0))

    rows = generated("texts", [praise], min_new_tokens=4, **options)
    assert rows[:, 3].tolist() == [2, 2, 2, 2]
    assert not ((rows[:, :3] == 0) | (rows[:, :3] == 2)).any()


def test_a_beginning_without_a_next_token_ends_and_the_others_go_on():
    greedy = generated("texts", [], stop_ids=(), max_new_tokens=3)

    def close(ids, logits):  # nothing may follow the token that greedy decoding chooses first
        is_closed = (ids[:, -1:] == greedy[0, 0]) & (ids.size(1) == 6)
        return logits.masked_fill(is_closed, -torch.inf)

    model, prompts = model_and_ids("texts")
    options = {"max_new_tokens": 3, "stop_ids": (), "logits_processors": [close]}
    (row,) = generate(model, prompts[:1], num_beams=2, **options).tolist()
    assert row[0] != greedy[0, 0]
    with pytest.raises(ValueError, match="forbade every token"):
        generate(model, prompts[:1], **options)
