"""What two explorables show is what the package computes."""

import json
import math
from itertools import pairwise

import pytest

import export_explorables
import minitransformer as mt
from export_explorables import FOLDER

pytestmark = pytest.mark.slow


def committed(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_merges_are_those_that_the_package_learns():
    assert committed("bpe_stepper") == export_explorables.bpe_stepper()


def test_the_most_frequent_pair_is_merged():
    for text in committed("bpe_stepper"):
        for before, after in pairwise(text["states"]):
            counts = [count for _, _, count in before["pairs"]]
            assert counts == sorted(counts, reverse=True)
            assert before["tokens"] - counts[0] <= after["tokens"] < before["tokens"]


def test_first_merges_are_those_of_the_chapter():
    states = committed("bpe_stepper")[0]["states"]
    merged = ["".join(state["pairs"][0][:2]) for state in states[:4]]
    assert merged == ["ig", "zw", "zig", "zwe"]


def test_merging_ends_when_no_pair_is_left():
    learned = export_explorables.merging(["aba", "aba", "b"], 10)
    assert learned == {
        "letters": ["a", "b"],
        "states": [
            {"tokens": 7, "pairs": [["a", "b", 2], ["b", "a", 2]]},
            {"tokens": 5, "pairs": [["ab", "a", 2]]},
            {"tokens": 3, "pairs": []},
        ],
    }


def test_tree_is_of_the_sentence_that_the_exporter_names():
    tree = committed("beam_tree")
    assert tree["source"] == mt.number_in_words(export_explorables.NUMBER, "en")
    assert tree["reference"] == mt.number_in_words(export_explorables.NUMBER, "de")
    assert tree["longest"] == export_explorables.LONGEST
    assert tree["end"] == mt.Tokenizer.special_tokens[mt.BPETokenizer.eos_id]


def test_each_token_of_the_tree_has_a_name_of_its_own():
    for row in committed("beam_tree")["next"].values():
        assert len(dict(row)) == export_explorables.WIDEST + 1


def test_probabilities_of_the_tree_are_some():
    for row in committed("beam_tree")["next"].values():
        log_probs = [log_prob for _, log_prob in row]
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(map(math.exp, log_probs)) <= 1 + 1e-3  # they are rounded
