"""Norm order, depth and warm-up on the main job: the grid of chapter 7, larger.

Every model is an encoder-decoder of width 64 with as many layers on each side, trained on number
words with a constant learning rate after the warm-up, without dropout and without clipping.

- post-norm: the paper's order.
- pre-norm: with a norm at the end of each stack.
- no-final: pre-norm without these two norms.

Per run it prints the first, the highest later and the last loss (mean of 20 steps, training), and
the loss on held-out numbers, all in nats a token. A run whose loss is no longer finite stops there.

python benchmarks/norm_order.py                     2, 6 and 12 layers, three seeds: hours on a CPU
python benchmarks/norm_order.py --depths 2 6 --seeds 0 --steps 200
"""

import argparse
import math
import time
from collections.abc import Sequence

import torch
from torch import nn

from minitransformer import (
    BPETokenizer,
    Example,
    Transformer,
    TransformerConfig,
    WordTokenizer,
    collate,
    encode_pairs,
    epoch_batches,
    label_smoothing_loss,
    number_words,
)

ORDERS = ("post-norm", "pre-norm", "no-final")
BATCH_SIZE = 64


def main() -> None:
    """Train every cell of the grid, and print a row of the table for each."""
    parser = argparse.ArgumentParser(description="norm order, depth and warm-up")
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
        splits = number_words(seed)
        src_tokenizer = WordTokenizer.train(pair.src for pair in splits["train"])
        tgt_tokenizer = BPETokenizer.train((pair.tgt for pair in splits["train"]), 305)
        tokenizers = src_tokenizer, tgt_tokenizer
        examples, held_out = (encode_pairs(splits[s], *tokenizers) for s in ("train", "held_out"))
        sizes = src_tokenizer.vocab_size, tgt_tokenizer.vocab_size
        for depth in args.depths:
            for order in args.orders:
                for rate in args.rates:
                    for warmup in args.warmups:
                        model = new_model(order, depth, sizes, seed).to(device)
                        start = time.perf_counter()
                        losses = train(model, examples, rate, warmup, args.steps, seed)
                        minutes = (time.perf_counter() - start) / 60
                        last = sum(losses[-20:]) / len(losses[-20:])
                        highest = max(losses[1:], default=losses[0])
                        print(
                            f"{order:<9}  {depth:>6}  {rate:>6.0e}  {warmup:>7}  {seed:>4}  "
                            f"{minutes:>7.1f}  {losses[0]:>6.2f}  {highest:>7.2f}  {last:>6.2f}  "
                            f"{mean_loss(model, held_out):>8.2f}",
                            flush=True,
                        )


def new_model(order: str, depth: int, sizes: tuple[int, int], seed: int) -> Transformer:
    """A fresh model of one order, with `depth` layers on each side."""
    config = TransformerConfig(
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
    model = Transformer(config, torch.Generator().manual_seed(seed))
    if order == "no-final":
        model.encoder.norm = model.decoder.norm = nn.Identity()
    return model


def train(
    model: Transformer, examples: list[Example], rate: float, warmup: int, steps: int, seed: int
) -> list[float]:
    """Train in place; the loss of every step, up to the first that is not finite."""
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    losses: list[float] = []
    epoch = 0
    while True:
        for batch in epoch_batches(examples, BATCH_SIZE, seed=seed, epoch=epoch):
            src, tgt_input, tgt_output = (part.to(device) for part in collate(batch))
            loss = label_smoothing_loss(model(src, tgt_input), tgt_output, smoothing=0.0)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                return losses
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = rate * min(len(losses) / warmup, 1)
            optimizer.step()
            if len(losses) >= steps:
                return losses
        epoch += 1


@torch.no_grad()
def mean_loss(model: Transformer, examples: Sequence[Example]) -> float:
    """Mean loss of the target tokens of all examples."""
    device = next(model.parameters()).device
    total = count = 0.0
    for first in range(0, len(examples), 250):
        batch = collate(examples[first : first + 250])
        src, tgt_input, tgt_output = (part.to(device) for part in batch)
        real = int((tgt_output != 0).sum())
        loss = label_smoothing_loss(model.eval()(src, tgt_input), tgt_output, smoothing=0.0)
        total, count = total + loss.item() * real, count + real
    return total / count


if __name__ == "__main__":
    main()
