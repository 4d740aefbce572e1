"""The loss on answers is that of the whole rows with prompts masked, however they are padded."""

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, assert_same_weights, decoder_only_model, refuses

import minitransformer as mt
from minitransformer.training import AnswerTrainer, collate_answers, encode_answer

ROWS = [([1, 8, 3], [28, 5, 11, 2]), ([1], [7, 2]), ([1, 30, 6, 19, 12, 4], [9, 2]), ([1, 5], [2])]
PAIRS = (("one two", "two"), ("two", "one one one"), ("three", ""))
EXAMPLES = [encode_answer(*row) for row in ROWS]


@pytest.mark.parametrize("pad_id", [0, 14])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_on_answers_is_that_of_the_whole_with_prompts_masked(pad_id, smoothing):
    model = decoder_only_model(pad_id=pad_id)
    rows = mt.pad_rows([[*prompt, *answer] for prompt, answer in ROWS], pad_id)
    scores = model(rows[:, :-1])
    masked = rows[:, 1:].clone()
    for row, (prompt, answer) in zip(masked, ROWS, strict=True):
        row[
            : len(prompt) - 1
        ] = -100  # one fewer: the prompt's last token predicts the answer's first
        row[len(prompt) + len(answer) - 1 :] = -100
    options = {"ignore_index": -100, "label_smoothing": smoothing}
    expected = F.cross_entropy(scores.flatten(0, 1), masked.flatten(), **options)
    found = mt.next_token_loss(model, *collate_answers(EXAMPLES, pad_id), smoothing=smoothing)
    assert_same(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, [*model.parameters()]),
        torch.autograd.grad(expected, [*model.parameters()]),
        strict=True,
    ):
        assert_same(ours, theirs)


def test_rows_padded_together_are_the_rows_alone():
    model = decoder_only_model()
    counts = torch.tensor([float(len(answer)) for _, answer in ROWS])
    alone = [mt.next_token_loss(model, *collate_answers([example])) for example in EXAMPLES]
    together = mt.next_token_loss(model, *collate_answers(EXAMPLES))
    assert_same(together, (torch.stack(alone) * counts).sum() / counts.sum())


def test_prompt_is_read_and_not_learned():
    model = decoder_only_model(tie_output=False)
    ids, targets = collate_answers(EXAMPLES[:1])
    mt.next_token_loss(model, ids, targets).backward()
    assert model.embedding.weight.grad[8].any()  # read
    other = ids.clone()
    other[0, 1] = 9
    losses = [mt.next_token_loss(model, x, targets) for x in (ids, other)]
    assert (losses[0] - losses[1]).abs() > 1e-3
    assert targets.tolist() == [[0, 0, 28, 5, 11, 2]]  # and no target


def answer_trainer(steps=6, pairs=PAIRS, *, dropout=0.0, **given):
    tokenizer = mt.WordTokenizer.train(["one two three"])
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 20, "max_len": 16}
    config = mt.TransformerConfig.decoder_only(tokenizer.vocab_size, dropout=dropout, **sizes)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = {"batch_size": 2, "warmup_steps": 2, "peak_learning_rate": 1e-2} | given
    return AnswerTrainer(model, pairs, tokenizer, mt.TrainingConfig(steps=steps, **settings))


def test_batches_in_parts_are_the_batch():
    whole, parts = (
        answer_trainer(batch_size=3, gradient_accumulation_steps=n, warmup_steps=1) for n in (1, 3)
    )
    losses = [trainer.train_step(trainer.epoch(0)[0])["loss"] for trainer in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_batches_by_tokens_count_prompt_and_answer():
    batches = answer_trainer(max_tokens_per_batch=10).epoch(0)
    for batch in batches:
        ids, _ = collate_answers(batch)
        assert ids.numel() <= 10
    assert sum(map(len, batches)) == 3


@pytest.mark.slow
def test_resumed_is_never_stopped(tmp_path):
    pairs = [("one two", "two"), ("two", "one one one"), ("three", "three one")]
    whole = answer_trainer(80, pairs, batch_size=2, dropout=0.1)
    whole.fit(progress=False)
    stopped = answer_trainer(80, pairs, batch_size=2, dropout=0.1)
    stopped.fit(33, checkpoint=tmp_path / "a", progress=False)
    resumed = AnswerTrainer.resume(tmp_path / "a", pairs)
    resumed.fit(progress=False)
    assert resumed.history == whole.history
    assert_same_weights(resumed.model, whole.model)


@pytest.mark.slow
def test_what_is_trained_answers_and_ends():
    pairs = [("one two", "two"), ("two", "one one one"), ("three", "three one")]
    trainer = answer_trainer(120, pairs, batch_size=3)
    trainer.fit(progress=False)
    answers = trainer.trained().complete([question for question, _ in pairs], max_new_tokens=6)
    assert [answer.strip() for answer in answers] == [answer for _, answer in pairs]


test_what_is_no_pair_is_refused = refuses(
    ("at least 1 token, got 0 and 2", lambda: encode_answer([], [5, 2])),
    ("at least 1 token, got 3 and 0", lambda: encode_answer([1, 5, 6], [])),
    ("at least one row, got 0", lambda: collate_answers([])),
    ("at least 1 text to train on", lambda: answer_trainer(pairs=[])),
    ("pairs must be of two texts", lambda: answer_trainer(pairs=["one"]), TypeError),
    ("longer than max_len=16", lambda: answer_trainer(pairs=[("one " * 9, "two " * 9)])),
    ("longer than max_tokens_per_batch=3", lambda: answer_trainer(max_tokens_per_batch=3)),
)
