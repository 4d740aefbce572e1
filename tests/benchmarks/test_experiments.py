"""Settings change what they name, rivals do the same work, and formulas find what is true."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import randn

import minitransformer as mt
from benchmarks.experiments import (
    ablation_settings,
    ablations,
    efficient_attention,
    gallery,
    mixture_of_experts,
    preferences,
    scaling_fit,
    scaling_law,
    since_2017,
    speedrun,
)
from minitransformer.efficient_attention import LatentCache
from minitransformer.tasks.recipes import FAST


def differing(one, other):
    """The fields in which two dataclasses differ."""
    one, other = asdict(one), asdict(other)
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize("task", ["number-words", "grammar", "text"])
def test_each_setting_changes_exactly_what_it_names(task):
    tokenizer = SimpleNamespace(vocab_size=23)
    data = SimpleNamespace(tokenizers={"src": tokenizer, "tgt": tokenizer})
    ids = torch.randint(1, 23, (3, 6), generator=torch.Generator().manual_seed(1))

    def made(setting):
        run = ablations.Run(task, setting, 1.0, 7)
        options = ablations.configured(run)
        model = ablations.new_model(run, data).eval()
        with torch.no_grad():
            logits = model(*[ids] * (1 if task == "text" else 2))
        return model, mt.TrainingConfig(**options["training"]), options["data"], logits

    usual = made(ablation_settings.BASELINE)
    for factor in ablation_settings.FACTORS:
        for setting in ablation_settings.settings_of(task, factor):
            model, training, options, logits = made(setting)
            assert differing(model.config, usual[0].config) == setting.model.keys(), setting
            assert differing(training, usual[1]) == setting.training.keys(), setting
            assert {k for k in options if options[k] != usual[2][k]} == setting.data.keys()
            last = model.decoder.layers[-1]
            if setting.change == "relative":  # whose biases start at 0
                assert last.self_attention.position_bias
            elif setting.change == "dropout inside":  # only while training
                assert last.self_attention.attention.dropout == last.feed_forward.dropout.p == 0.1
            elif setting.change:  # what no configuration shows is seen in what is computed
                alone = ablation_settings.Setting(setting.name, factor, setting.model)
                assert not torch.allclose(logits, made(alone)[3])


def test_each_switch_since_2017_changes_what_is_computed(monkeypatch):
    monkeypatch.setitem(since_2017.SHAPE, "d_model", 16)
    monkeypatch.setitem(since_2017.SHAPE, "d_ff", 27)
    ids = torch.arange(1, 15).reshape(2, 7)
    found = [since_2017.new_model(20, on, 0)(ids) for on in since_2017.SETTINGS.values()]
    for index, logits in enumerate(found):
        assert torch.isfinite(logits).all()
        # Before training "no biases" is the same: biases start at 0.
        assert sum(torch.allclose(logits, other, atol=1e-6) for other in found[:index]) <= 1


# --- the speedrun


@pytest.fixture
def pairs(monkeypatch):
    """A few pairs in place of each task of pairs, and a short text of Shakespeare's."""
    few = [mt.TextPair("a dog runs", "ein Hund rennt"), mt.TextPair("dogs run", "Hunde rennen")]
    letters = torch.randint(5, (900,), generator=torch.Generator().manual_seed(1)).tolist()
    text = "".join("abcde"[i] for i in letters)
    held_out = [text[i : i + 7] for i in range(0, 60, 6)]
    splits = {"train": [text], "held_out": held_out}
    monkeypatch.setitem(speedrun.SPLITS, "grammar", lambda seed: {"train": few, "held_out": few})
    monkeypatch.setitem(speedrun.SPLITS, "shakespeare", lambda seed: splits)
    for cached in (speedrun.splits_of, speedrun.tokenizers_of):
        cached.cache_clear()
    yield few
    for cached in (speedrun.splits_of, speedrun.tokenizers_of):
        cached.cache_clear()


@pytest.mark.parametrize("task", ["grammar", "shakespeare"])
def test_torch_and_ours_learn_alike(pairs, task):
    recipe = replace(speedrun.TASKS[task].recipe(0), dropout=0.0, steps=200, batch_size=3)
    trainers = [
        speedrun.new_trainer(task, replace(recipe, library=name), 1) for name in ("torch", "ours")
    ]
    held_out = speedrun.splits_of(task, 1)["held_out"]
    for _ in range(2):
        losses = [trainer.loss(trainer.epoch(0)[0]).item() for trainer in trainers]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
        nats = [
            speedrun.held_out_nats(t.model, held_out, tuple(t.tokenizers.values()))
            for t in trainers
        ]
        assert nats[0] == pytest.approx(nats[1], abs=1e-4)
        for trainer in trainers:
            trainer.train_step(trainer.epoch(0)[0])


def test_the_command_has_the_record_of_grammar(pairs):
    task = speedrun.TASKS["grammar"]
    record = speedrun.new_trainer("grammar", task.recipe(len(task.records) - 1), 7)
    job = replace(FAST["grammar"], splits=lambda seed: {"train": pairs})
    command = job.new_trainer(mt.TrainingConfig(seed=7, **job.settings))
    assert command.config == record.config
    assert command.model.config == record.model.config
    weights = command.model.state_dict()
    assert all(torch.equal(weights[name], w) for name, w in record.model.state_dict().items())


def test_records_are_small_diffs():
    for task in speedrun.TASKS.values():
        for number, record in enumerate(task.records[1:], start=1):
            assert differing(task.recipe(number), task.recipe(number - 1)) == record.changes.keys()
            assert task.without(number).steps == task.alone(number).steps == task.length()["steps"]


# --- the scaling law

TRUTH = scaling_fit.Law(E=0.6, A=12.0, B=60.0, alpha=0.35, beta=0.4)


def made_up(noise, seed):
    """Runs of seven sizes and four budgets, with noise in their log losses."""
    draw = np.random.default_rng(seed)
    sizes, budgets = np.geomspace(1e4, 2e6, 7), 32768 * 2 ** np.arange(4)
    return [
        (n, d, TRUTH.loss(n, d) * np.exp(draw.normal(0, noise))) for n in sizes for d in budgets
    ]


def test_the_fit_finds_the_law():
    assert scaling_fit.fit(*zip(*made_up(0.0, 0), strict=True)) == pytest.approx(TRUTH, rel=1e-4)
    n, d, losses = (np.array(column) for column in zip(*made_up(0.002, 1), strict=True))
    losses[5] *= 1.5  # one bad run moves squares, and not Huber's loss
    off = [
        np.abs(np.log(scaling_fit.fit(n, d, losses, delta=delta).loss(n, d) / TRUTH.loss(n, d)))
        for delta in (scaling_fit.DELTA, 1.0)
    ]
    assert 5 * off[0].max() < off[1].max()
    with pytest.raises(ValueError, match=r"at least 6 points above 0 .* got 5, the smallest"):
        scaling_fit.fit([1.0] * 5, [1.0] * 5, [1.0] * 5)


def test_intervals_cover_the_truth():
    """In about 95 of 100 simulations; of a binomial of 6, fewer than 4 are rarer than 1/400."""
    covered = {"E": 0, "alpha": 0, "beta": 0, "new run": 0}
    for seed in range(6):
        found = scaling_fit.fitted(made_up(0.01, seed), samples=40)
        for name in ("E", "alpha", "beta"):
            low, high = scaling_fit.interval(getattr(found.drawn, name))
            covered[name] += low <= getattr(TRUTH, name) <= high
        new = TRUTH.loss(4.8e6, 131072) * np.exp(np.random.default_rng(1000 + seed).normal(0, 0.01))
        _, low, high = scaling_fit.prediction(found, 4.8e6, 131072)
        covered["new run"] += low <= new <= high
    assert min(covered.values()) >= 4, covered


def test_best_size_is_the_formula_where_a_token_costs_six_n():
    sizes = np.geomspace(1e4, 1e7, 8)
    ratio = TRUTH.alpha * TRUTH.A / (TRUTH.beta * TRUTH.B)
    for operations in (1e11, 1e13):
        formula = ratio ** (1 / (TRUTH.alpha + TRUTH.beta)) * (operations / 6) ** TRUTH.exponent
        best = scaling_fit.best_sizes(TRUTH, operations, sizes, 6 * sizes)
        assert best == pytest.approx(formula, rel=0.01)


def test_what_is_left_out_is_not_fitted_and_the_stream_is_the_tokenizer_s():
    tokenizer = mt.CharacterTokenizer([*scaling_law.ALPHABET])
    texts = ["def f(x):\n\treturn x", "", "Grüße, 変 ÿ \x00 |"]
    stream = scaling_law.stream_of(texts, tokenizer)
    assert torch.equal(stream, mt.token_stream(texts, tokenizer))
    runs = list(scaling_law.schedule())
    parts = {
        part: {(run.size, run.tokens) for run in runs if run.part == part}
        for part in ("fitted", "left out")
    }
    assert not parts["fitted"] & parts["left out"]
    assert all((run.unique is not None) == (run.part == "repeated") for run in runs)
    for size in scaling_law.SHAPES:
        embedding, others = scaling_law.parameters_of(size)
        number = float(size[:-1]) * {"k": 1e3, "M": 1e6}[size[-1]]
        assert embedding + others == pytest.approx(number, rel=0.13)


# --- attention that costs less


@pytest.mark.parametrize("method", efficient_attention.RECALL)
def test_no_method_peeks(method):
    torch.manual_seed(0)
    attention = efficient_attention.attention_of(method, 12, 3)
    x = randn(2, 9, 12)
    changed = x.clone()
    changed[:, 5:] = 7.0
    before, after = (attention(y, y, y, "causal")[:, :5] for y in (x, changed))
    assert torch.equal(before, after)


@pytest.mark.parametrize("method", ["full", "one head of keys", "latent"])
def test_numbers_kept_are_those_of_the_caches(method):
    attention = efficient_attention.attention_of(method, 12, 3)
    cache = LatentCache() if method == "latent" else mt.KVCache()
    x = randn(1, 7, 12)
    attention(x, x, x, "causal", cache)
    kept = [cache.latent] if method == "latent" else [cache.keys, cache.values]
    numbers = efficient_attention.numbers_kept(method, 7, 12, 3)
    assert sum(part.numel() for part in kept) == numbers


def test_held_out_texts_are_no_training_texts():
    train, held_out = efficient_attention.split()
    assert not set(train) & set(held_out)
    train, held_out = since_2017.split(since_2017.documents(100_000))
    paragraphs = {part for text in held_out for part in text.split("\n\n")}
    assert not any(part in paragraphs for text in train for part in text.split("\n\n"))


def test_parts_of_a_batch_are_the_whole(monkeypatch):
    """Where parts have equally many targets; without dividing the gradient is too long."""
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)
    sizes = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = mt.TransformerConfig(src_vocab_size=17, tgt_vocab_size=19, d_ff=20, **sizes)
    model = mt.Transformer(config, torch.Generator().manual_seed(0)).eval()
    batch = mt.collate([mt.Example([3, 4, 2], [1, 4, 3, 2])] * 8)
    found = []
    for how in ({}, {"parts": 4}, {"parts": 4, "divides": False}):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model.zero_grad()
        gallery.train_step(model, batch, optimizer, gallery.Loop(**how))
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], 4 * found[0])


# --- answers


def test_whole_rows_have_all_targets_and_read_the_same():
    words = mt.WordTokenizer.train(["one two three ="])
    pairs, settings = [("one two =", "three"), ("one =", "one two")], mt.TrainingConfig()
    config = mt.TransformerConfig.decoder_only(words.vocab_size, d_model=8, num_heads=2)
    model = mt.DecoderOnlyTransformer(config)
    answers, whole = (
        kind(model, pairs, words, settings)
        for kind in (preferences.AnswerTrainer, preferences.WholeRows)
    )
    rows = [words.stream_ids(f"{question} {answer}") for question, answer in pairs]
    for one, other, row in zip(answers.examples, whole.examples, rows, strict=True):
        assert one.src == other.src == row[:-1]
        assert other.tgt == row


def test_points_pay_for_a_right_token_each_time_and_the_rule_does_not(monkeypatch):
    monkeypatch.setattr(preferences, "TAUGHT", 40)
    monkeypatch.setattr(preferences, "ASKED", 40)
    numbers = preferences.Numbers(0)
    prompt, answer = numbers.asked[0]
    assert numbers.is_right(prompt, answer) == 1
    assert numbers.is_right(prompt, answer[:-1]) == numbers.is_right(prompt, answer[:1] * 9) == 0
    assert numbers.points(prompt, answer) == len(answer)
    assert numbers.points(prompt, answer[:1] * 99) == 99


def test_mixtures_have_as_many_active_parameters_as_the_dense_model():
    sizes = {}
    for name, setting in mixture_of_experts.SETTINGS.items():
        model = mixture_of_experts.new_model(20, setting, 0)
        sizes[name] = mixture_of_experts.active(model), sum(p.numel() for p in model.parameters())
    dense, wide = sizes["dense"][0], sizes["wide"][1]
    (active, parameters), routers = sizes["8 experts"], 2 * 64 * 8
    assert (active - routers, parameters - routers) == (dense, wide)


def test_what_a_token_explains_of_its_expert():
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    assert mixture_of_experts.explained(labels, labels, 3, 3) == pytest.approx(1)
    assert mixture_of_experts.explained(labels, torch.zeros(6).long(), 3, 1) == pytest.approx(0)
    halves = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1])
    # H(1/2) - (3/4) H(1/3), divided by H(1/2) = 1 bit
    assert mixture_of_experts.explained(*halves, 2, 2) == pytest.approx(0.3113, abs=1e-4)
    kinds = [mixture_of_experts.kind_of(text) for text in ("\n  ", " the", "ing", "12", " (", "_")]
    assert kinds == [0, 1, 2, 3, 4, 4]
