"""Language models train with the same trainer, and bits per character are what they say."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import refuses
from test_trainer import SAYING, language_model_trainer

import minitransformer as mt
from minitransformer.inspection.record import evaluating
from minitransformer.training.language_model import row_starts, stream_batches

pytestmark = pytest.mark.slow

STREAM = torch.arange(5, 205)


@pytest.fixture(scope="module")
def writer():
    """What a training has learned by heart."""
    settings = {"warmup_steps": 10, "peak_learning_rate": 1e-2, "context_length": 24}
    trainer = language_model_trainer(120, dropout=0.0, **settings)
    trainer.fit(progress=False)
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"] / 3
    return trainer.trained()


def test_texts_are_learned_by_heart_and_completed(writer):
    assert writer.complete(["two three"], max_new_tokens=10) == [" four five"]
    assert writer.bits_per_character(SAYING, context_length=24) < 1.0


def test_training_goes_through_the_epochs_in_turn(monkeypatch):
    trainer, seen = language_model_trainer(6), []
    train_step = trainer.train_step
    monkeypatch.setattr(
        trainer, "train_step", lambda batch: seen.append(batch) or train_step(batch)
    )
    trainer.fit(progress=False)
    expected = [batch for epoch in range(6) for batch in trainer.epoch(epoch)][:6]
    assert len(trainer.epoch(0)) == 2
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_batches_by_tokens_have_the_rows_that_fit():
    by_tokens, by_rows = (language_model_trainer(**s) for s in ({"max_tokens_per_batch": 31}, {}))
    assert [len(batch) for batch in by_tokens.epoch(0)[:-1]] == [3, 3]  # of 9 tokens each
    assert sum(map(len, by_tokens.epoch(0))) == sum(map(len, by_rows.epoch(0)))


def bits_by_hand(writer, texts, context_length):
    """Each token alone: what it costs in the last window that counts it."""
    stream, stride = mt.token_stream(texts, writer.tokenizers["text"]), context_length // 2
    bits = 0.0
    with evaluating(writer.model):
        for target in range(1, len(stream)):
            start = 0
            while target > start + context_length:
                start += stride
            scores = writer.model(stream[None, start:target])[0, -1].log_softmax(-1)
            bits -= scores[stream[target]].item() / math.log(2)
    return bits / sum(map(len, texts))


@pytest.mark.parametrize("context_length", [2, 5, 9, 32])
@pytest.mark.parametrize("texts", [SAYING[:2], ["o"], ["one.", "", "two."]], ids=len)
def test_bits_per_character_equal_a_loop_over_tokens(writer, texts, context_length):
    expected = bits_by_hand(writer, texts, context_length)
    for batch_size in (1, 64):
        options = {"context_length": context_length, "batch_size": batch_size}
        found = writer.bits_per_character(iter(texts), **options)
        assert found == pytest.approx(expected, rel=1e-4)


def test_stream_marks_where_texts_begin_and_end():
    letters = mt.CharacterTokenizer.train(["ab"])
    a, b = letters.encode("ab")
    stream = mt.token_stream(["ab", "", "b"], letters)
    assert stream.dtype == torch.int64
    assert stream.tolist() == [1, a, b, 2, 1, 2, 1, b, 2]


@pytest.mark.parametrize("context_length", [1, 7, 100])
def test_rows_are_stretches_of_the_stream_that_share_no_target(context_length):
    batches = stream_batches(STREAM, 4, context_length, seed=0, epoch=0)
    targets = []
    for batch in batches:
        assert batch.size(1) == context_length + 1
        for row in batch:
            assert torch.equal(row, torch.arange(int(row[0]), int(row[0]) + context_length + 1))
            targets += row[1:].tolist()
    assert len(set(targets)) == len(targets) > len(STREAM) - 2 * context_length - 1
    assert {len(batch) for batch in batches[:-1]} <= {4}


def test_stream_order_is_a_function_of_seed_and_epoch():
    def rows(seed, epoch):
        return torch.cat([*stream_batches(STREAM, 4, 9, seed=seed, epoch=epoch)]).tolist()

    assert rows(0, 0) == rows(0, 0)
    assert rows(0, 0) != rows(1, 0)
    assert sorted(rows(0, 0)) != sorted(rows(0, 1))  # cut at other places
    assert {len(rows(0, epoch)) for epoch in range(20)} == {21}


@pytest.mark.parametrize(("length", "context_length"), [(197, 9), (180, 9), (41, 20)])
def test_rows_begin_everywhere_as_often(length, context_length):
    epochs, places = 3000, length - context_length
    begins = Counter(
        start
        for epoch in range(epochs)
        for start in row_starts(length, context_length, seed=7, epoch=epoch)
    )
    num_rows = length // context_length - 1
    assert sum(begins.values()) == epochs * num_rows
    assert set(begins) == set(range(places))
    share = num_rows / places  # of the epochs have a row that begins at this place
    spread = math.sqrt(epochs * share * (1 - share))
    assert max(abs(count - epochs * share) for count in begins.values()) < 4.5 * spread


@pytest.mark.parametrize("kind", ["tensor", "array", "memmap"])
def test_ids_may_be_given_in_place_of_texts(kind, tmp_path):
    """The same training, which goes on from a checkpoint of the same ids of another kind."""
    whole = language_model_trainer(texts=iter(SAYING))
    ids = mt.token_stream(SAYING, whole.tokenizers["text"])
    array = ids.numpy().astype(np.uint16)
    array.tofile(tmp_path / "ids")
    memmap = np.memmap(tmp_path / "ids", np.uint16, mode="r")
    stream = {"tensor": ids, "array": array, "memmap": memmap}[kind]
    trainer = language_model_trainer(texts=stream)
    whole.fit(3, progress=False)
    trainer.fit(2, checkpoint=tmp_path / "a", progress=False)
    resumed = mt.LanguageModelTrainer.resume(tmp_path / "a", ids)
    resumed.fit(3, progress=False)
    assert resumed.history == whole.history
    with pytest.raises(ValueError, match="was trained on other texts"):
        mt.LanguageModelTrainer.resume(tmp_path / "a", ids.flip(0))


def training(**changes):
    return lambda: language_model_trainer(**changes)


test_impossible_trainings_are_refused_before_the_first_step = refuses(
    ("got a single str", training(texts="one two"), TypeError),
    ("type str, but number 1 is 2", training(texts=["one", 2]), TypeError),
    ("ids must be whole numbers", training(texts=torch.zeros(3, 4).long()), TypeError),
    ("ids must be whole numbers", training(texts=np.zeros(90)), TypeError),
    ("at least 1 text to train on, got 0", training(texts=[])),
    ("33 positions is longer than max_len=32", training(context_length=33)),
    ("too short for context_length=32: at least 64", training(context_length=32, texts=SAYING[:1])),
    ("context_length=9 is above max_tokens_per_batch=8", training(max_tokens_per_batch=8)),
    ("batch_size must be .* 1, got 0", lambda: stream_batches(STREAM, 0, 9, seed=0, epoch=0)),
    ("context_length must .* 1, got 0", lambda: stream_batches(STREAM, 4, 0, seed=0, epoch=0)),
)


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_bits_of_nothing_or_in_windows_of_1_are_refused(writer, texts):
    with pytest.raises(ValueError, match="at least 1 character, got 0"):
        writer.bits_per_character(texts, context_length=9)
    with pytest.raises(ValueError, match="context_length must be at least 2, got 1"):
        writer.bits_per_character(SAYING, context_length=1)
