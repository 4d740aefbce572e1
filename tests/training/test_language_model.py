"""Language models train with the same trainer, and bits per character are what they say."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from minitransformer import (
    CharacterTokenizer,
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TextGenerator,
    TrainingConfig,
    TransformerConfig,
    Translator,
    label_smoothing_loss,
    token_stream,
)
from minitransformer.inspection.record import evaluating
from minitransformer.training.checkpoint import load_checkpoint
from minitransformer.training.language_model import row_starts, stream_batches

pytestmark = pytest.mark.slow

SAYING = ["one two three four five. ", "two three four five six. ", "three four five six one. "]


def language_model_trainer(steps=6, *, dropout=0.3, texts=SAYING, **settings):
    """A trainer for short texts of characters; two batches an epoch."""
    letters = CharacterTokenizer.train(SAYING)
    config = TransformerConfig.decoder_only(
        letters.vocab_size,
        num_layers=2,
        d_model=24,
        num_heads=3,
        d_ff=40,
        max_len=32,
        norm_first=True,
        dropout=dropout,
    )
    model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = {"batch_size": 4, "warmup_steps": 2, "context_length": 9, "seed": 5} | settings
    return LanguageModelTrainer(model, texts, letters, TrainingConfig(steps=steps, **settings))


@pytest.fixture(scope="module")
def trained_writer():
    settings = {"warmup_steps": 10, "peak_learning_rate": 1e-2, "label_smoothing": 0.0}
    settings["context_length"] = 24
    trainer = language_model_trainer(200, dropout=0.0, **settings)
    trainer.fit(progress=False)
    return trainer


def test_texts_are_learned_by_heart_and_written(trained_writer):
    model, (letters,) = trained_writer.model, trained_writer.tokenizers.values()
    assert trained_writer.history[-1]["loss"] < trained_writer.history[0]["loss"] / 3
    assert TextGenerator(model, letters).complete(["two three"], max_new_tokens=10) == [
        " four five"
    ]
    assert TextGenerator(model, letters).bits_per_character(SAYING, context_length=24) < 1.0


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_resuming_equals_never_stopping(tmp_path, stop):
    language_model_trainer().fit(checkpoint=tmp_path / "whole", progress=False)
    language_model_trainer().fit(stop, checkpoint=tmp_path / "part", progress=False)
    resumed = LanguageModelTrainer.resume(tmp_path / "part", SAYING)
    assert isinstance(resumed, LanguageModelTrainer)
    resumed.fit(checkpoint=tmp_path / "part", progress=False)
    (tensors, state), (others, other_state) = (
        load_checkpoint(tmp_path / name) for name in ("whole", "part")
    )
    assert state == other_state
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name


def test_resuming_with_other_texts_is_refused(tmp_path):
    language_model_trainer().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"other texts: 3 texts, \w+, not 2 texts, \w+"):
        LanguageModelTrainer.resume(tmp_path / "model", SAYING[:2])


def test_each_loader_refuses_the_model_of_the_other(tmp_path, trained, trained_writer):
    trained.save(tmp_path / "translator")
    trained_writer.save(tmp_path / "writer")
    writer = TextGenerator.load(tmp_path / "writer")
    assert not writer.model.training
    written = trained_writer.trained().complete(["one"], max_new_tokens=8)
    assert writer.complete(["one"], max_new_tokens=8) == written
    with pytest.raises(ValueError, match=r"no Translator: .* tokenizers \['text'\]"):
        Translator.load(tmp_path / "writer")
    with pytest.raises(ValueError, match=r"no TextGenerator: .* tokenizers \['src', 'tgt'\]"):
        TextGenerator.load(tmp_path / "translator")


def test_loss_is_that_of_each_next_token():
    trainer = language_model_trainer(dropout=0.0)
    (batch, *_) = trainer.epoch(0)
    logits = trainer.model(batch[:, :-1])
    expected = label_smoothing_loss(logits, batch[:, 1:], smoothing=0.0)
    assert trainer.train_step(batch)["loss"] == pytest.approx(expected.item())


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


def bits_by_hand(trainer, texts, context_length):
    """Each token alone: what it costs in the last window that counts it."""
    model, (letters,) = trainer.model, trainer.tokenizers.values()
    stream, stride = token_stream(texts, letters), context_length // 2
    bits = 0.0
    with evaluating(model):
        for target in range(1, len(stream)):
            start = 0
            while target > start + context_length:
                start += stride
            scores = model(stream[None, start:target])[0, -1].log_softmax(-1)
            bits -= scores[stream[target]].item() / math.log(2)
    return bits / sum(map(len, texts))


@pytest.mark.parametrize("context_length", [2, 5, 9, 32])
@pytest.mark.parametrize("texts", [SAYING, SAYING[:1], ["o"], ["one.", "", "two."]], ids=len)
@pytest.mark.parametrize("batch_size", [1, 64])
def test_bits_per_character_equal_a_loop_over_tokens(
    trained_writer, texts, context_length, batch_size
):
    measured = trained_writer.trained().bits_per_character(
        texts, context_length=context_length, batch_size=batch_size
    )
    assert measured == pytest.approx(bits_by_hand(trained_writer, texts, context_length), rel=1e-4)


@pytest.mark.parametrize(
    ("texts", "context_length", "message"),
    [
        ([], 9, "at least 1 character, got 0"),
        (["", ""], 9, "at least 1 character, got 0"),
        (SAYING, 1, "context_length must be at least 2, got 1"),
    ],
)
def test_impossible_measurements_are_refused(trained_writer, texts, context_length, message):
    with pytest.raises(ValueError, match=message):
        trained_writer.trained().bits_per_character(texts, context_length=context_length)


def test_training_on_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 text to train on, got 0"):
        language_model_trainer(texts=[])


def test_context_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match="40 positions is longer than max_len=32"):
        language_model_trainer(texts=SAYING * 2, context_length=40).fit(progress=False)


# --- running text

STREAM = torch.arange(5, 205)


def test_stream_marks_where_texts_begin_and_end():
    letters = CharacterTokenizer.train(["ab"])
    a, b = letters.encode("ab")
    stream = token_stream(["ab", "", "b"], letters)
    assert stream.dtype == torch.int64
    assert stream.tolist() == [1, a, b, 2, 1, 2, 1, b, 2]


@pytest.mark.parametrize("context_length", [1, 7, 9, 100])
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


def test_each_place_of_the_stream_is_a_target_sooner_or_later():
    seen = {
        token
        for epoch in range(60)
        for batch in stream_batches(STREAM, 4, 9, seed=0, epoch=epoch)
        for token in batch[:, 1:].flatten().tolist()
    }
    assert seen == set(STREAM[1:].tolist())


@pytest.mark.parametrize(("length", "context_length"), [(200, 9), (180, 9), (197, 9), (41, 20)])
def test_rows_begin_everywhere_as_often(length, context_length):
    epochs, places = 6000, length - context_length
    begins = Counter(
        start
        for epoch in range(epochs)
        for start in row_starts(length, context_length, seed=7, epoch=epoch)
    )
    num_rows = length // context_length - 1
    assert sum(begins.values()) == epochs * num_rows
    share = num_rows / places  # of the epochs have a row that begins at this place
    spread = math.sqrt(epochs * share * (1 - share))
    counts = [begins[place] for place in range(places)]
    assert set(begins) == set(range(places))
    assert max(abs(count - epochs * share) for count in counts) < 4.5 * spread


@pytest.mark.parametrize(
    ("batch_size", "context_length", "message"),
    [
        (0, 9, "batch_size must be at least 1, got 0"),
        (4, 0, "context_length must be at least 1, got 0"),
        (4, 101, "stream of 200 tokens is too short for context_length=101: at least 202"),
    ],
)
def test_impossible_streams_are_refused(batch_size, context_length, message):
    with pytest.raises(ValueError, match=message):
        stream_batches(STREAM, batch_size, context_length, seed=0, epoch=0)


@pytest.mark.parametrize("kind", ["tensor", "array", "memmap"])
def test_ids_may_be_given_in_place_of_texts(kind, tmp_path):
    """The same training, which goes on from a checkpoint of the same ids of another kind."""
    whole = language_model_trainer(texts=SAYING)
    (letters,) = whole.tokenizers.values()
    ids = token_stream(SAYING, letters)
    array = ids.numpy().astype(np.uint16)
    array.tofile(tmp_path / "ids")
    memmap = np.memmap(tmp_path / "ids", np.uint16, mode="r")
    stream = {"tensor": ids, "array": array, "memmap": memmap}[kind]
    trainer = language_model_trainer(texts=stream)
    whole.fit(3, progress=False)
    trainer.fit(2, checkpoint=tmp_path / "a", progress=False)
    resumed = LanguageModelTrainer.resume(tmp_path / "a", ids)
    resumed.fit(3, progress=False)
    assert resumed.history == whole.history
    with pytest.raises(ValueError, match="was trained on other texts"):
        LanguageModelTrainer.resume(tmp_path / "a", ids.flip(0))


@pytest.mark.parametrize("ids", [torch.zeros(3, 4, dtype=torch.int64), np.zeros(90)])
def test_what_are_no_ids_is_refused(ids):
    with pytest.raises(TypeError, match="ids must be whole numbers"):
        language_model_trainer(texts=ids)


# --- refused before the first step


@pytest.mark.parametrize(
    ("texts", "message"),
    [("one two", "got a single str"), (["one", 2], "type str, but number 1 is 2")],
)
def test_what_are_no_texts_is_refused(trained_writer, texts, message):
    with pytest.raises(TypeError, match=message):
        language_model_trainer(texts=texts)
    with pytest.raises(TypeError, match=message):
        trained_writer.trained().bits_per_character(texts)


def test_texts_may_come_once(tmp_path, trained_writer):
    trainer = language_model_trainer(texts=iter(SAYING))
    trainer.fit(3, checkpoint=tmp_path / "model", progress=False)
    assert LanguageModelTrainer.resume(tmp_path / "model", iter(SAYING)).texts == SAYING
    options = {"context_length": 24}
    expected = trained_writer.trained().bits_per_character(SAYING, **options)
    assert trained_writer.trained().bits_per_character(iter(SAYING), **options) == expected


@pytest.mark.parametrize(
    ("context_length", "message"),
    [(33, "33 positions is longer than max_len=32"), (32, "too short for context_length=32")],
)
def test_impossible_context_is_refused_at_once(context_length, message):
    with pytest.raises(ValueError, match=message):
        language_model_trainer(texts=SAYING[:1], context_length=context_length)


def test_model_and_tokenizer_pad_with_the_same_id():
    trainer = language_model_trainer()
    (letters,) = trainer.tokenizers.values()
    model = DecoderOnlyTransformer(replace(trainer.model.config, pad_id=3))
    with pytest.raises(ValueError, match="tokenizer text has pad_id=0, the model 3"):
        LanguageModelTrainer(model, SAYING, letters, trainer.config)
    with pytest.raises(ValueError, match="tokenizer text has pad_id=0, the model 3"):
        TextGenerator(model, letters).bits_per_character(SAYING)


def test_compiled_and_frozen_writer_resumes_as_never_stopped(tmp_path):
    def freezing_trainer():
        trainer = language_model_trainer(dropout=0.0)
        trainer.model.decoder.layers[0].requires_grad_(False)
        return trainer

    straight, stopped = freezing_trainer(), freezing_trainer()
    straight.fit(progress=False)
    stopped.model = torch.compile(stopped.model, backend="eager")
    stopped.fit(3, checkpoint=tmp_path / "model", progress=False)
    resumed = LanguageModelTrainer.resume(tmp_path / "model", SAYING)
    resumed.fit(progress=False)
    losses, expected = ([row["loss"] for row in x.history] for x in (resumed, straight))
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, weight in straight.model.named_parameters():
        assert resumed.model.get_parameter(name).requires_grad == weight.requires_grad


# --- what else a trainer offers


def test_batches_by_tokens_have_the_rows_that_fit():
    by_tokens, by_rows = (language_model_trainer(**s) for s in ({"max_tokens_per_batch": 31}, {}))
    assert [len(batch) for batch in by_tokens.epoch(0)[:-1]] == [3, 3]  # of 9 tokens each
    assert sum(map(len, by_tokens.epoch(0))) == sum(map(len, by_rows.epoch(0)))
    with pytest.raises(ValueError, match="context_length=9 is above max_tokens_per_batch=8"):
        language_model_trainer(max_tokens_per_batch=8)


@pytest.mark.parametrize(
    "recipe",
    [
        {
            "gradient_accumulation_steps": 3,
            "ema_decay": 0.8,
            "schedule": "linear",
            "max_tokens_per_batch": 31,
        },
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_resuming_equals_never_stopping_with_a_recipe(tmp_path, recipe):
    straight = language_model_trainer(**recipe)
    straight.fit(progress=False)
    language_model_trainer(**recipe).fit(3, checkpoint=tmp_path / "model", progress=False)
    resumed = LanguageModelTrainer.resume(tmp_path / "model", SAYING)
    resumed.fit(progress=False)
    assert resumed.history == straight.history
    for one, other in zip(
        resumed.averaged().parameters(), straight.averaged().parameters(), strict=True
    ):
        assert torch.equal(one, other)
    resumed.save(tmp_path / "model")
    model = TextGenerator.load(tmp_path / "model").model
    for one, other in zip(model.parameters(), straight.averaged().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_gradient_in_parts_is_that_of_the_batch(parts):
    settings = {"dropout": 0.0, "max_gradient_norm": 1e9}
    plain, dealt = (
        language_model_trainer(**settings, gradient_accumulation_steps=k) for k in (1, parts)
    )
    for trainer in (plain, dealt):
        trainer.model.double()
    batch = plain.epoch(0)[0].clone()
    batch[1, 3:] = 0  # of unequal length, as a text with padding would be
    assert dealt.train_step(batch) == pytest.approx(plain.train_step(batch), rel=1e-12)
    for one, other in zip(plain.model.parameters(), dealt.model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=1e-12, rtol=1e-12)
