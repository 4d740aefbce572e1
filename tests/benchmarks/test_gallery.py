"""The gallery of chapter 17: its runs differ in what they say, and its file has its shape."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import minitransformer as mt

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def program():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import gallery

        yield gallery


def model_and_batch():
    """A small translator and eight pairs of unequal lengths."""
    config = mt.TransformerConfig(
        src_vocab_size=17,
        tgt_vocab_size=19,
        d_model=12,
        num_heads=3,
        d_ff=20,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    model = mt.Transformer(config, torch.Generator().manual_seed(0)).eval()
    rows = [[3 + (7 * i + j) % 13 for j in range(1 + i)] for i in range(8)]
    return model, mt.collate([mt.Example([*row, 2], [1, *reversed(row), 2]) for row in rows])


def gradients_after(program, model, batch, **how):
    """The gradients of one step, before they are clipped; its rate is 0."""
    clip, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, lambda *_: None
    try:
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        program.train_step(model, batch, optimizer, program.Loop(**how))
    finally:
        torch.nn.utils.clip_grad_norm_ = clip
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_parts_are_the_whole(program):
    """Where parts have equally many targets; without dividing the gradient is too long."""
    model, batch = model_and_batch()
    batch = mt.Batch(*(x[-1:].repeat(8, 1) for x in batch))
    whole = gradients_after(program, model, batch)
    parts = gradients_after(program, model, batch, parts=4)
    torch.testing.assert_close(parts, whole)
    summed = gradients_after(program, model, batch, parts=4, divides=False)
    torch.testing.assert_close(summed, 4 * whole)


def test_gradients_pile_up_where_they_are_not_cleared(program, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)
    model, batch = model_and_batch()
    once = gradients_after(program, model, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.zero_grad()
    for _ in range(2):
        program.train_step(model, batch, optimizer, program.Loop(clears=False))
    twice = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(twice, 2 * once)


def test_quick_run_writes_the_shape_that_it_documents(program, tmp_path, monkeypatch):
    out = tmp_path / "gallery.json"
    few = ["none", "mask inverted", "labels not shifted", "tokenizer of another training"]
    monkeypatch.setattr(program, "FAULTS", few)
    options = ["--quick", "--seeds", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gallery.py", *options])
    program.main()
    assert [path.name for path in tmp_path.iterdir()] == ["gallery.json"]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["made"]["quick"]
    assert found["seeds"] == [3]
    assert list(found["runs"]) == few
    for rows in found["runs"].values():
        (row,) = rows
        assert len(row["steps"]) == len(row["train"]) == len(row["held_out"]) == 1
        assert 0 <= row["right"] <= 1
        assert len(row["texts"]) == len(found["sources"]) == len(found["references"]) == 3
    even, unigram, bigram = (found["landmarks"][k] for k in ("even", "unigram", "bigram"))
    assert even == math.log(265)
    assert bigram < unigram < even


def test_stored_results_are_of_this_program(program):
    found = json.loads((FOLDER / "gallery.json").read_text(encoding="utf-8"))
    assert not found["made"]["quick"]
    assert found["runs"].keys() == set(program.FAULTS)
    assert found["model"] == program.SHAPE
    assert found["training"] == program.TRAINING
    assert {len(rows) for rows in found["runs"].values()} == {len(found["seeds"])}
