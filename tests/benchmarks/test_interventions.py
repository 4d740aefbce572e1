"""What chapter 19's programs change is what they say, and their labels are the sentences'."""

import re
from functools import partial
from itertools import islice

import pytest
import torch

import live_model
import minitransformer as mt
from benchmarks.experiments import grammar_probes, looking_inside
from minitransformer.inspection import linear_probe


@pytest.mark.parametrize("seen", [1, 3, 5])
def test_shuffled_weights_are_the_same_numbers_at_seen_words(seen):
    scores = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(seen))
    weights = scores.where(torch.arange(7) < seen, -torch.inf).softmax(-1)
    change = partial(looking_inside.shuffled, torch.Generator().manual_seed(0))
    found = change(weights)
    assert torch.equal(found.sort(-1).values, weights.sort(-1).values)
    assert not found[..., seen:].any()
    assert torch.equal(found, weights) == (seen == 1)


def test_a_path_that_the_second_layer_does_not_read_changes_nothing():
    config = mt.TransformerConfig.decoder_only(
        looking_inside.VOCABULARY, num_layers=2, **looking_inside.CIRCUIT
    )
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        model.decoder.layers[1].self_attention.w_k.weight.zero_()
    whole = looking_inside.look(model)["loss"]
    without = [head["loss"] for head in looking_inside.lesions(model)[0]]
    for path, away in zip(looking_inside.paths(model), without, strict=True):
        assert path["cut"]["keys"]["loss"] == whole
        assert path["kept"]["keys"]["loss"] == pytest.approx(away, abs=1e-6)
        assert path["cut"]["values"]["loss"] != whole


def test_phrases_are_where_they_are_said_to_be_and_german_agrees():
    phrases = [*islice(grammar_probes.noun_phrases(3), 300)]
    for phrase in phrases:
        words = re.findall(r"\w+|[.,]", phrase["sentence"])
        assert words[phrase["the"]] == "the"
        assert words[phrase["noun"]] == phrase["type"]
        assert phrase["phrase"].split()[0] == grammar_probes.article(phrase)
    for name, classes in grammar_probes.CLASSES.items():
        assert {phrase[name] for phrase in phrases} == {*classes}
    assert any(phrase["phrase"] in phrase["german"] for phrase in phrases)


def test_gender_is_known_where_german_articles_depend_on_it(monkeypatch):
    monkeypatch.setattr(grammar_probes, "EXAMPLES", 2_400)
    translator = live_model.read_model(live_model.FOLDER / "grammar")
    found = {}
    for number in "sp":
        phrases = [p for p in grammar_probes.balanced(0)["gender"] if p["number"] == number]
        words = sorted({phrase["type"] for phrase in phrases})
        types = torch.tensor([words.index(phrase["type"]) for phrase in phrases])
        labels = torch.tensor(["mfn".index(phrase["gender"]) for phrase in phrases])
        states = grammar_probes.streams(translator, phrases, "the")[-1]
        found[number] = linear_probe(states, labels, types)
    assert found["s"].accuracy > 0.97
    assert found["s"].selectivity > 0.15
    assert found["p"].selectivity < 0.06
