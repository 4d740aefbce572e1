"""Where the book lives: `_config.yml` says it once, this writes it everywhere else.

    python tools/repository.py            write the address into the other files
    python tools/repository.py --check    only say which files disagree; exit 1 if any does

The other files are those in `OTHER_FILES` (every link of theirs to GitHub or Colab is the
project's own) and the first code cell of each chapter, which installs the package.
"""

import re
import sys
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
    "chapters/reference/errata.md",
    ".github/ISSUE_TEMPLATE/config.yml",
)
OWN_LINK = re.compile(
    r"(?P<site>https://(?:github\.com|colab\.research\.google\.com/github))"
    r"/[\w.-]+/[\w-]+(?P<page>/(?:blob|tree)/[\w.-]+)?"
)
INSTALLED_FROM = re.compile(r"(?P<site>git\+https://github\.com)/[\w.-]+/[\w-]+(?P<page>)")


def url(root: Path = ROOT) -> str:
    """The repository's address, as `_config.yml` states it."""
    return str(_settings(root)["url"]).rstrip("/")


def branch(root: Path = ROOT) -> str:
    """The branch that readers see, as `_config.yml` states it."""
    return str(_settings(root)["branch"])


def slug(root: Path = ROOT) -> str:
    """The address without its site: `owner/name`."""
    return url(root).removeprefix("https://github.com/")


def pages_url(root: Path = ROOT) -> str:
    """Where GitHub Pages shows the book: it follows from the repository's address."""
    owner, name = slug(root).split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def stale(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Yield each file that disagrees with `_config.yml`, and the text it should have."""
    owner_and_name, shown = slug(root), branch(root)

    def corrected(link: re.Match[str]) -> str:
        page = link["page"] and f"{link['page'].rsplit('/', 1)[0]}/{shown}"
        return f"{link['site']}/{owner_and_name}{page or ''}"

    for path, link in _places(root):
        text = path.read_text(encoding="utf-8")
        if (agreed := link.sub(corrected, text)) != text:
            yield path, agreed


def _settings(root: Path) -> dict[str, str]:
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    return config["repository"]


def _places(root: Path) -> Iterator[tuple[Path, re.Pattern[str]]]:
    for name in OTHER_FILES:
        yield root / name, OWN_LINK
    for chapter in sorted((root / "chapters").rglob("*.ipynb")):
        yield chapter, INSTALLED_FROM


def main(arguments: list[str]) -> int:
    """Write the address, or with `--check` only report; return the exit status."""
    check = arguments == ["--check"]
    if arguments and not check:
        print(__doc__)
        return 2
    disagreeing = list(stale())
    for path, text in disagreeing:
        print(f"{path.relative_to(ROOT)}: {'disagrees with' if check else 'now says'} {url()}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and disagreeing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
