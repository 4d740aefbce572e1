"""The program that trains GPT-2's size on a GPU does the same with a small model on a CPU."""

import importlib.util
import re
import sys
from pathlib import Path

import minitransformer as mt
from minitransformer.parallel import write_tokens

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "gpt2_small.py"
spec = importlib.util.spec_from_file_location("gpt2_small", PATH)
gpt2_small = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpt2_small)


def test_it_has_the_size_that_it_says():
    config = mt.TransformerConfig.decoder_only(50_257, **gpt2_small.LARGE)
    assert 123e6 < mt.plan(config, 1).parameters < 125e6


def test_it_trains_and_goes_on(tmp_path, monkeypatch, capsys):
    tokenizer = mt.CharacterTokenizer.train(["abcdefg"])
    write_tokens(["abcdefg" * 99] * 9, tokenizer, tmp_path / "tokens")
    monkeypatch.setitem(gpt2_small.TOKENS_A_STEP, "small", 512)
    monkeypatch.setattr(
        sys, "argv", ["gpt2_small.py", str(tmp_path / "tokens"), "--small", "--steps", "10"]
    )
    gpt2_small.main()
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.1

    gpt2_small.main()  # nothing is left to do
    assert "loss" not in capsys.readouterr().out
