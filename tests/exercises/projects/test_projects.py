"""Projects: the starter fails, our solution passes, and what is wrong is said in words."""

import math
from pathlib import Path

import pytest
import solution_language_model
import torch
from bug_hunt_repairs import REPAIRS

from minitransformer.__main__ import main
from minitransformer.exercises.projects import (
    bug_hunt,
    check_project,
    dates,
    language_model,
    write_starter,
)

HERE = Path(__file__).parent


def more(*values):
    """A further case, for `make everything`."""
    return pytest.param(*values, marks=pytest.mark.everything)


def run(capsys, *arguments):
    """The exit status of a command and what it printed."""
    status = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as error:
        status = error.code
    return status, capsys.readouterr().out


def edited(path, *replacements):
    """Change a file; each text has to be there once."""
    text = path.read_text(encoding="utf-8")
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


# --- the bug hunt ----------------------------------------------------------------------------


@pytest.fixture
def hunt(tmp_path):
    """Makes a starter with some bugs repaired."""

    def made(*names):
        folder = tmp_path / f"hunt{len(list(tmp_path.iterdir()))}"
        write_starter("bug_hunt", folder)
        for name in names:
            for file, old, new in REPAIRS[name]:
                edited(folder / file, (old, new))
        return folder

    return made


def found_in(folder):
    """Names of the bugs repaired, and of what is broken."""
    verdicts = list(bug_hunt.verdicts(folder))
    found = {v.name.partition(" (law")[0] for v in verdicts if v.counts and not v.fault}
    return found, [str(v) for v in verdicts if v.fault and not v.secret]


def test_starter_has_eight_bugs_and_keeps_them_secret(tmp_path, capsys):
    folder = tmp_path / "hunt"
    assert run(capsys, "project", "bug_hunt", folder)[0] == 0
    status, out = run(capsys, "project", "bug_hunt", folder)
    assert status == 1
    assert out.splitlines()[0] == "bug_hunt: 0 of 8"
    assert not any(name in out for name in REPAIRS)
    assert not any(line.startswith("Hint") for line in out.splitlines())
    assert "Hint: 4 left in model.py" in list(bug_hunt.hints([*REPAIRS], 1))
    assert "Hint: a broken law: cached = full" in list(bug_hunt.hints([*REPAIRS], 2))
    files = [path.read_text(encoding="utf-8").splitlines() for path in folder.glob("*.py")]
    assert 250 < sum(map(len, files)) < 350


def test_all_repairs_together_pass(hunt, capsys):
    assert check_project("bug_hunt", hunt(*REPAIRS))
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "bug_hunt: 8 of 8"
    assert [line.removeprefix("Right: ").partition(" (law")[0] for line in lines] == [*REPAIRS]


@pytest.mark.parametrize(
    "name", [n if i < 1 else pytest.param(n, marks=pytest.mark.everything)
             for i, n in enumerate(REPAIRS)]
)  # fmt: skip
def test_each_repair_counts_alone_and_is_missed_alone(hunt, name):
    assert found_in(hunt(name)) == ({name}, [])
    assert found_in(hunt(*REPAIRS.keys() - {name})) == (REPAIRS.keys() - {name}, [])


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("model.py", ".tril(seen)", ".tril(seen + 1)", "Later targets change earlier logits."),
        ("model.py", "class FeedForward", "class Other", "NameError"),
        more("model.py", "mask = (src != PAD)", "mask = (src == src)", "Padding of the source"),
        more("train.py", "step / warmup", "(step - 1) / warmup", "The learning rate is another"),
        more("data.py", "tgt[:, :-1], tgt[:, 1:]", "tgt[:, :-1], tgt[:, :-1]", "inputs shifted"),
        more("generate.py", "argmax", "argmin", "Generation is not greedy any more."),
    ],
)
def test_a_repair_that_breaks_something_else_is_told(hunt, capsys, file, old, new, said):
    folder = hunt(*REPAIRS)
    edited(folder / file, (old, new))
    assert not check_project("bug_hunt", folder)
    assert said in capsys.readouterr().out


def test_removing_dropout_is_no_repair(hunt):
    folder = hunt()
    edited(folder / "model.py", ("F.dropout(x, self.dropout)", "x"))
    assert found_in(folder)[0] == set()


@pytest.mark.slow
@pytest.mark.everything
def test_the_bugs_leave_a_healthy_curve(hunt, tmp_path, monkeypatch):
    hunt().rename(tmp_path / "silent_bugs")
    monkeypatch.syspath_prepend(tmp_path)
    from silent_bugs import data, model, train

    torch.manual_seed(0)
    pairs, valid = data.make_splits(2000, 100)
    history = train.train(model.Transformer(model.Config()), pairs, valid, steps=150)
    assert history == sorted(history, reverse=True)
    assert history[-1] < 0.8 * history[0]


# --- the dates -------------------------------------------------------------------------------


@pytest.fixture
def translator(tmp_path):
    """Our solution, in a folder."""
    write_starter("dates", tmp_path / "dates")
    path = tmp_path / "dates" / "translator.py"
    path.write_text((HERE / "solution_dates.py").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def test_starter_of_dates_says_what_is_missing(tmp_path, capsys):
    run(capsys, "project", "dates", tmp_path / "dates")
    lines = (tmp_path / "dates" / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 20_000
    assert lines[0].split("\t") == ["2/15/19 (US)", "2019-02-15"]
    status, out = run(capsys, "project", "dates", tmp_path / "dates")
    assert status == 1
    assert out.splitlines()[-1] == "dates: 1 of 12"
    assert "Not yet: round trip." in out
    assert "Not yet: no peeking. encode returns nothing yet." in out
    assert "Not yet: loop = vectorised (attention). It returns nothing yet." in out


def test_no_held_out_day_is_in_training():
    train, held_out = dates.examples(20_000, 0), dates.examples(500, 1, held_out=True)
    assert not {iso for _, iso in train} & {iso for _, iso in held_out}
    assert len({iso for _, iso in held_out}) > 400


def test_our_translator_keeps_all_laws(translator, monkeypatch, capsys):
    monkeypatch.setattr(dates, "ACCURACY", 0.0)
    edited(translator, ("steps: int = 1500", "steps: int = 2"))
    assert check_project("dates", translator.parent)
    assert capsys.readouterr().out.splitlines()[-1] == "dates: 12 of 12"
    monkeypatch.undo()
    assert not check_project("dates", translator.parent)
    out = capsys.readouterr().out
    assert "0.0% of 500 held-out dates right; 98% are asked for." in out
    assert " became " in out


@pytest.mark.parametrize(
    ("old", "new", "law", "said"),
    [
        ("math.sqrt(query.size(-1))", "query.size(-1)", "loop", "differs from the formula"),
        more("return weights.masked_fill(~mask, 0.0) @", "return weights @", "a row", "get zeros"),
        more(
            "scores.masked_fill(~mask, -1e9)",
            "(scores + torch.where(mask, 0.0, -torch.inf))",
            "a row",
            "not finite",
        ),
        more(
            "keepdim=True)\n    variance", "keepdim=True) * 0\n    variance", "equals", "layer_norm"
        ),
        ("dtype=torch.bool).tril()", "dtype=torch.bool)", "no peeking", "Logits before position"),
        ("(src != PAD)[", "(src > -1)[", "padding", "Padding behind the source"),
        more(" * math.sqrt(d) + positions", "", "order", "3/5 and 5/3"),
        more(", ignore_index=PAD", "", "the loss", "Padding counts"),
        ("tgt[:, 1:].flatten()", "tgt[:, :-1].flatten()", "the loss", "not shifted"),
        more("range(10)", "range(9)", "greedy", "token by token"),
        ("torch.nn.functional as F", "minitransformer as mt", "own parts", "uses minitransformer"),
        (
            "    return centred *",
            "    F.layer_norm(x, (8,))\n    return centred *",
            "own",
            "layer_norm",
        ),
        more("ids.index(EOS)] if EOS in ids else ids", "len(ids)]", "round trip", "stop at EOS"),
    ],
)
def test_wrong_translators_are_told_why(translator, monkeypatch, capsys, old, new, law, said):
    monkeypatch.setattr(dates, "learned", pytest.fail)  # no training before all laws are kept
    edited(translator, (old, new))
    assert not check_project("dates", translator.parent)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"Not yet: {law}") and said in line for line in lines), lines


@pytest.mark.everything
def test_dropout_in_translations_is_told(translator, capsys):
    edited(translator, ("cross, 0.0)", "cross, 0.5)"), ("model.eval().encode", "model.encode"))
    assert not check_project("dates", translator.parent)
    assert "dropout has to be off" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.everything
def test_our_translator_learns_in_time(translator, capsys):
    assert check_project("dates", translator.parent), capsys.readouterr().out


# --- the language model ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["asyncio", pytest.param(".", marks=pytest.mark.everything)])
def text(request, tmp_path_factory):
    """A folder with the text of a part of the library, or of the whole, written once."""
    folder = tmp_path_factory.mktemp("project") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_model, "LIBRARY", language_model.LIBRARY / request.param)
        language_model.docstrings.cache_clear()
        write_starter("language_model", folder)
        yield folder
    language_model.docstrings.cache_clear()


def language(text, tmp_path, source):
    """A folder with a model."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.py").write_text("import torch\nSECONDS = 9\n" + source, encoding="utf-8")
    return folder


COUNTS = """
def log_probabilities(text):
    counts = torch.ones(256)
    counts[32:127] += 100
    return (counts / counts.sum()).log().expand(*text.shape, 256)
"""


def test_held_out_text_is_not_in_the_text_to_train_on(text):
    train = (text / "train.txt").read_text(encoding="utf-8")
    held_out = [d for d in language_model.docstrings() if language_model.is_held_out(d)]
    assert len(held_out) > 10
    # A short docstring may be a part of a longer one; a long one is not.
    assert not [d for d in held_out if len(d) > 200 and f"\n\n{d}\n\n" in train]
    whole = language_model.LIBRARY.name != "asyncio"
    assert whole == (len(language_model.held_out_rows()) == language_model.ROWS)


def test_starter_of_the_language_model_says_what_is_missing(text, capsys):
    assert not check_project("language_model", text)
    out = capsys.readouterr().out
    assert "SECONDS is None: how long did the training take" in out
    assert out.splitlines()[-1] == "language_model: 0 of 5"


def test_bits_are_those_of_the_probabilities(text, tmp_path, capsys):
    assert not check_project("language_model", language(text, tmp_path, COUNTS))
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out[:-1]] == ["Right"] * 4 + ["Not yet"]
    letters = language_model.held_out_rows().flatten().tolist()
    weights = [101 if 32 <= letter < 127 else 1 for letter in letters]
    bits = -sum(math.log2(weight / (256 + 95 * 100)) for weight in weights) / len(letters)
    assert f"{bits:.3f} bits per byte" in out[4]
    assert out[-1] == "language_model: 4 of 5"


WRONG = {
    "Probabilities have sums that differ from 1": "torch.zeros(*text.shape, 256)",
    "change with byte 0 or later": "torch.eye(256)[text].mul(9).log_softmax(-1)",
    "A text alone gives other": "torch.eye(256)[text[:1] * 0 + len(text)]"
    ".expand(*text.shape, 256).mul(9).log_softmax(-1)",
    "The same text again gives others": "torch.randn(256).expand(*text.shape, 256).log_softmax(-1)",
    "the shape (3, 256, 40)": "torch.zeros(*text.shape, 256).mT",
    "ValueError": "int('x')",
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_language_models_are_told_why(text, tmp_path, capsys, said):
    source = f"def log_probabilities(text):\n    return {WRONG[said]}\n"
    assert not check_project("language_model", language(text, tmp_path, source))
    assert said in capsys.readouterr().out


def test_time_stated_is_asked_for(text, tmp_path, capsys):
    assert not check_project("language_model", language(text, tmp_path, COUNTS + "SECONDS = 999"))
    assert "SECONDS is 999; 60 are allowed." in capsys.readouterr().out


def learned(text, folder, *options):
    """Train our solution into a folder, and check it."""
    source = (HERE / "solution_language_model.py").read_text(encoding="utf-8")
    (folder / "model.py").write_text(source, encoding="utf-8")
    model = solution_language_model.train(text / "train.txt", *options)
    torch.save(model.state_dict(), folder / "model.pt")
    return check_project("language_model", folder)


@pytest.mark.slow
def test_our_language_model_keeps_the_laws_and_learns(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(language_model, "MOST_BITS", 7.0)  # of 8
    assert learned(text, language(text, tmp_path, ""), 5, 0, 2), capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.everything
def test_our_language_model_reaches_the_bits(tmp_path, capsys):
    write_starter("language_model", tmp_path / "model")
    reached = learned(tmp_path / "model", tmp_path / "model", 2 * language_model.SECONDS)
    assert reached, capsys.readouterr().out
