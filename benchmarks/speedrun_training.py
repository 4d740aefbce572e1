"""How a recipe of the speedrun trains: its data, its model and its trainer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import grammar
import torch
from muon import Muon, Together
from speedrun_records import Recipe
from torch import Tensor, nn
from torch_transformer import TorchTransformer

from minitransformer import (
    BPETokenizer,
    RMSNorm,
    TextPair,
    Tokenizer,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    WordTokenizer,
    collate,
    encode_pairs,
    epoch_batches,
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
    """A fresh model; all libraries start with the same weights."""
    options = {"dropout": recipe.dropout, "positional_encoding": recipe.positional_encoding}
    config = TransformerConfig(*vocab_sizes, **SIZES, **options)
    model = Transformer(config, torch.Generator().manual_seed(seed))
    for module in model.modules():
        if recipe.qk_norm and hasattr(module, "self_attention"):
            attention = module.self_attention
            attention.norm_q, attention.norm_k = RMSNorm(attention.d_k), RMSNorm(attention.d_k)
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


@dataclass(frozen=True)
class LinearConfig(TrainingConfig):
    """A configuration whose learning rate falls along a line, nearly to zero at the end."""

    def learning_rate(self, step: int, d_model: int) -> float:
        """The learning rate of an update, counted from 1."""
        left = (self.steps + 1 - step) / (self.steps + 1 - self.warmup_steps)
        return self.peak_learning_rate * min(step / self.warmup_steps, left)


class SpeedrunTrainer(Trainer):
    """A `Trainer` with a recipe's optimisers, order of batches and mean of weights."""

    def __init__(
        self, task: str, recipe: Recipe, seed: int, tokenizers: tuple[Tokenizer, Tokenizer]
    ) -> None:
        kind = LinearConfig if recipe.schedule == "linear" else TrainingConfig
        config = kind(
            steps=recipe.steps,
            batch_size=recipe.batch_size,
            warmup_steps=recipe.warmup_steps,
            peak_learning_rate=recipe.peak,
            label_smoothing=recipe.label_smoothing,
            precision=recipe.precision,
            seed=seed,
        )
        model = new_model(recipe, tuple(t.vocab_size for t in tokenizers), seed)
        super().__init__(model, splits_of(task, seed)["train"], *tokenizers, config)
        self.recipe = recipe
        self.mean = [p.detach().clone() for p in model.parameters()] if recipe.average else []
        if recipe.optimizer != "adam" or recipe.embedding_rate != 1.0:
            self.optimizer = optimizers_of(recipe, model)

    def phases(self) -> Iterator[tuple[int, list[Any], int]]:
        """Until which step there are batches of which examples and of what size."""
        recipe, examples = self.recipe, self.examples
        by_length = sorted(examples, key=lambda example: len(example.src) + len(example.tgt))
        sizes = (recipe.first_batch_size or recipe.batch_size, recipe.batch_size)
        short, half = round(recipe.short_first * recipe.steps), recipe.steps // 2
        for end in sorted({short, half, recipe.steps} - {0}):
            few = by_length[: len(examples) // 2] if end <= short else examples
            yield end, few, sizes[end > half]

    def batches(self) -> Iterator[Any]:
        """The batches of all steps."""
        if self.recipe.first_batch_size is None and not self.recipe.short_first:
            yield from super().batches()  # which has no end
        epoch = 0
        for end, examples, size in self.phases():
            while self.step < end:
                for batch in epoch_batches(examples, size, seed=self.config.seed, epoch=epoch):
                    if self.step < end:
                        yield batch
                epoch += 1

    def train_step(self, batch: Any) -> dict[str, float]:
        """One update, and one of the mean of the weights."""
        row = super().train_step(batch)
        if self.mean:
            with torch.no_grad():
                weights = list(self.model.parameters())
                torch._foreach_lerp_(self.mean, weights, 1 - self.recipe.average)
        return row

    @torch.no_grad()
    def finish(self) -> None:
        """Put the mean of the weights, where there is one, in their place."""
        if self.mean:
            torch._foreach_copy_(list(self.model.parameters()), self.mean)


def new_trainer(task: str, recipe: Recipe, seed: int) -> SpeedrunTrainer:
    """A recipe's training from its beginning."""
    tokenizers = tokenizers_of(task, seed, recipe.target_tokens)
    return SpeedrunTrainer(task, recipe, seed, tokenizers)


def optimizers_of(recipe: Recipe, model: nn.Module) -> Together:
    """Muon for matrices of hidden layers if the recipe says so, Adam for all else."""
    kinds: dict[str, list[Tensor]] = {"embedding": [], "matrix": [], "vector": []}
    for name, parameter in model.named_parameters():
        kind = "matrix" if parameter.dim() == 2 else "vector"
        kinds["embedding" if "embedding" in name else kind].append(parameter)
    muon = kinds.pop("matrix") if recipe.optimizer == "muon" else []
    scales = {"embedding": recipe.embedding_rate}
    groups = [{"params": p, "scale": scales.get(kind, 1.0)} for kind, p in kinds.items()]
    # The paper's betas and epsilon, as in `Trainer`.
    adam = torch.optim.Adam(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if not muon:
        return Together([adam])
    return Together([Muon([{"params": muon, "scale": recipe.muon_rate / recipe.peak}]), adam])


@torch.no_grad()
def held_out_nats(model: Any, pairs: list[TextPair], tokenizers: tuple[Tokenizer, ...]) -> float:
    """The loss of a pair, summed over its tokens: vocabularies can be compared."""
    model.eval()
    batch = collate(encode_pairs(pairs, *tokenizers))
    tokens = int((batch.tgt_output != 0).sum())
    return float(model.loss(*batch, smoothing=0.0)) * tokens / len(pairs)
