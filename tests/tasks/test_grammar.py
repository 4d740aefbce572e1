"""The grammar writes right German, one for each English sentence, and its splits differ."""

import hashlib
import random
import re
from collections import Counter
from itertools import combinations, pairwise

import pytest
from helpers import refuses

from minitransformer import grammar_sentences
from minitransformer.tasks.grammar import draw_sentence
from minitransformer.tasks.inflection import (
    ADJECTIVES,
    HELD_OUT_PHRASES,
    NOUNS,
    PRONOUNS,
    pronoun,
    relative_pronoun,
)
from minitransformer.tokenization.words import split_words as words

SIZES = {"train": 4000, "held_out": 200, "composition": 200, "deep": 200}
SHE = pronoun(PRONOUNS[2], "nom")
SUBORDINATORS = {"because", "although", "when", "while", "who", "whom", "that"}
CHECKED = """
She will know that I talk to them. | Sie wird wissen, dass ich mit ihnen spreche.
A red lamp that was black has been big. | Eine rote Lampe, die schwarz war, ist groß gewesen.
He eats a fresh egg that will be cold. | Er isst ein frisches Ei, das kalt sein wird.
Then we will think of his tired women. | Dann werden wir an seine müden Frauen denken.
The old teacher has waited for us. | Der alte Lehrer hat auf uns gewartet.
Today I have gone into a cold garden. | Heute bin ich in einen kalten Garten gegangen.
I have not laughed at him. | Ich habe nicht über ihn gelacht.
I will give her the black hat tomorrow. | Ich werde ihr morgen den schwarzen Hut geben.
When I dream of a lion, I swim now. | Wenn ich von einem Löwen träume, schwimme ich jetzt.
Our tired student listens to me. | Unser müder Student hört mir zu.
I read two uncles no old book. | Ich lese zwei Onkeln kein altes Buch vor.
Many tired teachers have thanked him. | Viele müde Lehrer haben ihm gedankt.
My red hats are white. | Meine roten Hüte sind weiß.
This wild mouse follows a beautiful mouse. | Diese wilde Maus folgt einer schönen Maus.
Every big mouse eats every expensive cake. | Jede große Maus frisst jeden teuren Kuchen.
My old uncle works in every big garden. | Mein alter Onkel arbeitet in jedem großen Garten.
Because she arrived, the lazy bird looks for me. | Weil sie ankam, sucht der faule Vogel mich.
Then our old boys were young. | Dann waren unsere alten Jungen jung.
This young boy thanks my boy. | Dieser junge Junge dankt meinem Jungen.
Yesterday she helped the white bird. | Gestern half sie dem weißen Vogel.
A black lion ate every cold egg. | Ein schwarzer Löwe fraß jedes kalte Ei.
Sometimes every famous guest arrives. | Manchmal kommt jeder berühmte Gast an.
Perhaps a lazy man who sang cried. | Vielleicht weinte ein fauler Mann, der sang.
This clever child helps hungry birds. | Dieses kluge Kind hilft hungrigen Vögeln.
I brought his lazy doctors this tea. | Ich brachte seinen faulen Ärzten diesen Tee.
In the evening they fed our clever dog. | Am Abend fütterten sie unseren klugen Hund.
We show our woman my dog that woke up. | Wir zeigen unserer Frau meinen Hund, der aufwachte.
I worked in the famous village. | Ich arbeitete im berühmten Dorf.
I thanked no interesting man. | Ich dankte keinem interessanten Mann.
I listen to many happy men. | Ich höre vielen glücklichen Männern zu.
I draw no hungry mouse today. | Ich zeichne heute keine hungrige Maus.
Many men follow no young cat. | Viele Männer folgen keiner jungen Katze.
Our small bear drinks fresh tea. | Unser kleiner Bär trinkt frischen Tee.
He danced while the egg was fresh. | Er tanzte, während das Ei frisch war.
A clever child lives in our garden. | Ein kluges Kind wohnt in unserem Garten.
Many beautiful boys trust my woman. | Viele schöne Jungen vertrauen meiner Frau.
A black pig that ran fell asleep. | Ein schwarzes Schwein, das lief, schlief ein.
Sometimes I show him no small park. | Manchmal zeige ich ihm keinen kleinen Park.
I say that the expensive milk is sweet. | Ich sage, dass die teure Milch süß ist.
A small mouse goes into the dark city. | Eine kleine Maus geht in die dunkle Stadt.
These children whom he trusted swam. | Diese Kinder, denen er vertraute, schwammen.
A happy daughter sees a big horse. | Eine glückliche Tochter sieht ein großes Pferd.
A famous brother who will cry sings. | Ein berühmter Bruder, der weinen wird, singt.
Although two pigs ran, I swam today. | Obwohl zwei Schweine liefen, schwamm ich heute.
A girl arrived when a man invited them. | Ein Mädchen kam an, als ein Mann sie einlud.
I wore two black hats that were small. | Ich trug zwei schwarze Hüte, die klein waren.
Our clever dog that does not run swims. | Unser kluger Hund, der nicht läuft, schwimmt.
His young boy hopes that we thank them. | Sein junger Junge hofft, dass wir ihnen danken.
Today a white dog that jumped has run. | Heute ist ein weißer Hund, der sprang, gelaufen.
I believed that a beautiful book was long. | Ich glaubte, dass ein schönes Buch lang war.
An interesting man who visits her cries. | Ein interessanter Mann, der sie besucht, weint.
A hungry bird that I love will swim. | Ein hungriger Vogel, den ich liebe, wird schwimmen.
I buy a red egg. | Ich kaufe ein rotes Ei.
A red computer that I turn on is expensive. | Ein roter Computer, den ich anmache, ist teuer.
A student saw that I washed a lazy horse. | Ein Student sah, dass ich ein faules Pferd wusch.
The new hat is old. | Der neue Hut ist alt.
A dog that our famous child loves jumps. | Ein Hund, den unser berühmtes Kind liebt, springt.
The wild birds saw that my women slept. | Die wilden Vögel sahen, dass meine Frauen schliefen.
I said that a lion chased our tired horse. | Ich sagte, dass ein Löwe unser müdes Pferd jagte.
Our young pig that sleeps will be clever. | Unser junges Schwein, das schläft, wird klug sein.
My cold egg was red. | Mein kaltes Ei war rot.
He dreams of the pig. | Er träumt vom Schwein.
"""
"""Drawn sentences that have been checked by hand: each form of the small words, each word order."""


@pytest.fixture(scope="module")
def splits():
    return grammar_sentences(3, num_train=SIZES["train"], num_held_out=200)


@pytest.fixture(scope="module")
def drawn():
    """Many pairs, of clauses that nest up to two deep."""
    generator = random.Random("sentences")
    return [draw_sentence(generator, max_depth=2)[0] for _ in range(20_000)]


# --- laws of many sentences


def test_each_english_sentence_has_one_german_one_and_it_is_right(drawn):
    german = {}
    for pair in drawn:
        assert german.setdefault(pair.src, pair.tgt) == pair.tgt
    for line in CHECKED.strip().splitlines():
        english, expected = line.split(" | ")
        assert german[english] == expected


EACH_NOUN = [noun for nouns in NOUNS.values() for noun in nouns]
PLURALS = {form for n in EACH_NOUN for form in (n.de_plural, f"{n.de_plural}n")}
GENDERS = {n.de: n.gender for n in EACH_NOUN if n.de not in PLURALS}  # without Lehrer, Mädchen
ARTICLES = {  # before a singular noun in any case, by gender
    "m": {"der", "den", "dem", "ein", "einen", "einem"},
    "f": {"die", "der", "eine", "einer"},
    "n": {"das", "dem", "ein", "einem"},
}
ENDINGS_AFTER = {  # of an adjective, in any gender and case
    **dict.fromkeys(("das", "eine", "jedes", "keine"), ("e",)),
    **dict.fromkeys(("dem", "den", "diesem", "einem", "einen", "einer", "vielen"), ("en",)),
    **dict.fromkeys(("der", "die", "zwei"), ("e", "en")),
    "ein": ("er", "es"),
}
ADJECTIVE_FORM = re.compile(f"({'|'.join(a.stem for a in ADJECTIVES)})(e[nmrs]?)")


def test_articles_nouns_and_adjectives_agree(drawn):
    """An independent look at the words alone: article, perhaps an adjective, noun."""
    genders, articles = Counter(), Counter()
    for pair in drawn[:6000]:
        tokens = ["", *words(pair.tgt[0].lower() + pair.tgt[1:]), ""]
        for before, article, second, third in zip(
            tokens, tokens[1:], tokens[2:], tokens[3:], strict=False
        ):
            if before == ",":  # a relative pronoun, perhaps
                continue
            adjective = ADJECTIVE_FORM.fullmatch(second)
            noun = third if adjective else second
            if noun in GENDERS and any(article in forms for forms in ARTICLES.values()):
                assert article in ARTICLES[GENDERS[noun]], (article, second, third)
                genders[GENDERS[noun]] += 1
            if adjective and article in ENDINGS_AFTER:
                assert adjective[2] in ENDINGS_AFTER[article], (article, second)
                articles[article] += 1
    assert min(genders[gender] for gender in "mfn") > 100
    assert articles.keys() == ENDINGS_AFTER.keys()


def test_sounds_and_commas(drawn):
    for pair in drawn[:4000]:
        for article, word in re.findall(r"\b([Aa]n?) (\w)", pair.src):
            assert (article.lower() == "an") == (word in "aeiou"), pair
        for text in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ](\w| (?=\w)|, (?=\w))+\.", text), pair
        assert not re.search(r"[^,] (dass|weil|obwohl|während) ", pair.tgt), pair


# --- splits


def test_a_seed_gives_the_same_sentences_everywhere(splits):
    """The chapters print them."""
    content = repr([[tuple(pair) for pair in pairs] for pairs in splits.values()])
    assert hashlib.sha256(content.encode()).hexdigest().startswith("92a2e236e5b35403")
    again, other = (grammar_sentences(seed, num_train=30, num_held_out=5) for seed in (3, 4))
    assert all(again[name] != other[name] for name in other)
    assert again["held_out"] == splits["held_out"][:5]


def test_sizes_are_those_asked_for_and_no_sentence_is_in_two_splits(splits):
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    assert all(len(set(splits[name])) == 200 for name in ("held_out", "composition", "deep"))
    assert not any(set(first) & set(second) for first, second in combinations(splits.values(), 2))


def test_short_sentences_are_common_and_not_held_out(splits):
    train, held_out = (
        sorted(len(pair.src.split()) for pair in splits[name]) for name in ("train", "held_out")
    )
    assert (train[0], held_out[0]) == (2, 6)
    assert train[len(train) // 2] <= 9
    assert train[-1] > 20


def held_out_phrases(pair):
    """The held-out phrases in the English, singular or plural."""
    singular = {noun.en_plural: noun.en for noun in EACH_NOUN}
    tokens = [singular.get(word, word) for word in words(pair.src)]
    return HELD_OUT_PHRASES & {" ".join(two) for two in pairwise(tokens)}


def test_every_composition_holds_a_held_out_phrase_and_nothing_else_does(splits):
    for name, pairs in splits.items():
        for pair in pairs:
            assert bool(held_out_phrases(pair)) == (name == "composition"), pair
    assert frozenset().union(*map(held_out_phrases, splits["composition"])) == HELD_OUT_PHRASES


@pytest.mark.slow
def test_no_word_of_a_test_sentence_is_new():
    full = grammar_sentences(0)
    for side, (fewest, most) in enumerate([(300, 450), (500, 800)]):
        known = {word for pair in full["train"] for word in words(pair[side])}
        assert fewest < len(known) < most
        for name in ("held_out", "composition", "deep"):
            assert {word for pair in full[name] for word in words(pair[side])} <= known


def test_only_deep_sentences_have_a_clause_in_a_clause_in_a_clause(splits):
    def subordinators(text):
        return sum(word.lower() in SUBORDINATORS for word in words(text))

    assert min(subordinators(pair.src) for pair in splits["deep"]) >= 2
    for name in ("train", "held_out", "composition"):
        for pair in splits[name]:
            first, comma, _ = pair.src.partition(", ")
            if comma:  # "Because ..., ...": the clause in front holds no other
                assert subordinators(first) == 1
            for conjunction in (" because ", " although ", " when ", " while "):
                assert subordinators(pair.src.partition(conjunction)[2]) == 0
    generator = random.Random(8)
    for max_depth in (1, 2):
        drawn = {draw_sentence(generator, max_depth=max_depth)[1].depth for _ in range(500)}
        assert sorted(drawn) == list(range(max_depth + 1))


test_what_cannot_be_is_refused = refuses(
    ("needs a noun, got the pronoun 'she'", lambda: relative_pronoun(SHE, "nom")),
    ("must be at least 1, got 0", lambda: grammar_sentences(num_train=0, num_held_out=5)),
    ("must be at least 1, got 0", lambda: grammar_sentences(num_train=10, num_held_out=0)),
    ("must be at least 1, got -1", lambda: grammar_sentences(num_train=-1, num_held_out=5)),
)
