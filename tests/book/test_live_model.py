"""The model of the live page: its graph computes what the package computes."""

import re
from collections import Counter

import onnx
import onnxruntime
import pytest
import torch
from helpers import assert_same, small_model

import live_model
import minitransformer as mt
from live_model import EXAMPLE, FOLDER, NextToken, load_weights, to_graph, write
from minitransformer.__main__ import new_trainer
from minitransformer.data import TextPair

LENGTHS = [(1, 1), (1, 9), (12, 1), (2, 2), (7, 16), (16, 5), (16, 16)]
LIVE_SUFFIXES = {".json", ".onnx", ".png"}
PAGE = FOLDER.parent.parent / "chapters" / "live.md"


@pytest.fixture(scope="module")
def translator():
    """The package's model with the weights of the page's graph, and its tokenizers."""
    trainer = new_trainer(mt.TrainingConfig())
    load_weights(trainer.model, onnx.load(FOLDER / "translator.onnx"))
    return trainer.model.eval(), *trainer.tokenizers.values()


def assert_computes_the_same(graph, model, src_len, tgt_len):
    """A graph, as bytes or a path, and a model agree on random ids."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(src_len * 1000 + tgt_len)
    sizes = model.config.src_vocab_size, model.config.tgt_vocab_size
    source, target = (
        torch.randint(1, size, (1, length), generator=generator, dtype=torch.int32)
        for size, length in zip(sizes, (src_len, tgt_len), strict=True)
    )
    with torch.inference_mode():
        expected = NextToken(model.eval())(source, target)
    found = session.run(
        ["scores", "attention"], {"source": source.numpy(), "target": target.numpy()}
    )
    for ours, theirs in zip(expected, found, strict=True):
        assert_same(torch.from_numpy(theirs), ours, 1e-4)


# --- any model -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[{"norm_first": True}, {}], ids=["pre-norm", "post-norm"])
def exported(request):
    """A small model's graph, and the model."""
    return to_graph(small_model(**request.param)), small_model(**request.param)


@pytest.mark.slow
@pytest.mark.parametrize(("src_len", "tgt_len"), LENGTHS)
def test_graph_of_a_model_computes_the_same(exported, src_len, tgt_len):
    graph, model = exported
    assert_computes_the_same(graph.SerializeToString(), model, src_len, tgt_len)


@pytest.mark.slow
def test_weights_come_back(exported):
    graph, model = exported
    other = mt.Transformer(model.config)
    load_weights(other, graph)
    assert all(map(torch.equal, other.parameters(), model.parameters()))


@pytest.mark.slow
def test_weights_of_another_model_are_refused(exported):
    graph, model = exported
    wider = small_model(d_ff=24, norm_first=model.config.norm_first)
    with pytest.raises(ValueError, match=r"encoder.*w_1.weight of shape \(24, 12\), found \(20, "):
        load_weights(wider, graph)


@pytest.mark.slow
def test_graph_tells_nothing_of_the_machine(exported):
    graph, _ = exported
    assert b".py" not in graph.SerializeToString()


@pytest.mark.slow
def test_all_files_are_written_or_none(translator, tmp_path, monkeypatch):
    folder = tmp_path / "live"
    folder.mkdir()
    monkeypatch.setattr(live_model, "to_graph", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(*translator, folder)
    assert [*tmp_path.iterdir(), *folder.iterdir()] == [folder]

    graph = onnx.load(FOLDER / "translator.onnx")
    monkeypatch.setattr(live_model, "to_graph", lambda model: graph)
    names = {path.name for path in write(*translator, folder)}
    assert names == {path.name for path in folder.iterdir()}
    assert names == {path.name for path in FOLDER.iterdir() if path.suffix in LIVE_SUFFIXES}


def test_bad_arguments_print_help(capsys):
    assert live_model.main(["--help"]) == 2
    assert "tools/live_model.py CHECKPOINT" in capsys.readouterr().out


# --- the page's model ------------------------------------------------------------------------


@pytest.mark.parametrize(("src_len", "tgt_len"), [*LENGTHS, (128, 64)])
def test_graph_of_the_page_computes_the_same(translator, src_len, tgt_len):
    assert_computes_the_same(FOLDER / "translator.onnx", translator[0], src_len, tgt_len)


def test_tokenizers_of_the_page_are_those_of_training(translator):
    for name, tokenizer in zip(("source", "target"), translator[1:], strict=True):
        file = mt.Tokenizer.load(FOLDER / f"{name}_tokenizer.json")
        assert file.to_dict() == tokenizer.to_dict()


def test_model_is_as_good_as_the_page_says(translator):
    splits = mt.number_words()
    for name in ("held_out", "composition"):
        assert mt.exact_match(translator[0], splits[name][:500], *translator[1:]) > 0.99
    assert mt.exact_match(translator[0], splits["longer"][:500], *translator[1:]) == 0


def test_page_says_what_the_model_writes(translator):
    rows = re.findall(r"^\| ([a-z][a-z -]+) \| (.+) \|$", PAGE.read_text("utf-8"), re.M)
    assert len(rows) == 3
    right = [
        TextPair(mt.number_in_words(number, "en"), mt.number_in_words(number, "de"))
        for number in (976_042, 2_000_341)
    ]
    english, german = zip(*rows, *right, strict=True)
    assert mt.translate(translator[0], english, *translator[1:]) == list(german)
    assert {EXAMPLE, right[0].tgt} <= set(re.findall(r"[a-zü -]+", PAGE.read_text("utf-8")))


def test_heads_look_at_the_hyphen_to_write_und(translator):
    """In seven of the eight mostly, in layer 1, head 0 at the tens: so the page says."""
    model, src_tokenizer, tgt_tokenizer = translator
    looked_at: dict[tuple[int, int], Counter[str]] = {}
    for pair in mt.number_words()["held_out"][:60]:
        src, tgt_input, tgt_output = mt.collate(
            mt.encode_pairs([pair], src_tokenizer, tgt_tokenizer)
        )
        _, weights = NextToken(model)(src, tgt_input)
        words = src_tokenizer.labels(src[0].tolist())
        for row in (tgt_output[0] == tgt_tokenizer.ids["und"]).nonzero()[:, 0].tolist():
            for layer, of_layer in enumerate(weights[:, :, row].argmax(-1).tolist()):
                for head, column in enumerate(of_layer):
                    looked_at.setdefault((layer, head), Counter())[words[column][-2:]] += 1
    most = {head: counts.most_common(1)[0] for head, counts in looked_at.items()}
    total = looked_at[1, 0].total()
    assert total > 50
    assert most.pop((1, 0))[0] == "ty"
    assert all(ending == "-" and count > 0.7 * total for ending, count in most.values())
