"""The book as one file: the whole of it, with formulas, pictures and links that lead somewhere."""

import re
from zipfile import ZipFile

import pytest
from lxml import etree
from pypdf import PdfReader

from printed import EPUB, HTML, MATHML, PDF, ROOT, file_name, names

LARGEST_PDF = 25_000_000  # bytes

pytestmark = pytest.mark.everything


@pytest.fixture(scope="module")
def epub():
    with ZipFile(ROOT / EPUB) as book:
        yield book


@pytest.fixture(scope="module")
def pages(epub):
    """The pages of the EPUB, parsed."""
    return {name: etree.fromstring(epub.read(name)) for name in map(file_name, names())}


def test_epub_begins_with_its_kind(epub):
    first = epub.infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", 0)
    assert epub.read(first) == b"application/epub+zip"


def test_epub_has_formulas_and_pictures(epub, pages):
    formulas = sum(1 for page in pages.values() for _ in page.iter(f"{MATHML}math"))
    pictures = [tag.get("src") for page in pages.values() for tag in page.iter(f"{HTML}img")]
    assert formulas > 1000
    assert len(pictures) > 80
    assert {*pictures} <= {*epub.namelist()}
    assert not any("$$" in "".join(page.itertext()) for page in pages.values())


def test_links_of_the_epub_lead_somewhere(pages):
    addresses = {name: {tag.get("id") for tag in page.iter()} for name, page in pages.items()}
    wrong = []
    for name, page in pages.items():
        for link in page.iter("{*}a"):
            target, _, place = link.get("href", "").partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            known = addresses.get(target or name)
            if known is None or (place and place not in known):
                wrong.append((name, link.get("href")))
    assert wrong == []


def test_pdf_is_the_whole_book():
    path = ROOT / PDF
    assert path.stat().st_size <= LARGEST_PDF
    font = re.search(rb"/BaseFont /\S*Math", path.read_bytes())  # else no parenthesis grows
    assert font, "install a font for formulas, such as fonts-dejavu-extra"
    reader = PdfReader(path)
    assert len(reader.pages) > 500
    links = [link.get_object() for page in reader.pages for link in page.get("/Annots", ())]
    inside = {str(link["/Dest"]).lstrip("/") for link in links if "/Dest" in link}
    assert len(inside) > 300
    assert inside <= {name.lstrip("/") for name in reader.named_destinations}
    elsewhere = [link["/A"]["/URI"] for link in links if "/URI" in link.get("/A", ())]
    assert not [address for address in elsewhere if address.startswith("file:")]
