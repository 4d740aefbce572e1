"""Rules that know the text so far: equal to those of transformers, in every way of writing."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from helpers import SRC_IDS, assert_same, decoder_only_model, randn, small_model
from transformers import LogitsProcessorList
from transformers.generation import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from minitransformer import generate, pad_rows
from minitransformer.inference.logits_processors import (
    no_repeat_ngrams,
    occurrence_penalty,
    repetition_penalty,
    suppress_tokens,
)
from minitransformer.inference.sampling import min_p_filter

IDS = torch.randint(0, 7, (3, 19), generator=torch.Generator().manual_seed(0))  # much comes again
LOGITS = 2 * randn(3, 11)
PROMPTS = pad_rows([[8, 3, 28, 5, 11], [9, 22], [30, 6, 30, 6], [4]])


# --- each alone


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
@pytest.mark.parametrize("start", [0, 4])
def test_repetition_penalty_is_that_of_transformers(penalty, start):
    theirs = RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=start)
    assert_same(repetition_penalty(IDS, LOGITS, penalty, start=start), theirs(IDS, LOGITS))


@pytest.mark.parametrize("size", [1, 2, 3, 18, 19, 20, 25])
def test_ngrams_are_those_of_transformers(size):
    ours = no_repeat_ngrams(IDS, LOGITS, size)
    assert torch.equal(ours, NoRepeatNGramLogitsProcessor(size)(IDS, LOGITS))
    assert (ours == -torch.inf).any() == (size < 4)


def test_runs_that_overlap_themselves_count():
    ids, logits = torch.tensor([[5, 5, 5]]), torch.zeros(1, 7)
    assert no_repeat_ngrams(ids, logits, 3)[0].tolist() == [0, 0, 0, 0, 0, -torch.inf, 0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_padding_on_the_left_makes_no_run_of_words(size):
    ids = torch.tensor([[4, 6, 4, 6]])
    logits = torch.zeros(1, 7)
    padded = torch.nn.functional.pad(ids, (5, 0))
    ours = [no_repeat_ngrams(rows, logits, size)[:, 1:] for rows in (ids, padded)]
    assert torch.equal(*ours)


def test_suppressed_tokens_are_those_of_transformers():
    theirs = SuppressTokensLogitsProcessor([2, 9])
    assert torch.equal(suppress_tokens(IDS, LOGITS, [2, 9]), theirs(IDS, LOGITS))
    assert torch.equal(suppress_tokens(IDS, LOGITS, []), LOGITS)


@pytest.mark.parametrize("m", [0.01, 0.2, 1.0])
def test_min_p_is_that_of_transformers(m):
    assert torch.equal(min_p_filter(LOGITS, m), MinPLogitsWarper(m)(IDS, LOGITS))


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


def test_where_the_scores_have_their_zero_matters_to_one_penalty_alone():
    differ = [
        not torch.allclose(rule(IDS, LOGITS).softmax(-1), rule(IDS, LOGITS - 5).softmax(-1))
        for rule in (
            partial(repetition_penalty, penalty=1.3),
            partial(occurrence_penalty, presence=0.7, frequency=0.3),
            partial(no_repeat_ngrams, size=2),
        )
    ]
    assert differ == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_type_of_the_scores_stays_and_they_are_not_changed(dtype):
    logits = LOGITS.to(dtype)
    for rule in RULES:
        assert rule(IDS, logits).dtype == dtype
    assert torch.equal(logits, LOGITS.to(dtype))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (partial(repetition_penalty, penalty=0.0), r"penalty must be above 0, got 0\.0"),
        (partial(no_repeat_ngrams, size=0), "size must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        rule(IDS, LOGITS)


# --- in every way of writing

RULES = [
    partial(repetition_penalty, penalty=1.5),
    partial(occurrence_penalty, presence=0.2, frequency=0.4),
    partial(no_repeat_ngrams, size=2),
    partial(suppress_tokens, tokens=[3, 7]),
]
WAYS = [{}, {"num_beams": 3}, {"temperature": 0.8, "min_p": 0.01}]
each_way = pytest.mark.parametrize("options", WAYS, ids=["greedy", "beams", "drawn"])
each_model = pytest.mark.parametrize("has_encoder", [True, False], ids=["pairs", "texts"])


def written(has_encoder, rules, **options):
    """What a small model writes with these rules."""
    model, ids = (small_model(), SRC_IDS) if has_encoder else (decoder_only_model(), PROMPTS)
    options = {"max_new_tokens": 9, "stop_ids": (2, 9)} | options
    generator = torch.Generator().manual_seed(5)
    return generate(model, ids, generator=generator, logits_processors=rules, **options)


@pytest.mark.parametrize("options", WAYS[:2], ids=["greedy", "beams"])
def test_a_row_in_a_batch_is_the_row_alone(options):
    together = written(False, RULES, **options).tolist()
    for prompt, row in zip(PROMPTS, together, strict=True):
        settings = {"max_new_tokens": 9, "stop_ids": (2, 9), "logits_processors": RULES} | options
        (alone,) = generate(decoder_only_model(), prompt[prompt != 0][None], **settings)
        assert [token for token in row if token] == alone.tolist()


@each_way
@each_model
def test_no_run_comes_twice_and_what_is_forbidden_never(has_encoder, options):
    rules = [partial(no_repeat_ngrams, size=2), partial(suppress_tokens, tokens=[3, 7])]
    prompts = SRC_IDS.new_ones(2, 1) if has_encoder else PROMPTS
    without = written(has_encoder, [], stop_ids=(), max_new_tokens=11, **options).tolist()
    rows = written(has_encoder, rules, stop_ids=(), max_new_tokens=11, **options).tolist()

    def repeats(row, prompt):
        text = [token for token in prompt.tolist() if token] + row
        runs = list(pairwise(text))
        new = runs[len(text) - len(row) - 1 :]
        return any(run in runs[: len(runs) - len(new) + i] for i, run in enumerate(new))

    for row, prompt in zip(rows, prompts, strict=True):
        assert not repeats(row, prompt)
        assert not {3, 7} & set(row)
    assert any(repeats(row, prompt) for row, prompt in zip(without, prompts, strict=True))


@each_way
def test_rules_see_the_text_so_far(options):
    seen = []

    def look(ids, logits):
        seen.append(ids.clone())
        assert logits.shape == (len(ids), 31)
        return logits

    rows = written(False, [look], stop_ids=(), **options)
    assert [ids.size(1) for ids in seen] == [*range(5, 14)]
    assert seen[0].tolist() == [
        [8, 3, 28, 5, 11],
        [0, 0, 0, 9, 22],
        [0, 30, 6, 30, 6],
        [0] * 4 + [4],
    ]
    beginnings = {tuple(row) for row in seen[-1].tolist()}
    for prompt, row in zip(seen[0].tolist(), rows.tolist(), strict=True):
        assert (*prompt, *row[:-1]) in beginnings


def test_targets_begin_with_their_begin_token():
    seen = []
    written(True, [lambda ids, logits: seen.append(ids) or logits], bos_id=6, max_new_tokens=1)
    assert seen[0].tolist() == [[6], [6]]


@each_way
def test_processors_of_transformers_can_be_passed(options):
    theirs = [RepetitionPenaltyLogitsProcessor(1.5), NoRepeatNGramLogitsProcessor(2)]
    ours = [RULES[0], RULES[2]]
    expected = written(False, ours, **options)
    assert torch.equal(written(False, theirs, **options), expected)
    assert torch.equal(written(False, [LogitsProcessorList(theirs)], **options), expected)


@each_way
def test_padding_is_never_written_and_the_end_not_too_early(options):
    def praise(ids, logits):
        return logits.index_add(-1, torch.tensor([0, 2]), torch.full((len(ids), 2), 50.0))

    rows = written(False, [praise], min_new_tokens=4, **options)
    assert rows[:, 3].tolist() == [2, 2, 2, 2]
    assert not ((rows[:, :3] == 0) | (rows[:, :3] == 2)).any()


@each_way
def test_a_text_without_a_next_token_is_an_error(options):
    with pytest.raises(ValueError, match="every token"):
        written(False, [partial(suppress_tokens, tokens=range(31))], **options)


def test_a_beginning_without_a_next_token_dies_and_the_others_go_on():
    greedy = written(False, [], stop_ids=(), max_new_tokens=3)

    def close(ids, logits):  # whatever begins as greedy begins leads nowhere
        dead = (ids[:, 5:6] == greedy[:1, :1]).squeeze(1) if ids.size(1) == 6 else None
        return logits if dead is None else logits.masked_fill(dead[:, None], -torch.inf)

    model = decoder_only_model()
    options = {"max_new_tokens": 3, "stop_ids": (), "logits_processors": [close]}
    (row,) = generate(model, PROMPTS[:1], num_beams=2, **options).tolist()
    assert row[0] != greedy[0, 0]
    with pytest.raises(ValueError, match="forbade every token"):
        generate(model, PROMPTS[:1], **options)


def test_prompts_may_be_of_another_integer_type():
    rows = [
        generate(decoder_only_model(), PROMPTS.to(dtype), max_new_tokens=5, logits_processors=RULES)
        for dtype in (torch.int32, torch.int64)
    ]
    assert torch.equal(*rows)
