"""Six tasks as text to text, each with a prefix that says which one is asked.

Built in chapter 13. Paper: "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer" (Raffel et al., 2020), section 2.4.
"""

import random
from collections.abc import Callable
from functools import cache

from minitransformer.checks import check_at_least_1
from minitransformer.tasks.grammar import Clause, Draw, grow_clause
from minitransformer.tasks.inflection import ADJECTIVES, CONJUNCTIONS, NOUNS, english_verb, joined
from minitransformer.tasks.number_words import number_in_words
from minitransformer.training.data import TextPair

__all__ = ["text_to_text"]

WORDS = [noun.en for kind in ("animal", "food", "text") for noun in NOUNS[kind]]
MOST_WORDS = 5
TENSE = "present"
ADJECTIVE_WORDS = frozenset(adjective.en for adjective in ADJECTIVES)
in_words = cache(number_in_words)  # few numbers are drawn often


def to_german(generator: random.Random) -> TextPair:
    """An English number below 1000 in German."""
    number = generator.randrange(1000)
    return TextPair(f"number to German: {in_words(number, 'en')}", in_words(number, "de"))


def to_english(generator: random.Random) -> TextPair:
    """A German number below 1000 in English."""
    number = generator.randrange(1000)
    return TextPair(f"number to English: {in_words(number, 'de')}", in_words(number, "en"))


def reverse(generator: random.Random) -> TextPair:
    """Two to five different words, the last one first."""
    words = generator.sample(WORDS, k=generator.randint(2, 5))
    return TextPair(f"reverse: {' '.join(words)}", " ".join(reversed(words)))


def sentence_in_german(generator: random.Random) -> TextPair:
    """A short sentence of the grammar of chapter 8."""
    clause = short_clause(Draw(generator, max_depth=0, compose=False))
    return TextPair(f"translate: {clause.english()}", clause.german_second())


def question(generator: random.Random) -> TextPair:
    """A sentence, and who or what does it, or has it done."""
    draw = Draw(generator, max_depth=0, compose=False)
    clause = short_clause(draw)
    *others, last = clause.objects or [""]
    if clause.verb.frame in ((), ("adj",)) or draw.chance(0.5):
        verb = english_verb(clause.verb, TENSE, "3s", clause.negated)
        who = "what" if clause.subject.noun and clause.subject.noun.kind != "person" else "who"
        asks, answer = joined(who, verb, *clause.objects), clause.subject.en
    else:
        verb = english_verb(clause.verb, TENSE, clause.subject.agreement, clause.negated)
        asks, answer = joined(clause.subject.en, verb, *others, "what"), last
    return TextPair(f"question: {asks}? context: {clause.english()}", answer)


def summary(generator: random.Random) -> TextPair:
    """A sentence of two clauses, and its main clause without adjectives and adverbs."""
    draw = Draw(generator, max_depth=0, compose=False)
    main, inner = short_clause(draw), short_clause(draw)
    beside = f"{generator.choice(CONJUNCTIONS[TENSE]).en} {inner.english()}"
    whole = [f"{main.english()} {beside}", f"{beside}, {main.english()}"]
    objects = main.objects if main.verb.frame == ("adj",) else map(bare, main.objects)
    verb = english_verb(main.verb, TENSE, main.subject.agreement, main.negated)
    core = joined(bare(main.subject.en), verb, *objects)
    return TextPair(f"summarise: {generator.choice(whole)}", core)


def short_clause(draw: Draw) -> Clause:
    """A clause of a few words, in the present tense, that holds no other."""
    clause = grow_clause(draw, TENSE, 0)
    while len(clause.english().split()) > MOST_WORDS:
        clause = grow_clause(draw, TENSE, 0)
    return clause


def bare(phrase: str) -> str:
    """A noun phrase without its adjective.

    Example:
        >>> bare("an old house"), bare("a red apple"), bare("fresh milk")
        ('a house', 'an apple', 'milk')
    """
    words = [word for word in phrase.split() if word not in ADJECTIVE_WORDS]
    if words[0] in ("a", "an"):
        words[0] = "an" if words[1][0] in "aeiou" else "a"
    return " ".join(words)


TASKS: dict[str, Callable[[random.Random], TextPair]] = {
    "to German": to_german,
    "to English": to_english,
    "reverse": reverse,
    "translate": sentence_in_german,
    "question": question,
    "summary": summary,
}


def text_to_text(
    seed: int = 0, *, num_train: int = 10_000, num_held_out: int = 200
) -> dict[str, dict[str, list[TextPair]]]:
    """Pairs of texts of six tasks, for one model; the source says by its prefix what is asked.

    | task | prefix | source | target |
    | --- | --- | --- | --- |
    | to German | number to German: | an English number below 1000 | the same in German |
    | to English | number to English: | a German number below 1000 | the same in English |
    | reverse | reverse: | two to five different words | the last one first |
    | translate | translate: | a short English sentence of chapter 8 | its German |
    | question | question: ... context: | a question, a sentence | the answer, words of it |
    | summary | summarise: | a sentence of two clauses | the main one, without adjectives |

    Sentences are in the present tense, of at most five words a clause, and have neither a capital
    in front nor a full stop: a word is the same token wherever it stands.

    Args:
        seed: the draw; the same seed gives the same pairs everywhere.
        num_train: pairs of each task to train on, with repetition.
        num_held_out: distinct pairs of each task whose sources training never holds.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> tasks = text_to_text(num_train=10, num_held_out=3)
        >>> list(tasks)
        ['to German', 'to English', 'reverse', 'translate', 'question', 'summary']
        >>> {split: len(pairs) for split, pairs in tasks["reverse"].items()}
        {'train': 10, 'held_out': 3}
    """
    check_at_least_1(num_train=num_train, num_held_out=num_held_out)
    found = {}
    for name, draw_pair in TASKS.items():
        generator = random.Random(f"{name} {seed}")
        held_out: dict[TextPair, None] = {}  # a dict keeps the order of the draw, a set would not
        while len(held_out) < num_held_out:
            held_out[draw_pair(generator)] = None
        sources = {pair.src for pair in held_out}
        train: list[TextPair] = []
        while len(train) < num_train:
            pair = draw_pair(generator)
            if pair.src not in sources:
                train.append(pair)
        found[name] = {"train": train, "held_out": list(held_out)}
    return found
