"""The processors of `make everywhere` are others; the stages of `make test` count what failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import check
import everywhere
from check import Stage

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.getfilesystemencoding() == "ascii", reason="folders may have no umlaut")
def test_processor_is_another_one(tmp_path):
    """Where it is to be had: there PyTorch sees nothing more than the place has."""
    (place,) = (place for place in everywhere.places(tmp_path) if place.name == "scalar")
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    (startup,) = Path(place.variables["IPYTHONDIR"]).glob("profile_default/startup/*.py")
    command = [sys.executable, "-c", f"{startup.read_text(encoding='utf-8')}; {ask}"]
    environment = os.environ | place.variables
    seen = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split()
    assert everywhere.missing(place) or seen == [place.capability, "1"]


def test_failed_tests_are_counted_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "REPORTS", tmp_path)
    path = tmp_path / "test_two.py"
    path.write_text("def test_good():\n    pass\n\ndef test_bad():\n    assert False\n")
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    stage = Stage("two", ["-m", "pytest", *options, str(path)])
    stage.run()
    assert (stage.passed, stage.failed, stage.skipped) == (1, 1, 0)
    assert [name.split("::")[1] for name in stage.fell] == ["test_bad"]
    assert "FAILED" in check.summary([stage])
