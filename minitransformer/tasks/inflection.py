"""Words of the grammar task, read from `lexicon.txt`, and the forms that they take in a sentence.

Part of the grammar of chapter 8.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

CONTRACTIONS = {"in dem": "im", "in das": "ins", "von dem": "vom"}


class Phrase(NamedTuple):
    """A part of a sentence in both languages."""

    en: str
    de: str


class Noun(NamedTuple):
    """A noun with its plural and its gender, m, f or n; mass nouns have no plural."""

    kind: str
    en: str
    en_plural: str
    gender: str
    de: str
    de_plural: str
    weak: bool


class Adjective(NamedTuple):
    """An adjective; the German stem, as in "dunkl-", takes the endings."""

    en: str
    de: str
    stem: str
    kinds: list[str]


class Slot(NamedTuple):
    """What a verb asks for: a noun in the case acc or dat, an adjective (adj), a clause (that).

    The preposition is the German one; in English it is the verb's particle.
    """

    case: str
    preposition: str
    kinds: list[str]


class Verb(NamedTuple):
    """A verb in four forms: see, sees, saw, seen; sehen, sieht, sah, gesehen.

    The English particle follows it, as in "wait for"; the German one leaves it: "ruft ... an".
    """

    subjects: list[str]
    slots: list[Slot]
    en: list[str]
    en_particle: str
    de: list[str]
    de_particle: str
    auxiliary: str

    @property
    def frame(self) -> tuple[str, ...]:
        """What the verb asks for, in short: () or ("dat", "acc") or ("prep",)."""
        return tuple("prep" if slot.preposition else slot.case for slot in self.slots)

    def has(self, tense: str) -> bool:
        """Whether the verb occurs in a tense."""
        return tense != "past" or self.en[2] != "-"


class Determiner(NamedTuple):
    """A word before nouns, the names of its endings and of those of an adjective after it."""

    en: str
    en_plural: str
    de: str
    endings: str
    adjective_endings: str
    numbers: str
    use: str


class Pronoun(NamedTuple):
    """A personal pronoun; a verb agrees with it as 1s, 3s or p."""

    en: str
    en_object: str
    nom: str
    acc: str
    dat: str
    agreement: str


class Adverb(NamedTuple):
    """An adverb and the tenses that it goes with; some are only used at the front."""

    en: str
    de: str
    tenses: list[str]
    front_only: bool


class Nominal(NamedTuple):
    """A noun phrase or a pronoun, which has no noun; a verb agrees with it as 1s, 3s or p."""

    en: str
    de: str
    agreement: str
    noun: Noun | None = None


# --- reading the lexicon


def english_suffix(word: str, suffix: str) -> str:
    """Add s or ed as English spells it.

    Example:
        >>> english_suffix("cry", "ed"), english_suffix("wash", "s"), english_suffix("dance", "ed")
        ('cried', 'washes', 'danced')
    """
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ie{suffix[-1]}"
    if suffix == "s":
        return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")
    return word + ("d" if word.endswith("e") else "ed")


def regular_german(infinitive: str) -> list[str]:
    """The four forms of a regular verb.

    Example:
        >>> regular_german("arbeiten")
        ['arbeiten', 'arbeitet', 'arbeitete', 'gearbeitet']
    """
    stem = infinitive.removesuffix("n").removesuffix("e")
    stem += "e" * stem.endswith(("t", "chn"))
    return [infinitive, f"{stem}t", f"{stem}te", f"ge{stem}t"]


def read_lexicon() -> dict[str, list[str]]:
    """The entries of each section."""
    sections: dict[str, list[str]] = {}
    text = Path(__file__).with_name("lexicon.txt").read_text(encoding="utf-8")
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            entries = sections[line.strip("[]")] = []
        elif not line.startswith("#"):
            entries.append(line)
    return sections


def read_noun(kind: str, line: str) -> Noun:
    english, gender, german, *weak = line.split()
    en, _, en_plural = english.partition("/")
    de, _, de_plural = german.partition("/")
    return Noun(kind, en, en_plural or english_suffix(en, "s"), gender, de, de_plural, bool(weak))


def read_adjective(line: str) -> Adjective:
    en, german, *kinds = line.split()
    de, _, stem = german.partition("/")
    return Adjective(en, de, stem or de, kinds)


def read_slot(text: str) -> Slot:
    words = text.split()
    preposition = "" if words[0] in ("acc", "dat", "adj", "that") else words.pop(0)
    return Slot(words[0], preposition, words[1:])


def read_verb(line: str) -> Verb:
    frame, english, german = line.split(";")
    subjects, _, slots = frame.partition(">")
    en = english.split()
    en_particle = en.pop() if len(en) in (2, 4) else ""
    if len(en) == 1:
        en += [english_suffix(en[0], "ed")] * 2
    en.insert(1, english_suffix(en[0], "s"))
    infinitive, *others = german.split()
    de_particle, _, infinitive = infinitive.rpartition("|")
    auxiliary = "sein" if "ist" in others[2:3] else "haben"
    de = [infinitive, *others[:2], others[-1]] if others else regular_german(infinitive)
    wanted = [read_slot(slot) for slot in slots.split(",") if slot]
    return Verb(subjects.split(), wanted, en, en_particle, de, de_particle, auxiliary)


def read_determiner(line: str) -> Determiner:
    english, german, *rest = line.split()
    en, _, en_plural = english.strip("-").partition("/")
    return Determiner(en, en_plural or en, german.strip("-"), *rest)


def read_adverb(line: str) -> Adverb:
    en, de, tenses, *front = line.split("; ")
    return Adverb(en, de, tenses.split(), bool(front))


LEXICON = read_lexicon()
KINDS = ("person", "animal", "text", "food", "drink", "garment", "machine", "place")
NOUNS = {kind: [read_noun(kind, line) for line in LEXICON[kind]] for kind in KINDS}
ADJECTIVES = [read_adjective(line) for line in LEXICON["adjectives"]]
HELD_OUT_PHRASES = frozenset(LEXICON["held out"])
"""Adjective-noun pairs that training never shows; each of the words occurs in other pairs."""
VERBS = [read_verb(line) for line in LEXICON["verbs"]]
PRESENT = {verb: forms for verb, *forms in map(str.split, LEXICON["present"])}
DETERMINERS = [read_determiner(line) for line in LEXICON["determiners"]]
ENDINGS = dict(line.split(": ") for line in LEXICON["endings"])
PRONOUNS = [Pronoun(*line.split()) for line in LEXICON["pronouns"]]
ADVERBS = [read_adverb(line) for line in LEXICON["adverbs"]]
CONJUNCTIONS = {
    tense: [Phrase(*pair.split()) for pair in pairs.split(", ")]
    for tense, pairs in (line.split(": ") for line in LEXICON["conjunctions"])
}
"""What may begin a clause beside a main clause of each tense."""


# --- verbs


def present(verb: str, agreement: str, regular: list[str]) -> str:
    """The present of a verb for 1s, 3s or p."""
    return PRESENT.get(verb, regular)[("1s", "3s", "p").index(agreement)]


def english_verb(verb: Verb, tense: str, agreement: str, negated: bool = False) -> str:
    """The English verb with its auxiliaries and particle.

    Example:
        >>> call = next(verb for verb in VERBS if verb.en[0] == "call")
        >>> english_verb(call, "present", "3s"), english_verb(call, "past", "3s", negated=True)
        ('calls', 'did not call')
    """
    base, third, past, participle = verb.en
    if tense == "future":
        words = ["will", base]
    elif tense == "perfect":
        words = [present("have", agreement, []), participle]
    elif negated and base != "be":
        words = [present("do", agreement, []) if tense == "present" else "did", base]
    elif tense == "present":
        words = [present(base, agreement, [base, third, base])]
    else:
        words = ["were" if (base, agreement) == ("be", "p") else past]
    if negated:
        words.insert(1, "not")
    return " ".join([*words, verb.en_particle]).strip()


def german_verb(verb: Verb, tense: str, agreement: str) -> tuple[str, str]:
    """The finite form, which comes second in a main clause, and what comes at its end.

    Example:
        >>> call = next(verb for verb in VERBS if verb.en[0] == "call")
        >>> german_verb(call, "present", "3s"), german_verb(call, "perfect", "p")
        (('ruft', 'an'), ('haben', 'angerufen'))
    """
    infinitive, third, past, participle = verb.de
    if tense == "future":
        return present("werden", agreement, []), verb.de_particle + infinitive
    if tense == "perfect":
        return present(verb.auxiliary, agreement, []), verb.de_particle + participle
    if tense == "past":
        plural = past + ("n" if past.endswith("e") else "en")
        return plural if agreement == "p" else past, verb.de_particle
    first = infinitive.removesuffix("n").removesuffix("e") + "e"
    return present(infinitive, agreement, [first, third, infinitive]), verb.de_particle


def german_verb_last(verb: Verb, tense: str, agreement: str) -> str:
    """The whole verb as it ends a subordinate clause: anruft, angerufen hat, anrufen wird."""
    finite, rest = german_verb(verb, tense, agreement)
    return f"{rest} {finite}" if tense in ("perfect", "future") else rest + finite


# --- noun phrases and pronouns: one gender, number and case runs through each


def joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


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
