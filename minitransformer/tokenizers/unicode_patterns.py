r"""Patterns as published tokenizers write them, for Python's `re`, which knows no \p{L}.

They are written for the engine Oniguruma. A pattern of theirs asks of a character hardly more
than its *category* in Unicode: whether it is a letter, a number, a mark. So each character of a
text gets a stand-in, one for each category, and \p{L} becomes the few that stand for letters.

Python 3.11 has Unicode 14, Python 3.13 has 15.1, and `tokenizers` 0.23 has 16: to it 9,392 code
points are letters or numbers that Python 3.11 has never heard of (4,382 with Python 3.13). They
are listed here, so that texts are cut as there. `split_pieces` of chapter 1 goes by Python.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from minitransformer.tokenizer_file import abbreviated

NEWER = """
897:M cf3:M ece:M 1b4e-1b4f:P 1b7f:P 1c89:Lu 1c8a:Ll 2427-2429:S 2ffc-2fff:S 31e4-31e5:S 31ef:S
a7cb-a7cc:Lu a7cd:Ll a7da:Lu a7db:Ll a7dc:Lu 105c0-105f3:Lo 10d40-10d49:N 10d4a-10d4d:Lo 10d4e:Lm
10d4f:Lo 10d50-10d65:Lu 10d69-10d6d:M 10d6e:P 10d6f:Lm 10d70-10d85:Ll 10d8e-10d8f:S 10ec2-10ec4:Lo
10efc-10eff:M 1123f-11240:Lo 11241:M 11380-11389:Lo 1138b:Lo 1138e:Lo 11390-113b5:Lo 113b7:Lo
113b8-113c0:M 113c2:M 113c5:M 113c7-113ca:M 113cc-113d0:M 113d1:Lo 113d2:M 113d3:Lo 113d4-113d5:P
113d7-113d8:P 113e1-113e2:M 116d0-116e3:N 11b00-11b09:P 11bc0-11be0:Lo 11be1:P 11bf0-11bf9:N
11f00-11f01:M 11f02:Lo 11f03:M 11f04-11f10:Lo 11f12-11f33:Lo 11f34-11f3a:M 11f3e-11f42:M
11f43-11f4f:P 11f50-11f59:N 11f5a:M 1342f:Lo 13440:M 13441-13446:Lo 13447-13455:M 13460-143fa:Lo
16100-1611d:Lo 1611e-1612f:M 16130-16139:N 16d40-16d42:Lm 16d43-16d6a:Lo 16d6b-16d6c:Lm
16d6d-16d6f:P 16d70-16d79:N 18cff:Lo 1b132:Lo 1b155:Lo 1cc00-1ccef:S 1ccf0-1ccf9:N 1cd00-1ceb3:S
1d2c0-1d2d3:N 1df25-1df2a:Ll 1e030-1e06d:Lm 1e08f:M 1e4d0-1e4ea:Lo 1e4eb:Lm 1e4ec-1e4ef:M
1e4f0-1e4f9:N 1e5d0-1e5ed:Lo 1e5ee-1e5ef:M 1e5f0:Lo 1e5f1-1e5fa:N 1e5ff:P 1f6dc:S 1f774-1f776:S
1f77b-1f77f:S 1f7d9:S 1f8b2-1f8bb:S 1f8c0-1f8c1:S 1fa75-1fa77:S 1fa87-1fa89:S 1fa8f:S 1faad-1faaf:S
1fabb-1fabf:S 1fac6:S 1face-1facf:S 1fada-1fadc:S 1fadf:S 1fae8-1fae9:S 1faf7-1faf8:S 1fbcb-1fbef:S
2b739:Lo 2ebf0-2ee5d:Lo 31350-323af:Lo
"""
"""What came with Unicode 15, 15.1 and 16: code points in hexadecimal, and their category."""

CATEGORIES = ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Z", "C")
STAND_INS = {name: chr(0xE000 + index) for index, name in enumerate(CATEGORIES)}
THEMSELVES = 0x180  # characters below need no stand-in: patterns may name them
SPACE = "\t\n\v\f\r \x85\xa0"  # what \s matches below that; above, the category Z

PART = re.compile(
    r"\\[pP]\{\w+\}|\\[sSrnt\\]|\\x[0-7][0-9a-f]|\\[^\w\s]"  # escapes
    r"|\(\?(?:i?:|<?[=!])|\((?!\?)|\[\^?|[^\\(\[]"  # groups, sets, and what means itself
)
CATEGORY = re.compile(r"\\([pP])\{(\w+)\}|\\([sS])")


class Pattern:
    r"""A pattern of a `tokenizer.json`: where it matches in a text.

    Args:
        pattern: {"String": ...}, which means itself, or {"Regex": ...}.

    Raises:
        ValueError: if a pattern has what is not translated here, and the library `regex`, which
            is tried then, is not installed. (Its Unicode is a version of its own.)

    Example:
        >>> list(Pattern({"Regex": r"\p{L}+|\p{N}{1,3}"}).spans("zwölf 1234"))
        [(0, 5, True), (5, 6, False), (6, 9, True), (9, 10, True)]
    """

    def __init__(self, pattern: Mapping[str, str]) -> None:
        if [*pattern] not in (["String"], ["Regex"]):
            raise ValueError(f"a pattern must be a String or a Regex, got {abbreviated(pattern)}")
        ((kind, self.written),) = pattern.items()
        translated = re.escape(self.written) if kind == "String" else translate(self.written)
        self.stands_in = kind == "Regex" and translated is not None
        self.compiled: Any = re.compile(translated) if translated else self.by_regex()

    def by_regex(self) -> Any:
        """What the library `regex` makes of it."""
        try:
            return import_module("regex").compile(self.written, import_module("regex").V1)
        except ImportError as error:
            raise ValueError(
                f"the pattern {abbreviated(self.written)} is not known here; "
                "with the library regex it is tried: pip install regex"
            ) from error

    def spans(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Where matches and what lies between them begin and end; True for a match."""
        plain = not self.stands_in or text.isascii()
        end = 0
        for match in self.compiled.finditer(text if plain else text.translate(StandIns())):
            if end < match.start():
                yield end, match.start(), False
            yield match.start(), match.end(), True
            end = match.end()
        if end < len(text):
            yield end, len(text), False

    def replace(self, text: str, content: str) -> str:
        """The text with `content` for each match."""
        return "".join(content if found else text[a:b] for a, b, found in self.spans(text))


class StandIns:
    """What stands for each character, for `str.translate`."""

    def __getitem__(self, code: int) -> int | str:
        return code if code < THEMSELVES else STAND_INS[category(chr(code))]


def category(character: str) -> str:
    """A character's category: one letter as in Unicode, two for letters, which have a case.

    Example:
        >>> [category(character) for character in "aA1,☃"]
        ['Ll', 'Lu', 'N', 'P', 'S']
    """
    found = unicodedata.category(character)
    if found == "Cn":
        found = newer().get(ord(character), found)
    return found if found[0] == "L" else found[0]


@cache
def newer() -> dict[int, str]:
    """The category of each code point in `NEWER`."""
    found: dict[int, str] = {}
    for entry in NEWER.split():
        codes, name = entry.split(":")
        first, last = (codes.split("-") * 2)[:2]
        found |= dict.fromkeys(range(int(first, 16), int(last, 16) + 1), name)
    return found


@cache
def members(name: str) -> str:
    """What stands for a category, or for white space ("s"), as the inside of a character class."""
    if name == "s":
        return re.escape(SPACE) + STAND_INS["Z"]
    below = [chr(code) for code in range(THEMSELVES) if category(chr(code)).startswith(name)]
    above = [stand_in for found, stand_in in STAND_INS.items() if found.startswith(name)]
    return re.escape("".join([*below, *above]))


def translate(pattern: str) -> str | None:
    """A pattern in terms of stand-ins, or None if it has what is not known to mean the same.

    Anchors, sets inside of sets and other escapes mean something else there, or nothing here. A
    character that has a stand-in cannot be in a pattern.
    """
    parts = PART.findall(pattern)
    if "".join(parts) != pattern or re.search(r"&&|\d\}\+|[^\x00-\u017f]", pattern):
        return None
    written, inside = [], False
    for part in parts:
        if part in ("[", "[^"):
            if inside:
                return None
            inside = True
        elif part == "]":
            inside = False
        elif part in ("^", "$", ".") and not inside:
            return None
        elif found := CATEGORY.fullmatch(part):
            standing = members(found[2] or "s")
            negated = part[1].isupper()
            if not standing or (negated and inside):
                return None
            part = standing if inside else f"[{'^' * negated}{standing}]"
        written.append(part)
    return "".join(written)
