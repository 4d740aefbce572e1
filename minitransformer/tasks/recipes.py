"""One recipe for each task: its data, tokenizers, a small model and training settings.

The command line and the benchmarks read them. Everything follows from one seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from minitransformer.models.config import TransformerConfig
from minitransformer.models.transformer import Transformer
from minitransformer.tasks.grammar import grammar_sentences
from minitransformer.tasks.multi30k import multi30k
from minitransformer.tasks.number_words import number_words
from minitransformer.tokenization.byte_pair_encoding import BPETokenizer
from minitransformer.tokenization.tokenizer import Tokenizer
from minitransformer.tokenization.words import WordTokenizer
from minitransformer.training.config import TrainingConfig
from minitransformer.training.data import TextPair
from minitransformer.training.trainer import Trainer

LONGER = (
    "longer: millions and thousands in one number, which training never shows together; "
    "the model leaves the thousands out (chapter 9). --recipe fast shows it, see chapter 16"
)


@dataclass(frozen=True)
class Job:
    """A task that the command line can train."""

    splits: Callable[[int], dict[str, list[TextPair]]]  # by the seed
    tokenizers: Callable[[list[TextPair]], tuple[Tokenizer, Tokenizer]]  # source and target
    model: dict[str, Any] = field(default_factory=dict)  # fields that differ from number-words
    settings: dict[str, Any] = field(default_factory=dict)  # fields that differ from the default
    measured: tuple[str, ...] = ()  # the splits whose exact match is reported
    remark: str = ""  # printed after the exact matches
    starts_as_identity: bool = False  # whether each layer is the identity at first

    def new_trainer(self, config: TrainingConfig, device: torch.device | str = "cpu") -> Trainer:
        """Draw the data, train the tokenizers and initialise the model.

        Example:
            >>> trainer = JOBS["number-words"].new_trainer(TrainingConfig())
            >>> sum(parameter.numel() for parameter in trainer.model.parameters())
            969984
        """
        pairs = self.splits(config.seed)["train"]
        src_tokenizer, tgt_tokenizer = self.tokenizers(pairs)
        sizes = {"d_model": 128, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
        sizes |= {"d_ff": 512, "norm_first": True, "max_len": 128}
        model_config = TransformerConfig(
            src_vocab_size=src_tokenizer.vocab_size,
            tgt_vocab_size=tgt_tokenizer.vocab_size,
            **(sizes | self.model),
        )
        generator = torch.Generator().manual_seed(config.seed)
        model = Transformer(model_config, generator).to(device)
        if self.starts_as_identity:
            start_as_identity(model)
        return Trainer(model, pairs, src_tokenizer, tgt_tokenizer, config)


def start_as_identity(model: nn.Module) -> None:
    """Set each sub-layer's last projection to zero, so that at first it adds nothing to its input.

    Source: Zhang, Dauphin & Ma (2019), "Fixup Initialization", section 4. Used in chapter 16.

    Example:
        >>> sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_model": 12, "d_ff": 16}
        >>> config = TransformerConfig(**sizes, num_heads=3, norm_first=True)
        >>> model = Transformer(config, torch.Generator().manual_seed(0)).eval()
        >>> start_as_identity(model)
        >>> x = torch.linspace(-1, 1, 120).view(2, 5, 12)
        >>> torch.equal(model.encoder.layers[0](x), x)
        True
    """
    for module in model.modules():
        for name in ("w_o", "w_2"):  # of attention, and of the feed-forward network
            if hasattr(module, name):
                nn.init.zeros_(getattr(module, name).weight)


def words_and_subwords(pairs: list[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """Words for English, and subwords for German, which writes a number as one long word."""
    src = WordTokenizer.train(pair.src for pair in pairs)
    # 5 special tokens, 256 bytes, 44 merges
    return src, BPETokenizer.train((pair.tgt for pair in pairs), 305)


def words(pairs: list[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """Words on both sides."""
    src = WordTokenizer.train(pair.src for pair in pairs)
    return src, WordTokenizer.train(pair.tgt for pair in pairs)


def shared_subwords(pairs: list[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """One vocabulary for both languages."""
    return (BPETokenizer.train((text for pair in pairs for text in pair), 4_261),) * 2


def subwords_of_each(pairs: list[TextPair]) -> tuple[Tokenizer, Tokenizer]:
    """A vocabulary for each language."""
    src, tgt = zip(*pairs, strict=True)
    return BPETokenizer.train(src, 4_000), BPETokenizer.train(tgt, 2_000)


JOBS = {
    "number-words": Job(
        number_words,
        words_and_subwords,
        measured=("held_out", "composition", "longer"),
        remark=LONGER,
    ),
    "grammar": Job(
        lambda seed: grammar_sentences(seed, num_train=128_000),
        words,
        model={"dropout": 0.0, "positional_encoding": "rotary"},
        settings={"steps": 2_000, "batch_size": 96, "label_smoothing": 0.0},
        measured=("held_out", "composition", "deep"),
    ),
    "multi30k": Job(
        lambda seed: multi30k("de", "en"),
        shared_subwords,
        model={
            "num_encoder_layers": 3,
            "num_decoder_layers": 3,
            "positional_encoding": "rotary",
            "share_embeddings": True,
            "max_len": 256,
        },
        settings={"steps": 3_500, "batch_size": 32, "warmup_steps": 200},
    ),
}

# From chapter 16: Muon needs fewer and smaller batches; the model writes numbers longer than any in
# training if training shows their form in shorter ones and positions are rotary. The grammar's
# recipe is the last record of benchmarks/experiments/speedrun_records.py.
MUON = {"optimizer": "muon", "schedule": "linear"}
FAST = {
    "number-words": replace(
        JOBS["number-words"],
        splits=lambda seed: number_words(seed, millions=0.15, with_thousands=True),
        model={"positional_encoding": "rotary"},
        settings=MUON
        | {"steps": 600, "batch_size": 64, "warmup_steps": 30, "peak_learning_rate": 5e-3},
        remark="",
    ),
    "grammar": replace(
        JOBS["grammar"],
        model=JOBS["grammar"].model | {"d_model": 96, "d_ff": 192},
        settings=JOBS["grammar"].settings
        | MUON
        | {"steps": 2_000, "batch_size": 48, "warmup_steps": 50, "peak_learning_rate": 5e-3},
        starts_as_identity=True,
    ),
    "multi30k": replace(
        JOBS["multi30k"],
        tokenizers=subwords_of_each,
        model={"positional_encoding": "rotary", "max_len": 256, "dropout": 0.05},
        settings=MUON
        | {"steps": 5_000, "batch_size": 32, "warmup_steps": 300, "peak_learning_rate": 8e-3},
        starts_as_identity=True,
    ),
}
RECIPES = {"usual": JOBS, "fast": FAST}
