"""Multi30k, German to English, in ten minutes on two cores: BLEU on test_2016_flickr.

python benchmarks/multi30k.py             downloads the data
MINITRANSFORMER_DATA=FOLDER python benchmarks/multi30k.py    reads FOLDER/multi30k/tok

Hypotheses and references are the data set's lower-cased, tokenised texts, so sacrebleu compares
them token by token, with `tokenize="none"`: the corpus BLEU that tutorials compute from lists of
tokens. It needs sacrebleu, which the package itself does not.
"""

import argparse
import sys
import time

import sacrebleu
import torch

from minitransformer import (
    BPETokenizer,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    multi30k,
    translate,
)

VOCAB_SIZE = 4_261  # 5 special tokens, 256 bytes, 4,000 merges
STEPS = 3_500  # of 32 pairs: about 1,000 CPU-seconds of one thread
ALPHA = 1.0  # of beam search: on val, better than the paper's 0.6
TEST = "test_2016_flickr"
BLEU = sacrebleu.BLEU(tokenize="none", force=True)  # tokenised texts are meant


def settings(seed: int, steps: int = STEPS) -> TrainingConfig:
    """How the model is trained."""
    return TrainingConfig(
        steps=steps,
        batch_size=32,
        warmup_steps=min(200, steps - 1),
        peak_learning_rate=3e-3,
        seed=seed,
    )


def new_trainer(
    config: TrainingConfig,
    device: torch.device | str = "cpu",
    positional_encoding: str = "rotary",
) -> Trainer:
    """The task with a small model; both languages share a vocabulary and its embedding."""
    pairs = multi30k("de", "en")["train"]
    tokenizer = BPETokenizer.train((text for pair in pairs for text in pair), VOCAB_SIZE)
    model_config = TransformerConfig(
        tokenizer.vocab_size,
        tokenizer.vocab_size,
        d_model=128,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        d_ff=512,
        norm_first=True,
        positional_encoding=positional_encoding,
        share_embeddings=True,
        max_len=256,
    )
    model = Transformer(model_config, torch.Generator().manual_seed(config.seed)).to(device)
    return Trainer(model, pairs, tokenizer, tokenizer, config)


def bleu_score(model: Transformer, trainer: Trainer, num_beams: int) -> float:
    """BLEU of a model's translations, with the trainer's tokenizers."""
    pairs = multi30k("de", "en")[TEST]
    translations = translate(
        model,
        [pair.src for pair in pairs],
        *trainer.tokenizers.values(),
        num_beams=num_beams,
        alpha=ALPHA,
    )
    return BLEU.corpus_score(translations, [[pair.tgt for pair in pairs]]).score


def main() -> None:
    """Train once, and print BLEU with and without beam search."""
    parser = argparse.ArgumentParser(description="German to English on Multi30k, with its BLEU.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print(f"device {args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    start, cpu_start = time.perf_counter(), time.process_time()
    trainer = new_trainer(settings(args.seed, args.steps), args.device)
    trainer.fit(progress=sys.stderr.isatty())
    minutes, cpu_seconds = (time.perf_counter() - start) / 60, time.process_time() - cpu_start
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(
        f"{parameters:,} parameters, {trainer.step} steps, "
        f"{minutes:.1f} minutes, {cpu_seconds:.0f} CPU-seconds"
    )
    for num_beams in (1, 4):
        start = time.perf_counter()
        score = bleu_score(trainer.model, trainer, num_beams)
        seconds = time.perf_counter() - start
        print(f"BLEU {score:.1f} on {TEST}, {num_beams} beams, {seconds:.0f} s", flush=True)
    print(f"sacrebleu {BLEU.get_signature()}")


if __name__ == "__main__":
    main()
