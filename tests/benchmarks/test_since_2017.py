"""The comparison of chapter 12: its switches switch what they say, and its file has its shape."""

import json
import statistics
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minitransformer import LayerNorm, RMSNorm

FOLDER = Path(__file__).parents[2] / "benchmarks"
SHAPE = {"num_layers": 2, "d_model": 12, "num_heads": 6, "d_ff": 27, "dropout": 0.0}
VOCAB_SIZE = 31


@pytest.fixture(scope="module")
def since_2017():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import since_2017

        yield since_2017


@pytest.fixture
def new_model(since_2017):
    """A small model with these switches on."""
    return lambda *switches: since_2017.new_model(VOCAB_SIZE, frozenset(switches), SHAPE, 16, 0)


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def run(program, out, *options):
    """What the program writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["since_2017.py", "--quick", "--out", str(out), *options])
        program.main()
    return json.loads(out.read_text(encoding="utf-8"))


# --- the switches ----------------------------------------------------------------------------


def test_settings_differ_in_one_switch(since_2017):
    """But for GELU and SwiGLU, which stand in one place, as the two starts do."""
    for switch, rest, name, other in since_2017.COMPARISONS:
        on, off = since_2017.SETTINGS[name], since_2017.SETTINGS[other]
        if switch == "all":
            assert (on, off) == (since_2017.MODERN, frozenset())
        elif switch == "swiglu over gelu":
            assert (on - off, off - on) == ({"swiglu"}, {"gelu"})
        else:
            assert (on - off, off - on) == ({switch}, frozenset())
        assert (len(on) > 5) == (rest == "modern" or switch == "all")


def test_each_switch_is_measured_from_both_sides(since_2017):
    rows = [(switch, rest) for switch, rest, *_ in since_2017.COMPARISONS]
    assert len(set(rows)) == len(rows) == 2 * len(since_2017.SWITCHES) + 3
    for switch in since_2017.SWITCHES:
        assert {(switch, "2017"), (switch, "modern")} <= set(rows)


def test_base_is_the_paper_s(new_model):
    model = new_model()
    config, layer = model.config, model.decoder.layers[0]
    assert not config.norm_first
    assert config.positional_encoding == "sinusoidal"
    assert isinstance(layer.residual_1.norm, LayerNorm)
    assert layer.self_attention.num_kv_heads == 6
    assert layer.self_attention.norm_q is None
    assert layer.feed_forward.w_3 is None
    assert model.output_projection.weight is model.embedding.weight
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert all(part.bias is not None for part in linears)


def test_modern_is_a_little_llama(since_2017, new_model):
    model = new_model(*since_2017.MODERN)
    config, layer = model.config, model.decoder.layers[1]
    assert config.norm_first
    assert isinstance(model.decoder.norm, RMSNorm)
    assert layer.self_attention.rotary is not None
    assert layer.self_attention.num_kv_heads == 3
    assert layer.self_attention.norm_k.weight.shape == (2,)
    assert layer.feed_forward.w_3.weight.shape == (18, 12)
    assert model.output_projection.weight is not model.embedding.weight
    assert not any("bias" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("switch", "added"),
    [
        ("pre-norm", 24),  # γ and β of the norm at the end
        ("rms norm", -2 * 2 * 12),
        ("rotary", 0),
        ("gelu", 0),
        ("swiglu", 2 * (18 - 27 + 18)),  # f and a second f of biases; as many weights
        ("grouped heads", -2 * 2 * (12 * 6 + 6)),
        ("no biases", -2 * (4 * 12 + 27 + 12)),
        ("qk norm", 2 * 2 * 2),
        ("untied", VOCAB_SIZE * 12),
        ("start", 0),
        ("wide start", 0),
    ],
)
def test_switch_adds_parameters(new_model, switch, added):
    assert size(new_model(switch)) - size(new_model()) == added


def test_each_switch_changes_what_is_computed(since_2017, new_model):
    ids = torch.arange(1, 15).reshape(2, 7)
    found = [new_model(*switches)(ids) for switches in since_2017.SETTINGS.values()]
    for index, logits in enumerate(found):
        assert torch.isfinite(logits).all()
        # Before training "no biases" is the same: biases start at 0.
        others = found[:index]
        assert sum(torch.allclose(logits, other, atol=1e-6) for other in others) <= 1


@pytest.mark.parametrize(("switch", "std"), [("start", 0.02), ("wide start", 0.05)])
def test_start_is_gpt_2_s(since_2017, switch, std):
    shape = SHAPE | {"d_model": 120, "d_ff": 270, "num_layers": 8}  # √(768 / 120) = 2.53
    model = since_2017.new_model(400, frozenset({switch}), shape, 16, 0)
    layer = model.decoder.layers[5]
    for weight in (model.embedding.weight, layer.self_attention.w_q.weight):
        assert weight.std().item() == pytest.approx(std, rel=0.04)
    for last in (layer.self_attention.w_o, layer.feed_forward.w_2):
        assert last.weight.std().item() == pytest.approx(std / 4, rel=0.04)  # √(2·8)


def test_model_depends_on_the_seed_alone(since_2017):
    switches = since_2017.MODERN
    one, same, other = (since_2017.new_model(31, switches, SHAPE, 16, seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


# --- the measurement -------------------------------------------------------------------------


def test_no_held_out_paragraph_is_trained_on(since_2017):
    texts = [f"number {n}\n\nshared by {n // 3}\n\nby all" for n in range(60)]
    train, held_out = since_2017.split(texts)
    assert len(held_out) == 3
    seen = {part for text in train for part in text.split("\n\n")}
    assert seen.isdisjoint(part for text in held_out for part in text.split("\n\n"))
    assert len(seen) > 60


def test_texts_are_as_many_as_are_asked_for(since_2017):
    few, more = (since_2017.documents(size) for size in (0, 700_000))
    assert sum(map(len, few)) < 700_000 <= sum(map(len, more))
    assert few == more[: len(few)]


def test_interval_is_student_s(since_2017):
    assert since_2017.half_width([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2.0540, abs=1e-4)


def test_run_that_became_infinite_is_missing(since_2017):
    assert since_2017.best({0.1: None, 0.2: 3.0, 0.3: 2.0}) == 0.3
    settings = {name: {"bits": [2.0, 3.0]} for name in since_2017.SETTINGS}
    settings["modern"]["bits"] = [None, 2.5]
    rows = {(row["switch"], row["rest"]): row for row in since_2017.comparisons(settings)}
    broken, whole = rows["all", "2017"], rows["rotary", "2017"]
    assert broken["differences"] == [None, -0.5]
    assert [broken[key] for key in ("difference", "low", "high", "excludes_zero")] == [None] * 4
    assert whole["difference"] == whole["low"] == whole["high"] == 0
    assert not whole["excludes_zero"]


def assert_has_its_shape(program, found, num_seeds):
    """What the docstring says of a results file."""
    assert list(found) == [
        "made", "text", "model", "training", "rates", "selection_seed", "seeds", "switches",
        "settings", "comparisons",
    ]  # fmt: skip
    assert len(found["seeds"]) == num_seeds
    assert found["selection_seed"] not in found["seeds"]
    assert list(found["switches"]) == list(program.SWITCHES)
    assert found["settings"].keys() == program.SETTINGS.keys()
    for name, row in found["settings"].items():
        assert set(row["switches"]) == program.SETTINGS[name]
        assert row["selection"].keys() == {f"{rate:g}" for rate in found["rates"]}
        assert row["selection"][f"{row['rate']:g}"] == min(row["selection"].values())
        assert len(row["bits"]) == num_seeds
        assert row["mean"] == pytest.approx(statistics.mean(row["bits"]))
        assert all(0 < bits < 20 for bits in row["bits"])
    assert len(found["comparisons"]) == len(program.COMPARISONS)
    for row in found["comparisons"]:
        means = (found["settings"][row[key]]["mean"] for key in ("with", "without"))
        assert row["difference"] == pytest.approx(next(means) - next(means))
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["excludes_zero"] == (row["low"] > 0 or row["high"] < 0)


@pytest.mark.slow
def test_quick_run_writes_its_results_and_goes_on(since_2017, tmp_path, monkeypatch, capsys):
    out = tmp_path / "found.json"
    train, trained = since_2017.Measurement.train, []

    def interrupted(self, *options):
        if len(trained) == 80:
            raise KeyboardInterrupt
        trained.append(options)
        return train(self, *options)

    with monkeypatch.context() as patch:
        patch.setattr(since_2017.Measurement, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(since_2017, out)
        assert not out.exists()
        trained.clear()
        found = run(since_2017, out)
    runs_of_each = len(since_2017.RATES) + 2  # the first 80 are not done again
    assert len(trained) == len(since_2017.SETTINGS) * runs_of_each - 80
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert found["made"]["quick"]
    assert_has_its_shape(since_2017, found, 2)
    assert capsys.readouterr().out.splitlines()[-1].startswith("swiglu over gelu  modern")


def test_committed_results_are_of_this_program(since_2017):
    found = json.loads((FOLDER / "since_2017.json").read_text(encoding="utf-8"))
    assert_has_its_shape(since_2017, found, len(found["seeds"]))
    assert not found["made"]["quick"]
    assert len(found["seeds"]) >= 3
    assert found["model"] == since_2017.SHAPE
    assert found["training"] == since_2017.TRAINING | {"label_smoothing": 0.0}
    assert found["rates"] == list(since_2017.RATES)
    tokens_per_character = found["text"]["train_tokens"] / found["text"]["train_characters"]
    assert 0.2 < tokens_per_character < 1


@pytest.mark.parametrize("count", [1, 11])
def test_number_of_seeds_is_refused(since_2017, tmp_path, capsys, count):
    with pytest.raises(SystemExit):
        run(since_2017, tmp_path / "x.json", "--seeds", *map(str, range(count)))
    assert f"--seeds must be 2 to 10, got {count}" in capsys.readouterr().err
