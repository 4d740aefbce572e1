"""What publishes the book lets nobody else in, and releases only the version it says."""

import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from printed import EPUB, PDF, SHEET_PDF
from repository import ROOT

GITHUB = ROOT / ".github"
RELEASE = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
JOBS = yaml.safe_load(RELEASE)["jobs"]


def test_auditor_finds_nothing():
    """No action that is not pinned by its commit, no permission that is not needed."""
    zizmor = Path(sys.executable).with_name("zizmor")
    command = [zizmor, "--offline", "--strict-collection", GITHUB]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


def compare(tag):
    """Run the step of the release that compares the tag with the package's version."""
    script = next(step["run"] for step in JOBS["build"]["steps"] if "TAG" in step.get("env", {}))
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {"PATH": "/usr/bin:/bin", "TAG": tag}
    return subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_only_the_tag_of_the_version_is_released():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    assert compare(f"v{version}").returncode == 0
    for tag in ("v", version, f"v{version}.1"):
        done = compare(tag)
        assert done.returncode == 1
        assert f"The tag is {tag}, but pyproject.toml says version {version}" in done.stdout


def test_a_release_has_the_wheel_and_the_book():
    """What is uploaded is what `tools/printed.py` writes, and then all of it is attached."""
    made = (JOBS[name]["steps"][-1]["with"]["path"] for name in ("build", "book"))
    assert " ".join(made).split() == ["dist/*.whl", *map(str, (EPUB, PDF, SHEET_PDF))]
    assert JOBS["release"]["needs"] == ["publish", "book"]
