"""One, two or three tables on the main job: exact match on every split, after 800 steps.

Source embedding, target embedding and output projection each have a table of their own
(separate), or the last two share one (tied), or all three (three-way, the paper's). The languages
have one vocabulary in all runs, so that nothing else differs.

python benchmarks/weight_sharing.py          seeds 0, 1 and 2, three models each
python benchmarks/weight_sharing.py 7 8 9
"""

import sys
import time
from dataclasses import replace

import torch

from minitransformer import (
    BPETokenizer,
    Trainer,
    TrainingConfig,
    Transformer,
    Translator,
    number_words,
)
from minitransformer.tasks.recipes import JOBS

SPLITS = ("held_out", "composition", "longer")
VOCAB_SIZE = 380  # 5 special tokens, 256 bytes, 119 merges for both languages
SHARING = {
    "separate": {"tie_output": False, "share_embeddings": False},
    "tied": {"tie_output": True, "share_embeddings": False},
    "three-way": {"tie_output": True, "share_embeddings": True},
}


def main() -> None:
    """Train each way of sharing once per seed, and print a row of the table for each."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seeds = [int(argument) for argument in sys.argv[1:]] or [0, 1, 2]
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    names = "  ".join(f"{name:>11}" for name in SPLITS)
    print(f"sharing    seed  parameters  steps  minutes  last loss  {names}")
    for seed in seeds:
        config = TrainingConfig(seed=seed)
        shape = JOBS["number-words"].new_trainer(config).model.config
        splits = number_words(seed)
        texts = (text for pair in splits["train"] for text in pair)
        tokenizer = BPETokenizer.train(texts, VOCAB_SIZE)
        sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.vocab_size}
        for name, sharing in SHARING.items():
            model_config = replace(shape, **sizes, **sharing)
            model = Transformer(model_config, torch.Generator().manual_seed(seed)).to(device)
            trainer = Trainer(model, splits["train"], tokenizer, tokenizer, config)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            start = time.perf_counter()
            history = trainer.fit(progress=sys.stderr.isatty())
            minutes = (time.perf_counter() - start) / 60
            last_loss = sum(row["loss"] for row in history[-50:]) / len(history[-50:])
            shares = [
                Translator(model, tokenizer, tokenizer).exact_match(splits[split])
                for split in SPLITS
            ]
            row = f"{name:<9}  {seed:>4}  {parameters:>10,}  {trainer.step:>5}  {minutes:>7.1f}  "
            row += f"{last_loss:>9.3f}  "
            print(row + "  ".join(f"{share:11.2%}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
