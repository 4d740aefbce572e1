"""Where the paper, its released code and this book differ: what each detail does to learning.

One small model learns the grammar task for a few hundred steps, once for each variant and seed.
Every variant changes one detail of the book's setting.

python benchmarks/departures.py              three seeds, 400 steps: about two hours on one core
python benchmarks/departures.py 0 150        seed 0, 150 steps
"""

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from ablation_settings import CHANGES
from torch import nn

from minitransformer import (
    LayerNorm,
    OutputProjection,
    TokenEmbedding,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    WordTokenizer,
    collate,
    encode_pairs,
    exact_match,
    grammar_sentences,
)

Change = Callable[[Transformer], None]


def without_final_norm(model: Transformer) -> None:
    """Leave out the norm at the end of each stack."""
    model.encoder.norm = model.decoder.norm = nn.Identity()


def with_final_norm(model: Transformer) -> None:
    """End each stack on a norm, as `nn.Transformer` does in either order."""
    width = model.config.d_model
    model.encoder.norm, model.decoder.norm = LayerNorm(width), LayerNorm(width)


def without_embedding_scale(model: Transformer) -> None:
    """Undo the factor √d_model."""
    scale = math.sqrt(model.config.d_model)
    for embedding in {model.src_embedding, model.tgt_embedding}:
        embedding.register_forward_hook(lambda _, inputs, output: output / scale)


def torch_start(model: Transformer) -> None:
    """The starting values of `nn.Linear` and `nn.Embedding`."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        elif isinstance(module, TokenEmbedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, OutputProjection) and not model.config.tie_output:
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))


def changed(name: str) -> Change:
    """A change that the ablations have, too."""
    return lambda model: CHANGES[name](model, torch.Generator())


def nothing(model: Transformer) -> None:
    """Change nothing."""


PAPER_SCHEDULE = {"peak_learning_rate": None, "warmup_steps": 200}
VARIANTS: dict[str, tuple[dict, dict, Change]] = {
    "the book's setting": ({}, {}, nothing),
    "post-norm": ({"norm_first": False}, {}, nothing),
    "post-norm, final norm": ({"norm_first": False}, {}, with_final_norm),
    "no final norm": ({}, {}, without_final_norm),
    "RMSNorm": ({"norm": "rms_norm"}, {}, nothing),
    "no attention biases": ({"attention_bias": False}, {}, nothing),
    "dropout inside too": ({}, {}, changed("dropout inside")),
    "no embedding scale": ({}, {}, without_embedding_scale),
    "untied output": ({"tie_output": False}, {}, nothing),
    "one table of three": ({"share_embeddings": True}, {}, nothing),
    "sines, then cosines": ({}, {}, changed("sines, then cosines")),
    "PyTorch's start": ({}, {}, torch_start),
    "no label smoothing": ({}, {"label_smoothing": 0.0}, nothing),
    "no warm-up": ({}, {"warmup_steps": 1}, nothing),
    "paper's schedule": ({}, PAPER_SCHEDULE, nothing),
    "post-norm, no warm-up": ({"norm_first": False}, {"warmup_steps": 1}, nothing),
    "post-norm, paper's schedule": ({"norm_first": False}, PAPER_SCHEDULE, nothing),
}


@torch.no_grad()
def held_out_loss(trainer: Trainer, pairs: list) -> float:
    """Cross-entropy of a token of held-out targets, in nats, without smoothing."""
    model = trainer.model.eval()
    examples = encode_pairs(pairs, *trainer.tokenizers.values())
    src, tgt_input, tgt_output = collate(examples)
    logits = model(src, tgt_input).transpose(1, 2)
    return F.cross_entropy(logits, tgt_output, ignore_index=0).item()


def main() -> None:
    """Train every variant on every seed and print a row for each."""
    seeds = [int(sys.argv[1])] if len(sys.argv) > 1 else [0, 1, 2]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    splits = grammar_sentences()
    src = WordTokenizer.train(pair.src for pair in splits["train"])
    tgt = WordTokenizer.train(pair.tgt for pair in splits["train"])
    joint = WordTokenizer.train(text for pair in splits["train"] for text in pair)
    sizes = {
        "d_model": 128,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_ff": 512,
        "norm_first": True,
        "max_len": 128,
    }
    settings = TrainingConfig(steps=steps, batch_size=64, warmup_steps=steps // 8)
    first = None
    print(f"{len(seeds)} seeds, {steps} steps of 64, torch {torch.__version__}")
    print(f"{'':<28} loss of a held-out token   its change   right, of 300")
    for name, (changes, training, change) in VARIANTS.items():
        losses, shares = [], []
        for seed in seeds:
            tokenizers = (joint, joint) if changes.get("share_embeddings") else (src, tgt)
            vocabularies = [tokenizer.vocab_size for tokenizer in tokenizers]
            model = Transformer(
                TransformerConfig(*vocabularies, **(sizes | changes)),
                torch.Generator().manual_seed(seed),
            )
            change(model)
            config = replace(settings, seed=seed, **training)
            trainer = Trainer(model, splits["train"], *tokenizers, config)
            trainer.fit(progress=False)
            losses.append(held_out_loss(trainer, splits["held_out"][:300]))
            shares.append(exact_match(model, splits["held_out"][:300], *tokenizers))
        first = losses if first is None else first
        changes_in_loss = [loss - base for loss, base in zip(losses, first, strict=True)]
        print(
            f"{name:<28} {statistics.mean(losses):12.3f}"
            f" {statistics.mean(changes_in_loss):+19.3f} {statistics.mean(shares):15.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
