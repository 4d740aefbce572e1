"""The index of questions: each has its place in the book, and says where it was asked."""

import re
from collections import Counter

import pytest
from mdit_py_plugins.anchors.index import slugify

from notebooks import CHAPTERS, read

PAGES = sorted(CHAPTERS.glob("questions*.md"))
LINKS = r"\[.+?\]\(\S+\)(?:, \[.+?\]\(\S+\))*"
QUESTION = re.compile(
    rf"- (?P<question>.+?) (?P<places>{LINKS})(?: \(asked: (?P<asked>{LINKS})\))?"
)
PLACE = re.compile(r"\[(\d+|What makes it fast) · (.+?)\]\(((?:cases/)?\w+)\.ipynb#([\w-]+)\)")
AT_LEAST, AT_LEAST_EACH_TOPIC = 440, 40


def content() -> str:
    """All pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def lines() -> list[str]:
    """The pages' questions, a line each."""
    return [line for line in content().splitlines() if line[:2] == "- "]


def places(line: str) -> list[tuple[str, str, str, str]]:
    """Number, heading, chapter and anchor of each place that answers the question."""
    found = QUESTION.fullmatch(line)
    return PLACE.findall(found["places"]) if found else []


def anchors(chapter: str) -> dict[str, str]:
    """The chapter's headings, by the anchors that the site gives them."""
    found: dict[str, str] = {}
    for cell in read(CHAPTERS / f"{chapter}.ipynb").cells:
        if cell.cell_type != "markdown":
            continue
        for heading in re.findall(r"^#{1,3} (.+)$", cell.source, re.MULTILINE):
            slug = first = slugify(re.sub(r"\$[^$]*\$|[`*]", "", heading.strip()))
            again = 0
            while slug in found:
                again += 1
                slug = f"{first}-{again}"
            found[slug] = heading.strip()
    return found


def test_no_question_is_unanswered():
    assert [line for line in lines() if not places(line)] == []


def test_places_exist_and_are_named_as_they_are():
    asked_for = {place for line in lines() for place in places(line)}
    known = {chapter: anchors(chapter) for chapter in {place[2] for place in asked_for}}
    wrong = [place for place in asked_for if known[place[2]].get(place[3]) != place[1]]
    misnumbered = [
        place
        for place in asked_for
        if place[0].isdigit() and int(place[0]) != int(place[2].removeprefix("cases/")[:2])
    ]
    assert wrong == misnumbered == []


def test_most_say_where_they_were_asked():
    asked = [QUESTION.fullmatch(line)["asked"] for line in lines()]
    link = r"\[\d\]\(https?://[^\s()]+\)"
    wrong = [text for text in asked if text and not re.fullmatch(rf"{link}(, {link})*", text)]
    assert wrong == []
    assert asked.count(None) <= 0.05 * len(asked)


def test_none_stands_twice():
    counts = Counter(QUESTION.fullmatch(line)["question"] for line in lines())
    assert [question for question, count in counts.items() if count > 1] == []


def test_there_are_enough_in_each_topic():
    topics = re.split(r"^## .+$", content(), flags=re.MULTILINE)[1:]
    counts = [topic.count("\n- ") for topic in topics]
    assert len(counts) >= 12
    assert min(counts) >= AT_LEAST_EACH_TOPIC
    assert sum(counts) >= AT_LEAST


@pytest.mark.parametrize("line", ["- Why?", "- Why? [1](https://example.org)"])
def test_a_line_without_a_place_is_found(line):
    assert places(line) == []
