"""`make everywhere` changes what it says, leaves out what is not to be had, and tells what fell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import check
import everywhere
from check import Stage

pytestmark = pytest.mark.skipif(
    sys.getfilesystemencoding() == "ascii", reason="no folder can have an umlaut in its name here"
)

ASK = "import os, sys; sys.exit(os.environ.get({name!r}) != {value!r})"


@pytest.fixture
def places(tmp_path):
    return {place.name: place for place in everywhere.places(tmp_path)}


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORTS", tmp_path)
    return tmp_path


def test_documentation_lists_each_place(places):
    rows = re.findall(r"^\| ([\w., ]+) \| ", everywhere.__doc__, re.M)
    assert ["place", *places] == [name for row in rows for name in row.split(", ")]


def test_everything_that_differs_occurs(places):
    values = {}
    for place in places.values():
        for name, value in place.variables.items():
            values.setdefault(name, set()).add(value)
    assert values["ATEN_CPU_CAPABILITY"] == {"default", "avx2", "avx512"}
    assert values["OMP_NUM_THREADS"] == {"1", "2", "4"}
    assert values["LC_ALL"] == {"tr_TR.UTF-8", "C"}
    assert len(values["PYTHONHASHSEED"]) == len(values["TZ"]) == len(values["HOME"]) == 2
    for name in ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        assert len(values[name]) == 3
    pythons = {place.python for place in places.values()}
    assert pythons == {"", "python3.11", "python3.12", "python3.13"}


def test_homes_are_odd(places):
    foreign, closed = (Path(places[name].variables["HOME"]) for name in ("abroad", "bare"))
    assert " " in str(foreign)
    assert not str(foreign).isascii()
    (foreign / "a").touch()
    with pytest.raises(OSError, match=r"denied|No such file|Read-only"):
        (closed / "a").touch()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["scalar", *(pytest.param(name, marks=pytest.mark.everything) for name in ("avx2", "avx512"))],
)
def test_processor_is_another_one(places, name):
    """Where it is to be had: there PyTorch sees nothing more than the place has."""
    place = places[name]
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    (startup,) = Path(place.variables["IPYTHONDIR"]).glob("profile_default/startup/*.py")
    command = [sys.executable, "-c", f"{startup.read_text(encoding='utf-8')}; {ask}"]
    environment = os.environ | place.variables
    seen = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()
    if not everywhere.missing(place):
        assert seen == [place.capability, place.variables["OMP_NUM_THREADS"]]
    else:
        assert seen[0] != place.capability


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (everywhere.Place("x", {"LC_ALL": "xx_XX.UTF-8"}), "the locale xx_XX.UTF-8 is not"),
        (everywhere.Place("x", python="python3.0"), "there is no python3.0"),
        (everywhere.Place("x", capability="Z80"), r"the processor is \w+, not Z80"),
    ],
)
def test_place_that_is_not_to_be_had_says_why(place, reason):
    assert re.match(reason, everywhere.missing(place))


def test_here_is_to_be_had(places):
    assert everywhere.missing(places["here"]) == ""


def test_only_our_versions_compare_outputs(places, monkeypatch):
    monkeypatch.setattr(everywhere, "interpreter", lambda place: f"the python of {place.name}")
    for name, place in places.items():
        tests, chapters = everywhere.stages(place, "", [])
        assert (tests.name, chapters.name) == (f"{name} tests", f"{name} chapters")
        ours = name not in ("oldest", "newest")
        assert ("--nbval" in chapters.command) == ours
        assert ("--nbval-lax" in chapters.command) != ours
        assert ("--ignore=tests/book" in tests.command) == (not ours or bool(place.capability))
        assert "--ignore=tests/site" in tests.command
        assert ("--ignore=tests/test_files.py" in tests.command) == bool(place.capability)
        assert tests.python == chapters.python == f"the python of {name}"
        threads = place.variables.get("OMP_NUM_THREADS", "1")
        assert tests.variables["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("path", everywhere.WITHOUT_NUMBERS)
def test_what_a_processor_leaves_out_is_there(path):
    assert (check.ROOT / "tests" / path).exists()


def test_joined_places_are_all_of_them_at_once(places):
    whole = everywhere.joined(places["python3.12"], places["abroad"], places["avx2"])
    assert whole.name == "python3.12+abroad+avx2"
    assert whole.variables == places["abroad"].variables | places["avx2"].variables
    assert (whole.capability, whole.python, whole.installed) == ("AVX2", "python3.12", "python3.12")
    assert whole.is_ours
    assert not everywhere.joined(places["avx2"], places["newest"]).is_ours


def test_one_chapter_and_no_tests(places):
    (stage,) = everywhere.stages(places["here"], "chapters", ["04_attention"])
    assert [part for part in stage.command if "chapters/" in part] == [
        "chapters/04_attention.ipynb"
    ]


def test_variables_reach_the_stage(reports):
    ask = ASK.format(name="A_VARIABLE_OF_ITS_OWN", value="x")
    there = Stage("there", ["-c", ask], {"A_VARIABLE_OF_ITS_OWN": "x"})
    here = Stage("here", ["-c", ask])
    for stage in (there, here):
        stage.run()
    assert (there.passed, there.failed) == (1, 0)
    assert (here.passed, here.failed) == (0, 1)


@pytest.mark.slow
def test_failed_tests_are_named(reports, tmp_path):
    path = tmp_path / "test_two.py"
    path.write_text("def test_good():\n    pass\n\ndef test_bad():\n    assert False\n")
    stage = Stage(
        "two", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(path)]
    )
    stage.run()
    assert (stage.passed, stage.failed, stage.skipped) == (1, 1, 0)
    assert [name.split("::")[1] for name in stage.fell] == ["test_bad"]
    assert "FAILED" in check.summary([stage])


def test_slowest_are_listed_notebooks_as_a_whole(reports, capsys):
    first, second = Stage("tests", []), Stage("chapters", [])
    first.took.update({f"tests.test_x::test_{i}": float(i) for i in range(30)})
    cells = "".join(
        f'<testcase classname="chapters.{name}.ipynb" name="Cell {i}" time="{i}.5" />'
        for name, count in (("04_attention", 9), ("05_heads", 8))
        for i in range(count)
    )
    second.report = reports / "chapters.xml"
    second.report.write_text(f'<testsuite tests="17">{cells}</testsuite>', encoding="utf-8")
    second.count(0)
    _, heading, *rows = check.slowest([first, second]).splitlines()
    assert heading.split() == ["seconds", "the", "slowest"]
    assert len(rows) == 20
    assert rows[0].split() == ["40.5", "chapters:", "chapters.04_attention.ipynb"]
    assert rows[2].split() == ["29.0", "tests:", "tests.test_x::test_29"]


def test_stage_that_runs_aside_shows_its_output_when_its_turn_comes(reports, capfd):
    aside = Stage("aside", ["-c", "print('was aside')"])
    aside.begin()
    Stage("before", ["-c", "print('came before')"]).run()
    aside.run()
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert [line for line in lines if "--" not in line] == ["came before", "was aside"]
    assert (aside.passed, aside.failed) == (1, 0)


def test_everything_is_more_than_a_test(monkeypatch):
    monkeypatch.setattr(Stage, "begin", lambda stage: None)
    each, all_of = (list(check.stages(everything=what)) for what in (False, True))
    names = ["ruff check", "ruff format", "mypy", "site", "tests", "chapters", "pages"]
    assert [stage.name for stage in each] == names
    assert [stage.name for stage in all_of] == [*names, "scalar"]
    for stage in each[4::2]:
        assert stage.command[-2:] == ["-m", "not everything"]
    assert not any("not everything" in stage.command for stage in all_of)
    notebooks = [sum(part.endswith(".ipynb") for part in run[5].command) for run in (each, all_of)]
    assert 0 < notebooks[0] < notebooks[1]


def test_unknown_place_is_refused(capsys):
    with pytest.raises(SystemExit):
        everywhere.main(["here+moon"])
    assert "there is no place 'moon'; there are here, scalar, avx2" in capsys.readouterr().err


def test_what_fell_where_is_printed(reports, monkeypatch, capsys):
    def stages(place, only, names):
        stage = Stage(f"{place.name} tests", ["-c", "import sys; sys.exit(1)"])
        stage.fell.append("tests.test_x::test_y")
        yield stage

    monkeypatch.setattr(everywhere, "stages", stages)
    monkeypatch.setattr(
        everywhere, "missing", lambda place: "of that" if place.name == "bare" else ""
    )
    assert everywhere.main(["here", "bare"]) == 1
    printed = capsys.readouterr().out
    assert "here tests fell: tests.test_x::test_y" in printed
    assert "bare could not be tried: of that" in printed
    assert "0 passed, 1 failed" in printed


# --- the two commands ------------------------------------------------------------------------


def test_old_python_is_told_what_is_needed():
    """By the command itself, run by an interpreter that says it is an older one."""
    code = "import sys, runpy; sys.version_info = (3, 9); sys.argv = ['tools', 'book']; "
    code += "runpy.run_path('tools', run_name='__main__')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=check.ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "minitransformer needs Python 3.11 or newer" in done.stdout


def test_each_command_of_make_is_one_of_python():
    makefile = (check.ROOT / "Makefile").read_text(encoding="utf-8")
    assert "install book quick test everything:\n\t@$(PYTHON) tools $@" in makefile
    done = subprocess.run(
        [sys.executable, "tools", "--help"], cwd=check.ROOT, capture_output=True, text=True
    )
    for command in ("install", "book", "quick", "test", "everything"):
        assert f"python tools {command} " in done.stdout
