"""One small translator of number words, broken in one way at a time: the curves of chapter 17.

Every run is the same training (same model, pairs, order of batches, steps) but for its fault.
What is written down is what its author would see: the loss that the broken code reports, and the
texts that the broken model writes with a cache.

python -m benchmarks.experiments.gallery   three seeds: a quarter of an hour of one core
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import minitransformer as mt
from benchmarks.runs import Row, Runs, options
from minitransformer.diagnosis.faults import FAULTY_BATCHES, FAULTY_LOSSES, FAULTY_MODELS

SHAPE: dict[str, Any] = {
    "d_model": 64,
    "num_heads": 4,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_ff": 256,
    "dropout": 0.1,
    "norm_first": True,
    "max_len": 64,
}
TRAINING: dict[str, Any] = {
    "steps": 320,
    "batch_size": 32,
    "pairs": 10_000,
    "words": 5,
    "pieces": 305,
}
LOOK_EVERY, HELD_OUT = 20, 128
LONGEST = 20  # pieces of a translation; no reference has as many


@dataclass(frozen=True)
class Loop:
    """How a run trains, beside what its model and its batches are."""

    rate: float = 5e-3
    warmup_steps: int = 40
    clears: bool = True
    parts: int = 1  # a batch in so many parts, whose gradients are added
    divides: bool = True  # the loss of a part by their number
    evaluates: bool = True  # calls eval() before it writes
    dtype: torch.dtype = torch.float32
    shape: tuple[tuple[str, Any], ...] = ()
    shuffles_sources: bool = False  # when it writes: ids of another tokenizer


DEEP = (("norm_first", False), ("num_encoder_layers", 3), ("num_decoder_layers", 3))
LOOPS = {
    "rate too high": Loop(rate=0.1),
    "rate too low": Loop(rate=1e-5),
    "gradients not cleared": Loop(clears=False),
    "accumulated without dividing": Loop(parts=4, divides=False),
    "eval() forgotten": Loop(evaluates=False),
    "tokenizer of another training": Loop(shuffles_sources=True),
    "half precision": Loop(dtype=torch.float16),
    "three layers, post-norm": Loop(shape=DEEP),
    "three layers, post-norm, no warm-up": Loop(shape=DEEP, warmup_steps=1),
}
FAULTS = ["none", *FAULTY_MODELS, *FAULTY_LOSSES, *FAULTY_BATCHES, *LOOPS]


class Gallery:
    """The task, and its runs."""

    def __init__(self) -> None:
        splits = {
            name: [pair for pair in pairs if len(pair.src.split()) <= TRAINING["words"]]
            for name, pairs in mt.number_words(num_train=TRAINING["pairs"]).items()
        }
        self.src = mt.WordTokenizer.train(pair.src for pair in splits["train"])
        self.tgt = mt.BPETokenizer.train(
            (pair.tgt for pair in splits["train"]), vocab_size=TRAINING["pieces"]
        )
        self.examples = mt.encode_pairs(splits["train"], self.src, self.tgt)
        self.pairs = splits["held_out"][:HELD_OUT]
        self.held_out = mt.collate(mt.encode_pairs(self.pairs, self.src, self.tgt))

    def batches(self, seed: int) -> Iterator[mt.Batch]:
        """Batches for ever, in an order that depends on the seed alone."""
        for epoch in itertools.count():
            size = TRAINING["batch_size"]
            for batch in mt.epoch_batches(self.examples, size, seed=seed, epoch=epoch):
                yield mt.collate(batch)

    def run(self, fault: str, seed: int) -> Row:
        """Train a model with a fault, and let it write."""
        loop = LOOPS.get(fault, Loop())
        spoil = FAULTY_BATCHES.get(fault, lambda batch: batch)
        shape = SHAPE | dict(loop.shape)
        config = mt.TransformerConfig(
            src_vocab_size=self.src.vocab_size, tgt_vocab_size=self.tgt.vocab_size, **shape
        )
        model = mt.Transformer(config, torch.Generator().manual_seed(seed)).to(loop.dtype)
        loss_of = FAULTY_LOSSES.get(fault, mt.next_token_loss)
        FAULTY_MODELS.get(fault, lambda model: None)(model)
        torch.manual_seed(seed)  # of dropout
        found: Row = {"steps": [], "train": [], "held_out": []}
        optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
        losses: list[float] = []
        steps = TRAINING["steps"]
        for step, batch in enumerate(itertools.islice(self.batches(seed), steps), start=1):
            for group in optimizer.param_groups:
                group["lr"] = mt.cosine_schedule(
                    step,
                    peak=loop.rate,
                    warmup_steps=min(loop.warmup_steps, steps - 1),
                    total_steps=steps,
                )
            losses.append(train_step(model, spoil(batch), optimizer, loop, loss_of))
            if step % LOOK_EVERY == 0 or step == steps:
                found["steps"].append(step)
                found["train"].append(number(sum(losses) / len(losses)))
                losses.clear()
                model.train(not loop.evaluates)
                with torch.no_grad():
                    held_out = loss_of(model, *spoil(self.held_out))
                found["held_out"].append(number(held_out.item()))
                model.train()
        model.train(not loop.evaluates)
        src = spoil(self.held_out).src
        if loop.shuffles_sources:
            moved = 5 + torch.randperm(
                self.src.vocab_size - 5, generator=torch.Generator().manual_seed(1)
            )
            src = torch.cat([torch.arange(5), moved])[src]
        texts = [self.tgt.decode(row) for row in written(model, src)]
        right = sum(text == pair.tgt for text, pair in zip(texts, self.pairs, strict=True))
        return found | {"right": right / len(texts), "texts": texts[:3]}

    def landmarks(self) -> dict[str, float]:
        """What a model reaches that knows nothing, the tokens' shares, or the token before."""
        targets = [example.tgt for example in self.examples]
        single = Counter(token for row in targets for token in row[1:])
        pairs = Counter(pair for row in targets for pair in itertools.pairwise(row))
        first = Counter(token for row in targets for token in row[:-1])
        total = sum(single.values())
        return {
            "even": math.log(self.tgt.vocab_size),
            "unigram": -sum(n * math.log(n / total) for n in single.values()) / total,
            "bigram": -sum(n * math.log(n / first[a]) for (a, _), n in pairs.items()) / total,
        }


def train_step(
    model: Any,
    batch: mt.Batch,
    optimizer: torch.optim.Optimizer,
    loop: Loop,
    loss_of: Callable[..., Tensor] = mt.next_token_loss,
) -> float:
    """One update; return the loss that is reported."""
    if loop.clears:
        optimizer.zero_grad()
    total = 0.0
    parts = zip(*(x.chunk(loop.parts) for x in batch), strict=True)
    for part in parts:
        loss = loss_of(model, *part)
        (loss / loop.parts if loop.divides else loss).backward()
        total += loss.item() / loop.parts
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


@torch.no_grad()
def written(model: Any, src: Tensor, max_new_tokens: int = LONGEST) -> list[list[int]]:
    """Greedy translations, one token at a time with a cache, up to each end (id 2)."""
    memory, mask = model.encode(src)
    caches = [mt.KVCache() for _ in model.decoder.layers]
    tokens = [src.new_ones(len(src), 1)]
    for _ in range(max_new_tokens):
        tokens.append(model.decode(tokens[-1], memory, mask, caches).argmax(dim=-1))
    rows = torch.cat(tokens[1:], dim=1).tolist()
    return [row[: row.index(2)] if 2 in row else row for row in rows]


def number(value: float) -> float | None:
    """The number with five digits; none where it is none."""
    return round(value, 5) if math.isfinite(value) else None


def main() -> None:
    args = options(__doc__, "gallery.json", range(3)).parse_args()
    gallery = Gallery()
    kept = Runs(args.out, SHAPE, TRAINING, torch.__version__)
    runs = {
        fault: [
            kept.run(f"{fault}, seed {seed}", partial(gallery.run, fault, seed))
            for seed in args.seeds
        ]
        for fault in FAULTS
    }
    results = {
        "model": SHAPE,
        "training": TRAINING,
        "landmarks": gallery.landmarks(),
        "seeds": args.seeds,
        "sources": [pair.src for pair in gallery.pairs[:3]],
        "references": [pair.tgt for pair in gallery.pairs[:3]],
        "runs": runs,
    }
    kept.finish(results)
    print("loss in training, on held-out pairs, share written right; for each seed")
    for fault, rows in runs.items():
        cells = (
            f"{row['train'][-1] or math.nan:6.3f} {row['held_out'][-1] or math.nan:6.3f} "
            f"{row['right']:4.0%}"
            for row in rows
        )
        print(f"{fault:<34}", *cells, rows[0]["texts"][0][:40])


if __name__ == "__main__":
    main()
