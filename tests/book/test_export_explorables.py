"""What nine explorables show is what the package computes."""

import json
import math
import random

import pytest
import torch
from safetensors.torch import load_file

import export_explorables
import minitransformer as mt
from benchmarks.experiments import bert, vit
from export_explorables import FOLDER
from live_model import FOLDER as LIVE
from live_model import read_model
from minitransformer.inspection import ablate
from repository import ROOT

pytestmark = pytest.mark.slow


def committed(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_merges_are_those_that_the_package_learns():
    assert committed("bpe_stepper") == export_explorables.bpe_stepper()


def test_orders_of_the_norm_are_measured_in_the_stacks_of_chapter_7():
    for kind, depths in export_explorables.norm_depth().items():
        for depth, numbers in depths.items():
            stored = committed("norm_depth")[kind][str(depth)]
            for quantity, row in numbers.items():
                assert len(row) == depth
                assert stored[quantity] == pytest.approx(row, rel=0.01), (kind, depth, quantity)
        sizes = [numbers["size"][-1] for numbers in depths.values()]
        assert kind == "post-norm" or sizes == sorted(sizes)
    cell = "post-norm, 64 layers: gradient of first / last layer 0.17"
    assert cell in (ROOT / "chapters" / "07_layer_norm.ipynb").read_text(encoding="utf-8")
    first, *_, last = committed("norm_depth")["post-norm"]["64"]["gradient"]
    assert f"{first / last:.2f}" == "0.17"


def test_tree_is_of_the_sentence_that_the_exporter_names_with_its_probabilities():
    tree = committed("beam_tree")
    assert tree["source"] == mt.number_in_words(export_explorables.NUMBER, "en")
    assert tree["reference"] == mt.number_in_words(export_explorables.NUMBER, "de")
    assert tree["longest"] == export_explorables.LONGEST
    assert tree["end"] == mt.Tokenizer.special_tokens[mt.BPETokenizer.eos_id]
    for row in tree["next"].values():
        assert len(dict(row)) == export_explorables.WIDEST + 1
        log_probs = [log_prob for _, log_prob in row]
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(map(math.exp, log_probs)) <= 1 + 1e-3  # they are rounded


def test_losses_are_those_of_the_stored_runs():
    assert committed("warm_up") == export_explorables.warm_up()


def test_planner_has_the_parts_of_the_package():
    assert committed("planner") == export_explorables.planner()


def test_distributions_are_of_the_texts_that_the_exporter_names():
    contents = committed("next_token")
    assert [content["prompt"] for content in contents] == export_explorables.PROMPTS
    for content in contents:
        log_probs = content["log_probs"]
        assert len(log_probs) == 5 + 256 + 1000
        assert log_probs == sorted(log_probs, reverse=True)
        assert math.isclose(sum(map(math.exp, log_probs)), 1, abs_tol=0.01)  # they are rounded
        assert len(content["tokens"]) == export_explorables.SHOWN


def test_digits_are_held_out_and_the_stored_weights_read_such_digits():
    x, y = vit.read_pictures("digits")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[:500], order[500:]
    digits = committed("patch_attention")
    for place, picture in zip(held_out, digits["pictures"], strict=False):
        assert picture["label"] == y[place]
        assert picture["pixels"] == (16 * x[place]).flatten().tolist()
    assert len(digits["pictures"]) == export_explorables.SHOWN
    assert digits["mean"] == pytest.approx(x[rest].mean(dim=0).flatten().tolist(), abs=1e-4)
    model = vit.new_model("vit", "digits", 0, {})
    weights = load_file(FOLDER / "patch_attention.safetensors")
    model.load_state_dict({n: weights[n].view_as(t) for n, t in model.state_dict().items()})
    assert vit.accuracy(lambda part: model(part).argmax(dim=-1), x[held_out], y[held_out]) > 0.94


def test_means_are_those_of_the_live_page_s_model():
    expected = export_explorables.head_means()
    found = committed("head_means")
    assert found.keys() == expected.keys()
    for head, mean in expected.items():
        assert found[head] == pytest.approx(mean, abs=2e-4)  # another processor rounds otherwise


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_what_the_chapter_says_of_silenced_heads(kind):
    means = {head: torch.tensor(mean) for head, mean in committed("head_means").items()}
    translator = read_model(LIVE / "number_words")
    numbers = random.Random(5).sample(range(10**6), 100)
    pairs = [mt.TextPair(*(mt.number_in_words(n, side) for side in ("en", "de"))) for n in numbers]

    def right(site, *heads):
        mean = torch.stack([means[f"{site}.{head}"] for head in range(4)])[:, None]  # (h, 1, e)
        with ablate(translator.model, site, kind, reference=mean, heads=heads):
            return translator.exact_match(pairs)

    cross, own = (f"decoder.layers.0.{part}_attention.heads" for part in ("cross", "self"))
    assert min(right(cross, head) for head in range(4)) > 0.95
    assert right(own, 0) < 0.75
    assert right(cross, 0, 1, 2, 3) < 0.5 if kind == "zero" else right(cross, 0, 1, 2, 3) > 0.9


def test_stored_weights_fill_in_blanks_better_than_frequencies():
    content, texts = committed("masked_words"), bert.Texts()
    tokenizer = mt.WordPieceTokenizer.from_dict(content["tokenizer"])
    weights = load_file(FOLDER / "masked_words.safetensors")
    model = mt.models.BERTForMaskedLM(
        mt.models.BERTConfig(vocab_size=tokenizer.vocab_size, **bert.SHAPE)
    )
    weights["output_projection.weight"] = weights["embedding.weight"]
    model.load_state_dict(weights)
    rows = [tokenizer.encode(text) for some in texts.by_family for text in some[: bert.HELD_OUT]]
    texts.held_out_rows = bert.rows(torch.tensor([i for row in rows for i in [*row, bert.END]]))
    loss, right = bert.filling_in(model.eval(), texts)
    assert loss < texts.unigram - 0.7
    assert right > 0.15
