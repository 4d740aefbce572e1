"""Six tasks as text to text: each target follows from its source by the task's own rule."""

import pytest

from minitransformer import number_in_words
from minitransformer.tasks.inflection import ADJECTIVES
from minitransformer.tasks.text_to_text import text_to_text

PREFIXES = {
    "to German": "number to German: ",
    "to English": "number to English: ",
    "reverse": "reverse: ",
    "translate": "translate: ",
    "question": "question: ",
    "summary": "summarise: ",
}


@pytest.fixture(scope="module")
def tasks():
    return text_to_text(3, num_train=400, num_held_out=80)


def sources_and_targets(tasks, name):
    """All pairs of a task, sources without their prefix."""
    for pairs in tasks[name].values():
        for source, target in pairs:
            yield source.removeprefix(PREFIXES[name]), target


def test_sources_say_their_task_and_held_out_ones_are_never_trained_on(tasks):
    assert tasks.keys() == PREFIXES.keys()
    for name, splits in tasks.items():
        assert {split: len(p) for split, p in splits.items()} == {"train": 400, "held_out": 80}
        assert all(pair.src.startswith(PREFIXES[name]) for p in splits.values() for pair in p)
        held_out = {pair.src for pair in splits["held_out"]}
        assert len(held_out) == 80
        assert held_out.isdisjoint(pair.src for pair in splits["train"])


def test_a_seed_is_a_draw(tasks):
    again, other = (text_to_text(seed, num_train=400, num_held_out=80) for seed in (3, 4))
    assert again == tasks
    assert other["translate"] != tasks["translate"]


def test_numbers_are_the_same_both_ways(tasks):
    english = {number_in_words(n, "en"): n for n in range(1000)}
    for source, target in sources_and_targets(tasks, "to German"):
        assert number_in_words(english[source], "de") == target
    for source, target in sources_and_targets(tasks, "to English"):
        assert number_in_words(english[target], "de") == source


def test_reversed_twice_is_the_source(tasks):
    for source, target in sources_and_targets(tasks, "reverse"):
        words = source.split()
        assert target.split() == words[::-1]
        assert 2 <= len(set(words)) == len(words) <= 5


def test_sentences_are_short_enough(tasks):
    for source, target in sources_and_targets(tasks, "translate"):
        assert len(source.split()) <= 5
        assert {"the", "a"}.isdisjoint(target.split())


def test_answers_are_words_of_the_sentence(tasks):
    for source, answer in sources_and_targets(tasks, "question"):
        asked, context = source.split("? context: ")
        assert f" {answer} " in f" {context} "
        if asked.endswith(" what"):  # the sentence with "what" for its last object
            assert context.startswith(asked.removesuffix("what") + answer)
        else:
            assert asked.split()[0] in ("who", "what")
            assert context.startswith(answer)


def test_summaries_have_no_adjective_and_no_second_clause(tasks):
    adjectives = {adjective.en for adjective in ADJECTIVES}
    for source, summary in sources_and_targets(tasks, "summary"):
        words = summary.split()
        if words[-1] not in adjectives:  # "is old" says what the clause is about
            assert adjectives.isdisjoint(words)
        assert len(words) < len(source.split())
        assert set(words) - {"a", "an"} <= set(source.replace(",", "").split())


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(ValueError, match=f"at least 1, got {min(sizes)}"):
        text_to_text(num_train=sizes[0], num_held_out=sizes[1])
