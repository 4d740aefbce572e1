"""The ablations: settings change what they name, runs go on after any interruption, and the table
counts right."""

import importlib
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from minitransformer import TrainingConfig
from minitransformer.files import locked

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "number-words": {
        "model": {
            "d_model": 16,
            "num_heads": 4,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "d_ff": 24,
            "dropout": 0.1,
            "norm_first": True,
            "max_len": 128,
        },
        "training": {
            "steps": 6,
            "batch_size": 4,
            "warmup_steps": 2,
            "peak_learning_rate": 1e-3,
            "label_smoothing": 0.1,
        },
        "data": {"size": 30, "held_out": 5, "pieces": 270},
    }
}


@pytest.fixture(scope="module")
def modules():
    """The three files, as modules: settings, program, table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import ablation_settings
        import ablation_table
        import ablations

        yield ablation_settings, ablations, ablation_table


@pytest.fixture
def settings(modules):
    return modules[0]


@pytest.fixture
def program(modules):
    return modules[1]


@pytest.fixture
def table(modules):
    return modules[2]


@pytest.fixture
def tiny(settings, program, monkeypatch):
    """One task, a hundred times smaller, which learns next to nothing."""
    monkeypatch.setattr(program, "HOPELESS", 9.0)
    for name in list(settings.BASELINES):
        monkeypatch.delitem(settings.BASELINES, name)
    for name, baseline in TINY.items():
        monkeypatch.setitem(settings.BASELINES, name, baseline)


def named(settings, name):
    """The setting of that name."""
    return next(setting for setting in settings.SETTINGS if setting.name == name)


def fake_row(program, run, loss):
    """What a run would have written."""
    looks = [{"step": n, "loss": loss, "per_character": loss, "right": 0.5} for n in range(4)]
    return {
        "task": run.task,
        "setting": run.setting.name,
        "rate": run.rate,
        "seed": run.seed,
        "plan": program.plan_of(run.task, run.setting),
        "outcome": "ended" if math.isfinite(loss) else "stopped",
        "looks": looks,
        "texts": "the same",
        "made": {"torch": "2", "processor": "one", "instructions": "AVX2"},
        "cpu_seconds": 1.0,
    }


def done_by(program, loss_of, only=()):
    """Walk through the schedule as `main` does; the rows, in their order."""
    rows = {}
    for run in program.schedule(rows, only):
        if run.key not in rows:
            rows[run.key] = fake_row(program, run, loss_of(run))
    return rows


# --- settings


def test_names_and_factors(settings):
    for task in settings.BASELINES:
        names = [s.name for factor in settings.FACTORS for s in settings.settings_of(task, factor)]
        assert len({*names, settings.BASELINE.name}) == len(names) + 1
    assert len({(s.name, s.tasks) for s in settings.SETTINGS}) == len(settings.SETTINGS)
    assert {s.factor for s in settings.SETTINGS} | {"learning rate"} == set(settings.FACTORS)
    assert {s.change for s in settings.SETTINGS} == {"", *settings.CHANGES}


def differing(one, other):
    """The fields in which two dataclasses differ."""
    one, other = asdict(one), asdict(other)
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize("task", ["number-words", "grammar", "text"])
def test_each_setting_changes_exactly_what_it_names(settings, program, task):
    tokenizer = SimpleNamespace(vocab_size=23)
    data = SimpleNamespace(tokenizers={"src": tokenizer, "tgt": tokenizer})
    ids = torch.randint(1, 23, (3, 6), generator=torch.Generator().manual_seed(1))
    usual = {}

    def made(setting):
        run = program.Run(task, setting, 1.0, 7)
        options = program.configured(run)
        model = program.new_model(run, data).eval()
        inputs = [ids] * (1 if task == "text" else 2)
        with torch.no_grad():
            logits = model(*inputs)
        return model, TrainingConfig(**options["training"]), options["data"], logits

    usual = made(settings.BASELINE)
    for factor in settings.FACTORS:
        for setting in settings.settings_of(task, factor):
            model, training, options, logits = made(setting)
            assert differing(model.config, usual[0].config) == setting.model.keys(), setting
            assert differing(training, usual[1]) == setting.training.keys(), setting
            assert {k for k in options if options[k] != usual[2][k]} == setting.data.keys()
            if setting.change:  # what no configuration shows is seen in what is computed
                config_alone = settings.Setting(setting.name, factor, setting.model)
                last = model.decoder.layers[-1]
                if setting.change == "relative":  # whose biases start at 0
                    assert last.self_attention.position_bias
                elif setting.change == "dropout inside":  # and only while training
                    assert (
                        last.self_attention.attention.dropout == last.feed_forward.dropout.p == 0.1
                    )
                else:
                    assert not torch.allclose(logits, made(config_alone)[3])


def test_joined_settings_are_their_parts(settings):
    joint = [setting for setting in settings.SETTINGS if setting.parts]
    assert {setting.factor for setting in joint} == {settings.DEEP, settings.SPARSE}
    for setting in joint:
        for kind in ("model", "training", "data"):
            parts = [getattr(named(settings, name), kind) for name in setting.parts]
            assert getattr(setting, kind) == {k: v for part in parts for k, v in part.items()}
        assert all(set(setting.tasks) <= set(named(settings, p).tasks) for p in setting.parts)


def test_only_the_rate_is_multiplied(settings, program):
    one, half = (
        program.configured(program.Run("grammar", settings.BASELINE, rate, 3)) for rate in (1, 0.5)
    )
    assert half["training"].pop("peak_learning_rate") == 0.0025
    assert one["training"].pop("peak_learning_rate") == 0.005
    assert one == half
    assert settings.BASELINES["grammar"]["training"]["peak_learning_rate"] == 0.005


# --- order and rates


def test_baselines_come_first_then_factors_with_their_selection(settings, program):
    keys = list(done_by(program, lambda run: 1.0))
    seeds, further = program.SEEDS, program.SELECTION_SEEDS
    first = [
        (task, "baseline", rate, seed)
        for task in settings.BASELINES
        for seed in (*seeds, *further)
        for rate in (1.0, 0.5, 2.0)
    ]
    assert keys[: len(first)] == first
    order = {
        (task, s.name): (settings.FACTORS.index(s.factor), list(settings.BASELINES).index(task))
        for s in settings.SETTINGS
        for task in s.tasks
    }
    places = [order[key[:2]] for key in keys if key[1] != "baseline"]
    assert places == sorted(places)
    for task, name in order:  # of equal rates the baseline's is the best
        runs = [key[2:] for key in keys if key[:2] == (task, name)]
        selected = [(rate, seed) for seed in further for rate in (1.0, 0.5, 2.0)]
        assert runs == selected + [(1.0, seed) for seed in seeds]


@pytest.mark.parametrize(
    ("best", "extra"), [(1.0, []), (0.5, [0.25]), (2.0, [4.0]), (0.25, [0.25]), (4.0, [4.0])]
)
def test_a_best_rate_at_the_border_is_looked_beyond(settings, program, best, extra):
    rows = done_by(program, lambda run: abs(math.log(run.rate / best)), ["heads"])
    key = "text", "2 heads"
    assert program.best_rate(rows, *key) == best
    runs = {seed: {k[2] for k in rows if k[:2] == key and k[3] == seed} for seed in range(102)}
    assert all(runs[seed] == {1.0, best} for seed in program.SEEDS)
    assert all(runs[seed] == {0.5, 1.0, 2.0, *extra} for seed in program.SELECTION_SEEDS)


def test_rates_at_which_a_run_does_not_end_are_not_the_best(program):
    def loss(run):
        return math.inf if (run.rate, run.seed) == (0.5, 101) else run.rate

    rows = done_by(program, loss, ["heads"])
    assert program.best_rate(rows, "text", "2 heads") == 1.0


def test_only_restricts(program):
    rows = done_by(program, lambda run: 1.0, ["activation"])
    assert {key[1] for key in rows} == {"baseline", "GELU", "SiLU", "SwiGLU", "GEGLU"}


def test_list_says_what_remains(program, tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    rows = done_by(program, lambda run: 1.0, ["heads"])
    for row in list(rows.values())[:-3]:
        program.append(out, row)
    monkeypatch.setattr(sys, "argv", ["a", "--list", "--only", "heads", "--out", str(out)])
    program.main()
    printed = capsys.readouterr().out
    assert printed.split("\n")[0].split() == ["heads", "text", "3"]
    assert f"{len(rows) - 3} runs are done" in printed
    assert len(program.read(out)) == len(rows) - 3


# --- the file


def interrupted_after(program, monkeypatch, out, count):
    """Run `main` with a training that takes no time, up to an interruption."""
    calls = []

    def train(run):
        calls.append(run.key)
        if len(calls) > count:
            raise KeyboardInterrupt
        row = fake_row(program, run, (len(run.setting.name) * run.rate + run.seed) % 7)
        return row | {"factor": "a × b"}

    monkeypatch.setattr(program, "train", train)
    monkeypatch.setattr(program, "check_texts", lambda run, rows: None)
    monkeypatch.setattr(sys, "argv", ["a", "--only", "heads", "--out", str(out)])
    try:
        program.main()
    except KeyboardInterrupt:
        return calls[:-1]
    return calls


def test_what_was_interrupted_and_torn_ends_as_what_was_not(program, tmp_path, monkeypatch):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    assert interrupted_after(program, monkeypatch, whole, 10**6)
    lines = whole.read_bytes().splitlines(keepends=True)
    for count, kept in ((7, -1), (50, 30), (60, lines[-1].index("×".encode()) + 1)):
        interrupted_after(program, monkeypatch, torn, count)
        content = torn.read_bytes()
        last = content.rfind(b"\n", 0, -1) + 1
        torn.write_bytes(content[:last] + content[last:][:kept])
        before = program.read(torn)
        assert len(before) == content.count(b"\n") - 1
    again = interrupted_after(program, monkeypatch, torn, 10**6)
    assert torn.read_bytes() == whole.read_bytes()
    assert len(again) == len(lines) - len(before)


def test_a_file_of_one_torn_line_is_empty(program, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert program.read(out) == {}
    out.write_text('{"task": "te', encoding="utf-8")
    assert program.read(out) == {}
    program.mend(out)
    assert out.read_bytes() == b""


def test_other_damage_is_no_torn_line(settings, program, tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text('{"task": \n{}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1, is no run: b'{\"task\": '"):
        program.read(out)


def test_rows_of_another_plan_do_not_count(settings, program, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    run = program.Run("text", settings.BASELINE, 1.0, 0)
    for row in ({"plan": "other"}, {"cpu_seconds": 2.0}, {"cpu_seconds": 3.0}):
        program.append(out, fake_row(program, run, 1.0) | row)
    (row,) = program.read(out).values()
    assert row["cpu_seconds"] == 2.0  # the first of the two
    changed = settings.BASELINES["text"] | {"data": {"size": 9, "pieces": 300}}
    monkeypatch.setitem(settings.BASELINES, "text", changed)
    assert program.read(out) == {}


def test_two_do_not_write_one_file(program, tmp_path, monkeypatch):
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["a", "--out", str(out)])
    with locked(out), pytest.raises(ValueError, match="being written"):
        program.main()


def test_a_task_of_other_texts_is_left_out(settings, program, tmp_path, monkeypatch, capsys, tiny):
    out = tmp_path / "rows.jsonl"
    runs = [program.Run("number-words", settings.BASELINE, 1.0, seed) for seed in (0, 1, 2)]
    program.append(out, fake_row(program, runs[1], 1.0))
    further = program.Run("number-words", settings.BASELINE, 2.0, 1)
    monkeypatch.setattr(program, "schedule", lambda rows, only: iter([*runs[:2], further, runs[2]]))
    monkeypatch.setattr(program, "train", lambda run: fake_row(program, run, 1.0))
    monkeypatch.setattr(sys, "argv", ["a", "--out", str(out)])
    program.main()
    assert [key[3] for key in program.read(out)] == [1, 0]
    said = "number-words is left out: the rows that are there are of other texts: the same, not "
    assert said in capsys.readouterr().out


def test_text_is_left_out_where_there_is_too_little(settings, program, monkeypatch):
    monkeypatch.setattr(program.since_2017, "documents", lambda size: ["a b"] * 40)
    program.prose.cache_clear()
    with pytest.raises(program.UnfitError, match="fewer than 800000 characters"):
        program.check_texts(program.Run("text", settings.BASELINE, 1.0, 0), {})


def test_stored_rows_are_of_this_program(program):
    if not program.FILE.exists():
        pytest.skip("there are no rows yet")
    lines = program.FILE.read_text(encoding="utf-8").count("\n")
    assert len(program.read(program.FILE)) == lines


# --- a run


def without_times(row):
    """All of a row that another run of it has, too."""
    return {name: value for name, value in row.items() if name not in ("cpu_seconds", "made")}


def test_a_tiny_run_writes_all_fields(settings, program, tmp_path, monkeypatch, tiny):
    out = tmp_path / "rows.jsonl"
    run = program.Run("number-words", named(settings, "ALiBi"), 0.5, 3)
    monkeypatch.setattr(program, "schedule", lambda rows, only: iter([run, run]))
    monkeypatch.setattr(sys, "argv", ["a", "--out", str(out)])
    program.main()
    (row,) = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    fields = {"task", "factor", "setting", "seed", "rate", "changes", "plan", "texts"}
    fields |= {"parameters", "unigram", "outcome", "looks", "cpu_seconds", "made"}
    assert row.keys() == fields
    assert all(name in program.__doc__ for name in fields)
    assert (row["setting"], row["factor"]) == ("ALiBi", "positions")
    assert (row["rate"], row["seed"]) == (0.5, 3)
    assert row["changes"] == {"model": {"positional_encoding": "alibi"}}
    assert row["outcome"] == "ended"
    assert [look["step"] for look in row["looks"]] == [2, 2, 3, 6]
    assert [("right" in look) for look in row["looks"]] == [True, False, True, True]
    assert 3 < row["unigram"] < row["looks"][-1]["loss"] < 10
    made = {"date", "python", "torch", "minitransformer", "threads", "processor", "instructions"}
    assert row["made"].keys() == made
    assert all(row["made"].values())
    assert program.read(out).keys() == {run.key}


def test_the_same_seed_gives_the_same_row(settings, program, tiny):
    run = program.Run("number-words", settings.BASELINE, 1.0, 0)
    first, second = program.train(run), program.train(run)
    assert without_times(first) == without_times(second)
    other = program.train(program.Run("number-words", settings.BASELINE, 1.0, 1))
    assert other["looks"] != first["looks"]
    assert other["texts"] != first["texts"]


def test_hopeless_runs_are_stopped_after_a_third(settings, program, tiny, monkeypatch):
    run = program.Run("number-words", settings.BASELINE, 1.0, 0)
    row = program.train(run)
    loss, entropy = row["looks"][1]["loss"], row["unigram"]
    monkeypatch.setattr(program, "HOPELESS", 1.001 * loss / entropy)
    assert program.train(run)["outcome"] == "ended"
    monkeypatch.setattr(program, "HOPELESS", 0.999 * loss / entropy)
    stopped = program.train(run)
    assert stopped["outcome"] == "stopped"
    assert stopped["looks"] == row["looks"][:2]
    assert program.final_loss(stopped) == math.inf


def test_runs_without_a_finite_loss_say_so(settings, program, tiny):
    row = program.train(program.Run("number-words", settings.BASELINE, 1e40, 0))
    assert row["outcome"] == "not finite"
    assert len(row["looks"]) < 4
    json.loads(json.dumps(row, allow_nan=False))


def test_entropy(program):
    assert program.entropy([1, 1, 2, 3]) == pytest.approx(1.5 * math.log(2))


def test_fewer_pairs_are_the_first_of_more(program):
    few, held_out = program.drawn_pairs("number-words", 0, 20, 4)
    many, same = program.drawn_pairs("number-words", 0, 50, 4)
    assert many[:20] == few
    assert same == held_out
    sentences, _ = program.drawn_pairs("grammar", 0, 100, 3)
    assert max(len(pair.src.split()) for pair in sentences) == program.WORDS


# --- the table


def test_differences_are_students_paired_interval(table):
    one, other = [0.31, 0.28, 0.35, 0.29, 0.4], [0.25, 0.27, 0.3, 0.31, 0.33]
    differences = table.combined((1, dict(enumerate(one))), (-1, dict(enumerate(other))))
    # 0.06, 0.01, 0.05, -0.02, 0.07: mean 0.034, squares about it 0.00572, 4 degrees of freedom;
    # scipy.stats.ttest_rel(one, other).confidence_interval() says the same.
    half = 2.776 * math.sqrt(0.00572 / 4 / 5)
    assert table.cell(differences) == f"+0.034 [{0.034 - half:+.3f}, {0.034 + half:+.3f}]"
    assert table.cell(differences) == "+0.034 [-0.013, +0.081]"
    assert table.other_sign(differences) == "1 of 5"


def test_cells_by_hand(table):
    # Mean 2, deviation 1, three seeds: 4.303 / √3 = 2.484.
    assert table.cell([1.0, 2.0, 3.0]) == "+2.000 [-0.484, +4.484]"
    assert table.cell([0.01, 0.02, 0.03], 1, 100) == "+2.0 [-0.5, +4.5]"
    assert table.cell([-1.0, -1.0]) == "-1.000 [-1.000, -1.000]*"
    assert table.cell([1.0, None, 2.0]) == "1 of 3 did not end"
    assert table.cell([1.0]) == table.cell([]) == "–"
    assert table.other_sign([-1.0, 5.0, -1.0]) == "2 of 3"
    assert table.other_sign([1.0, None]) == "–"


def test_seeds_are_paired_and_only_common_ones_count(table):
    assert table.combined((1, {0: 5.0, 2: 7.0, 3: 1.0}), (-1, {2: 4.0, 0: 3.0, 1: 9.0})) == [2, 3]
    assert table.combined((1, {0: 5.0, 1: None}), (-1, {0: 3.0, 1: 2.0})) == [2.0, None]


def test_report_of_made_up_rows(settings, program, table):
    """Post-norm costs 1 at its best, no warm-up 2, both 4: one more than the sum of parts."""
    costs = {"baseline": 0, "post-norm": 1, "no warm-up": 2, "post-norm, no warm-up": 4}

    def loss(run):
        best = 2.0 if run.setting.name == "post-norm" else 1.0
        cost = costs.get(run.setting.name, 9)
        return 3 + run.seed + cost + abs(math.log2(run.rate / best))

    post_norm, same = named(settings, "post-norm"), "{0} [{0}, {0}]*".format
    rows = done_by(program, loss, ["learning rate", "norm", "warm-up", settings.DEEP])
    fewer = {key: row for key, row in rows.items() if key != ("text", "post-norm", 2.0, 101)}
    cells = table.line(fewer, "text", post_norm)
    assert cells == ["post-norm", same("+2.000"), "?", "–", "–", "–", "–", "×1.0"]
    cells = table.line(rows, "text", post_norm)
    one = same("+1.000")
    assert cells[1:6] == [same("+2.000"), "×2", one, one, "+0.0 [+0.0, +0.0]"]
    assert cells[6:] == ["0 of 5", "×1.0"]
    both = named(settings, "post-norm, no warm-up")
    assert table.beyond_its_parts(rows, "text", both) == [1.0] * 5
    text = table.report(rows, ["text"], settings.FACTORS)
    assert "## text\n\nThe baseline; ×1 is 0.008. its best rate is ×1" in text
    assert f"| post-norm, no warm-up | {one} |" in text
    number = len(rows)
    assert text.endswith(f"\n\n- {number} with torch 2, processor one, instructions AVX2")
    assert f"{number} runs, of which {number} ended, in {number / 3600:.2f} CPU hours." in text


def test_page_on_departures_has_the_files_table(program, monkeypatch):
    """What the page shows is what the program prints."""
    monkeypatch.syspath_prepend(FOLDER)
    departures = importlib.import_module("departures")
    page = FOLDER.parent / "chapters" / "reference" / "departures.md"
    table = departures.table(program.read(program.FILE))
    assert table.count("\n") > 6
    assert table in page.read_text(encoding="utf-8")
