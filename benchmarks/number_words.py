"""The main job on several seeds: exact match on every split, after 800 steps of 128 pairs.

python benchmarks/number_words.py          seeds 0, 1 and 2, two minutes each on two cores
python benchmarks/number_words.py 7 8 9
"""

import sys
import time

import torch

from minitransformer import TrainingConfig, Translator, number_words
from minitransformer.tasks.recipes import JOBS

SPLITS = ("held_out", "composition", "longer")


def main() -> None:
    """Train once per seed and print a row of the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seeds = [int(argument) for argument in sys.argv[1:]] or [0, 1, 2]
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("seed  parameters  steps  minutes  " + "  ".join(f"{name:>11}" for name in SPLITS))
    for seed in seeds:
        trainer = JOBS["number-words"].new_trainer(TrainingConfig(seed=seed), device)
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        start = time.perf_counter()
        trainer.fit(progress=sys.stderr.isatty())
        minutes = (time.perf_counter() - start) / 60
        splits = number_words(seed)
        tokenizers = trainer.tokenizers.values()
        shares = [
            Translator(trainer.model, *tokenizers).exact_match(splits[name]) for name in SPLITS
        ]
        row = f"{seed:>4}  {parameters:>10,}  {trainer.step:>5}  {minutes:>7.1f}  "
        print(row + "  ".join(f"{share:11.2%}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
