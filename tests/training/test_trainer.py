"""Training learns, repeats itself exactly, and ends the same whether or not it was stopped."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from helpers import PAIRS, TEXTS, assert_same, assert_same_weights, copying_trainer

import minitransformer as mt
from minitransformer.models import BERTConfig, BERTForMaskedLM
from minitransformer.models.registry import named_weights
from minitransformer.training.checkpoint import load_checkpoint, save_checkpoint
from minitransformer.training.translator import TextModel

pytestmark = pytest.mark.slow

SAYING = ["one two three four five. ", "two three four five six. ", "three four five six one. "]


def language_model_trainer(steps=6, *, dropout=0.3, texts=SAYING, **settings):
    """A trainer for short texts of characters; two batches an epoch."""
    letters = mt.CharacterTokenizer.train(SAYING)
    sizes = {"num_layers": 2, "d_model": 24, "num_heads": 3, "d_ff": 40, "max_len": 32}
    config = mt.TransformerConfig.decoder_only(
        letters.vocab_size, norm_first=True, dropout=dropout, **sizes
    )
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = {"batch_size": 4, "warmup_steps": 2, "context_length": 9, "seed": 5} | settings
    return mt.LanguageModelTrainer(
        model, texts, letters, mt.TrainingConfig(steps=steps, **settings)
    )


each_trainer = pytest.mark.parametrize(
    ("make", "texts"),
    [(copying_trainer, PAIRS), (language_model_trainer, SAYING)],
    ids=["pairs", "language model"],
)


def weights(trainer):
    return {name: p.detach().clone() for name, p in named_weights(trainer.model).items()}


def assert_same_checkpoints(path, other):
    """Every weight, optimiser moment, history row and setting is the same, to the last bit."""
    (tensors, state), (other_tensors, other_state) = load_checkpoint(path), load_checkpoint(other)
    assert state == other_state
    assert_same_weights(tensors, other_tensors)


def assert_same_training(trainer, other):
    """The same weights and history, to the last bit; compiled or not."""
    assert trainer.history == other.history
    assert_same_weights(trainer.model, other.model)


RECIPES = {
    "plain": {},
    "muon": {"optimizer": "muon", "weight_decay": 0.1, "schedule": "linear"},
    "ema_decay": {"ema_decay": 0.7},
    "all else": {
        **{"optimizer": "adamw", "weight_decay": 0.1, "ema_decay": 0.99, "precision": "bf16"},
        **{"max_tokens_per_batch": 31, "gradient_accumulation_steps": 2},
    },
}


@each_trainer
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_stopped_and_resumed_at_any_step_equals_never_stopping(tmp_path, make, texts, recipe):
    """Also from a checkpoint of the untrained model, in a file or in memory."""
    trainer, straight = make(7, **recipe), make(7, **recipe)
    straight.fit(checkpoint=tmp_path / "straight", progress=False)
    for stop in (0, 1, 3, 4, 7):  # an epoch has 2 or 3 batches
        trainer.fit(stop, [mt.Checkpoint(tmp_path / "stopped", every=1)], progress=False)
        torch.manual_seed(99)
        resumed = type(trainer).resume(tmp_path / "stopped", iter(texts))
        assert resumed.step == stop
        assert resumed.config == straight.config
        file = BytesIO()
        resumed.save(file)
        file.seek(0)
        assert_same_checkpoints(file, tmp_path / "stopped")
        trainer = resumed
    assert_same_checkpoints(tmp_path / "stopped", tmp_path / "straight")
    loaded = TextModel.load(tmp_path / "stopped").model
    assert not loaded.training
    assert_same_weights(loaded, straight.averaged())
    plain = make(7)
    plain.fit(progress=False)
    same = [torch.equal(w, weights(plain)[name]) for name, w in weights(straight).items()]
    assert all(same) == (recipe in ({}, {"ema_decay": 0.7}))  # all others change the training


KILLED = """
import sys, time
import torch
from helpers import copying_trainer
from minitransformer import Checkpoint, Evaluate

torch.set_num_threads(1)
slow = Evaluate(lambda: time.sleep(0.05) or {}, every=1)
copying_trainer(30).fit(callbacks=[slow, Checkpoint(sys.argv[1], every=1)], progress=False)
"""


def test_killed_run_goes_on_to_the_same_end(tmp_path):
    path, tests = tmp_path / "killed", Path(__file__).parent.parent
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], cwd=tests)
    deadline = time.monotonic() + 60
    while not path.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # somewhere in the middle of a later step
    assert child.poll() is None
    child.kill()
    assert child.wait(10) != 0

    resumed = mt.Trainer.resume(path, PAIRS)
    assert 1 <= resumed.step < 30
    resumed.fit(checkpoint=path, progress=False)
    copying_trainer(30).fit(checkpoint=tmp_path / "straight", progress=False)
    assert_same_checkpoints(path, tmp_path / "straight")


def compiled_whole(trainer):
    trainer.model = torch.compile(trainer.model, backend="eager")


def compiled_layers(trainer):
    for stack in (trainer.model.encoder, trainer.model.decoder):
        stack.layers[0] = torch.compile(stack.layers[0], backend="eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@pytest.mark.parametrize("compiled", [compiled_whole, compiled_layers])
def test_compiled_model_is_saved_as_the_model_that_it_is(tmp_path, compiled):
    trainer, straight = copying_trainer(4, dropout=0.0), copying_trainer(4, dropout=0.0)
    straight.fit(3, progress=False)
    trainer.fit(2, checkpoint=tmp_path / "plain", progress=False)
    compiled(trainer)
    trainer.save(tmp_path / "compiled")
    assert_same_checkpoints(tmp_path / "compiled", tmp_path / "plain")
    trainer.fit(3, progress=False)
    assert trainer.history[-1] == pytest.approx(straight.history[-1], rel=1e-5)
    trainer.model.save_pretrained(tmp_path / "folder", **trainer.tokenizers)
    assert_same_weights(mt.Translator.load(tmp_path / "folder").model, trainer.model)


def test_frozen_parameters_stay_frozen(tmp_path):
    """Also in the middle of a training, and a tied one: the target embedding is the output's."""
    frozen = ["tgt_embedding.weight", "encoder.layers.0.self_attention.w_q.weight"]
    trainer = copying_trainer(6)
    trainer.fit(1, progress=False)
    for name in frozen:
        trainer.model.get_parameter(name).requires_grad_(False)
    before = weights(trainer)
    trainer.fit(3, checkpoint=tmp_path / "model", progress=False)
    resumed = mt.Trainer.resume(tmp_path / "model", PAIRS)
    for each in (trainer, resumed):
        each.fit(progress=False)
    assert_same_training(resumed, trainer)
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, before[name]) == (name in frozen), name


@each_trainer
def test_resuming_with_other_texts_is_refused(tmp_path, make, texts):
    make().save(tmp_path / "model")
    n, resume = len(texts), type(make()).resume
    for others in (texts[:-1], [*texts[1:], texts[0]]):
        message = rf"trained on other texts: {n} texts, \w+, not {len(others)} texts, \w+"
        with pytest.raises(ValueError, match=message):
            resume(tmp_path / "model", others)


def test_checkpoint_of_something_else_is_refused(tmp_path):
    save_checkpoint(tmp_path / "other", {"weight": torch.ones(2)}, {"step": 1, "data": ""})
    message = r"not written by a Trainer: no \['class', 'history', 'model'"
    with pytest.raises(ValueError, match=message):
        mt.Translator.load(tmp_path / "other")


def test_training_and_loading_neither_read_nor_move_the_global_generator(tmp_path):
    trainers = [copying_trainer(6), copying_trainer(6)]
    for seed, trainer in enumerate(trainers):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        trainer.fit(checkpoint=tmp_path / f"{seed}", progress=False)
        mt.Translator.load(tmp_path / f"{seed}")
        mt.Trainer.resume(tmp_path / f"{seed}", PAIRS)
        assert torch.equal(torch.get_rng_state(), before)
    assert_same_training(*trainers)


def test_seed_decides_dropout_and_order():
    def losses(seed, dropout, other=False):
        trainer = copying_trainer(3, seed=seed, dropout=dropout, peak_learning_rate=1e-6)
        if other:  # than the package's
            trainer.model.dropout = torch.nn.Dropout(0.5)
        return [row["loss"] for row in trainer.fit(progress=False)]

    assert losses(1, 0.0) != losses(2, 0.0)  # other batches
    assert losses(1, 0.0) != losses(1, 0.3)  # dropout acts
    assert losses(1, 0.3, other=True) == losses(1, 0.3, other=True) != losses(1, 0.3)


def test_parts_of_a_batch_have_different_random_numbers():
    once, twice = copying_trainer(6), copying_trainer(6, gradient_accumulation_steps=2)
    row = once.examples[:1]
    assert once.train_step(row * 2)["loss"] != twice.train_step(row * 2)["loss"]


@pytest.mark.parametrize(
    ("make", "settings", "smoothing"),
    [
        (copying_trainer, {}, 0.1),
        (copying_trainer, {"label_smoothing": 0.3}, 0.3),
        (language_model_trainer, {}, 0.0),
    ],
)
def test_reported_loss_is_the_smoothed_loss_of_the_batch(make, settings, smoothing):
    trainer = make(dropout=0.0, **settings)
    (rows, *_) = trainer.epoch(0)
    *inputs, targets = mt.collate(rows) if make is copying_trainer else (rows[:, :-1], rows[:, 1:])
    expected = mt.label_smoothing_loss(trainer.model(*inputs), targets, smoothing=smoothing)
    assert trainer.train_step(rows)["loss"] == pytest.approx(expected.item())


def test_bfloat16_is_for_products_and_not_for_weights():
    trainer, dtypes = copying_trainer(6, dropout=0.0, precision="bf16"), []
    trainer.model.decoder.layers[-1].feed_forward.register_forward_hook(
        lambda _, __, output: dtypes.append(output.dtype)
    )
    rough = trainer.fit(1, progress=False)
    exact = copying_trainer(6, dropout=0.0).fit(1, progress=False)
    assert dtypes == [torch.bfloat16]
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert rough[0]["loss"] == pytest.approx(exact[0]["loss"], rel=0.02)
    assert rough[0]["loss"] != exact[0]["loss"]


def test_update_is_adam_with_the_papers_settings():
    settings = {"dropout": 0.0, "max_gradient_norm": 1e9, "peak_learning_rate": 0.05}
    trainer, twin = copying_trainer(6, **settings), copying_trainer(6, **settings)
    optimizer = torch.optim.Adam(twin.model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, 4):
        row = trainer.train_step(trainer.examples[step : step + 4])
        rate = trainer.config.learning_rate(step, 12)
        assert row["learning_rate"] == rate
        for one, other in zip(trainer.model.parameters(), twin.model.parameters(), strict=True):
            other.grad = one.grad.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    for name, weight in weights(twin).items():
        assert_same(weights(trainer)[name], weight, 1e-6)


@each_trainer
@pytest.mark.parametrize("parts", [2, 3, 11])
def test_gradient_in_parts_is_that_of_the_batch(make, texts, parts):
    """Also where there are more parts than rows; the mean of the parts' means is another."""
    settings = {"dropout": 0.0, "max_gradient_norm": 1e9}
    plain, dealt = (make(**settings, gradient_accumulation_steps=k) for k in (1, parts))
    for trainer in (plain, dealt):
        trainer.model.double()
    if make is copying_trainer:
        batch = sorted(plain.examples, key=lambda example: len(example.tgt))
    else:
        batch = plain.epoch(0)[0].clone()
        batch[1, 3:] = 0  # padding
    assert dealt.train_step(batch) == pytest.approx(plain.train_step(batch), rel=1e-12)
    for one, other in zip(plain.model.parameters(), dealt.model.parameters(), strict=True):
        assert_same(other.grad, one.grad, 1e-12)
    losses = [plain.loss(batch[part::parts]).item() for part in range(min(parts, len(batch)))]
    assert sum(losses) / len(losses) != pytest.approx(plain.loss(batch).item(), rel=1e-6)


def test_long_gradients_are_clipped_to_the_limit():
    norms = []
    for limit in (1e9, 0.01):
        trainer = copying_trainer(6, max_gradient_norm=limit)
        norms.append(trainer.train_step(trainer.examples[:4])["gradient_norm"])
        squares = [p.grad.double().square().sum() for p in trainer.model.parameters()]
        assert sum(squares).sqrt().item() == pytest.approx(min(norms[0], limit), rel=1e-3)
    assert norms[0] == norms[1] > 0.1


@pytest.mark.parametrize("finished", [0, 2])
def test_infinite_loss_stops_training_and_names_the_step(finished):
    trainer = copying_trainer(6, peak_learning_rate=3e-3)
    trainer.fit(finished, progress=False)
    with torch.no_grad():
        trainer.model.decoder.norm.bias[0] = torch.inf
    before = weights(trainer)
    message = f"step {finished + 1}: loss (nan|inf), gradient norm nan, at learning rate 0.00"
    with pytest.raises(FloatingPointError, match=message):
        trainer.fit(progress=False)
    assert trainer.step == len(trainer.history) == finished
    assert_same_weights(trainer.model, before)


def test_loss_falls_and_the_pairs_are_learned_by_heart(trained):
    losses = [row["loss"] for row in trained.history]
    assert losses[0] > 1.5
    assert sum(losses[-10:]) / 10 < losses[0] / 2
    assert trained.trained().translate(TEXTS) == [text[::-1] for text in TEXTS]


def test_average_is_over_the_weights_of_all_steps():
    trainer, seen = copying_trainer(6, ema_decay=0.6), []
    while trainer.step < 6:
        trainer.fit(trainer.step + 1, progress=False)
        seen.append(weights(trainer))
    shares = [0.6 ** (6 - step) for step in range(1, 7)]
    averaged = trainer.averaged()
    assert not averaged.training
    for name, parameter in averaged.named_parameters():
        both = zip(shares, seen, strict=True)
        mean = sum(share * at[name].double() for share, at in both) / sum(shares)
        assert_same(parameter.detach().double(), mean, 1e-6)
        assert torch.equal(trainer.model.get_parameter(name), seen[-1][name]), name


def test_exact_match_counts_whole_texts(trained):
    share = trained.trained().exact_match
    wrong = [mt.TextPair("a", "a "), mt.TextPair("b c", "c"), mt.TextPair("d b", "b  d")]
    assert share(iter(PAIRS)) == 1.0
    assert share(wrong) == 0.0
    assert share([*PAIRS, *map(list, wrong)]) == pytest.approx(10 / 13)
    assert share(PAIRS, max_new_tokens=2) == 0.6  # of ten, six have no more words


def test_what_cannot_be_trained_on_is_refused_at_once():
    other, longest = copying_trainer(6), "a " * 63

    def make(*pairs):
        return mt.Trainer(other.model, pairs, *other.tokenizers.values(), other.config)

    make((longest, "b"), ("b", longest))
    for pair in ((longest + "a", "b"), ("b", longest + "a")):
        message = r"pair 1: a text of 65 positions is longer than max_len=64: 'a a a"
        with pytest.raises(ValueError, match=message):
            make(PAIRS[0], pair)
    for pair in ("ab", ("a",), ("a", 3), {"a": "b", "c": "d"}):
        message = rf"pairs must be of two texts each, but number 1 is {re.escape(repr(pair))}"
        with pytest.raises(TypeError, match=message):
            make(PAIRS[0], pair)
    with pytest.raises(ValueError, match="at least 1 text to train on, got 0"):
        make()
    with pytest.raises(ValueError, match="5 positions is longer than max_tokens_per_batch=4"):
        copying_trainer(6, max_tokens_per_batch=4)


def test_model_that_does_not_generate_is_refused():
    """BERT sees the tokens that it would be asked for: its loss would be near 0, for nothing."""
    letters = mt.CharacterTokenizer.train(SAYING)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1}
    model = BERTForMaskedLM(BERTConfig(vocab_size=letters.vocab_size, **sizes))
    with pytest.raises(TypeError, match="model must generate text, got a BERTForMaskedLM"):
        mt.LanguageModelTrainer(model, SAYING, letters, mt.TrainingConfig())


def test_model_and_tokenizers_pad_with_the_same_id(tmp_path):
    """Else one would take the padding of the other for a token."""
    trainer = copying_trainer(6)
    model, (src, tgt) = trainer.model, trainer.tokenizers.values()
    tgt.pad_id = 4
    with pytest.raises(ValueError, match="tokenizer tgt has pad_id=4, the model 0"):
        mt.Translator(model, src, tgt)
    trainer.model = model = mt.Transformer(replace(model.config, pad_id=4))
    trainer.save(tmp_path / "model")
    for refuse in (
        lambda: mt.Trainer(model, PAIRS, src, tgt, trainer.config),
        lambda: mt.Translator(model, src, tgt),
        lambda: model.save_pretrained(tmp_path / "folder", src=src, tgt=tgt),
        lambda: mt.Translator.load(tmp_path / "model"),
        lambda: mt.Trainer.resume(tmp_path / "model", PAIRS),
    ):
        with pytest.raises(ValueError, match="tokenizer src has pad_id=0, the model 4"):
            refuse()
