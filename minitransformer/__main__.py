"""The command line: train the book's main job, number words from English to German, and use it.

python -m minitransformer train
python -m minitransformer translate "three hundred forty-two"
python -m minitransformer export number-words.safetensors --to ctranslate2 numbers-ctranslate2
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from minitransformer import export
from minitransformer.byte_pair_encoding import BPETokenizer
from minitransformer.checkpoint import load_model, load_translator
from minitransformer.config import TransformerConfig
from minitransformer.inference import translate
from minitransformer.tasks.number_words import number_words
from minitransformer.tokenization import WordTokenizer
from minitransformer.trainer import Trainer, exact_match
from minitransformer.training import TrainingConfig
from minitransformer.transformer import Transformer

ENGINES: dict[str, Callable[..., None]] = {
    "ctranslate2": export.to_ctranslate2,
    "onnx": export.to_onnx,
    "torch": export.to_torch,
    "transformers": export.to_transformers,
}
TGT_VOCAB_SIZE = 305  # 5 special tokens, 256 bytes, 44 merges
LONGER = (
    "longer: millions and thousands in one number, which training never shows together; "
    "the model writes the millions and leaves the thousands out, see chapter 9"
)


def new_trainer(config: TrainingConfig, device: torch.device | str = "cpu") -> Trainer:
    """The main job from its beginning: data, tokenizers and a small model, all from one seed.

    Example:
        >>> trainer = new_trainer(TrainingConfig())
        >>> sum(parameter.numel() for parameter in trainer.model.parameters())
        969984
    """
    pairs = number_words(config.seed)["train"]
    src_tokenizer = WordTokenizer.train(pair.src for pair in pairs)
    tgt_tokenizer = BPETokenizer.train((pair.tgt for pair in pairs), TGT_VOCAB_SIZE)
    model_config = TransformerConfig(
        src_tokenizer.vocab_size,
        tgt_tokenizer.vocab_size,
        d_model=128,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=512,
        norm_first=True,
        max_len=128,
    )
    model = Transformer(model_config, torch.Generator().manual_seed(config.seed)).to(device)
    return Trainer(model, pairs, src_tokenizer, tgt_tokenizer, config)


def train(args: argparse.Namespace) -> None:
    """Train, or go on where the checkpoint ends, and report exact match on every split."""
    config = TrainingConfig(steps=args.steps, seed=args.seed, precision=args.precision)
    device = usable_device(args.device)
    if args.checkpoint.exists():
        trainer = Trainer.resume(args.checkpoint, number_words(args.seed)["train"], device)
        if trainer.config != config:
            raise ValueError(
                f"{args.checkpoint} was trained with {differences(trainer.config, config)}; "
                "give the same settings, or another --checkpoint"
            )
        print(f"{args.checkpoint}: going on after step {trainer.step} of {config.steps}")
    else:
        trainer = new_trainer(config, device)
    trainer.fit(checkpoint=args.checkpoint)
    print(f"trained {trainer.step} steps; saved to {args.checkpoint}")
    splits = number_words(args.seed)
    for name in ("held_out", "composition", "longer"):
        share = exact_match(trainer.model, splits[name], *trainer.tokenizers.values())
        print(f"exact match, {name:<12} {share:7.2%} of {len(splits[name])}")
    print(LONGER)


def usable_device(name: str) -> torch.device:
    """The device of that name, once something could be put on it."""
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}") from error


def differences(saved: TrainingConfig, given: TrainingConfig) -> str:
    """Name the settings in which two configurations differ, with both values."""
    old, new = asdict(saved), asdict(given)
    return ", ".join(f"{k}={old[k]!r}, not {new[k]!r}" for k in old if old[k] != new[k])


def translate_texts(args: argparse.Namespace) -> None:
    """Print each text's translation on a line of its own."""
    if not args.checkpoint.exists():
        raise FileNotFoundError(
            f"there is no checkpoint at {args.checkpoint}; "
            "'python -m minitransformer train' makes one"
        )
    model, src_tokenizer, tgt_tokenizer = load_translator(
        args.checkpoint, usable_device(args.device)
    )
    for text in args.text:
        labels = src_tokenizer.labels(src_tokenizer.encode(text))
        if "<unk>" in labels:
            raise ValueError(f"{text!r} has a word never seen in training: {' '.join(labels)}")
    for line in translate(model, args.text, src_tokenizer, tgt_tokenizer):
        print(line)


def export_model(args: argparse.Namespace) -> None:
    """Write a trained model and its tokenizers for another engine, and name the files."""
    options: dict[str, Any] = {}
    if args.quantization is not None:
        if args.to != "ctranslate2":
            raise ValueError(f"--quantization is for --to ctranslate2, not for {args.to}")
        options["quantization"] = args.quantization
    model, tokenizers = load_model(args.checkpoint, "cpu")
    ENGINES[args.to](model.eval(), args.folder, **options, **tokenizers)
    print(f"{args.folder}: {', '.join(sorted(path.name for path in args.folder.iterdir()))}")


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    main_parser = argparse.ArgumentParser(
        prog="minitransformer", description="Number words, English to German, by a Transformer."
    )
    commands = main_parser.add_subparsers(required=True, metavar="command")
    train_parser = commands.add_parser(
        "train", help="train a model; started again, it goes on where it was stopped"
    )
    train_parser.add_argument("--steps", type=int, default=TrainingConfig.steps)
    train_parser.add_argument("--seed", type=int, default=TrainingConfig.seed)
    train_parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default=TrainingConfig.precision
    )
    train_parser.set_defaults(run=train)
    translate_parser = commands.add_parser("translate", help="translate texts with a trained model")
    translate_parser.add_argument("text", nargs="+", help='such as "three hundred forty-two"')
    translate_parser.set_defaults(run=translate_texts)
    export_parser = commands.add_parser("export", help="write a trained model for another engine")
    export_parser.add_argument("checkpoint", type=Path, help="or the folder of a model")
    export_parser.add_argument("--to", choices=ENGINES, required=True)
    export_parser.add_argument("folder", type=Path, help="a new one")
    export_parser.add_argument("--quantization", help='of ctranslate2, such as "int8"')
    export_parser.set_defaults(run=export_model)
    for sub_parser in (train_parser, translate_parser):
        sub_parser.add_argument("--checkpoint", type=Path, default=Path("number-words.safetensors"))
        sub_parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return main_parser


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input ends it with one line on stderr and exit status 1."""
    args = parser().parse_args(arguments)
    try:
        args.run(args)
    except (ImportError, ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"minitransformer: {error}")
    except KeyboardInterrupt:
        sys.exit("\nminitransformer: stopped; the same command goes on from the last checkpoint")


if __name__ == "__main__":
    main()
