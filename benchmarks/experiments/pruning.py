"""What the main job loses without single heads, and without more and more: chapter 5, in full.

python -m benchmarks.experiments.pruning   seeds 0, 1 and 2, 800 steps, minutes each
python -m benchmarks.experiments.pruning 7 --steps 200

Cumulative pruning measures anew after each removal and takes the head whose loss costs least.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from copy import deepcopy

import torch

import minitransformer as mt
from minitransformer.tasks.recipes import JOBS

Head = tuple[str, int]
Batches = Sequence[mt.Batch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=mt.TrainingConfig.steps)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for seed in args.seeds:
        start = time.perf_counter()
        trainer = JOBS["number-words"].new_trainer(
            mt.TrainingConfig(steps=args.steps, seed=seed), device
        )
        trainer.fit(progress=sys.stderr.isatty())
        report(trainer, seed)
        print(f"seed {seed}: {(time.perf_counter() - start) / 60:.1f} minutes\n", flush=True)


def report(trainer: mt.Trainer, seed: int) -> None:
    """Print both tables for one trained model."""
    model = trainer.model.eval()
    held_out = mt.number_words(seed)["held_out"]
    all_pairs = batches(trainer, held_out)
    few_pairs = batches(trainer, held_out[:500])
    attentions = [n for n, m in model.named_modules() if isinstance(m, mt.MultiHeadAttention)]
    num_heads = model.config.num_heads
    print(f"seed {seed}: {numbers_right(model, all_pairs):.2%} of {len(held_out)} numbers right")
    print(f"{'without head':<32}" + "".join(f"{head:>8}" for head in range(num_heads)) + "     all")
    for name in attentions:
        heads = [(name, head) for head in range(num_heads)]
        cells = [numbers_without(model, all_pairs, removed) for removed in [[h] for h in heads]]
        cells.append(numbers_without(model, all_pairs, heads))
        print(f"{name:<32}" + "".join(f"{cell:8.1%}" for cell in cells), flush=True)
    print(f"more and more, on {len(held_out[:500])} numbers, cheapest next:")
    removed: list[Head] = []
    remaining = [(name, head) for name in attentions for head in range(num_heads)]
    while remaining:
        shares = [numbers_without(model, few_pairs, [*removed, head]) for head in remaining]
        best = max(range(len(remaining)), key=shares.__getitem__)
        removed.append(remaining.pop(best))
        name, head = removed[-1]
        print(f"{len(removed):>4}  {shares[best]:7.1%}  {name} {head}", flush=True)


def batches(trainer: mt.Trainer, pairs: Sequence[mt.TextPair]) -> Batches:
    """Batches of similar lengths, on the model's device."""
    examples = mt.encode_pairs(pairs, *trainer.tokenizers.values())
    dealt = mt.epoch_batches(examples, 250, seed=0, epoch=0)
    return [mt.Batch(*(ids.to(trainer.device) for ids in mt.collate(batch))) for batch in dealt]


@torch.no_grad()
def numbers_right(model: mt.Transformer, data: Batches) -> float:
    """The share of numbers of which each next token is right, given the right beginning."""
    right = []
    for src, tgt_input, tgt_output in data:
        correct = model(src, tgt_input).argmax(dim=-1) == tgt_output
        right.append((correct | (tgt_output == model.config.pad_id)).all(dim=1))
    return torch.cat(right).float().mean().item()


def numbers_without(model: mt.Transformer, data: Batches, heads: Sequence[Head]) -> float:
    """`numbers_right` without some heads: the columns of w_o that read them are zero."""
    pruned = deepcopy(model)
    for name, head in heads:
        attention = pruned.get_submodule(name)
        columns = slice(head * attention.d_k, (head + 1) * attention.d_k)
        attention.w_o.weight.data[:, columns] = 0
    return numbers_right(pruned, data)


if __name__ == "__main__":
    main()
