"""What the feed-forward networks are worth on the main job: chapter 6, in full.

python benchmarks/feed_forward.py                 seeds 0, 1 and 2, 800 steps, nine models each
python benchmarks/feed_forward.py 7 --steps 200

Networks of both sides, of one, of none; attention alone with as many parameters, in more layers
or in wider ones; and the other activations, the gated one at two thirds of the inner width.
"""

import argparse
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from minitransformer import Trainer, TrainingConfig, Transformer, Translator, number_words
from minitransformer.tasks.recipes import JOBS

SPLITS = ("held_out", "composition", "longer")
NO_NETWORKS = ("encoder", "decoder")
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "both": ((), {}),
    "decoder only": (("encoder",), {}),
    "encoder only": (("decoder",), {}),
    "none": (NO_NETWORKS, {}),
    "none, deeper": (NO_NETWORKS, {"num_encoder_layers": 6, "num_decoder_layers": 4}),
    "none, wider": (NO_NETWORKS, {"d_model": 192, "num_heads": 6}),
    "gelu": ((), {"activation": "gelu"}),
    "gelu_tanh": ((), {"activation": "gelu_tanh"}),
    "swiglu": ((), {"activation": "swiglu", "d_ff": 341}),
}


class Nothing(nn.Module):
    """A sub-layer that has nothing to add."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros of the shape of x."""
        return torch.zeros_like(x)


def main() -> None:
    """Train each variant once per seed, and print a row of the table for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=TrainingConfig.steps)
    parser.add_argument("--numbers", type=int, default=2_000, help="tested in each split")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    names = "  ".join(f"{name:>11}" for name in SPLITS)
    print(f"networks      seed  parameters  steps  minutes  last loss  {names}")
    for seed in args.seeds:
        warmup_steps = min(TrainingConfig.warmup_steps, args.steps // 2)
        config = TrainingConfig(steps=args.steps, warmup_steps=warmup_steps, seed=seed)
        first = JOBS["number-words"].new_trainer(config)
        splits, tokenizers = number_words(seed), tuple(first.tokenizers.values())
        for name, (without, changes) in VARIANTS.items():
            shape = replace(first.model.config, **changes)
            model = Transformer(shape, torch.Generator().manual_seed(seed))
            parameters = remove(model, without)
            trainer = Trainer(model.to(device), splits["train"], *tokenizers, config)
            start = time.perf_counter()
            history = trainer.fit(progress=sys.stderr.isatty())
            minutes = (time.perf_counter() - start) / 60
            last_loss = sum(row["loss"] for row in history[-50:]) / len(history[-50:])
            tested = (splits[split][: args.numbers] for split in SPLITS)
            shares = [Translator(model, *tokenizers).exact_match(pairs) for pairs in tested]
            row = f"{name:<12}  {seed:>4}  {parameters:>10,}  {trainer.step:>5}  {minutes:>7.1f}  "
            row += f"{last_loss:>9.3f}  "
            print(row + "  ".join(f"{share:11.2%}" for share in shares), flush=True)


def remove(model: Transformer, sides: tuple[str, ...]) -> int:
    """Take the networks of these sides out; return how many parameters are in use then."""
    unused = 0
    for side in sides:
        for layer in model.get_submodule(side).layers:
            layer.feed_forward = Nothing()
            norm = (layer.residual_3 if side == "decoder" else layer.residual_2).norm
            unused += sum(parameter.numel() for parameter in norm.parameters())
    return sum(parameter.numel() for parameter in model.parameters()) - unused


if __name__ == "__main__":
    main()
