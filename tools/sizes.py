"""How long the folders are, and the classes and functions that chapters show; a test asks, too.

    python tools/sizes.py

Lines of files are counted as they are; those of a definition without blank lines, comments and
docstrings.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = {"minitransformer": 18_580, "tests": 22_060, "benchmarks": 8_630, "tools": 3_690}
MOST |= {"minitransformer/exercises": 8_000, "tests/exercises": 2_500}
MOST |= {"minitransformer/exercises/projects": 1_340, "minitransformer/exercises/teaching": 320}
MOST |= {"tests/exercises/projects": 700}
"""Lines that a folder may have, without those below it that are named too."""
LONGEST = {"Trainer": 120, "generate": 80, "Tokenizer": 70, "TransformerConfig": 60}
LONGEST |= {"TrainingConfig": 60, "GenerationConfig": 60, "BERTConfig": 60, "MarianConfig": 60}
"""Lines that a definition may have."""


def lines_in(folder: str) -> int:
    """The lines of all Python files of a folder, but for folders in it that are counted alone."""
    apart = [ROOT / other for other in MOST if other.startswith(f"{folder}/")]
    return sum(
        len(path.read_text("utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
        if not {*apart} & {*path.parents}
    )


def definitions() -> Iterator[tuple[str, int]]:
    """Each class and function of the package's modules, and its lines of code."""
    for path in sorted((ROOT / "minitransformer").rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield node.name, lines_of_code(node, source.splitlines())


def lines_of_code(node: ast.ClassDef | ast.FunctionDef, lines: list[str]) -> int:
    """The lines of a definition that a computer reads."""
    texts = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Expr)
        and isinstance(part.value, ast.Constant)
        and isinstance(part.value.value, str)
    ]
    left_out = {n for text in texts for n in range(text.lineno, (text.end_lineno or 0) + 1)}
    code = (
        lines[number - 1].strip()
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
        if number not in left_out
    )
    return sum(bool(line) and not line.startswith("#") for line in code)


def main() -> None:
    """Print both tables, the longest definitions first."""
    for folder, most in MOST.items():
        print(f"{folder:<32}{lines_in(folder):>7,} of at most {most:,}")
    print()
    longest = sorted(definitions(), key=lambda definition: -definition[1])
    for name, count in longest:
        limit = f" of at most {LONGEST[name]}" if name in LONGEST else ""
        if limit or count > max(LONGEST.values()) // 2:
            print(f"{name:<32}{count:>7}" + limit)


if __name__ == "__main__":
    main()
