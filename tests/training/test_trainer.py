"""Training learns, repeats itself exactly, and ends the same whether or not it was stopped."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import PAIRS, TEXTS, assert_same, copying_trainer

from minitransformer import (
    Checkpoint,
    TextPair,
    Trainer,
    Transformer,
    Translator,
    WordTokenizer,
    collate,
    label_smoothing_loss,
)
from minitransformer.models.registry import named_weights
from minitransformer.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def assert_same_checkpoints(path, other, *, but=()):
    """Every weight, optimiser moment, history row and setting is the same, to the last bit."""
    (tensors, state), (other_tensors, other_state) = load_checkpoint(path), load_checkpoint(other)
    assert {key: state[key] for key in state if key not in but} == {
        key: other_state[key] for key in other_state if key not in but
    }
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name


# --- it learns


def test_loss_falls_and_the_pairs_are_learned_by_heart(trained):
    losses = [row["loss"] for row in trained.history]
    assert losses[0] > 1.5
    assert sum(losses[-10:]) / 10 < losses[0] / 2
    assert trained.trained().exact_match(PAIRS) == 1.0


def test_paper_schedule_learns_too():
    trainer = copying_trainer(60, dropout=0.0, peak_learning_rate=None, warmup_steps=40)
    history = trainer.fit(progress=False)
    assert history[-1]["loss"] < history[0]["loss"] - 0.5


def test_bfloat16_learns():
    trainer = copying_trainer(60, dropout=0.0, peak_learning_rate=1e-2, precision="bf16")
    dtypes = []
    trainer.model.decoder.layers[-1].feed_forward.register_forward_hook(
        lambda _, __, output: dtypes.append(output.dtype)
    )
    history = trainer.fit(progress=False)
    assert set(dtypes) == {torch.bfloat16}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert history[-1]["loss"] < history[0]["loss"] - 0.5
    plain = copying_trainer(60, dropout=0.0, peak_learning_rate=1e-2).fit(1, progress=False)
    assert history[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.02)
    assert history[0]["loss"] != plain[0]["loss"]


# --- resume = never stopped


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resuming_equals_never_stopping(tmp_path, stop, precision):
    straight = copying_trainer(6, precision=precision)
    straight.fit(checkpoint=tmp_path / "straight", progress=False)

    copying_trainer(6, precision=precision).fit(
        stop, checkpoint=tmp_path / "stopped", progress=False
    )
    torch.manual_seed(99)
    resumed = Trainer.resume(tmp_path / "stopped", PAIRS)
    assert resumed.step == stop
    resumed.fit(checkpoint=tmp_path / "resumed", progress=False)
    assert_same_checkpoints(tmp_path / "resumed", tmp_path / "straight")
    assert len(load_checkpoint(tmp_path / "resumed")[1]["history"]) == 6


@pytest.mark.parametrize("changes", [{}, {"tie_output": False}, {"norm_first": False}], ids=str)
def test_saving_does_not_disturb_and_resuming_is_saving_the_same(tmp_path, changes):
    trainer = copying_trainer(6, model_changes=changes)
    for name in ("unstarted", "3 steps"):
        trainer.save(tmp_path / name)
        Trainer.resume(tmp_path / name, PAIRS).save(tmp_path / "again")
        assert_same_checkpoints(tmp_path / "again", tmp_path / name)
        trainer.fit(3, progress=False)
    trainer.fit(callbacks=[Checkpoint(tmp_path / "saved often", every=1)], progress=False)
    straight = copying_trainer(6, model_changes=changes)
    straight.fit(checkpoint=tmp_path / "saved once", progress=False)
    assert_same_checkpoints(tmp_path / "saved often", tmp_path / "saved once")


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
    path = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not path.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # somewhere in the middle of a later step
    assert child.poll() is None
    child.kill()
    assert child.wait(10) != 0

    resumed = Trainer.resume(path, PAIRS)
    assert 1 <= resumed.step < 30
    resumed.fit(checkpoint=path, progress=False)
    copying_trainer(30).fit(checkpoint=tmp_path / "straight", progress=False)
    assert_same_checkpoints(path, tmp_path / "straight")


RECIPES = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1, "schedule": "linear"},
    "batches by tokens": {"max_tokens_per_batch": 13},
    "in parts": {"gradient_accumulation_steps": 3},
    "ema_decay": {"ema_decay": 0.7},
    "all of it": {
        "optimizer": "adamw",
        "max_tokens_per_batch": 13,
        "gradient_accumulation_steps": 2,
        "ema_decay": 0.99,
        "precision": "bf16",
    },
}
each_recipe = pytest.mark.parametrize(
    "recipe",
    list(RECIPES.values()),
    ids=RECIPES,
)


@each_recipe
@pytest.mark.parametrize("stop", [1, 3, 6])
def test_resuming_equals_never_stopping_with_every_recipe(tmp_path, stop, recipe):
    straight = copying_trainer(8, **recipe)
    straight.fit(checkpoint=tmp_path / "straight", progress=False)
    copying_trainer(8, **recipe).fit(stop, checkpoint=tmp_path / "stopped", progress=False)
    resumed = Trainer.resume(tmp_path / "stopped", PAIRS)
    assert resumed.config == straight.config
    resumed.fit(checkpoint=tmp_path / "resumed", progress=False)
    assert_same_checkpoints(tmp_path / "resumed", tmp_path / "straight")
    unlike = copying_trainer(8)
    unlike.fit(progress=False)
    found = {name: torch.equal(w, weights(unlike)[name]) for name, w in weights(straight).items()}
    assert all(found.values()) == (recipe == {"ema_decay": 0.7})  # every other one changes training


# --- randomness


def test_training_neither_reads_nor_moves_the_global_generator():
    results = []
    for seed in (1, 2):
        trainer = copying_trainer(6)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        trainer.fit(progress=False)
        assert torch.equal(torch.get_rng_state(), before)
        results.append((trainer.history, weights(trainer)))
    assert results[0][0] == results[1][0]
    for name, weight in results[0][1].items():
        assert torch.equal(weight, results[1][1][name]), name


def test_seed_changes_dropout_and_order():
    def losses(seed, dropout):
        trainer = copying_trainer(6, seed=seed, dropout=dropout, peak_learning_rate=1e-6)
        return [row["loss"] for row in trainer.fit(progress=False)]

    assert losses(1, 0.0) == losses(1, 0.0)
    assert losses(1, 0.0) != losses(2, 0.0)  # other batches
    assert losses(1, 0.0) != losses(1, 0.3)  # dropout acts


# --- one step


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_reported_loss_is_the_smoothed_loss_of_the_batch(smoothing):
    trainer = copying_trainer(6, dropout=0.0, label_smoothing=smoothing)
    batch = collate(trainer.examples[:4])
    logits = trainer.model(batch.src, batch.tgt_input)
    expected = label_smoothing_loss(logits, batch.tgt_output, smoothing=smoothing)
    assert trainer.train_step(trainer.examples[:4])["loss"] == pytest.approx(expected.item())


def test_update_is_adam_with_the_papers_settings():
    settings = {"dropout": 0.0, "max_gradient_norm": 1e9, "peak_learning_rate": 0.05}
    trainer, twin = copying_trainer(6, **settings), copying_trainer(6, **settings)
    first, second = {}, {}
    for step in range(1, 4):
        batch = trainer.examples[step : step + 4]
        trainer.train_step(batch)
        rate = trainer.config.learning_rate(step, 12)
        gradients = {name: p.grad.double() for name, p in trainer.model.named_parameters()}
        for name, parameter in twin.model.named_parameters():
            gradient = gradients[name]
            first[name] = 0.9 * first.get(name, 0) + 0.1 * gradient
            second[name] = 0.98 * second.get(name, 0) + 0.02 * gradient**2
            mean = first[name] / (1 - 0.9**step)
            size = (second[name] / (1 - 0.98**step)).sqrt() + 1e-9
            parameter.data -= (rate * mean / size).float()
    for name, weight in weights(twin).items():
        if not name.endswith("w_k.bias"):  # softmax does not see it: its gradient is rounding
            assert_same(weights(trainer)[name], weight, 2e-4)


@pytest.mark.parametrize("parts", [2, 3, 4, 7, 11])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_in_parts_is_that_of_the_batch(parts, smoothing):
    """Also where there are more parts than rows; the mean of the parts' means is another."""
    settings = {"dropout": 0.0, "label_smoothing": smoothing, "max_gradient_norm": 1e9}
    plain, dealt = (
        copying_trainer(6, **settings),
        copying_trainer(6, gradient_accumulation_steps=parts, **settings),
    )
    batch = sorted(plain.examples, key=lambda example: len(example.tgt))
    for trainer in (plain, dealt):
        trainer.model.double()
    expected, found = plain.train_step(batch), dealt.train_step(batch)
    assert found == pytest.approx(expected, rel=1e-12)
    for (name, parameter), other in zip(
        plain.model.named_parameters(), dealt.model.parameters(), strict=True
    ):
        assert_same(other.grad, parameter.grad, 1e-12)
        assert parameter.grad.dtype == torch.float64, name
    losses = [plain.loss(batch[part::parts]).item() for part in range(min(parts, 10))]
    whole = plain.loss(batch).item()
    assert sum(losses) / len(losses) != pytest.approx(whole, rel=1e-6)


def test_parts_have_random_numbers_of_their_own():
    once, twice = copying_trainer(6), copying_trainer(6, gradient_accumulation_steps=2)
    row = once.examples[:1]
    assert once.train_step(row * 2)["loss"] != twice.train_step(row * 2)["loss"]


def test_pair_longer_than_a_batch_is_refused_at_once():
    with pytest.raises(
        ValueError, match="an example of 5 positions is longer than max_tokens_per_batch=4"
    ):
        copying_trainer(6, max_tokens_per_batch=4)


def gradient_norm(trainer):
    return sum(p.grad.double().square().sum() for p in trainer.model.parameters()).sqrt().item()


def test_long_gradients_are_clipped_to_the_limit():
    loose, tight = (
        copying_trainer(6, max_gradient_norm=1e9),
        copying_trainer(6, max_gradient_norm=0.01),
    )
    long, short = (trainer.train_step(trainer.examples[:4]) for trainer in (loose, tight))
    assert long["gradient_norm"] == short["gradient_norm"] > 0.1
    assert gradient_norm(loose) == pytest.approx(long["gradient_norm"], rel=1e-4)
    assert gradient_norm(tight) == pytest.approx(0.01, rel=1e-3)


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
    for name, weight in weights(trainer).items():
        assert torch.equal(weight, before[name]), name


# --- what comes out


def test_translator_is_what_was_trained(tmp_path, trained):
    trained.save(tmp_path / "model")
    translator = Translator.load(tmp_path / "model")
    model, (src, _) = translator.model, translator.tokenizers.values()
    assert not model.training
    assert model.config == trained.model.config
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained.model.get_parameter(name))
    assert isinstance(src, WordTokenizer)
    assert translator.translate(TEXTS) == [t[::-1] for t in TEXTS]


@pytest.mark.parametrize("beta", [0.5, 0.95])
def test_average_is_over_the_weights_of_all_steps(tmp_path, beta):
    trainer, seen = copying_trainer(6, ema_decay=beta), []
    while trainer.step < 6:
        trainer.fit(trainer.step + 1, progress=False)
        seen.append(weights(trainer))
    shares = [beta ** (6 - step) for step in range(1, 7)]
    averaged = trainer.averaged()
    assert not averaged.training
    for name, parameter in averaged.named_parameters():
        both = zip(shares, seen, strict=True)
        mean = sum(share * at[name].double() for share, at in both) / sum(shares)
        assert_same(parameter.detach().double(), mean, 1e-6)
        assert torch.equal(trainer.model.get_parameter(name), seen[-1][name]), name
    # What is loaded for use is the average, what is resumed both.
    trainer.save(tmp_path / "model")
    model = Translator.load(tmp_path / "model").model
    resumed = Trainer.resume(tmp_path / "model", PAIRS)
    for name, parameter in averaged.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
        assert torch.equal(resumed.averaged().get_parameter(name), parameter), name


def test_average_does_not_change_training_and_without_it_there_is_none(tmp_path):
    plain, averaging = copying_trainer(6), copying_trainer(6, ema_decay=0.9)
    plain.fit(progress=False)
    averaging.fit(progress=False)
    assert_same_training(averaging, plain)
    assert plain.average == {}
    copy = plain.averaged()
    for name, weight in weights(plain).items():
        assert torch.equal(copy.get_parameter(name), weight), name
        assert copy.get_parameter(name) is not plain.model.get_parameter(name)
    plain.save(tmp_path / "model")
    assert not any(name.startswith("average.") for name in load_checkpoint(tmp_path / "model")[0])


def test_loading_does_not_move_the_global_generator(tmp_path):
    copying_trainer(6).save(tmp_path / "model")
    before = torch.get_rng_state()
    Translator.load(tmp_path / "model")
    Trainer.resume(tmp_path / "model", PAIRS)
    assert torch.equal(torch.get_rng_state(), before)


def test_exact_match_counts_whole_texts(trained):
    def share(pairs):
        return trained.trained().exact_match(pairs)

    wrong = [TextPair("a", "a "), TextPair("b c", "c"), TextPair("d b", "b  d")]
    assert share(wrong) == 0.0
    assert share([*PAIRS, *wrong]) == pytest.approx(10 / 13)


def test_exact_match_of_nothing_is_refused(trained):
    with pytest.raises(ValueError, match="pairs must hold at least 1 pair, got 0"):
        trained.trained().exact_match([])


def test_training_on_nothing_is_refused():
    other = copying_trainer(6)
    with pytest.raises(ValueError, match="got 0"):
        Trainer(other.model, [], *other.tokenizers.values(), other.config).fit(progress=False)


def test_resuming_with_other_pairs_is_refused(tmp_path):
    copying_trainer(6).save(tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"trained on other texts: 10 texts, \w+, not 9 texts, \w+"
    ):
        Trainer.resume(tmp_path / "model", PAIRS[:-1])
    with pytest.raises(ValueError, match=r"10 texts, \w+, not 10 texts, \w+"):
        Trainer.resume(tmp_path / "model", [*PAIRS[1:], PAIRS[0]])


def test_checkpoint_of_something_else_is_refused(tmp_path):
    save_checkpoint(tmp_path / "other", {"weight": torch.ones(2)}, {"step": 1, "data": ""})
    with pytest.raises(
        ValueError, match=r"not written by a Trainer: no \['class', 'history', 'model'"
    ):
        Translator.load(tmp_path / "other")


# --- whatever the model and the pairs are


def assert_same_training(trainer, other):
    """The same weights and history, to the last bit; compiled or not."""
    assert trainer.history == other.history
    found, expected = named_weights(trainer.model), named_weights(other.model)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


def compiled_whole(trainer):
    trainer.model = torch.compile(trainer.model, backend="eager")


def compiled_layers(trainer):
    for stack in (trainer.model.encoder, trainer.model.decoder):
        stack.layers[0] = torch.compile(stack.layers[0], backend="eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@pytest.mark.parametrize("compiled", [compiled_whole, compiled_layers])
def test_compiled_model_is_saved_as_the_model_that_it_is(tmp_path, compiled):
    straight, stopped = (copying_trainer(6, dropout=0.0) for _ in range(2))
    straight.fit(progress=False)
    compiled(stopped)
    stopped.fit(3, checkpoint=tmp_path / "compiled", progress=False)
    resumed = Trainer.resume(tmp_path / "compiled", PAIRS)
    resumed.fit(progress=False)
    losses, expected = ([row["loss"] for row in x.history] for x in (resumed, straight))
    assert losses == pytest.approx(expected, rel=1e-5)
    stopped.model.save_pretrained(tmp_path / "folder", **stopped.tokenizers)
    model = Translator.load(tmp_path / "folder").model
    for name, weight in named_weights(stopped.model).items():
        assert torch.equal(model.get_parameter(name), weight), name


@pytest.mark.parametrize(
    ("model_changes", "frozen"),
    [
        ({}, ["tgt_embedding.weight", "encoder.layers.0.self_attention.w_q.weight"]),
        ({"tie_output": False}, ["output_projection.weight"]),
    ],
)
def test_frozen_parameters_stay_frozen(tmp_path, model_changes, frozen):
    """A tied one too: the target embedding is the output projection's weight."""

    def freezing_trainer():
        trainer = copying_trainer(6, model_changes=model_changes)
        trainer.fit(1, progress=False)
        for name in frozen:
            trainer.model.get_parameter(name).requires_grad_(False)
        return trainer

    straight, stopped = freezing_trainer(), freezing_trainer()
    before = weights(straight)
    straight.fit(progress=False)
    stopped.fit(3, checkpoint=tmp_path / "model", progress=False)
    resumed = Trainer.resume(tmp_path / "model", PAIRS)
    resumed.fit(progress=False)
    assert_same_training(resumed, straight)
    for name, weight in weights(resumed).items():
        assert torch.equal(weight, before[name]) == (name in frozen), name


def test_dropout_of_others_is_reproducible_too():
    def history():
        trainer = copying_trainer(6)
        trainer.model.dropout = torch.nn.Dropout(0.5)
        return trainer.fit(progress=False)

    assert history() == history() != copying_trainer(6).fit(progress=False)


@pytest.mark.parametrize("side", ["source", "target"])
def test_pair_too_long_is_named(side):
    other, long = copying_trainer(6), "a " * 64
    pair = (long, "b") if side == "source" else ("b", long)
    message = r"pair 10: a text of 65 positions is longer than max_len=64: 'a a a"
    with pytest.raises(ValueError, match=message):
        Trainer(other.model, [*PAIRS, pair], *other.tokenizers.values(), other.config)
    pair = tuple(text.removesuffix("a ") for text in pair)
    Trainer(other.model, [*PAIRS, pair], *other.tokenizers.values(), other.config)


def test_pairs_may_be_any_tuples_and_come_once(tmp_path):
    straight, other = copying_trainer(6), copying_trainer(6)
    tokenizers = other.tokenizers.values()
    pairs = ((src, tgt) for src, tgt in PAIRS)
    trainer = Trainer(other.model, pairs, *tokenizers, other.config)
    assert trainer.texts == PAIRS
    trainer.fit(3, checkpoint=tmp_path / "model", progress=False)
    resumed = Trainer.resume(tmp_path / "model", (list(pair) for pair in PAIRS))
    straight.fit(progress=False)
    resumed.fit(progress=False)
    assert_same_training(resumed, straight)
    share = Translator(resumed.model, *tokenizers).exact_match(iter([("a", "a"), ["b", "c"]]))
    assert share in (0.0, 0.5)


@pytest.mark.parametrize("pair", ["ab", ("a",), ("a", "b", "c"), ("a", 3), {"a": "b", "c": "d"}])
def test_what_is_no_pair_is_named(pair):
    other = copying_trainer(6)
    message = rf"pairs must be of two texts each, but number 10 is {re.escape(repr(pair))}"
    with pytest.raises(TypeError, match=message):
        Trainer(other.model, [*PAIRS, pair], *other.tokenizers.values(), other.config)


def test_model_and_tokenizers_pad_with_the_same_id(tmp_path):
    """Else what one fills up with would be a token for the other."""
    other = copying_trainer(6)
    tokenizers, config = other.tokenizers, replace(other.model.config, pad_id=4)
    model = Transformer(config)
    message = "tokenizer src has pad_id=0, the model 4"
    for refuse in (
        lambda: Trainer(model, PAIRS, *tokenizers.values(), other.config),
        lambda: Translator(model, *tokenizers.values()).exact_match(PAIRS),
        lambda: model.save_pretrained(tmp_path / "folder", **tokenizers),
    ):
        with pytest.raises(ValueError, match=message):
            refuse()
    other.model = model
    other.save(tmp_path / "model")
    for load in (Translator.load, lambda path: Trainer.resume(path, PAIRS)):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "model")


def test_exact_match_passes_options_on(trained):
    options = {"max_new_tokens": 2}  # of ten, six have no more words
    assert trained.trained().exact_match(PAIRS, **options) == 0.6
    with pytest.raises(ValueError, match="num_beams must be at least 1"):
        trained.trained().exact_match(PAIRS, num_beams=0)
