"""The command line's recipes with one thing changed: exact match on every split, seed by seed.

python -m benchmarks.experiments.variants number-words          what seeds 0, 1 and 2 reach
python -m benchmarks.experiments.variants grammar 0             about eight minutes of one core
python -m benchmarks.experiments.variants feed-forward 7 --steps 200
python -m benchmarks.experiments.variants grammar 0 --save FOLDER   keeps the last model

- embeddings: one, two or three tables for source, target and output, and one vocabulary, so that
  nothing else differs (chapter 8).
- feed-forward: networks of both sides, of one, of none; attention alone with as many parameters, in
  more layers or in wider ones; and the other activations, the gated one at two thirds of the inner
  width (chapter 6).
- positions: every positional encoding, trained short, tested long (chapter 3).
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.runs import size
from minitransformer import BPETokenizer, TextPair, Tokenizer, TrainingConfig, Transformer
from minitransformer.tasks.recipes import JOBS


def one_vocabulary(pairs: list[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """Subwords of both languages: 5 special tokens, 256 bytes, 119 merges."""
    tokenizer = BPETokenizer.train((text for pair in pairs for text in pair), 380)
    return tokenizer, tokenizer


class Nothing(nn.Module):
    """A sub-layer that has nothing to add."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros of the shape of x."""
        return torch.zeros_like(x)


def without_networks(*sides: str) -> Callable[[Transformer], None]:
    """Take the feed-forward networks of these sides out."""

    def remove(model: Transformer) -> None:
        for side in sides:
            for layer in model.get_submodule(side).layers:
                layer.feed_forward = Nothing()

    return remove


@dataclass(frozen=True)
class Variant:
    """A recipe of the command line with something changed.

    Attributes:
        model: what is changed in its configuration.
        change: what no configuration has a word for, done to the fresh model.
        job: what is changed in the recipe's data.
        task: whose recipe it is.
    """

    model: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Transformer], None] = lambda model: None
    job: dict[str, Any] = field(default_factory=dict)
    task: str = "number-words"


JOINT = {"tokenizers": one_vocabulary}
BOTH = without_networks("encoder", "decoder")
VARIANTS: dict[str, dict[str, Variant]] = {
    "number-words": {"": Variant()},
    "grammar": {"": Variant(task="grammar")},
    "embeddings": {
        "separate": Variant({"tie_output": False}, job=JOINT),
        "tied": Variant({"tie_output": True}, job=JOINT),
        "three-way": Variant({"tie_output": True, "share_embeddings": True}, job=JOINT),
    },
    "feed-forward": {
        "both": Variant(),
        "decoder only": Variant(change=without_networks("encoder")),
        "encoder only": Variant(change=without_networks("decoder")),
        "none": Variant(change=BOTH),
        "none, deeper": Variant({"num_encoder_layers": 6, "num_decoder_layers": 4}, BOTH),
        "none, wider": Variant({"d_model": 192, "num_heads": 6}, BOTH),
        "gelu": Variant({"activation": "gelu"}),
        "gelu_tanh": Variant({"activation": "gelu_tanh"}),
        "swiglu": Variant({"activation": "swiglu", "d_ff": 341}),
    },
    "positions": {
        name: Variant({"positional_encoding": name})
        for name in ("sinusoidal", "learned", "rotary", "alibi", "none")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=VARIANTS)
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="the recipe's when left out")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where to keep the last model")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    splits = ("held_out", "composition", "deep" if args.what == "grammar" else "longer")
    names = "  ".join(f"{name:>11}" for name in splits)
    print(f"variant       seed  parameters  steps  minutes  last loss  {names}")
    for seed in args.seeds:
        for name, variant in VARIANTS[args.what].items():
            job = JOBS[variant.task]
            job = replace(job, model=job.model | variant.model, **variant.job)
            settings = {"seed": seed} | job.settings
            if args.steps is not None:
                settings["steps"] = args.steps
                settings["warmup_steps"] = min(TrainingConfig.warmup_steps, args.steps // 2)
            trainer = job.new_trainer(TrainingConfig(**settings), device)
            variant.change(trainer.model)
            start = time.perf_counter()
            history = trainer.fit(progress=sys.stderr.isatty())
            minutes = (time.perf_counter() - start) / 60
            last_loss = sum(row["loss"] for row in history[-50:]) / len(history[-50:])
            held_out = job.splits(seed)
            shares = [trainer.trained().exact_match(held_out[split]) for split in splits]
            row = f"{name:<12}  {seed:>4}  {size(trainer.model):>10,}  {trainer.step:>5}  "
            row += f"{minutes:>7.1f}  {last_loss:>9.3f}  "
            print(row + "  ".join(f"{share:11.2%}" for share in shares), flush=True)
            if args.save:
                trainer.model.save_pretrained(args.save, **trainer.tokenizers)


if __name__ == "__main__":
    main()
