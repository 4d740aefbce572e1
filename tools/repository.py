"""Where the book lives: `_config.yml` says it once, this writes it everywhere else.

    python tools/repository.py    after the book has moved; a test says if it is due

The other files are those in `OTHER_FILES` (every link of theirs to GitHub or Colab is the
project's own) and the first code cell of each chapter, which installs the package.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
OTHER_FILES = (
    "pyproject.toml",
    "CITATION.cff",
    "README.md",
    "CONTRIBUTING.md",
    "index.md",
    "chapters/reference/cheat_sheet.md",
    "chapters/reference/errata.md",
    ".github/ISSUE_TEMPLATE/config.yml",
)
OWN_LINK = re.compile(
    r"(?P<site>https://(?:github\.com|colab\.research\.google\.com/github))"
    r"/[\w.-]+/[\w-]+(?P<page>/(?:blob|tree)/[\w.-]+)?"
)
INSTALLED_FROM = re.compile(r"(?P<site>git\+https://github\.com)/[\w.-]+/[\w-]+(?P<page>)")


def settings(root: Path) -> dict[str, str]:
    """What `_config.yml` states of the repository."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    return dict(config["repository"])


def url(root: Path = ROOT) -> str:
    """The repository's address."""
    return settings(root)["url"].rstrip("/")


def branch(root: Path = ROOT) -> str:
    """The branch that readers see."""
    return settings(root)["branch"]


def slug(root: Path = ROOT) -> str:
    """The address without its site: `owner/name`."""
    return url(root).removeprefix("https://github.com/")


def pages_url(root: Path = ROOT) -> str:
    """Where GitHub Pages shows the book: it follows from the repository's address."""
    owner, name = slug(root).split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def stale(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield each file that disagrees with `_config.yml`, and the text it should have."""

    def corrected(link: re.Match[str]) -> str:
        page = link["page"] and f"{link['page'].rsplit('/', 1)[0]}/{branch(root)}"
        return f"{link['site']}/{slug(root)}{page or ''}"

    places = [(root / name, OWN_LINK) for name in OTHER_FILES]
    places += [(path, INSTALLED_FROM) for path in sorted((root / "chapters").rglob("*.ipynb"))]
    for path, link in places:
        text = path.read_text(encoding="utf-8")
        if (agreed := link.sub(corrected, text)) != text:
            yield path, agreed


if __name__ == "__main__":
    for path, text in stale():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: now says {url()}")
