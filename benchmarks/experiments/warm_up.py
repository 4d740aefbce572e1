"""How the peak rate and the warm-up change a training of chapter 9's number words, in post-norm.

    python -m benchmarks.experiments.warm_up      about 5 minutes of one core

A run's losses are means of ten steps each. The page shows them (`tools/export_explorables.py`).
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import torch

import minitransformer as mt
from benchmarks.runs import EncodedPairs, Runs, options
from minitransformer.tasks.recipes import words_and_subwords
from minitransformer.training.data import encode_pairs

RATES, WARM_UPS = (0.001, 0.003, 0.01), (1, 30, 100)
STEPS, BATCH, AVERAGED = 300, 32, 10
SHAPE: dict[str, Any] = {"d_model": 48, "num_heads": 4, "d_ff": 96, "norm_first": False}
SHAPE |= {"num_encoder_layers": 3, "num_decoder_layers": 3, "dropout": 0.0, "max_len": 128}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all models, and write their losses."""
    chosen = options(__doc__ or "", "warm_up.json", range(5)).parse_args(arguments)
    torch.set_num_threads(1)
    pairs = mt.number_words(seed=0)["train"]
    src, tgt = words_and_subwords(pairs)
    examples = encode_pairs(pairs, src, tgt)
    sizes = {"src_vocab_size": src.vocab_size, "tgt_vocab_size": tgt.vocab_size, **SHAPE}

    def losses(rate: float, warm_up: int, seed: int) -> list[float]:
        model = mt.Transformer(mt.TransformerConfig(**sizes), torch.Generator().manual_seed(seed))
        settings = mt.TrainingConfig(
            steps=STEPS,
            batch_size=BATCH,
            warmup_steps=warm_up,
            peak_learning_rate=rate,
            label_smoothing=0.0,
            seed=seed,
        )
        trainer = EncodedPairs(model, examples, {"src": src, "tgt": tgt}, settings)
        found = [row["loss"] for row in trainer.fit(progress=False)]
        return [round(mean(found[i : i + AVERAGED]), 3) for i in range(0, STEPS, AVERAGED)]

    runs, found = Runs(chosen.out, chosen.seeds, SHAPE, STEPS, BATCH), []
    for rate, warm_up in product(RATES, WARM_UPS):
        make = partial(losses, rate, warm_up)
        curves = runs.of_seeds(f"{rate}, {warm_up}", make, chosen.seeds)
        found.append({"rate": rate, "warm_up": warm_up, "losses": curves})
    counts = Counter(token for example in examples for token in example.tgt[1:])
    unigram = -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values())
    runs.finish({"steps": STEPS, "unigram": unigram, "seeds": chosen.seeds, "runs": found})


if __name__ == "__main__":
    main()
