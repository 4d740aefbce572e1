"""`_config.yml` names the repository; everything else agrees with it."""

import re
import shutil
import tomllib

import pytest
import yaml

import repository
from notebooks import bootstrap_cell, is_bootstrap, normalise, read
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


def test_every_file_agrees():
    assert list(repository.stale()) == []


def test_every_file_names_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["urls"]["Repository"] == repository.url()
    assert citation["repository-code"] == repository.url()
    assert repository.url() in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"git+{repository.url()}" in bootstrap_cell().source


def test_no_page_names_another_one():
    """A link to a repository with our name, under whatever owner, is a link to ours."""
    name = repository.slug().split("/")[1]
    elsewhere = re.compile(rf"(?!{repository.slug()}\b)\b[\w.-]+/{name}(?=/blob|/tree|\.git|\")")
    pages = [ROOT / "index.md", *(ROOT / "chapters").rglob("*")]
    found = {
        page: elsewhere.findall(page.read_text(encoding="utf-8"))
        for page in pages
        if page.suffix in {".md", ".ipynb"}
    }
    assert {page: links for page, links in found.items() if links} == {}


def test_moving_changes_every_file_once(moved):
    changed = {path for path, _ in repository.stale(moved)}
    chapters = set((moved / "chapters").rglob("*.ipynb"))
    assert changed == {moved / name for name in repository.OTHER_FILES} | chapters

    for path, text in repository.stale(moved):
        path.write_text(text, encoding="utf-8")
    assert list(repository.stale(moved)) == []
    assert repository.slug() not in (moved / "README.md").read_text(encoding="utf-8")


def test_moved_chapters_stay_normalised(moved, monkeypatch):
    for path, text in repository.stale(moved):
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(repository, "url", lambda: "https://github.com/someone/else-where")
    for path in (moved / "chapters").rglob("*.ipynb"):
        nb = read(path)
        assert normalise(nb) == nb
        assert next(filter(is_bootstrap, nb.cells)).source == bootstrap_cell().source


def test_branch_of_a_link_follows(moved):
    readme = moved / "README.md"
    colab = "https://colab.research.google.com/github"
    readme.write_text(f"{colab}/a/b/blob/main/chapters/04.ipynb", encoding="utf-8")
    texts = {path.name: text for path, text in repository.stale(moved)}
    assert texts["README.md"] == f"{colab}/someone/else-where/blob/trunk/chapters/04.ipynb"
