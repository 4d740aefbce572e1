"""`make everywhere` changes what it says, leaves out what is not to be had, and tells what fell."""

import os
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


@pytest.fixture
def places(tmp_path):
    return {place.name: place for place in everywhere.places(tmp_path)}


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORTS", tmp_path)
    return tmp_path


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


def test_joined_places_are_all_of_them_at_once(places):
    whole = everywhere.joined(places["python3.12"], places["abroad"], places["avx2"])
    assert whole.name == "python3.12+abroad+avx2"
    assert whole.variables == places["abroad"].variables | places["avx2"].variables
    assert (whole.capability, whole.python, whole.installed) == ("AVX2", "python3.12", "python3.12")
    assert whole.is_ours
    assert not everywhere.joined(places["avx2"], places["newest"]).is_ours


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


def test_stage_that_runs_aside_shows_its_output_when_its_turn_comes(reports, capfd):
    aside = Stage("aside", ["-c", "print('was aside')"])
    aside.begin()
    Stage("before", ["-c", "print('came before')"]).run()
    aside.run()
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert [line for line in lines if "--" not in line] == ["came before", "was aside"]
    assert (aside.passed, aside.failed) == (1, 0)
