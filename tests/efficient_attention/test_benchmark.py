"""The measured map of chapter 15: its program stops where it should, and its file has its shape."""

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers import randn

from minitransformer import KVCache
from minitransformer.efficient_attention import LatentCache

FOLDER = Path(__file__).parents[2] / "benchmarks"
METHODS = ("full", "one head of keys", "latent", "window 8", "linear", "delta rule")


@pytest.fixture(scope="module")
def program():
    """The program, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import efficient_attention

        yield efficient_attention


def run(program, out, *options):
    """What the program writes."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["efficient_attention.py", "--quick", "--out", str(out), *options]
        patch.setattr(sys, "argv", arguments)
        program.main()
    torch.set_num_threads(threads)
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("method", METHODS)
def test_no_method_peeks(program, method):
    torch.manual_seed(0)
    attention = program.attention_of(method, 12, 3)
    x = randn(2, 9, 12)
    changed = x.clone()
    changed[:, 5:] = 7.0
    before, after = (attention(y, y, y, "causal")[:, :5] for y in (x, changed))
    assert torch.equal(before, after)


@pytest.mark.parametrize("method", ["full", "one head of keys", "latent"])
def test_numbers_kept_are_those_of_the_caches(program, method):
    attention = program.attention_of(method, 12, 3)
    cache = LatentCache() if method == "latent" else KVCache()
    x = randn(1, 7, 12)
    attention(x, x, x, "causal", cache)
    kept = [cache.latent] if method == "latent" else [cache.keys, cache.values]
    assert sum(part.numel() for part in kept) == program.numbers_kept(method, 7, 12, 3)


def test_state_does_not_grow_and_window_stops(program):
    for method in ("linear", "delta rule"):
        assert program.numbers_kept(method, 5, 12, 3) == program.numbers_kept(method, 500, 12, 3)
    kept = [program.numbers_kept("window 8", n, 12, 3) for n in (4, 8, 500)]
    assert kept[0] * 2 == kept[1] == kept[2]


def test_exponent_of_a_power_is_found(program):
    lengths = [2, 4, 8, 16]
    assert program.slope(lengths, [5 * n**1.5 for n in lengths]) == pytest.approx(1.5)


def test_interval_is_student_s(program):
    found = program.interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2
    assert found["high"] - 2 == pytest.approx(4.303 / 3**0.5)
    assert 2 - found["low"] == pytest.approx(found["high"] - 2)


@pytest.mark.parametrize(
    ("seconds", "size", "mask", "fits"),
    [
        ((0.05, 0.2), 1e6, 0.1, True),
        ((0.05, 0.3), 1e6, 0.1, False),  # 1.2 budgets
        ((0.05, 0.45), 1e6, 0.1, False),
        ((0.23, 0.45), 1e6, 0.1, True),  # it only doubles
        ((0.05, 0.1), 8e8, 0.1, False),  # 1.6 GB
        ((0.05, 0.1), 1e6, 3.0, False),  # 12 budgets for the mask
    ],
)
def test_methods_stop_at_the_budgets(program, seconds, size, mask, fits):
    the_map, budget = program.Map({}, lambda: None, program.LENGTHS), program.BUDGET_SECONDS
    row = {
        "seconds": {"256": [seconds[0] * budget], "512": [seconds[1] * budget]},
        "bytes": {"256": size / 2, "512": size},
        "mask_seconds": {"512": mask * budget},
    }
    assert the_map.fits(row, 1024) == fits
    assert not the_map.fits(row, 2048)  # the length before was not measured


def test_held_out_texts_are_no_training_texts(program):
    train, held_out = program.split()
    assert not set(train) & set(held_out)
    assert program.split() == (train, held_out)


@pytest.mark.slow
def test_file_has_its_shape_and_nothing_runs_twice(program, tmp_path):
    out = tmp_path / "results.json"
    found = run(program, out, "--seeds", "0", "1", "--rounds", "2")
    assert found["made"]["quick"]
    assert not out.with_suffix(".partial.json").exists()
    assert set(found["map"]["methods"]) == set(program.METHODS)
    for row in found["map"]["methods"].values():
        assert len(row["seconds"]) == len(row["bytes"]) == len(row["lengths"]) == 2
        assert all(len(times) == 2 for times in row["seconds"])
        assert row["time"]["low"] <= row["time"]["exponent"] <= row["time"]["high"]
    for row in found["recall"]["methods"].values():
        assert [len(shares) for shares in row["right"]] == [2] * len(program.PAIR_COUNTS)
    for row in found["text"]["methods"].values():
        assert len(row["bits"]) == 2
        assert row["low"] <= row["mean"] <= row["high"]
    assert found["text"]["methods"]["full"]["against"]["mean"] == 0


@pytest.mark.slow
def test_what_was_stopped_goes_on(program, tmp_path, monkeypatch):
    out = tmp_path / "results.json"
    trained = []

    def recall(*arguments):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(arguments)
        return {"right": 0.5, "loss": 1.0}

    monkeypatch.setattr(program, "recall", recall)
    with pytest.raises(KeyboardInterrupt):
        run(program, out)
    assert out.with_suffix(".partial.json").exists()
    again = []
    monkeypatch.setattr(
        program, "recall", lambda *arguments: again.append(arguments) or {"right": 0.5, "loss": 1.0}
    )
    run(program, out)
    assert not {arguments[:4] for arguments in trained} & {arguments[:4] for arguments in again}
