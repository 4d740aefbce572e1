"""`_config.yml` names the repository; everything else agrees with it."""

import shutil
import subprocess
import tomllib

import pytest
import yaml

import repository
from notebooks import normalise, read, with_bootstrap
from repository import ROOT


@pytest.fixture
def moved(tmp_path):
    """A copy of the project whose `_config.yml` names another repository."""
    shutil.copytree(ROOT / "chapters", tmp_path / "chapters")
    for name in ("_config.yml", *repository.OTHER_FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    config = tmp_path / "_config.yml"
    text = config.read_text(encoding="utf-8")
    text = text.replace(repository.url(), "https://github.com/someone/else-where")
    config.write_text(text.replace("branch: main", "branch: trunk"), encoding="utf-8")
    return tmp_path


def test_every_file_agrees_and_names_it():
    assert list(repository.stale()) == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["urls"]["Repository"] == repository.url()
    assert citation["repository-code"] == repository.url()
    assert citation["version"] == project["version"]
    assert repository.url() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_moving_changes_every_file_once(moved, monkeypatch):
    notebooks = set((moved / "chapters").rglob("*.ipynb"))
    texts = dict(repository.stale(moved))
    assert texts.keys() == {moved / name for name in repository.OTHER_FILES} | notebooks
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    assert list(repository.stale(moved)) == []
    readme = texts[moved / "README.md"]
    assert repository.slug() not in readme
    assert "/someone/else-where/blob/trunk/chapters/" in readme
    monkeypatch.setattr(repository, "url", lambda: "https://github.com/someone/else-where")
    for path in notebooks:
        nb = read(path)
        assert normalise(with_bootstrap(nb)) == nb


def test_what_pages_load_is_in_the_repository():
    """A file that `.gitignore` hides is on one machine alone, and its page is empty elsewhere."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    ignored = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "_static"]
    assert subprocess.run(ignored, cwd=ROOT, capture_output=True, check=True).stdout == b""
