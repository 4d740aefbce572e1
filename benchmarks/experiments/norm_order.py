"""Norm order, depth and warm-up on the main job: the grid of chapter 7, larger.

Every model is an encoder-decoder of width 64 with as many layers on each side, trained on number
words with a constant learning rate after the warm-up, without dropout and without clipping.

- post-norm: the paper's order.
- pre-norm: with a norm at the end of each stack.
- no-final: pre-norm without these two norms.

Per run it prints the first, the highest later and the last loss (mean of 20 steps, training), and
the loss on held-out numbers, all in nats a token. A run whose loss is no longer finite stops there.

python -m benchmarks.experiments.norm_order   2, 6 and 12 layers, three seeds: hours on a CPU
python -m benchmarks.experiments.norm_order --depths 2 6 --seeds 0 --steps 400
"""

import argparse
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

import minitransformer as mt
from benchmarks.runs import EncodedPairs
from minitransformer.tasks.recipes import words_and_subwords

ORDERS = ("post-norm", "pre-norm", "no-final")


@dataclass(frozen=True, kw_only=True)
class ConstantRate(mt.TrainingConfig):
    """A training whose rate stays at its peak after the warm-up."""

    batch_size: int = 64
    label_smoothing: float | None = 0.0
    max_gradient_norm: float = 1e9

    def learning_rate(self, step: int, d_model: int) -> float:
        """The rate of a step."""
        return self.peak_learning_rate * min(step / self.warmup_steps, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 6, 12])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--warmups", type=int, nargs="+", default=[1, 200], help="1 is none")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("order      layers    rate  warm-up  seed  minutes   first  highest    last  held out")
    for seed in args.seeds:
        splits = mt.number_words(seed)
        src, tgt = words_and_subwords(splits["train"])
        examples = mt.encode_pairs(splits["train"], src, tgt)
        sizes = src.vocab_size, tgt.vocab_size
        cells = itertools.product(args.depths, args.orders, args.rates, args.warmups)
        for depth, order, rate, warmup in cells:
            model = new_model(order, depth, sizes, seed).to(device)
            config = ConstantRate(
                steps=args.steps, peak_learning_rate=rate, warmup_steps=warmup, seed=seed
            )
            trainer = EncodedPairs(model, examples, {"src": src, "tgt": tgt}, config)
            start = time.perf_counter()
            with suppress(FloatingPointError):
                trainer.fit(progress=False)
            minutes = (time.perf_counter() - start) / 60
            losses = [row["loss"] for row in trainer.history]
            last = sum(losses[-20:]) / len(losses[-20:])
            highest = max(losses[1:], default=losses[0])
            held_out = mt.Translator(model, src, tgt).held_out_loss(splits["held_out"])
            print(
                f"{order:<9}  {depth:>6}  {rate:>6.0e}  {warmup:>7}  {seed:>4}  {minutes:>7.1f}  "
                f"{losses[0]:>6.2f}  {highest:>7.2f}  {last:>6.2f}  {held_out:>8.2f}",
                flush=True,
            )


def new_model(order: str, depth: int, sizes: tuple[int, int], seed: int) -> mt.Transformer:
    """A fresh model of one order, with `depth` layers on each side."""
    config = mt.TransformerConfig(
        src_vocab_size=sizes[0],
        tgt_vocab_size=sizes[1],
        d_model=64,
        num_heads=4,
        num_encoder_layers=depth,
        num_decoder_layers=depth,
        d_ff=256,
        dropout=0.0,
        norm_first=order != "post-norm",
        max_len=128,
    )
    model = mt.Transformer(config, torch.Generator().manual_seed(seed))
    if order == "no-final":
        model.encoder.norm = model.decoder.norm = nn.Identity()
    return model


if __name__ == "__main__":
    main()
