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


def unpinned(text: str) -> list[str]:
    """The actions that are not named by a full commit hash, its version in a comment."""
    used = re.findall(r"^[\s-]*uses: *(.*?) *$", text, re.M)
    return [action for action in used if not PINNED.fullmatch(action)]


def commands(path: Path) -> list[str]:
    """What the workflow's steps run."""
    steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def make_targets() -> set[str]:
    """What `make` can be asked for."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([\w./ -]+):(?!=)", makefile, re.M)
    return {target for rule in rules for target in rule.split()}


def targets_asked_for(text: str) -> set[str]:
    """The targets of the `make` commands in the text."""
    return set(re.findall(r"^make ([\w./-]+)", text, re.M))


# --- workflows -------------------------------------------------------------------------------


@each_workflow
def test_actions_are_pinned(path):
    assert unpinned(path.read_text(encoding="utf-8")) == []


def test_auditor_finds_nothing():
    """Neither a way in for others' code nor a permission that nobody needs."""
    zizmor = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [zizmor, "--offline", "--strict-collection", GITHUB], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_workflow
def test_make_targets_exist(path):
    assert targets_asked_for("\n".join(commands(path))) <= make_targets()


# --- a release -------------------------------------------------------------------------------


def compare(tag: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the release that compares the tag with the package's version."""
    steps = load(GITHUB / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    script = next(step["run"] for step in steps if "TAG" in step.get("env", {}))
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    environment = {"PATH": "/usr/bin:/bin", "TAG": tag}
    return subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_tag_of_the_version_is_released():
    assert compare(f"v{PROJECT['version']}").returncode == 0


@pytest.mark.parametrize("tag", ["v", "v0.0.0", PROJECT["version"], f"v{PROJECT['version']}.1"])
def test_other_tag_is_refused(tag):
    done = compare(tag)
    assert done.returncode == 1
    assert f"The tag is {tag}, but pyproject.toml says version" in done.stdout
    assert PROJECT["version"] in done.stdout


def test_citation_names_the_version():
    assert load(ROOT / "CITATION.cff")["version"] == PROJECT["version"]
