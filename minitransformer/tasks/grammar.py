"""English sentences with their German, from a synchronous grammar written for this book.

Both sides grow from one tree: each function draws a phrase and returns it in both languages. A
clause keeps its parts apart until it is clear where the verb goes, second in a German main
clause and last in a subordinate one. The English sentence determines the German one.

Built in chapter 8.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from minitransformer.checks import check_at_least_1
from minitransformer.tasks.inflection import (
    ADJECTIVES,
    ADVERBS,
    CONJUNCTIONS,
    DETERMINERS,
    HELD_OUT_PHRASES,
    NOUNS,
    PRONOUNS,
    VERBS,
    Adjective,
    Nominal,
    Noun,
    Phrase,
    Slot,
    Verb,
    english_verb,
    german_verb,
    german_verb_last,
    joined,
    noun_phrase,
    pronoun,
    relative_pronoun,
    with_preposition,
)
from minitransformer.training.data import TextPair

__all__ = ["grammar_sentences"]

TENSES = ("present", "present", "past", "perfect", "future")
INNER_TENSES = {  # of a clause inside another, whose tense comes first
    "present": TENSES,
    "past": ("past",),
    "perfect": ("past", "perfect"),
    "future": ("present",),
}
SHORTEST_HELD_OUT = 6  # English words; there are too few shorter sentences
NOTHING = Phrase("", "")


@dataclass
class Clause:
    """The parts of a clause, kept apart until it is clear where the German verb goes."""

    verb: Verb
    tense: str
    negated: bool
    subject: Nominal
    front: Phrase = NOTHING  # the relative pronoun where it is not the subject
    objects: list[str] = field(default_factory=list)  # the English ones
    pronouns: list[str] = field(default_factory=list)  # German objects before the adverb
    nouns: list[str] = field(default_factory=list)  # German objects after it
    complement: str = ""  # German adjective or prepositional phrase: what "nicht" comes before
    adverb: Phrase = NOTHING
    tail: Phrase = NOTHING  # a relative or that-clause, which follows even a verb at the end

    def english(self) -> str:
        verb = english_verb(self.verb, self.tense, self.subject.agreement, self.negated)
        start = [self.front.en, self.subject.en, verb]
        return joined(*start, *self.objects, self.adverb.en, self.tail.en)

    def german_middle(self) -> str:
        negation = "nicht" if self.negated else ""
        return joined(*self.pronouns, self.adverb.de, *self.nouns, negation, self.complement)

    def german_second(self, front: str = "") -> str:
        """The verb second: after the subject, or before it where something else is in front."""
        finite, rest = german_verb(self.verb, self.tense, self.subject.agreement)
        start = [front, finite, self.subject.de] if front else [self.subject.de, finite]
        return joined(*start, self.german_middle(), rest, self.tail.de)

    def german_last(self) -> str:
        """The verb last, as in subordinate clauses."""
        verb = german_verb_last(self.verb, self.tense, self.subject.agreement)
        start = [self.front.de, self.subject.de]
        return joined(*start, self.german_middle(), verb, self.tail.de)

    def inserted(self, opening: Phrase = NOTHING) -> Phrase:
        """The clause within another one, between commas in German."""
        de = joined(opening.de, self.german_last())
        return Phrase(joined(opening.en, self.english()), f", {de} ,")

    def add_object(self, slot: Slot, nominal: Nominal, relative: Phrase = NOTHING) -> None:
        """Give the verb an object; a relative clause about it follows as the tail."""
        self.objects.append(nominal.en)
        self.tail = relative
        if slot.preposition:
            contract = relative == NOTHING
            self.complement = with_preposition(slot.preposition, nominal, contract=contract)
        elif nominal.noun:
            self.nouns.append(nominal.de)
        else:
            self.pronouns.append(nominal.de)

    def add_relative_pronoun(self, slot: Slot, head: Nominal) -> None:
        """Begin the clause with an object that is a relative pronoun: whom, to whom; auf den."""
        relative = relative_pronoun(head, slot.case)
        to = "to" if self.verb.frame == ("dat", "acc") and slot.case == "dat" else ""
        self.front = Phrase(joined(to, relative.en), joined(slot.preposition, relative.de))


# --- drawing noun phrases and pronouns


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


# --- drawing clauses


@cache
def usable_verbs(tense: str, nests: bool) -> list[Verb]:
    """The verbs with a tense; those that ask for a that-clause only where clauses may nest."""
    return [verb for verb in VERBS if verb.has(tense) and (nests or verb.frame != ("that",))]


@cache
def verbs_by_frame(tense: str, nests: bool) -> list[list[Verb]]:
    """The same, grouped by what they ask for."""
    verbs = usable_verbs(tense, nests)
    frames = dict.fromkeys(verb.frame for verb in verbs)
    return [[verb for verb in verbs if verb.frame == frame] for frame in frames]


@cache
def roles(kind: str, tense: str, nests: bool) -> list[tuple[Verb, int | None]]:
    """What a noun can be to verbs: the number of a slot, or None for the subject."""
    verbs = usable_verbs(tense, nests)
    subjects: list[tuple[Verb, int | None]] = [(v, None) for v in verbs if kind in v.subjects]
    return subjects + [(v, i) for v in verbs for i, s in enumerate(v.slots) if kind in s.kinds]


def grow_clause(draw: Draw, tense: str, depth: int, head: Nominal | None = None) -> Clause:
    """A clause with all that it holds; with a head, a relative clause about that."""
    draw.depth = max(draw.depth, depth)
    nests = depth < draw.max_depth
    role = None
    if head and head.noun:
        verb, role = draw.random.choice(roles(head.noun.kind, tense, nests))
    else:
        verb = draw.random.choice(draw.random.choice(verbs_by_frame(tense, nests)))
    negated = draw.chance(0.1)
    if head and role is None:
        subject = head._replace(**relative_pronoun(head, "nom")._asdict())
    else:
        uses = ["def"] if negated else ["def", "any"]
        subject = draw_nominal(draw, verb.subjects, "nom", uses)
        relative = draw_relative(draw, subject, tense, depth)
        en, de = joined(subject.en, relative.en), joined(subject.de, relative.de)
        subject = subject._replace(en=en, de=de)
    clause = Clause(verb, tense, negated, subject)
    for index, slot in enumerate(verb.slots):
        if head and index == role:
            clause.add_relative_pronoun(slot, head)
        else:
            fill_slot(draw, clause, slot, depth)
    simple = clause.tail == NOTHING and not negated and verb.frame != ("adj",)
    if simple and draw.chance(0.2):
        clause.adverb = draw_adverb(draw, tense)
    return clause


def draw_relative(draw: Draw, nominal: Nominal, tense: str, depth: int) -> Phrase:
    """A relative clause about a noun phrase, or most often none."""
    if nominal.noun is None or depth >= draw.max_depth or not draw.chance(0.2):
        return NOTHING
    inner_tense = draw.random.choice(INNER_TENSES[tense])
    return grow_clause(draw, inner_tense, depth + 1, nominal).inserted()


def fill_slot(draw: Draw, clause: Clause, slot: Slot, depth: int) -> None:
    """Give the verb of the clause what it asks for."""
    if slot.case == "adj":
        said = clause.subject.en.split()
        adjective = draw_adjective(draw, clause.subject.noun, said)
        clause.objects.append(adjective.en)
        clause.complement = adjective.de
    elif slot.case == "that":
        inner = grow_clause(draw, draw.random.choice(INNER_TENSES[clause.tense]), depth + 1)
        clause.tail = inner.inserted(Phrase("that", "dass"))
    else:
        last = slot is clause.verb.slots[-1]
        more = ["bare"] if slot.preposition else ["bare", "no"]
        uses = ["def"] if clause.negated else ["def", "any", *(more if last else [])]
        nominal = draw_nominal(draw, slot.kinds, slot.case, uses, clause.subject)
        relative = draw_relative(draw, nominal, clause.tense, depth) if last else NOTHING
        clause.add_object(slot, nominal, relative)


def draw_adverb(draw: Draw, tense: str, *, in_front: bool = False) -> Phrase:
    """An adverb that goes with the tense."""
    fitting = [a for a in ADVERBS if tense in a.tenses and (in_front or not a.front_only)]
    return Phrase(*draw.random.choice(fitting)[:2]) if fitting else NOTHING


def draw_sentence(
    generator: random.Random, *, max_depth: int = 1, compose: bool = False
) -> tuple[TextPair, Draw]:
    """A main clause, alone, or after an adverb, or with a subordinate clause before or after it."""
    draw = Draw(generator, max_depth, compose)
    tense = generator.choice(TENSES)
    main = grow_clause(draw, tense, 0)
    en, de = main.english(), main.german_second()
    if draw.chance(0.2):
        conjunction, german = generator.choice(CONJUNCTIONS[tense])
        same = conjunction in ("when", "while") and tense != "future"
        inner = grow_clause(draw, tense if same else generator.choice(INNER_TENSES[tense]), 1)
        beside = Phrase(f"{conjunction} {inner.english()}", f"{german} {inner.german_last()}")
        if main.tail == NOTHING and draw.chance(0.5):
            en, de = f"{en} {beside.en}", f"{de} , {beside.de}"
        else:  # after a tail it would seem to belong to that
            en, de = f"{beside.en} , {en}", main.german_second(f"{beside.de} ,")
    elif main.adverb == NOTHING and draw.chance(0.25):
        front = draw_adverb(draw, tense, in_front=True)
        en, de = f"{front.en} {en}", main.german_second(front.de)
    return TextPair(punctuated(en), punctuated(de)), draw


def punctuated(words: str) -> str:
    """Begin with a capital, end with a full stop, and keep one comma of several."""
    text = re.sub(r"( ,)+", ",", words).removesuffix(",")
    return f"{text[0].upper()}{text[1:]}."


def grammar_sentences(
    seed: int = 0, *, num_train: int = 30_000, num_held_out: int = 1_000
) -> dict[str, list[TextPair]]:
    """English sentences with their German, in four splits.

    - `train`: sentences as they come, short ones often and with repetition; never one of the
      other splits. Clauses nest one deep: a main clause holds others, those hold none.
    - `held_out`: distinct sentences drawn the same way, of 6 words or more (shorter ones are too
      few, and training needs them).
    - `composition`: distinct sentences that hold an adjective-noun pair of `HELD_OUT_PHRASES` in
      `minitransformer.tasks.inflection`, such as "old dog".
    - `deep`: distinct sentences in which clauses nest two deep, as a relative clause in a
      that-clause.

    With the default sizes no test sentence has a word that training lacks. "read" has no simple
    past here: it would look like the present.

    Args:
        seed: the draw; the same seed gives the same splits everywhere.
        num_train: size of `train`.
        num_held_out: size of each of the other splits.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> splits = grammar_sentences(num_train=10, num_held_out=3)
        >>> {name: len(pairs) for name, pairs in splits.items()}
        {'train': 10, 'held_out': 3, 'composition': 3, 'deep': 3}
    """
    check_at_least_1(num_train=num_train, num_held_out=num_held_out)
    generator = random.Random(f"grammar {seed}")

    def distinct(keeps: Callable[[TextPair, Draw], bool], **options: Any) -> list[TextPair]:
        found: dict[TextPair, None] = {}  # a dict keeps the order of the draw, a set would not
        while len(found) < num_held_out:
            pair, draw = draw_sentence(generator, **options)
            if keeps(pair, draw):
                found[pair] = None
        return list(found)

    held_out = distinct(lambda pair, _: len(pair.src.split()) >= SHORTEST_HELD_OUT)
    composition = distinct(lambda _, draw: draw.composed, compose=True)
    deep = distinct(lambda _, draw: draw.depth == 2, max_depth=2)
    train: list[TextPair] = []
    others = set(held_out)
    while len(train) < num_train:
        pair, _ = draw_sentence(generator)
        if pair not in others:
            train.append(pair)
    return {"train": train, "held_out": held_out, "composition": composition, "deep": deep}
