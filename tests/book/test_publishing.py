"""What publishes the book, and what tells people how to work on it, agrees with the project."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from repository import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def load(path: Path) -> dict:
    """The file, with every scalar as text: to YAML 1.1 the key `on` would be True."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def make_targets() -> set[str]:
    """What `make` can be asked for."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([\w./ -]+):(?!=)", makefile, re.M)
    return {target for rule in rules for target in rule.split()}


# --- workflows -------------------------------------------------------------------------------


@each_workflow
def test_actions_are_pinned_by_commit_and_make_targets_exist(path):
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"^[\s-]*uses: *(.*?) *$", text, re.M)
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    asked_for = re.findall(r"^[\s-]*(?:run: )?make ([\w./-]+)", text, re.M)
    assert set(asked_for) <= make_targets()


def test_auditor_finds_nothing():
    """Neither a way in for others' code nor a permission that nobody needs."""
    zizmor = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [zizmor, "--offline", "--strict-collection", GITHUB], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- a release -------------------------------------------------------------------------------


def compare(tag: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the release that compares the tag with the package's version."""
    steps = load(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    script = next(step["run"] for step in steps if "TAG" in step.get("env", {}))
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {"PATH": "/usr/bin:/bin", "TAG": tag}
    return subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_only_the_tag_of_the_version_is_released():
    version = PROJECT["version"]
    assert compare(f"v{version}").returncode == 0
    for tag in ("v", version, f"v{version}.1"):
        done = compare(tag)
        assert done.returncode == 1
        assert f"The tag is {tag}, but pyproject.toml says version {version}" in done.stdout
