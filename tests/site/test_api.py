"""The API reference has an entry for every public name, and its links lead where they say."""

import re

import pytest
from bs4 import BeautifulSoup, Tag

from api_reference import BLOCK, CHAPTERS, FOLDERS, PUBLIC, REFERENCE, ROOT, with_links

SOURCES = sorted((ROOT / REFERENCE).glob("api*.md"))
PAGES = [ROOT / "_build" / "html" / REFERENCE / f"{path.stem}.html" for path in SOURCES]
OF_TYPES = {
    "Tensor": "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor",
    "Module": "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module",
    "Path": "https://docs.python.org/3/library/pathlib.html#pathlib.Path",
    "ValueError": "https://docs.python.org/3/library/exceptions.html#ValueError",
}


@pytest.fixture(scope="module")
def page() -> BeautifulSoup:
    """All pages of the reference, one after the other."""
    if not all(path.exists() for path in PAGES):
        pytest.fail("there is no _build/html: run `make book` first", pytrace=False)
    return BeautifulSoup("".join(path.read_text(encoding="utf-8") for path in PAGES), "html.parser")


@pytest.fixture(scope="module")
def entries(page: BeautifulSoup) -> dict[str, Tag]:
    """The description of each public name."""
    described = {title["id"]: title.parent for title in page.find_all("dt", id=True)}
    return {name: described[where] for name, where in PUBLIC.items() if where in described}


def test_every_folder_is_on_one_page():
    named = [name for path in SOURCES for name in BLOCK.findall(path.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(FOLDERS)


def test_tables_of_modules_are_tables(page):
    assert page.find("section", id="module-minitransformer.models.llama").table
    assert "| ---" not in page.get_text()


def test_each_name_has_an_entry_and_there_is_no_other(page, entries):
    assert [name for name in PUBLIC if name not in entries[name].dt.get_text()] == []
    titles = page.select(".py.function > dt, .py.class > dt, .py.data > dt")
    assert {title["id"] for title in titles} == set(PUBLIC.values())


def test_modules_link_to_their_chapters(page):
    built = [p for p in page.find_all("p") if p.get_text().startswith("Built in chapter")]
    assert built
    for paragraph in built:
        links = [link["href"] for link in paragraph.find_all("a", href=True)]
        said = re.match(r"Built in chapters? [\d, and]+", paragraph.get_text())[0]
        for number in map(int, re.findall(r"\d+", said)):
            assert number not in CHAPTERS or f"../{CHAPTERS[number]}.html" in links


def test_types_of_others_are_linked(page):
    for name, address in OF_TYPES.items():
        links = {link["href"] for link in page.select("a.external") if link.get_text() == name}
        assert links == {address}


def test_models_show_how_to_save_and_load_them(page):
    for name in ("Transformer", "DecoderOnlyTransformer"):
        for method in ("save_pretrained", "from_pretrained"):
            assert page.find("dt", id=f"{PUBLIC[name]}.{method}")


LINES = {
    "Built in chapters 4 and 8.": f"Built in chapters :doc:`4 </chapters/{CHAPTERS[4]}>` "
    f"and :doc:`8 </chapters/{CHAPTERS[8]}>`.",
    "`Trainer.fit`": ":py:obj:`Trainer.fit <minitransformer.training.trainer.Trainer.fit>`",
    "the mask, `(b, k)`": "the mask, ``(b, k)``",
    "two `Batch`es": f"two :py:obj:`Batch <{PUBLIC['Batch']}>`\\ es",
    "`torch.nn.Module`, |i - j|": r":py:obj:`torch.nn.Module`, \|i - j\|",
    "``code``": "``code``",
}


def test_names_become_links():
    assert {line: with_links(line) for line in LINES} == LINES
