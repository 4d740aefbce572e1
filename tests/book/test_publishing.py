"""What publishes the book, and what tells people how to work on it, agrees with the project."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import check
import everywhere
from repository import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SUPPORTED = SpecifierSet(PROJECT["requires-python"])
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


def test_there_are_workflows():
    assert [path.stem for path in WORKFLOWS] == ["everywhere", "pages", "release", "tests"]


@each_workflow
def test_actions_are_pinned(path):
    assert unpinned(path.read_text(encoding="utf-8")) == []


def test_each_action_is_pinned_once():
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    used = {action for text in texts for action in PINNED.findall(text)}
    assert len({action.split("@")[0] for action in used}) == len(used) > 0


@pytest.mark.parametrize(
    "action",
    [
        "actions/checkout@v6",
        f"actions/checkout@{'a' * 40}",
        f"actions/checkout@{'a' * 39} # v6.0.2",
        f"actions/checkout@{'a' * 40} # v6",
        "./local",
    ],
)
def test_unpinned_action_is_found(action):
    pinned = f"actions/checkout@{'a' * 40} # v6.0.2"
    assert unpinned(f"steps:\n  - uses: {pinned}\n    uses: {action}\n") == [action]


@each_workflow
def test_permissions_are_least(path):
    """None for the workflow; each job says what it needs, and how long it may take."""
    workflow = load(path)
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        granted = {f"{scope}: {access}" for scope, access in job["permissions"].items()}
        assert granted <= {"contents: read", "pages: write", "id-token: write"}
        assert len(granted) == 1 or "environment" in job  # only what publishes may do more
        assert int(job["timeout-minutes"])


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


def test_everything_is_tested_somewhere():
    assert "make everything" in commands(GITHUB / "workflows" / "tests.yml")


def test_matrix_leaves_no_supported_python_out():
    job = load(GITHUB / "workflows" / "tests.yml")["jobs"]["package"]
    tested = job["strategy"]["matrix"]["python"]
    newest = int(tested[-1].removeprefix("3."))
    assert tested == [f"3.{minor}" for minor in range(newest + 1) if f"3.{minor}" in SUPPORTED]


@each_workflow
def test_python_is_a_supported_one(path):
    steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
    named = {step.get("with", {}).get("python-version", "") for step in steps}
    versions = " ".join(named - {"${{ matrix.python }}"}).split()
    assert versions
    assert all(version in SUPPORTED for version in versions)


def test_every_place_is_visited_weekly():
    """And the machine as it is, on each system that can make the book."""
    workflow = load(GITHUB / "workflows" / "everywhere.yml")
    assert [key for trigger in workflow["on"]["schedule"] for key in trigger] == ["cron"]
    rows = re.findall(r"^\| ([\w., ]+) \| ", everywhere.__doc__, re.M)[1:]
    places = [name for row in rows for name in row.split(", ")]
    assert ["here", *workflow["jobs"]["places"]["strategy"]["matrix"]["place"]] == places
    assert "make everywhere PLACES=here" in commands(GITHUB / "workflows" / "everywhere.yml")


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


# --- what people meet ------------------------------------------------------------------------


def test_updates_leave_what_the_book_needs():
    python = load(GITHUB / "dependabot.yml")["updates"][0]
    pins = re.findall(
        r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M
    )
    pinned = {name.lower(): version for name, version in pins}
    ignored = {rule["dependency-name"]: rule for rule in python["ignore"]}
    assert ignored.keys() <= pinned.keys()
    assert pinned["jupyter-book"] not in SpecifierSet(ignored["jupyter-book"]["versions"][0])
    assert ignored["sphinx"]["update-types"] == ["version-update:semver-major"]


def test_hooks_are_the_quick_stages():
    """Before a commit runs what `make test` runs before the tests, and the notebooks' rule."""
    hooks = load(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    *quick, tests = check.quick_stages()
    assert tests.name == "tests"
    entries = [hook["entry"] for hook in hooks]
    assert entries == [
        *(f".venv/bin/python {' '.join(stage.command)}" for stage in quick),
        ".venv/bin/python tools/notebooks.py normalise",
    ]


def test_container_is_ready():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    version = re.search(r"/python:([\d.]+)-", container["image"])[1]
    assert version in SUPPORTED
    assert targets_asked_for(container["postCreateCommand"]) <= make_targets()


@pytest.mark.parametrize("name", ["bug", "erratum"])
def test_form_asks_for_something(name):
    form = load(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert form["name"]
    assert form["description"]
    ids = [question["id"] for question in form["body"]]
    assert len(set(ids)) == len(ids)
    for question in form["body"]:
        assert question["type"] in {"input", "textarea"}
        assert question["attributes"]["label"]
    assert any("validations" in question for question in form["body"])


def test_forms_are_where_the_links_say():
    linked = set()
    for page in ("CONTRIBUTING.md", "chapters/errata.md"):
        linked |= set(re.findall(r"\?template=([\w.]+)", (ROOT / page).read_text(encoding="utf-8")))
    assert linked == {"bug.yml", "erratum.yml"}
    assert all((GITHUB / "ISSUE_TEMPLATE" / name).exists() for name in linked)


def test_contributing_names_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert targets_asked_for(text) <= make_targets()
    files = re.findall(r"(?<![\w/])((?:chapters|tests|tools|minitransformer)/[\w.]+)", text)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
