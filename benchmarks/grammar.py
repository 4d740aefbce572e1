"""The grammar task on several seeds: exact match on every split, after 2,000 steps of 96 pairs.

python benchmarks/grammar.py                    seed 0, about eight minutes on one core
python benchmarks/grammar.py 0 1 2
python benchmarks/grammar.py --save FOLDER      keep the (last) model as save_pretrained does

The model reads its sentences one and a half times, too seldom to learn them by heart, so there is
no dropout and no label smoothing. Positions are rotary.
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from minitransformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    WordTokenizer,
    grammar_sentences,
)

SPLITS = ("held_out", "composition", "deep")
STEPS = 2_000
SENTENCES = 128_000


def new_trainer(
    config: TrainingConfig,
    device: torch.device | str = "cpu",
    positional_encoding: str = "rotary",
) -> Trainer:
    """The grammar task with the small model of the main job, words on both sides."""
    pairs = grammar_sentences(config.seed, num_train=SENTENCES)["train"]
    src_tokenizer = WordTokenizer.train(pair.src for pair in pairs)
    tgt_tokenizer = WordTokenizer.train(pair.tgt for pair in pairs)
    model_config = TransformerConfig(
        src_vocab_size=src_tokenizer.vocab_size,
        tgt_vocab_size=tgt_tokenizer.vocab_size,
        d_model=128,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=512,
        dropout=0.0,
        norm_first=True,
        positional_encoding=positional_encoding,
        max_len=128,
    )
    model = Transformer(model_config, torch.Generator().manual_seed(config.seed)).to(device)
    return Trainer(model, pairs, src_tokenizer, tgt_tokenizer, config)


def main() -> None:
    """Train once per seed and print a row of the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description="The grammar task on several seeds.")
    parser.add_argument("seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where to keep the last model")
    args = parser.parse_args()
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("seed  parameters  steps  minutes  " + "  ".join(f"{name:>11}" for name in SPLITS))
    for seed in args.seeds:
        config = TrainingConfig(steps=STEPS, batch_size=96, label_smoothing=0.0, seed=seed)
        trainer = new_trainer(config, device)
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        start = time.perf_counter()
        trainer.fit(progress=sys.stderr.isatty())
        minutes = (time.perf_counter() - start) / 60
        splits = grammar_sentences(seed, num_train=1)  # the others are drawn before "train"
        tokenizers = trainer.tokenizers.values()
        shares = [
            Translator(trainer.model, *tokenizers).exact_match(splits[name]) for name in SPLITS
        ]
        row = f"{seed:>4}  {parameters:>10,}  {trainer.step:>5}  {minutes:>7.1f}  "
        print(row + "  ".join(f"{share:11.2%}" for share in shares), flush=True)
        if args.save:
            trainer.model.save_pretrained(args.save, **trainer.tokenizers)


if __name__ == "__main__":
    main()
