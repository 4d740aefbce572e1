"""The words of the grammar task, read from the tables of `lexicon`, and the forms of their verbs.

Part of the grammar of chapter 8.
"""

from typing import NamedTuple

from minitransformer.tasks.lexicon import (
    ADJECTIVE_TABLE,
    ADVERB_TABLE,
    DETERMINER_TABLE,
    NOUN_TABLES,
    PRESENT,
    PRONOUN_TABLE,
    VERB_TABLE,
)


class Phrase(NamedTuple):
    """A stretch of a sentence in both languages."""

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
    """An adverb and the tenses that it goes with; some stand only at the front."""

    en: str
    de: str
    tenses: list[str]
    front_only: bool


# --- reading the tables


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


def lines(table: str) -> list[str]:
    return [line.strip() for line in table.splitlines() if line.strip()]


NOUNS = {k: [read_noun(k, line) for line in lines(table)] for k, table in NOUN_TABLES.items()}
ADJECTIVES = [read_adjective(line) for line in lines(ADJECTIVE_TABLE)]
VERBS = [read_verb(line) for line in lines(VERB_TABLE)]
DETERMINERS = [read_determiner(line) for line in lines(DETERMINER_TABLE)]
PRONOUNS = [Pronoun(*line.split()) for line in lines(PRONOUN_TABLE)]
ADVERBS = [read_adverb(line) for line in lines(ADVERB_TABLE)]

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
    """The finite form, which comes second in a main clause, and what stands at its end.

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
