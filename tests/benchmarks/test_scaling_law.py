"""The scaling law: the fit finds what is true, its intervals cover it, and runs go on after any
interruption."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import minitransformer as mt
from minitransformer.files import locked

FOLDER = Path(__file__).parents[2] / "benchmarks"
NUMBERS = ("E", "A", "B", "alpha", "beta")


@pytest.fixture(scope="module")
def modules():
    """Both files, as modules: the fit and the program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import scaling_fit
        import scaling_law

        yield scaling_fit, scaling_law


@pytest.fixture
def fits(modules):
    return modules[0]


@pytest.fixture
def program(modules):
    return modules[1]


@pytest.fixture
def truth(fits):
    return fits.Law(E=0.6, A=12.0, B=60.0, alpha=0.35, beta=0.4)


def made_up(truth, noise, seed, seeds=1):
    """Runs of seven sizes and four budgets, with noise in their log losses."""
    draw = np.random.default_rng(seed)
    sizes, budgets = np.geomspace(1e4, 2e6, 7), 32768 * 2 ** np.arange(4)
    return [
        (n, d, truth.loss(n, d) * np.exp(draw.normal(0, noise)))
        for n in sizes
        for d in budgets
        for _ in range(seeds)
    ]


# --- the fit


def test_law_by_hand(fits):
    law = fits.Law(1.0, 8.0, 9.0, 0.5, 1.0)
    assert law.loss(16.0, 3.0) == pytest.approx(1 + 8 / 4 + 9 / 3)
    assert law.exponent == pytest.approx(1 / 1.5)
    many = fits.Law(*(np.array([entry, entry]) for entry in law))
    assert many.loss(16.0, 3.0) == pytest.approx([6.0, 6.0])
    assert many.loss(np.array([16.0, 64.0, 4.0]), 3.0).shape == (2, 3)


def test_fit_without_noise_is_exact(fits, truth):
    law = fits.fit(*zip(*made_up(truth, 0.0, 0), strict=True))
    assert law == pytest.approx(truth, rel=1e-4)


def test_gradients_are_those_of_differences(fits):
    draw = np.random.default_rng(0)
    theta, x, y = draw.normal(size=(3, 5)), draw.normal(size=4), draw.normal(size=4)
    _, slope = fits.predicted(theta, x, y)
    for place in range(5):
        step = 1e-6 * np.eye(5)[place]
        ahead, behind = (fits.predicted(theta + sign * step, x, y)[0] for sign in (1, -1))
        assert slope[..., place] == pytest.approx((ahead - behind) / 2e-6, abs=1e-8)


def test_huber_by_hand(fits):
    residuals, weights = np.array([[0.5, -3.0]]), np.array([1.0, 2.0])
    assert fits.objective(residuals, weights, 1.0) == pytest.approx([0.125 + 2 * (3 - 0.5)])


def test_one_bad_run_moves_squares_and_not_huber(fits, truth):
    n, d, losses = (np.array(column) for column in zip(*made_up(truth, 0.002, 1), strict=True))
    losses[5] *= 1.5
    off = {
        delta: np.abs(np.log(fits.fit(n, d, losses, delta=delta).loss(n, d) / truth.loss(n, d)))
        for delta in (fits.DELTA, 1.0)
    }
    assert 5 * off[fits.DELTA].max() < off[1.0].max()


def test_weights_are_repeated_points(fits, truth):
    n, d, losses = (np.array(column) for column in zip(*made_up(truth, 0.01, 2), strict=True))
    twice = np.array([3, 3, 7])
    weights = np.ones(len(n))
    weights[3] += 2
    weights[7] += 1
    repeated = fits.fit(*(np.append(column, column[twice]) for column in (n, d, losses)))
    assert fits.fit(n, d, losses, weights) == pytest.approx(repeated, rel=1e-3)
    many = fits.fit(n, d, losses, np.stack([weights, np.ones(len(n))]))
    assert [entry[0] for entry in many] == pytest.approx(repeated, rel=1e-3)


def test_too_few_or_impossible_points_are_refused(fits):
    with pytest.raises(ValueError, match=r"at least 6 points above 0 .* got 5, the smallest"):
        fits.fit([1.0] * 5, [1.0] * 5, [1.0] * 5)
    with pytest.raises(ValueError, match="got 6, the smallest entry 0"):
        fits.fit([1.0] * 6, [1.0] * 6, [1.0] * 5 + [0.0])
    with pytest.raises(ValueError, match="got 0, the smallest entry 0"):
        fits.fit([], [], [])


def test_intervals_cover_the_truth(fits, truth):
    """In about 95 of 100 simulations; with 28 points for five numbers, somewhat fewer."""
    covered, simulations = dict.fromkeys([*NUMBERS, "new run"], 0), 30
    for seed in range(simulations):
        found = fits.fitted(made_up(truth, 0.01, seed), samples=80)
        for name in NUMBERS:
            low, high = fits.interval(getattr(found.drawn, name))
            covered[name] += low <= getattr(truth, name) <= high
        draw = np.random.default_rng(1000 + seed)
        new = truth.loss(4.8e6, 131072) * np.exp(draw.normal(0, 0.01))
        _, low, high = fits.prediction(found, 4.8e6, 131072)
        covered["new run"] += low <= new <= high
    # Of a binomial of 30 and 0.95, fewer than 24 are rarer than one in a thousand.
    assert all(count >= 24 for count in covered.values()), covered


def test_seeds_of_a_pair_are_one_point(fits, truth):
    """What the law does not know of a pair, all its seeds share: more of them tell nothing new."""
    runs = made_up(truth, 0.02, 3)
    doubled = [run for run in runs for _ in range(4)]
    widths = {}
    for name, points, by_run in (
        ("once", runs, False),
        ("four times", doubled, False),
        ("as if independent", doubled, True),
    ):
        found = fits.fitted(points, samples=200, by_run=by_run)
        low, high = fits.interval(found.drawn.alpha)
        widths[name] = high - low
    assert widths["four times"] == pytest.approx(widths["once"], rel=1e-6)
    assert widths["as if independent"] < 0.7 * widths["once"]


def test_best_size_is_the_formula_where_a_token_costs_six_n(fits, truth):
    sizes = np.geomspace(1e4, 1e7, 8)
    for operations in (1e11, 1e13):
        ratio = truth.alpha * truth.A / (truth.beta * truth.B)
        formula = ratio ** (1 / (truth.alpha + truth.beta)) * (operations / 6) ** truth.exponent
        assert fits.best_sizes(truth, operations, sizes, 6 * sizes) == pytest.approx(
            formula, rel=0.01
        )
    many = fits.Law(*(np.array([entry, entry]) for entry in truth))
    assert fits.best_sizes(many, 1e11, sizes, 6 * sizes).shape == (2,)


def test_dearer_tokens_make_the_best_model_smaller(fits, truth):
    sizes = np.geomspace(1e4, 1e7, 8)
    plain = fits.best_sizes(truth, 1e12, sizes, 6 * sizes)
    steep = fits.best_sizes(truth, 1e12, sizes, 6 * plain * (sizes / plain) ** 1.5)
    assert steep < plain


# --- the plan


def test_sizes_are_what_they_are_called(program):
    for size in program.SHAPES:
        embedding, others = program.parameters_of(size)
        model = mt.DecoderOnlyTransformer(program.config_of(size))
        assert embedding == model.embedding.weight.numel()
        assert embedding + others == sum(weight.numel() for weight in model.parameters())
        number = float(size[:-1]) * {"k": 1e3, "M": 1e6}[size[-1]]
        assert embedding + others == pytest.approx(number, rel=0.13)
    assert list(program.SIZES) == sorted(program.SIZES, key=lambda s: sum(program.parameters_of(s)))


def test_operations_are_six_for_each_weight_and_attention(program):
    width, layers, _ = program.SIZES["60k"]
    weights = 12 * width**2 * layers + program.config_of("60k").tgt_vocab_size * width
    per_token = 6 * weights + 12 * layers * width * program.CONTEXT
    assert program.operations_of("60k", 10) == 10 * per_token


def test_what_is_left_out_is_not_fitted(program):
    runs = list(program.schedule())
    assert len(runs) == len(set(runs))
    fitted = {(run.size, run.tokens) for run in runs if run.part == "fitted"}
    left_out = {(run.size, run.tokens) for run in runs if run.part == "left out"}
    assert not fitted & left_out
    assert "5M" not in {size for size, _ in fitted}
    assert program.BUDGETS[-1] not in {tokens for _, tokens in fitted}
    assert {size for size, _ in fitted | left_out} == set(program.SIZES)
    assert {run.size for run in program.schedule(larger=True)} - set(program.SIZES) == set(
        program.LARGER
    )
    order = list(dict.fromkeys(run.part for run in runs))
    assert order == ["rates", "fitted", "left out", "repeated"]
    first = runs[: [run.part for run in runs].index("left out")]
    assert len({(run.size, run.tokens) for run in first if run.part == "fitted"}) >= 15


def test_nothing_but_repeated_is_read_twice(program):
    assert program.BUDGETS[-1] < len(program.text_of().stream)
    for run in program.schedule():
        assert (run.unique is not None) == (run.part == "repeated")


def test_rates_fall_with_the_size(program):
    rates = [program.rate_of(size) for size in program.SIZES]
    assert rates == sorted(rates, reverse=True)
    for size, (_, tried) in program.RATED.items():
        assert min(tried) <= program.rate_of(size) <= max(tried)


# --- the text


def test_stream_is_the_tokenizer_s(program):
    tokenizer = mt.CharacterTokenizer([*program.ALPHABET])
    texts = ["def f(x):\n\treturn x", "", "Grüße, 変 ÿ \x00 |"]
    assert torch.equal(program.stream_of(texts, tokenizer), mt.token_stream(texts, tokenizer))


def test_modules_are_split_by_their_names(program, tmp_path):
    for name in ("glob", "queue", "os", "_sysconfigdata__linux"):
        (tmp_path / f"{name}.py").write_text(name, encoding="utf-8")
    assert program.modules(tmp_path) == {"glob": "glob", "queue": "queue", "os": "os"}
    assert [program.is_held_out(name) for name in ("glob", "queue", "os")] == [True, True, False]
    text = program.text_of()
    assert text.held_out.shape == (program.HELD_OUT_ROWS, program.CONTEXT + 1)
    assert 0 <= text.held_out[:, 1:].numel() - text.characters < 20


# --- the file


@pytest.fixture
def tiny(program, monkeypatch):
    """Trainings of two steps."""
    monkeypatch.setattr(program, "BUDGETS", (256, 512, 512, 512, 512))


def fake_row(program, run):
    """What a run would have written."""
    embedding, others = program.parameters_of(run.size)
    n = embedding + others
    wobble = 1 + 0.01 * ((len(run.size) * run.seed + run.tokens // 256) % 3)
    return {
        **run._asdict(),
        "plan": program.plan_of(run),
        "texts": program.text_of().fingerprint,
        "embedding": embedding,
        "others": others,
        "outcome": "ended",
        "loss": (1 + 10 / n**0.3 + 20 / run.tokens**0.3) * wobble,
        "cpu_seconds": 1.0,
    }


def interrupted_after(program, monkeypatch, out, count):
    """Run `main` with a training that takes no time, up to an interruption; what it trained."""
    calls = []

    def train(run, device):
        calls.append(run)
        if len(calls) > count:
            raise KeyboardInterrupt
        return fake_row(program, run)

    monkeypatch.setattr(program, "train", train)
    monkeypatch.setattr(sys, "argv", ["scaling_law", "--out", str(out)])
    try:
        program.main()
    except KeyboardInterrupt:
        return calls[:-1]
    return calls


def without_times(path):
    """The lines of a file but for when they were made."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name != "made"} for row in rows]


def test_what_was_interrupted_and_torn_ends_as_what_was_not(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "SAMPLES", 20)
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    runs = list(program.schedule())
    assert interrupted_after(program, monkeypatch, whole, 10**6) == runs
    place = [run.part for run in runs].index("left out")
    for count in (5, place - 5, 2):
        interrupted_after(program, monkeypatch, torn, count)
        content = torn.read_bytes()
        torn.write_bytes(content[:-7])
        assert len(program.read(torn)[0]) <= content.count(b"\n") - 1
    interrupted_after(program, monkeypatch, torn, 10**6)
    assert without_times(torn) == without_times(whole)
    parts = [row["part"] for row in without_times(whole)]
    assert parts.index("prediction") == parts.index("left out") - 1 == place
    assert parts[-1] == "law"
    assert interrupted_after(program, monkeypatch, whole, 10**6) == []
    assert len(without_times(whole)) == len(parts)  # nothing new, nothing written
    assert "best size" in capsys.readouterr().out


def test_other_damage_is_no_torn_line(program, tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text('{"part": \n{}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1, is no run: b'{\"part\": '"):
        program.read(out)


def test_rows_of_another_plan_do_not_count(program, tmp_path):
    out = tmp_path / "rows.jsonl"
    run = next(iter(program.schedule()))
    for row in ({"plan": "other"}, {"loss": 2.0}, {"loss": 3.0}):
        program.append(out, fake_row(program, run) | row)
    (row,) = program.read(out)[0].values()
    assert row["loss"] == 2.0  # the first of the two


def test_two_do_not_write_one_file(program, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["scaling_law", "--out", str(out)])
    with locked(out), pytest.raises(ValueError, match="being written"):
        program.main()


def test_another_text_is_refused(program, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    run = next(iter(program.schedule()))
    program.append(out, fake_row(program, run) | {"texts": "other"})
    monkeypatch.setattr(sys, "argv", ["scaling_law", "--out", str(out)])
    with pytest.raises(SystemExit):
        program.main()
    assert "are of another text: other" in capsys.readouterr().err


def test_a_law_of_the_runs_so_far(program, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "SAMPLES", 20)
    out = tmp_path / "rows.jsonl"
    interrupted_after(program, monkeypatch, out, 40)
    rows = program.read(out)[0]
    monkeypatch.setattr(sys, "argv", ["scaling_law", "--law", "--out", str(out)])
    for _ in range(2):
        program.main()
    assert program.read(out)[0] == rows
    laws = [line for line in without_times(out) if line["part"] == "law"]
    assert [law["runs"] for law in laws] == [len(program.runs_of(rows, ("fitted", "left out")))]
    assert [best["operations"] for best in laws[0]["best"]] == list(program.OPERATIONS)
    assert laws[0]["others"].keys() == {"without embedding", "seeds as points", "squares"}


def test_list_says_what_remains(program, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    runs = list(program.schedule())
    program.append(out, fake_row(program, runs[0]))
    monkeypatch.setattr(sys, "argv", ["scaling_law", "--list", "--out", str(out)])
    program.main()
    assert len(capsys.readouterr().out.splitlines()) == len(runs) - 1


def test_stored_rows_are_of_this_program(program):
    if not program.FILE.exists():
        pytest.skip("there are no rows yet")
    rows, found = program.read(program.FILE)
    lines = [json.loads(line) for line in program.FILE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == sum(line["part"] not in ("prediction", "law") for line in lines)
    assert set(rows) <= set(program.schedule(larger=True))
    assert found.keys() <= {"prediction", "law"}


# --- a run


def test_a_tiny_run_writes_all_fields(program, tiny):
    run = program.Run("repeated", "10k", 512, 1e-2, 3, 256)
    row = program.train(run)
    fields = {*run._fields, "plan", "texts", "embedding", "others", "operations", "epochs"}
    fields |= {"outcome", "loss", "per_character", "cpu_seconds", "made", "device"}
    assert row.keys() == fields
    assert all(name in program.__doc__ for name in fields)
    assert row["outcome"] == "ended"
    assert row["epochs"] == pytest.approx(512 / (256 + 65), abs=1e-3)
    assert 3 < row["loss"] <= row["per_character"] < 6
    again = program.train(run)
    assert {k: again[k] for k in ("loss", "texts")} == {k: row[k] for k in ("loss", "texts")}


def test_a_run_without_a_finite_loss_says_so(program, tiny):
    row = program.train(program.Run("fitted", "10k", 1024, 1e40, 0))
    assert row["outcome"] == "not finite"
    assert "loss" not in row
    json.loads(json.dumps(row, allow_nan=False))
