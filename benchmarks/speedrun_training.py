"""How a recipe of the speedrun trains: its data, its model and its trainer."""

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import grammar
import pooch
import torch
from speedrun_records import Recipe
from torch import Tensor, nn
from torch_transformer import TorchDecoderOnly, TorchTransformer, torch_loss

from minitransformer import (
    BPETokenizer,
    CharacterTokenizer,
    DecoderOnlyTransformer,
    LanguageModelTrainer,
    TextPair,
    Tokenizer,
    Trainer,
    Transformer,
    TransformerConfig,
    Translator,
    WordTokenizer,
    collate,
    encode_pairs,
    grammar_sentences,
    next_token_loss,
    number_words,
)
from minitransformer.tasks.recipes import start_as_identity

CONTEXT = 64
PAIRS = {"num_encoder_layers": 2, "num_decoder_layers": 2, "max_len": 128}
TEXT = {"num_encoder_layers": 0, "num_decoder_layers": 4, "max_len": CONTEXT}
SHAPES = {"shakespeare": TEXT | {"share_embeddings": True}}
"""Of a task's models, what no recipe changes; `PAIRS` where it is not named."""
ADDRESS = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def shakespeare(seed: int = 0) -> dict[str, list[Any]]:
    """Plays of Shakespeare: nine tenths of the text to learn, the rest to be measured on.

    The last tenth is held out, in pieces of `CONTEXT` characters and the one that follows. The text
    is downloaded once, or read from tinyshakespeare/input.txt of the folder that the environment
    variable MINITRANSFORMER_DATA names; its checksum is verified. The seed draws nothing here.
    """
    folder = os.environ.get("MINITRANSFORMER_DATA")
    path = Path(folder, "tinyshakespeare", "input.txt") if folder else None
    if path and pooch.file_hash(str(path)) != SHA256:
        raise ValueError(f"{path} is damaged; replace it by {ADDRESS}")
    cache = Path(pooch.os_cache("minitransformer"), "tinyshakespeare")
    found = path or Path(pooch.retrieve(ADDRESS, SHA256, fname="input.txt", path=cache))
    text = found.read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    starts = range(cut, len(text) - CONTEXT, CONTEXT)
    return {"train": [text[:cut]], "held_out": [text[i : i + CONTEXT + 1] for i in starts]}


SPLITS = {
    "number-words": number_words,
    "grammar": lambda seed: grammar_sentences(seed, num_train=grammar.SENTENCES),
    "shakespeare": shakespeare,
}


@lru_cache(maxsize=2)
def splits_of(task: str, seed: int) -> dict[str, list[Any]]:
    """Texts, or pairs of them, for training and held out; the seed draws pairs."""
    return SPLITS[task](seed)


@lru_cache(maxsize=4)
def tokenizers_of(task: str, seed: int, target_tokens: int | None) -> tuple[Tokenizer, ...]:
    """Characters of a text; words of a source, and subwords or words of its target."""
    texts = splits_of(task, seed)["train"]
    if isinstance(texts[0], str):
        return (CharacterTokenizer.train(texts),)
    src, tgt = zip(*texts, strict=True)
    target = BPETokenizer.train(tgt, target_tokens) if target_tokens else WordTokenizer.train(tgt)
    return WordTokenizer.train(src), target


def ours_of(config: TransformerConfig, seed: int = 0) -> Any:
    """A model of ours with fresh weights."""
    kind = Transformer if config.num_encoder_layers else DecoderOnlyTransformer
    return kind(config, torch.Generator().manual_seed(seed))


def new_model(task: str, recipe: Recipe, vocab_sizes: tuple[int, ...], seed: int) -> Any:
    """A fresh model; both libraries start with the same weights."""
    names = "d_model", "num_heads", "d_ff", "dropout", "positional_encoding"
    options: dict[str, Any] = {name: getattr(recipe, name) for name in names}
    options |= {"norm_first": True} | SHAPES.get(task, PAIRS)
    model = ours_of(
        TransformerConfig(src_vocab_size=vocab_sizes[0], tgt_vocab_size=vocab_sizes[-1], **options),
        seed,
    )
    if recipe.zero_start:
        start_as_identity(model)
    if recipe.library == "ours":
        return model
    if isinstance(model, DecoderOnlyTransformer):
        return TorchDecoderOnly(model)
    return TorchTransformer(model, dropout_inside=True)


def as_ours(model: nn.Module) -> Any:
    """The model itself, or torch's weights in a model of ours, so that one decoder judges all."""
    if isinstance(model, Transformer | DecoderOnlyTransformer):
        return model
    copy = ours_of(model.config)
    with torch.no_grad():
        for theirs, own in model.pairs(copy):
            own.copy_(theirs)
    return copy


def new_trainer(task: str, recipe: Recipe, seed: int) -> Trainer:
    """A recipe's training from its beginning."""
    tokenizers = tokenizers_of(task, seed, recipe.target_tokens)
    sizes = tuple(tokenizer.vocab_size for tokenizer in tokenizers)
    model = new_model(task, recipe, sizes, seed)
    kind = Trainer if len(tokenizers) == 2 else LanguageModelTrainer
    trainer = kind(model, splits_of(task, seed)["train"], *tokenizers, recipe.training(seed))
    if recipe.library != "ours":
        vars(trainer)["loss"] = partial(torch_loss, trainer)
    return trainer


@torch.no_grad()
def held_out_nats(model: Any, texts: list[Any], tokenizers: tuple[Tokenizer, ...]) -> float:
    """The loss of a character of texts; of a pair, summed over its tokens.

    Neither depends on the vocabulary.
    """
    model.eval()
    if isinstance(texts[0], TextPair):
        batch = collate(encode_pairs(texts, *tokenizers))
        tokens = int((batch.tgt_output != 0).sum())
        return float(next_token_loss(model, *batch)) * tokens / len(texts)
    rows = torch.tensor([tokenizers[0].encode(text) for text in texts]).split(128)
    return sum(mean_of_rows(model, part) * len(part) for part in rows) / len(texts)


def mean_of_rows(model: Any, rows: Tensor) -> float:
    """The loss of a character, all but the first of each row."""
    return float(next_token_loss(model, rows[:, :-1], rows[:, 1:]))


def score_of(model: Any, held_out: list[Any], tokenizers: tuple[Tokenizer, ...]) -> float:
    """What a run is judged by: the share of pairs without a mistake, or nats a character."""
    if isinstance(held_out[0], TextPair):
        return Translator(as_ours(model), *tokenizers).exact_match(held_out)
    return held_out_nats(as_ours(model), held_out, tokenizers)
