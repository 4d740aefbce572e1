"""How long each page is: words, visible lines of code, minutes. Those who write chapters call it.

    python tools/reading_path.py

Exercises and further reading come after the path, the part that is read: they take no minutes. Code
counts where its lines can be seen: cells that hide their input do not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from notebooks import CHAPTERS, is_bootstrap, read, tags

MOST_WORDS = 3_000
MOST_LINES = 300
WORDS_A_MINUTE = 120
LINES_A_MINUTE = 12

AFTER_THE_PATH = ("Exercises", "Further reading")
HEADING = re.compile(r"(#+) (.+)")
FENCE = "```"


@dataclass
class Path:
    """How long the first reading of a chapter is."""

    words: int
    lines: int

    @property
    def minutes(self) -> int:
        """How long it takes."""
        return round(self.words / WORDS_A_MINUTE + self.lines / LINES_A_MINUTE)


def parts(nb: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield what is on the path: pieces of prose ("markdown") and visible code ("code")."""
    skipping = 0  # the level of the heading that began what is left out, 0 on the path
    for cell in nb.cells:
        if cell.cell_type == "code":
            hidden = {"hide-input", "hide-cell", "remove-cell", "remove-input"} & set(tags(cell))
            if not (skipping or hidden or is_bootstrap(cell)):
                yield "code", cell.source
            continue
        kept, in_code = [], False
        for line in cell.source.splitlines():
            in_code ^= line.startswith(FENCE)
            if not in_code and (heading := HEADING.fullmatch(line)):
                level, title = len(heading[1]), heading[2].strip()
                if not skipping or level <= skipping:
                    skipping = level if title in AFTER_THE_PATH else 0
            if not skipping:
                kept.append(line)
        if any(kept):
            yield "markdown", "\n".join(kept).strip()


def words_of(prose: str) -> int:
    """How many words a reader reads; a formula is one, and a picture none."""
    prose = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", prose)
    prose = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", " formula ", prose, flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)|https?://\S+", "] ", prose)
    return len(re.findall(r"\w[\w'’.,-]*", prose))


def path_of(nb: NotebookNode) -> Path:
    """Measure the path of a chapter."""
    found = list(parts(nb))
    words = sum(words_of(text) for kind, text in found if kind == "markdown")
    lines = sum(
        bool(line.strip()) for kind, text in found if kind == "code" for line in text.split("\n")
    )
    return Path(words, lines)


def main() -> None:
    """Print the table."""
    print(f"{'page':<40}{'words':>7}{'lines':>7}{'minutes':>9}   words of the path alone")
    for file in sorted([*CHAPTERS.rglob("*.ipynb"), *CHAPTERS.rglob("*.md")]):
        name = file.relative_to(CHAPTERS).with_suffix("").as_posix()
        if file.suffix == ".md":
            print(f"{name:<40}{words_of(file.read_text(encoding='utf-8')):>7}")
        else:
            nb = read(file)
            path = path_of(nb)
            prose = "\n\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
            sizes = f"{words_of(prose):>7}{path.lines:>7}{path.minutes:>9}   {path.words}"
            print(f"{name:<40}{sizes}")


if __name__ == "__main__":
    main()
