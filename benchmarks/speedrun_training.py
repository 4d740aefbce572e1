"""How a recipe of the speedrun trains: its data, its model and its trainer."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import grammar
import torch
from speedrun_records import Recipe
from torch import nn
from torch_transformer import TorchTransformer

from minitransformer import (
    BPETokenizer,
    TextPair,
    Tokenizer,
    Trainer,
    Transformer,
    TransformerConfig,
    WordTokenizer,
    collate,
    encode_pairs,
    grammar_sentences,
    number_words,
)

SIZES = {"d_model": 128, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
SIZES |= {"d_ff": 512, "norm_first": True, "max_len": 128}
SPLITS = {
    "number-words": number_words,
    "grammar": lambda seed: grammar_sentences(seed, num_train=grammar.SENTENCES),
}


@lru_cache(maxsize=2)
def splits_of(task: str, seed: int) -> dict[str, list[TextPair]]:
    """Training and held-out pairs; the seed draws them."""
    return SPLITS[task](seed)


@lru_cache(maxsize=4)
def tokenizers_of(task: str, seed: int, target_tokens: int | None) -> tuple[Tokenizer, Tokenizer]:
    """Words of the source; subwords or words of the target."""
    src, tgt = zip(*splits_of(task, seed)["train"], strict=True)
    target = BPETokenizer.train(tgt, target_tokens) if target_tokens else WordTokenizer.train(tgt)
    return WordTokenizer.train(src), target


def new_model(recipe: Recipe, vocab_sizes: tuple[int, int], seed: int) -> Any:
    """A fresh model; both libraries start with the same weights."""
    options = {"dropout": recipe.dropout, "positional_encoding": recipe.positional_encoding}
    config = TransformerConfig(*vocab_sizes, **SIZES, **options)
    model = Transformer(config, torch.Generator().manual_seed(seed))
    for module in model.modules():
        for name in ("w_o", "w_2"):  # the last projections of attention and feed-forward network
            if recipe.zero_start and hasattr(module, name):
                nn.init.zeros_(getattr(module, name).weight)
    return TorchTransformer(model, dropout_inside=True) if recipe.library == "torch" else model


def as_ours(model: nn.Module, recipe: Recipe) -> Transformer:
    """The model itself, or torch's weights in a model of ours, so that one decoder judges all."""
    if isinstance(model, Transformer):
        return model
    sizes = model.config.src_vocab_size, model.config.tgt_vocab_size
    copy = new_model(replace(recipe, library="ours"), sizes, 0)
    with torch.no_grad():
        for theirs, own in model.pairs(copy):
            own.copy_(theirs)
    return copy


def new_trainer(task: str, recipe: Recipe, seed: int) -> Trainer:
    """A recipe's training from its beginning."""
    tokenizers = tokenizers_of(task, seed, recipe.target_tokens)
    model = new_model(recipe, tuple(tokenizer.vocab_size for tokenizer in tokenizers), seed)
    return Trainer(model, splits_of(task, seed)["train"], *tokenizers, recipe.training(seed))


@torch.no_grad()
def held_out_nats(model: Any, pairs: list[TextPair], tokenizers: tuple[Tokenizer, ...]) -> float:
    """The loss of a pair, summed over its tokens: vocabularies can be compared."""
    model.eval()
    batch = collate(encode_pairs(pairs, *tokenizers))
    tokens = int((batch.tgt_output != 0).sum())
    return float(model.loss(*batch, smoothing=0.0)) * tokens / len(pairs)
