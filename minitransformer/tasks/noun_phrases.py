"""Noun phrases and pronouns of the grammar task: a gender, a number and a case run through each.

Part of the grammar of chapter 8.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from minitransformer.tasks.inflection import (
    ADJECTIVES,
    DETERMINERS,
    NOUNS,
    PRONOUNS,
    Adjective,
    Determiner,
    Noun,
    Phrase,
    Pronoun,
)
from minitransformer.tasks.lexicon import ENDINGS, HELD_OUT_PHRASES

CONTRACTIONS = {"in dem": "im", "in das": "ins", "von dem": "vom"}


@dataclass
class Draw:
    """The source of one sentence's choices, and what it notes about the sentence."""

    random: random.Random
    max_depth: int
    compose: bool
    depth: int = 0  # of the innermost clause; the main clause has depth 0
    composed: bool = False  # whether the sentence holds a held-out phrase

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class Nominal(NamedTuple):
    """A noun phrase or a pronoun, which has no noun; a verb agrees with it as 1s, 3s or p."""

    en: str
    de: str
    agreement: str
    noun: Noun | None = None


def joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# --- putting together


@cache
def german_ending(declension: str, noun: Noun, number: str, case: str) -> str:
    """What a declension adds beside a noun, number s or p, case nom, acc or dat."""
    column = 3 if number == "p" else "mfn".index(noun.gender)
    forms = ENDINGS[declension].split(" / ")[column].split()
    return forms[("nom", "acc", "dat").index(case)].strip("-")


def german_noun(noun: Noun, number: str, case: str) -> str:
    """A noun in its case.

    Example:
        >>> [german_noun(NOUNS["person"][3], "s", case) for case in ("nom", "acc", "dat")]
        ['Junge', 'Jungen', 'Jungen']
        >>> german_noun(NOUNS["person"][2], "p", "dat")
        'Kindern'
    """
    if number == "s":
        return noun.de_plural if noun.weak and case != "nom" else noun.de
    return noun.de_plural + "n" * (case == "dat" and noun.de_plural[-1] not in "ns")


def noun_phrase(
    determiner: Determiner, adjective: Adjective | None, noun: Noun, number: str, case: str
) -> Nominal:
    """Put a noun phrase together, all of it in one gender, number and case."""
    en = [determiner.en_plural if number == "p" else determiner.en]
    de = [determiner.de + german_ending(determiner.endings, noun, number, case)]
    if adjective:
        en.append(adjective.en)
        ending = german_ending(determiner.adjective_endings, noun, number, case)
        de.append(adjective.stem + ending)
    en.append(noun.en_plural if number == "p" else noun.en)
    de.append(german_noun(noun, number, case))
    if en[0] == "a" and en[1][0] in "aeiou":
        en[0] = "an"
    return Nominal(joined(*en), joined(*de), "p" if number == "p" else "3s", noun)


def pronoun(chosen: Pronoun, case: str) -> Nominal:
    """A pronoun in its case: she and sie, her and ihr."""
    en = chosen.en if case == "nom" else chosen.en_object
    return Nominal(en, getattr(chosen, case), chosen.agreement)


def relative_pronoun(head: Nominal, case: str) -> Phrase:
    """The pronoun that begins a clause about the head: who and der, whom and den, that and die."""
    if head.noun is None:
        raise ValueError(f"a relative clause needs a noun, got the pronoun {head.en!r}")
    english = ("who" if case == "nom" else "whom") if head.noun.kind == "person" else "that"
    if (head.agreement, case) == ("p", "dat"):
        return Phrase(english, "denen")
    return Phrase(english, "d" + german_ending("article", head.noun, head.agreement[-1], case))


def with_preposition(preposition: str, nominal: Nominal, *, contract: bool) -> str:
    """Put a German preposition before a noun phrase, as "im Haus" if it may be contracted."""
    german = f"{preposition} {nominal.de}"
    for full, contracted in CONTRACTIONS.items():
        if contract and german.startswith(f"{full} "):
            return contracted + german.removeprefix(full)
    return german


# --- drawing


def draw_adjective(draw: Draw, noun: Noun | None, said: Sequence[str] = ()) -> Adjective:
    """An adjective that goes with the noun, or with the person behind a pronoun.

    With the noun it makes a held-out phrase only for `composition`. As a predicate, where the
    words of the subject are said before, it never does and repeats none of them.
    """
    kind, name = (noun.kind, noun.en) if noun else ("person", "")
    fitting = [a for a in ADJECTIVES if kind in a.kinds and a.en not in said]
    held_out = [a for a in fitting if f"{a.en} {name}" in HELD_OUT_PHRASES]
    if held_out and draw.compose and not said and draw.chance(0.5):
        draw.composed = True
        return draw.random.choice(held_out)
    return draw.random.choice([a for a in fitting if a not in held_out])


def draw_noun_phrase(draw: Draw, noun: Noun, case: str, uses: Sequence[str]) -> Nominal:
    """The noun with a determiner of one of the uses, and sometimes an adjective."""
    numbers = "sp" if noun.de_plural else "m"
    determiners = [d for d in DETERMINERS if d.use in uses and set(d.numbers) & set(numbers)]
    if draw.chance(0.5):  # articles are common
        determiners = [d for d in determiners if d.en in ("the", "a")]
    determiner = draw.random.choice(determiners)
    drawn = draw.random.choice([letter for letter in numbers if letter in determiner.numbers])
    adjective = draw_adjective(draw, noun) if draw.chance(0.4) else None
    return noun_phrase(determiner, adjective, noun, "p" if drawn == "p" else "s", case)


def draw_pronoun(draw: Draw, case: str, subject: Nominal | None = None) -> Nominal:
    """A pronoun; as an object not the subject's own, and not "us" beside "I"."""
    taken = {subject.de} if subject else set()
    if taken & {"ich", "wir"}:
        taken = {"ich", "wir"}
    others = [p for p in PRONOUNS if p.nom not in taken]
    weights = [4 if p.agreement == "1s" else 1 for p in others]  # verbs have forms for "I" alone
    return pronoun(draw.random.choices(others, weights)[0], case)


def draw_nominal(
    draw: Draw, kinds: list[str], case: str, uses: list[str], subject: Nominal | None = None
) -> Nominal:
    """A noun phrase of one of the kinds or, for a person, sometimes a pronoun."""
    kind = draw.random.choice(kinds)
    if kind == "person" and draw.chance(0.3):
        return draw_pronoun(draw, case, subject)
    return draw_noun_phrase(draw, draw.random.choice(NOUNS[kind]), case, uses)
