"""The grammar writes right German, one for each English sentence, and its splits differ."""

import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from minitransformer import grammar_sentences
from minitransformer.tasks.grammar import Clause, draw_sentence, punctuated
from minitransformer.tasks.inflection import (
    ADJECTIVES,
    DETERMINERS,
    HELD_OUT_PHRASES,
    NOUNS,
    PRONOUNS,
    VERBS,
    Phrase,
    english_suffix,
    english_verb,
    german_verb,
    german_verb_last,
    noun_phrase,
    pronoun,
    relative_pronoun,
)
from minitransformer.tokenization.words import split_words as words

SIZES = {"train": 4000, "held_out": 200, "composition": 200, "deep": 200}
SUBORDINATORS = {"because", "although", "when", "while", "who", "whom", "that"}


@pytest.fixture(scope="module")
def splits():
    return grammar_sentences(3, num_train=SIZES["train"], num_held_out=200)


def subordinators(text):
    return sum(word.lower() in SUBORDINATORS for word in words(text))


# --- putting sentences together from their English words


def nominal(english, case="nom"):
    """The noun phrase or pronoun of that English."""
    for p in PRONOUNS:
        if english == (p.en if case == "nom" else p.en_object):
            return pronoun(p, case)
    *before, last = english.split()
    noun, number = next(
        (noun, number)
        for nouns in NOUNS.values()
        for noun in nouns
        for number, form in (("s", noun.en), ("p", noun.en_plural))
        if form == last
    )
    adjective = next((a for a in ADJECTIVES if before and a.en == before[-1]), None)
    first = "".join(before[:-1] if adjective else before)
    first = "a" if first == "an" else first
    mass_or_number = number if noun.de_plural else "m"
    determiner = next(
        d
        for d in DETERMINERS
        if mass_or_number in d.numbers and first == (d.en_plural if number == "p" else d.en)
    )
    return noun_phrase(determiner, adjective, noun, number, case)


def find_verb(english, objects, index=0):
    """The index-th verb of that English with so many objects."""
    names = [v for v in VERBS if f"{v.en[0]} {v.en_particle}".strip() == english]
    return [v for v in names if len(v.slots) == objects][index]


def clause(subject, english, *objects, tense="present", index=0, relative=None, **options):
    """A clause; the object None is the relative pronoun for `head`; `relative` is the tail."""
    head = options.pop("head", None)
    verb = find_verb(english, len(objects), index)
    if subject is None:
        subject = head._replace(**relative_pronoun(head, "nom")._asdict())
    elif isinstance(subject, str):
        subject = nominal(subject)
    adverb = Phrase(*options.pop("adverb", ("", "")))
    grown = Clause(verb, tense, options.pop("negated", False), subject, adverb=adverb)
    for slot, text in zip(verb.slots, objects, strict=True):
        if text is None:
            grown.add_relative_pronoun(slot, head)
        elif slot.case == "adj":
            grown.objects.append(text)
            grown.complement = next(a.de for a in ADJECTIVES if a.en == text)
        elif slot.case == "that":
            grown.tail = text.inserted(Phrase("that", "dass"))
        else:
            last = slot is verb.slots[-1] and relative is not None
            grown.add_object(slot, nominal(text, slot.case), *[relative] * last)
    return grown


def about(english, subject, verb, *objects, **options):
    """A relative clause about the noun phrase."""
    return clause(subject, verb, *objects, head=nominal(english), **options).inserted()


def with_relative(english, *parts, **options):
    """A subject with a relative clause."""
    subject, relative = nominal(english), about(english, *parts, **options)
    return subject._replace(en=f"{subject.en} {relative.en}", de=f"{subject.de} {relative.de}")


def said(main, front=None):
    """The finished sentence in both languages, perhaps with something in front."""
    if front is None:
        return punctuated(main.english()), punctuated(main.german_second())
    return punctuated(f"{front[0]} {main.english()}"), punctuated(main.german_second(front[1]))


def front_clause(conjunction, german, inner):
    return f"{conjunction} {inner.english()} ,", f"{german} {inner.german_last()} ,"


# --- noun phrases


@pytest.mark.parametrize(
    ("english", "nom", "acc", "dat"),
    [
        ("the old man", "der alte Mann", "den alten Mann", "dem alten Mann"),
        ("the young woman", "die junge Frau", "die junge Frau", "der jungen Frau"),
        ("the small child", "das kleine Kind", "das kleine Kind", "dem kleinen Kind"),
        ("the old men", "die alten Männer", "die alten Männer", "den alten Männern"),
        ("a clever boy", "ein kluger Junge", "einen klugen Jungen", "einem klugen Jungen"),
        ("a lazy cat", "eine faule Katze", "eine faule Katze", "einer faulen Katze"),
        ("an old horse", "ein altes Pferd", "ein altes Pferd", "einem alten Pferd"),
        ("this bear", "dieser Bär", "diesen Bären", "diesem Bären"),
        ("these mice", "diese Mäuse", "diese Mäuse", "diesen Mäusen"),
        ("this new lamp", "diese neue Lampe", "diese neue Lampe", "dieser neuen Lampe"),
        ("every red shirt", "jedes rote Hemd", "jedes rote Hemd", "jedem roten Hemd"),
        ("every guest", "jeder Gast", "jeden Gast", "jedem Gast"),
        ("my old friend", "mein alter Freund", "meinen alten Freund", "meinem alten Freund"),
        ("his tired girls", "seine müden Mädchen", "seine müden Mädchen", "seinen müden Mädchen"),
        ("our dark house", "unser dunkles Haus", "unser dunkles Haus", "unserem dunklen Haus"),
        ("our queen", "unsere Königin", "unsere Königin", "unserer Königin"),
        ("two wild lions", "zwei wilde Löwen", "zwei wilde Löwen", "zwei wilden Löwen"),
        ("many small birds", "viele kleine Vögel", "viele kleine Vögel", "vielen kleinen Vögeln"),
        ("no expensive coat", "kein teurer Mantel", "keinen teuren Mantel", "keinem teuren Mantel"),
        ("no milk", "keine Milch", "keine Milch", "keiner Milch"),
        ("cold water", "kaltes Wasser", "kaltes Wasser", "kaltem Wasser"),
        ("fresh coffee", "frischer Kaffee", "frischen Kaffee", "frischem Kaffee"),
        ("sweet milk", "süße Milch", "süße Milch", "süßer Milch"),
        ("radios", "Radios", "Radios", "Radios"),
        ("white eggs", "weiße Eier", "weiße Eier", "weißen Eiern"),
    ],
)
def test_noun_phrases_agree(english, nom, acc, dat):
    for case, german in (("nom", nom), ("acc", acc), ("dat", dat)):
        phrase = nominal(english, case)
        assert (phrase.en, phrase.de) == (english, german)


@pytest.mark.parametrize(
    ("english", "nom", "acc", "dat"),
    [
        ("the man", "who der", "whom den", "whom dem"),
        ("the woman", "who die", "whom die", "whom der"),
        ("the child", "who das", "whom das", "whom dem"),
        ("the boys", "who die", "whom die", "whom denen"),
        ("the dog", "that der", "that den", "that dem"),
        ("the lamp", "that die", "that die", "that der"),
    ],
)
def test_relative_pronouns_agree(english, nom, acc, dat):
    for case, expected in (("nom", nom), ("acc", acc), ("dat", dat)):
        assert " ".join(relative_pronoun(nominal(english), case)) == expected


def test_relative_clause_needs_a_noun():
    with pytest.raises(ValueError, match="a relative clause needs a noun, got the pronoun 'she'"):
        relative_pronoun(nominal("she"), "nom")


# --- verbs


@pytest.mark.parametrize(
    ("english", "objects", "agreement", "tense", "expected"),
    [
        ("call", 1, "1s", "present", ("call", "rufe an", "anrufe")),
        ("call", 1, "3s", "present", ("calls", "ruft an", "anruft")),
        ("call", 1, "p", "past", ("called", "riefen an", "anriefen")),
        ("call", 1, "3s", "perfect", ("has called", "hat angerufen", "angerufen hat")),
        ("call", 1, "p", "future", ("will call", "werden anrufen", "anrufen werden")),
        ("fall asleep", 0, "3s", "past", ("fell asleep", "schlief ein", "einschlief")),
        ("arrive", 0, "1s", "perfect", ("have arrived", "bin angekommen", "angekommen bin")),
        ("go into", 1, "3s", "present", ("goes into", "geht", "geht")),
        ("go into", 1, "p", "perfect", ("have gone into", "sind gegangen", "gegangen sind")),
        ("be", 1, "1s", "present", ("am", "bin", "bin")),
        ("be", 1, "1s", "past", ("was", "war", "war")),
        ("be", 1, "p", "past", ("were", "waren", "waren")),
        ("be", 1, "3s", "perfect", ("has been", "ist gewesen", "gewesen ist")),
        ("know", 1, "1s", "present", ("know", "kenne", "kenne")),
        ("wait for", 1, "3s", "past", ("waited for", "wartete", "wartete")),
        ("work in", 1, "1s", "present", ("work in", "arbeite", "arbeite")),
        ("feed", 1, "1s", "present", ("feed", "füttere", "füttere")),
        ("draw", 1, "3s", "perfect", ("has drawn", "hat gezeichnet", "gezeichnet hat")),
        ("write", 1, "p", "past", ("wrote", "schrieben", "schrieben")),
        ("follow", 1, "3s", "perfect", ("has followed", "ist gefolgt", "gefolgt ist")),
        ("cry", 0, "3s", "present", ("cries", "weint", "weint")),
        ("cry", 0, "3s", "past", ("cried", "weinte", "weinte")),
        ("wash", 1, "3s", "future", ("will wash", "wird waschen", "waschen wird")),
    ],
)
def test_verbs_have_the_forms_we_know(english, objects, agreement, tense, expected):
    verb = find_verb(english, objects)
    second = " ".join(german_verb(verb, tense, agreement)).strip()
    last = german_verb_last(verb, tense, agreement)
    assert (english_verb(verb, tense, agreement), second, last) == expected


@pytest.mark.parametrize(
    ("tense", "agreement", "expected"),
    [
        ("present", "3s", "does not call"),
        ("present", "1s", "do not call"),
        ("past", "p", "did not call"),
        ("perfect", "3s", "has not called"),
        ("future", "p", "will not call"),
    ],
)
def test_english_negation_does_its_auxiliary(tense, agreement, expected):
    assert english_verb(find_verb("call", 1), tense, agreement, negated=True) == expected


def test_to_be_is_negated_without_do():
    assert english_verb(find_verb("be", 1), "past", "p", negated=True) == "were not"


@pytest.mark.parametrize(
    ("word", "suffix", "expected"),
    [
        ("boy", "s", "boys"),
        ("story", "s", "stories"),
        ("watch", "s", "watches"),
        ("go", "s", "goes"),
        ("love", "ed", "loved"),
        ("play", "ed", "played"),
    ],
)
def test_english_spelling(word, suffix, expected):
    assert english_suffix(word, suffix) == expected


# --- whole sentences

TODAY, EVENING = ("today", "heute"), ("in the evening", "am Abend")

SENTENCES = [
    (said(clause("the child", "sleep")), "The child sleeps.", "Das Kind schläft."),
    (said(clause("I", "work in", "the garden")), "I work in the garden.", "Ich arbeite im Garten."),
    (said(clause("she", "go into", "the house")), "She goes into the house.", "Sie geht ins Haus."),
    (
        said(clause("they", "go into", "a dark kitchen", tense="perfect")),
        "They have gone into a dark kitchen.",
        "Sie sind in eine dunkle Küche gegangen.",
    ),
    (
        said(clause("he", "dream of", "the village")),
        "He dreams of the village.",
        "Er träumt vom Dorf.",
    ),
    (
        said(clause("the boy", "wait for", "her", negated=True)),
        "The boy does not wait for her.",
        "Der Junge wartet nicht auf sie.",
    ),
    (
        said(clause("the aunt", "talk to", "us", tense="future")),
        "The aunt will talk to us.",
        "Die Tante wird mit uns sprechen.",
    ),
    (
        said(clause("the old man", "call", "a young woman")),
        "The old man calls a young woman.",
        "Der alte Mann ruft eine junge Frau an.",
    ),
    (
        said(clause("the old man", "call", "the boy", tense="perfect")),
        "The old man has called the boy.",
        "Der alte Mann hat den Jungen angerufen.",
    ),
    (
        said(clause("the aunts", "invite", "him", tense="past", adverb=EVENING)),
        "The aunts invited him in the evening.",
        "Die Tanten luden ihn am Abend ein.",
    ),
    (
        said(clause("the boys", "read", "every book", tense="perfect")),
        "The boys have read every book.",
        "Die Jungen haben jedes Buch gelesen.",
    ),
    (
        said(clause("the girl", "read", "him", "a letter")),
        "The girl reads him a letter.",
        "Das Mädchen liest ihm einen Brief vor.",
    ),
    (
        said(clause("the man", "eat", "an apple")),
        "The man eats an apple.",
        "Der Mann isst einen Apfel.",
    ),
    (
        said(clause("the pig", "eat", "an apple", index=1)),
        "The pig eats an apple.",
        "Das Schwein frisst einen Apfel.",
    ),
    (
        said(clause("the men", "help", "the children")),
        "The men help the children.",
        "Die Männer helfen den Kindern.",
    ),
    (
        said(clause("the dog", "follow", "me", tense="perfect")),
        "The dog has followed me.",
        "Der Hund ist mir gefolgt.",
    ),
    (
        said(clause("the students", "listen to", "an old queen")),
        "The students listen to an old queen.",
        "Die Studenten hören einer alten Königin zu.",
    ),
    (
        said(clause("we", "bring", "the guest", "cold water", tense="past")),
        "We brought the guest cold water.",
        "Wir brachten dem Gast kaltes Wasser.",
    ),
    (
        said(clause("my sister", "give", "them", "no cake")),
        "My sister gives them no cake.",
        "Meine Schwester gibt ihnen keinen Kuchen.",
    ),
    (
        said(clause("I", "show", "him", "the city", adverb=TODAY)),
        "I show him the city today.",
        "Ich zeige ihm heute die Stadt.",
    ),
    (
        said(clause("the uncle", "send", "a friend", "the letter", adverb=TODAY)),
        "The uncle sends a friend the letter today.",
        "Der Onkel schickt heute einem Freund den Brief.",
    ),
    (
        said(clause("the tea", "be", "cold", tense="past", negated=True)),
        "The tea was not cold.",
        "Der Tee war nicht kalt.",
    ),
    (
        said(clause("two horses", "be", "tired", tense="perfect")),
        "Two horses have been tired.",
        "Zwei Pferde sind müde gewesen.",
    ),
    (
        said(clause("the man", "see", "the woman", negated=True)),
        "The man does not see the woman.",
        "Der Mann sieht die Frau nicht.",
    ),
    (
        said(clause("the man", "call", "the woman", negated=True)),
        "The man does not call the woman.",
        "Der Mann ruft die Frau nicht an.",
    ),
    (said(clause("the man", "swim"), TODAY), "Today the man swims.", "Heute schwimmt der Mann."),
    (
        said(clause("the dog", "chase", "a cat", tense="past"), ("yesterday", "gestern")),
        "Yesterday the dog chased a cat.",
        "Gestern jagte der Hund eine Katze.",
    ),
    (
        said(clause("I", "turn on", "the lamp", tense="future"), EVENING),
        "In the evening I will turn on the lamp.",
        "Am Abend werde ich die Lampe anmachen.",
    ),
    (said(clause("she", "know", "the city")), "She knows the city.", "Sie kennt die Stadt."),
    (
        said(clause("she", "know", clause("the city", "be", "old"), index=1)),
        "She knows that the city is old.",
        "Sie weiß, dass die Stadt alt ist.",
    ),
    (
        said(clause("he", "hope", clause("the guests", "arrive", tense="future"))),
        "He hopes that the guests will arrive.",
        "Er hofft, dass die Gäste ankommen werden.",
    ),
    (
        said(
            clause(
                "I", "say", clause("she", "call", "me", tense="past", adverb=TODAY), tense="past"
            )
        ),
        "I said that she called me today.",
        "Ich sagte, dass sie mich heute anrief.",
    ),
    (
        said(clause("they", "believe", clause("he", "help", "us", negated=True))),
        "They believe that he does not help us.",
        "Sie glauben, dass er uns nicht hilft.",
    ),
    (
        said(clause(with_relative("the man", None, "sing"), "laugh")),
        "The man who sings laughs.",
        "Der Mann, der singt, lacht.",
    ),
    (
        said(clause(with_relative("the woman", "the boys", "help", None), "laugh")),
        "The woman whom the boys help laughs.",
        "Die Frau, der die Jungen helfen, lacht.",
    ),
    (
        said(clause(with_relative("the children", "he", "talk to", None), "cry", tense="past")),
        "The children whom he talks to cried.",
        "Die Kinder, mit denen er spricht, weinten.",
    ),
    (
        said(clause(with_relative("the dog", "the girl", "wash", None), "be", "black")),
        "The dog that the girl washes is black.",
        "Der Hund, den das Mädchen wäscht, ist schwarz.",
    ),
    (
        said(clause(with_relative("the friend", "we", "give", None, "a coat"), "arrive"), TODAY),
        "Today the friend to whom we give a coat arrives.",
        "Heute kommt der Freund, dem wir einen Mantel geben, an.",
    ),
    (
        said(clause("I", "know", "a man", relative=about("a man", None, "write", "poems"))),
        "I know a man who writes poems.",
        "Ich kenne einen Mann, der Gedichte schreibt.",
    ),
    (
        said(clause("I", "call", "a man", relative=about("a man", None, "dance"))),
        "I call a man who dances.",
        "Ich rufe einen Mann an, der tanzt.",
    ),
    (
        said(
            clause(
                "she",
                "read",
                "the book",
                tense="perfect",
                relative=about("the book", "he", "give", "her", None, tense="past"),
            )
        ),
        "She has read the book that he gave her.",
        "Sie hat das Buch gelesen, das er ihr gab.",
    ),
    (
        said(
            clause("we", "live in", "the house", relative=about("the house", "she", "draw", None))
        ),
        "We live in the house that she draws.",
        "Wir wohnen in dem Haus, das sie zeichnet.",
    ),
    (
        said(clause("he", "know", "the park", relative=about("the park", "I", "work in", None))),
        "He knows the park that I work in.",
        "Er kennt den Park, in dem ich arbeite.",
    ),
    (
        said(
            clause("the man", "laugh"),
            front_clause("because", "weil", clause("the child", "sing", tense="perfect")),
        ),
        "Because the child has sung, the man laughs.",
        "Weil das Kind gesungen hat, lacht der Mann.",
    ),
    (
        said(
            clause("the man", "call", "us"),
            front_clause("when", "wenn", clause("his dog", "wake up")),
        ),
        "When his dog wakes up, the man calls us.",
        "Wenn sein Hund aufwacht, ruft der Mann uns an.",
    ),
    (
        said(
            clause("I", "sleep", tense="past"),
            front_clause("when", "als", clause("the guests", "arrive", tense="past")),
        ),
        "When the guests arrived, I slept.",
        "Als die Gäste ankamen, schlief ich.",
    ),
    (
        said(
            clause("I", "sleep"),
            front_clause(
                "although",
                "obwohl",
                clause(with_relative("a bird", None, "be", "hungry"), "sleep", negated=True),
            ),
        ),
        "Although a bird that is hungry does not sleep, I sleep.",
        "Obwohl ein Vogel, der hungrig ist, nicht schläft, schlafe ich.",
    ),
]


@pytest.mark.parametrize(("pair", "english", "german"), SENTENCES, ids=[s[1] for s in SENTENCES])
def test_sentences_are_right(pair, english, german):
    assert pair == (english, german)


# --- laws of many sentences


def drawn(count, seed=0, **options):
    generator = random.Random(seed)
    return [draw_sentence(generator, **options)[0] for _ in range(count)]


def test_each_english_sentence_has_one_german_one():
    german = {}
    for depth in (0, 1, 2):
        for pair in drawn(3000, max_depth=depth):
            assert german.setdefault(pair.src, pair.tgt) == pair.tgt


@pytest.mark.slow
def test_each_english_sentence_has_one_german_one_of_very_many():
    german = {}
    for depth in (0, 0, 1, 2):  # the short ones are the likeliest to meet again
        for pair in drawn(50_000, seed=1, max_depth=depth):
            assert german.setdefault(pair.src, pair.tgt) == pair.tgt


EACH_NOUN = [noun for nouns in NOUNS.values() for noun in nouns]
PLURALS = {form for n in EACH_NOUN for form in (n.de_plural, f"{n.de_plural}n")}
GENDERS = {n.de: n.gender for n in EACH_NOUN if n.de not in PLURALS}  # without Lehrer, Mädchen
ARTICLES = {  # before a singular noun in any case, by gender
    "m": {"der", "den", "dem", "ein", "einen", "einem"},
    "f": {"die", "der", "eine", "einer"},
    "n": {"das", "dem", "ein", "einem"},
}
ENDINGS_AFTER = {  # of an adjective, in any gender and case
    "dem": {"en"},
    "den": {"en"},
    "das": {"e"},
    "der": {"e", "en"},
    "die": {"e", "en"},
    "ein": {"er", "es"},
    "eine": {"e"},
    "einem": {"en"},
    "einen": {"en"},
    "einer": {"en"},
    "diesem": {"en"},
    "jedes": {"e"},
    "keine": {"e"},
    "zwei": {"e", "en"},
    "vielen": {"en"},
}
ADJECTIVE_FORM = re.compile(f"({'|'.join(a.stem for a in ADJECTIVES)})(e[nmrs]?)")


def german_words(seed):
    """The words of many German sentences, each with the one before it and the two after it."""
    for pair in drawn(3000, seed=seed, max_depth=1):
        tokens = ["", *words(pair.tgt[0].lower() + pair.tgt[1:]), ""]
        yield from zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)


def test_articles_agree_with_the_gender_of_the_next_noun():
    """An independent look at the words alone: article, perhaps an adjective, noun."""
    seen = Counter()
    for before, article, second, third in german_words(4):
        noun = third if ADJECTIVE_FORM.fullmatch(second) else second
        known = noun in GENDERS and any(article in forms for forms in ARTICLES.values())
        if known and before != ",":  # after a comma it may be a relative pronoun
            assert article in ARTICLES[GENDERS[noun]], (article, second, third)
            seen[GENDERS[noun]] += 1
    assert min(seen[gender] for gender in "mfn") > 100


def test_adjectives_have_an_ending_that_the_word_before_allows():
    seen = Counter()
    for before, article, word, _ in german_words(5):
        found = ADJECTIVE_FORM.fullmatch(word)
        if found and article in ENDINGS_AFTER and before != ",":
            assert found[2] in ENDINGS_AFTER[article], (article, word)
            seen[article] += 1
    assert seen.keys() == ENDINGS_AFTER.keys()


def test_articles_fit_the_sound_after_them():
    for pair in drawn(2000, seed=6, max_depth=1):
        for article, word in re.findall(r"\b([Aa]n?) (\w)", pair.src):
            assert (article.lower() == "an") == (word in "aeiou"), pair


def test_subordinate_clauses_stand_between_commas():
    for pair in drawn(2000, seed=7, max_depth=2):
        for text in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ](\w| (?=\w)|, (?=\w))+\.", text), pair
        assert not re.search(r"[^,] (dass|weil|obwohl|während) ", pair.tgt), pair


# --- splits


@pytest.mark.slow
def test_splits_have_the_sizes_asked_for(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES


def test_splits_share_no_sentence(splits):
    names = list(splits)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            assert not set(splits[first]) & set(splits[second])


@pytest.mark.parametrize("name", ["held_out", "composition", "deep"])
def test_sentences_to_test_on_are_distinct(splits, name):
    assert len(set(splits[name])) == SIZES[name]


def test_held_out_sentences_are_not_the_scarce_short_ones(splits):
    assert min(len(pair.src.split()) for pair in splits["held_out"]) == 6
    assert min(len(pair.src.split()) for pair in splits["train"]) == 2


def held_out_phrases(pair):
    """The held-out phrases in the English, singular or plural."""
    singular = {noun.en_plural: noun.en for noun in EACH_NOUN}
    tokens = [singular.get(word, word) for word in words(pair.src)]
    return HELD_OUT_PHRASES & {" ".join(two) for two in pairwise(tokens)}


def test_every_composition_holds_a_held_out_phrase_and_nothing_else_does(splits):
    for name, pairs in splits.items():
        for pair in pairs:
            assert bool(held_out_phrases(pair)) == (name == "composition"), pair


def test_every_held_out_phrase_occurs_in_compositions(splits):
    assert frozenset().union(*map(held_out_phrases, splits["composition"])) == HELD_OUT_PHRASES


@pytest.mark.slow
@pytest.mark.slow
def test_no_word_of_a_test_sentence_is_new():
    full = grammar_sentences(0)
    for side, (fewest, most) in enumerate([(300, 450), (500, 800)]):
        known = {word for pair in full["train"] for word in words(pair[side])}
        assert fewest < len(known) < most
        for name in ("held_out", "composition", "deep"):
            assert {word for pair in full[name] for word in words(pair[side])} <= known


def test_only_deep_sentences_have_a_clause_in_a_clause_in_a_clause(splits):
    assert min(subordinators(pair.src) for pair in splits["deep"]) >= 2
    for name in ("train", "held_out", "composition"):
        for pair in splits[name]:
            first, comma, _ = pair.src.partition(", ")
            if comma:  # "Because ..., ...": the clause in front holds no other
                assert subordinators(first) == 1
            for conjunction in (" because ", " although ", " when ", " while "):
                assert subordinators(pair.src.partition(conjunction)[2]) == 0


def test_deep_sentences_nest_two_deep():
    generator = random.Random(8)
    seen = Counter(draw_sentence(generator, max_depth=2)[1].depth for _ in range(500))
    assert sorted(seen) == [0, 1, 2]
    assert {draw_sentence(generator)[1].depth for _ in range(500)} == {0, 1}


def test_short_sentences_are_common(splits):
    lengths = sorted(len(pair.src.split()) for pair in splits["train"])
    assert lengths[len(lengths) // 2] <= 9
    assert lengths[-1] > 20


def test_seed_decides_the_splits():
    first, again, other = (
        grammar_sentences(seed, num_train=30, num_held_out=5) for seed in (0, 0, 1)
    )
    assert first == again
    for name in first:
        assert first[name] != other[name]


@pytest.mark.parametrize(("num_train", "num_held_out"), [(0, 5), (10, 0), (-1, 5)])
def test_impossible_sizes_are_refused(num_train, num_held_out):
    message = f"must be at least 1, got {min(num_train, num_held_out)}"
    with pytest.raises(ValueError, match=message):
        grammar_sentences(num_train=num_train, num_held_out=num_held_out)
