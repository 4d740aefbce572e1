"""Trained short, tested long: every positional encoding on the main job, chapter 3 in full.

Each scheme trains the main job's model on each seed. Printed per run, then as mean ± standard
deviation over seeds: exact match on every split, and the share of next tokens of `longer` that
are right given the right beginning, up to the longest target of training and past it.

python benchmarks/extrapolation.py                  seeds 0, 1 and 2, five models each
python benchmarks/extrapolation.py 7 8 --steps 200
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from minitransformer import (
    TextPair,
    Trainer,
    TrainingConfig,
    Transformer,
    Translator,
    collate,
    encode_pairs,
    number_words,
)
from minitransformer.tasks.recipes import JOBS

SCHEMES = ("sinusoidal", "learned", "rotary", "alibi", "none")
SPLITS = ("held_out", "composition", "longer")
COLUMNS = (*SPLITS, "tokens", "seen", "unseen")


def main() -> None:
    """Train each scheme once per seed; print a row for each run and for each scheme."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=TrainingConfig.steps)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("exact match on the splits; next tokens right on `longer`: all, and at target positions")
    print("that training has seen and has not")
    print("scheme      seed  minutes  " + "  ".join(f"{name:>11}" for name in COLUMNS))
    runs: dict[str, list[list[float]]] = {scheme: [] for scheme in SCHEMES}
    for seed in args.seeds:
        main_job = JOBS["number-words"].new_trainer(TrainingConfig(steps=args.steps, seed=seed))
        for scheme in SCHEMES:
            start = time.perf_counter()
            trainer = with_scheme(main_job, scheme, device)
            trainer.fit(progress=sys.stderr.isatty())
            minutes = (time.perf_counter() - start) / 60
            runs[scheme].append(measures(trainer, number_words(seed)))
            row = "  ".join(f"{share:11.2%}" for share in runs[scheme][-1])
            print(f"{scheme:<10}  {seed:>4}  {minutes:>7.1f}  {row}", flush=True)
    print(f"\nmean ± standard deviation over {len(args.seeds)} seeds, in per cent")
    for scheme, rows in runs.items():
        table = 100 * torch.tensor(rows)
        deviation = table.std(0) if len(rows) > 1 else torch.zeros(len(COLUMNS))
        cells = zip(table.mean(0).tolist(), deviation.tolist(), strict=True)
        print(f"{scheme:<27}" + "  ".join(f"{m:5.1f} ± {s:3.1f}" for m, s in cells))


def with_scheme(main_job: Trainer, scheme: str, device: str) -> Trainer:
    """A trainer that differs from the main job's in the positional encoding alone."""
    config = replace(main_job.model.config, positional_encoding=scheme)
    model = Transformer(config, torch.Generator().manual_seed(main_job.config.seed)).to(device)
    return Trainer(model, main_job.texts, *main_job.tokenizers.values(), main_job.config)


def measures(trainer: Trainer, splits: dict[str, list[TextPair]]) -> list[float]:
    """The shares that `COLUMNS` names."""
    model, tokenizers = trainer.model.eval(), trainer.tokenizers.values()
    shares = [Translator(model, *tokenizers).exact_match(splits[name]) for name in SPLITS]
    seen = max(len(example.tgt) - 1 for example in trainer.examples)
    right, real = right_tokens(trainer, splits["longer"])
    for part in (slice(None), slice(seen), slice(seen, None)):
        shares.append((right[part].sum() / real[part].sum()).item())
    return shares


@torch.no_grad()
def right_tokens(trainer: Trainer, pairs: Sequence[TextPair]) -> tuple[torch.Tensor, torch.Tensor]:
    """How many next tokens are right, and how many there are, at each target position."""
    pad_id = trainer.model.config.pad_id
    batch = collate(encode_pairs(pairs, *trainer.tokenizers.values()), pad_id)
    chunks = zip(*(part.to(trainer.device).split(250) for part in batch), strict=True)
    counts = []
    for src, tgt_input, tgt_output in chunks:
        real = tgt_output != pad_id
        hits = (trainer.model(src, tgt_input).argmax(dim=-1) == tgt_output) & real
        counts.append(torch.stack([hits.sum(0), real.sum(0)]))
    right, real = torch.stack(counts).sum(0).cpu()
    return right, real


if __name__ == "__main__":
    main()
