"""What attention costs, and what cheaper ones are worth: the measured map of chapter 15.

Three parts. The *map* is time and memory against the length n, of one causal head of width 64, for
the forward and the backward pass together. *Recall* is chapter 0's second contest: pairs of a key
and a letter, then a key, whose letter is to be named. *Text* is the next character of a long text.

python -m benchmarks.experiments.efficient_attention   about half an hour of one core

Time is that of the processor, on one thread, so that other programs disturb little. Rounds are
interleaved: each goes once through all methods and lengths. A method grows until its next length
would take more than a budget of time or of memory, or finding its blocks ten times as much time.
Memory is counted by `PeakMemory`, not measured.

In recall and text each method is trained at every rate on a seed of its own, and the best rate
trains the seeds that count.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minitransformer as mt
from benchmarks.runs import Row, Runs, fingerprint, gathered, interval, options, size
from minitransformer import efficient_attention as cheaper

LENGTHS = [2**power for power in range(7, 17)]  # 128 to 65,536
WIDTH, BLOCK_SIZE, WINDOW, NUM_GLOBAL, NUM_RANDOM = 64, 128, 256, 64, 2
BUDGET_SECONDS, BUDGET_BYTES = 40.0, 1_500_000_000
RATES = (3e-3, 1e-2)
SELECTION_SEED = 100

# --- the map ---------------------------------------------------------------------------------


@cache
def mask_of(name: str, length: int) -> tuple[cheaper.BlockMask, float]:
    """The mask of a window, or with global and random blocks besides; and the seconds it took."""
    start = time.process_time()
    rule = cheaper.window_rule(WINDOW)
    if name != "window":
        generator = torch.Generator().manual_seed(0)
        drawn = cheaper.random_rule(
            length, min(NUM_RANDOM, length // BLOCK_SIZE), BLOCK_SIZE, generator
        )
        rule = cheaper.any_of(rule, cheaper.global_rule(NUM_GLOBAL), drawn)
    reach = WINDOW if name == "window" else None
    mask = cheaper.BlockMask(
        cheaper.all_of(cheaper.causal_rule, rule), length, block_size=BLOCK_SIZE, reach=reach
    )
    return mask, time.process_time() - start


def strength_of(key: Tensor) -> Tensor:
    """A half for each position."""
    return key.new_full(key.shape[:-1], 0.5)


METHODS: dict[str, Callable[..., Tensor]] = {
    "formula": lambda q, k, v: mt.scaled_dot_product_attention(
        q, k, v, "causal", backend="reference"
    ),
    "fused": lambda q, k, v: mt.scaled_dot_product_attention(q, k, v, "causal"),
    "blocks": lambda q, k, v: cheaper.flash_attention(q, k, v, "causal", block_size=BLOCK_SIZE),
    "window": cheaper.flash_attention,
    "window, global, random": cheaper.flash_attention,
    "linear": lambda q, k, v: cheaper.linear_attention(q, k, v, "causal"),
    "delta rule": lambda q, k, v: cheaper.delta_rule(q, k, v, strength_of(k)),
}


def tensors_of(length: int) -> list[Tensor]:
    """Queries, keys and values of one head, (1, 1, n, e)."""
    generator = torch.Generator().manual_seed(length)
    drawn = (torch.randn(1, 1, length, WIDTH, generator=generator) for _ in range(3))
    return [x.requires_grad_() for x in drawn]


def measure(name: str, length: int, number: int) -> Row:
    """Seconds of a forward and a backward pass; in the first round also bytes, and of the mask."""
    tensors = tensors_of(length)
    found: Row = {}
    masks: list[cheaper.BlockMask] = []
    if name.startswith("window"):
        mask, found["mask_seconds"] = mask_of(name, length)
        masks.append(mask)

    def run() -> None:
        METHODS[name](*tensors, *masks).sum().backward()

    if number == 0:
        with cheaper.PeakMemory() as memory:  # this call warms up, too
            run()
        found["bytes"] = memory.peak
    start, calls = time.process_time(), 0
    while calls == 0 or (time.process_time() - start < 0.02 and calls < 20):
        run()
        calls += 1
    return found | {"seconds": (time.process_time() - start) / calls}


def draw_map(runs: Runs, rounds: int) -> dict[str, Row]:
    """Go through all methods and lengths, `rounds` times, as far as the budgets go."""
    found: dict[str, dict[int, list[Row]]] = {name: {} for name in METHODS}
    for number in range(rounds):
        for length in LENGTHS:
            for name, rows in found.items():
                if fits(rows, length) if number == 0 else length in rows:
                    key = f"map, {name}, {length}, round {number}"
                    row = runs.run(key, partial(measure, name, length, number))
                    rows.setdefault(length, []).append(row)
    return {name: with_exponents(rows) for name, rows in found.items()}


def fits(rows: dict[int, list[Row]], length: int) -> bool:
    """Whether the lengths before let one expect that this one stays below the budgets."""
    if length == LENGTHS[0]:
        return True
    if length // 2 not in rows:
        return False
    last = rows[length // 2][0]
    if 4 * last.get("mask_seconds", 0.0) > 10 * BUDGET_SECONDS:
        return False
    for what, budget in (("seconds", BUDGET_SECONDS), ("bytes", BUDGET_BYTES)):
        growth = 4.0
        if length // 4 in rows:
            growth = min(4.0, max(2.0, last[what] / rows[length // 4][0][what]))
        if growth * last[what] > budget:
            return False
    return True


def with_exponents(rows: dict[int, list[Row]]) -> Row:
    """What was measured of a method, and the powers of n that come closest."""
    lengths = list(rows)
    first = len(lengths) // 2 - (len(lengths) < 4)
    seconds = [[row["seconds"] for row in some] for some in rows.values()]
    numbers = [some[0]["bytes"] for some in rows.values()]
    slopes = [slope(lengths[first:], times) for times in zip(*seconds[first:], strict=True)]
    memory = slope(lengths[first:], numbers[first:])
    return {
        "lengths": lengths,
        "seconds": seconds,
        "bytes": numbers,
        "time": interval(slopes, "exponent"),
        "memory": {"exponent": memory, "low": memory, "high": memory},
        "mask_seconds": [some[0].get("mask_seconds") for some in rows.values()],
    }


def slope(lengths: Sequence[int], numbers: Sequence[float]) -> float:
    """The exponent of the power of n that comes closest: a line on logarithmic axes."""
    x, y = [math.log(n) for n in lengths], [math.log(number) for number in numbers]
    return statistics.linear_regression(x, y).slope


# --- attentions that take another's place ----------------------------------------------------


class LinearAttending(nn.Module):
    """Linear attention in the place of the softmax, inside a `MultiHeadAttention`."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: object, bias: object = None
    ) -> Tensor:
        """Queries, keys and values (b, h, n, e); the mask is "causal"."""
        return cheaper.linear_attention(query, key, value, "causal")


class DeltaAttending(nn.Module):
    """The delta rule in the place of the softmax; the key says how much is written."""

    def __init__(self, d_k: int) -> None:
        super().__init__()
        self.strength = nn.Linear(d_k, 1)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: object, bias: object = None
    ) -> Tensor:
        """Queries, keys and values (b, h, n, e); the mask is "causal"."""
        strength = self.strength(key).sigmoid()[..., 0]
        return cheaper.delta_rule(F.normalize(query, dim=-1), key, value, strength)


class LatentAttending(cheaper.LatentAttention):
    """`LatentAttention`, called as a `MultiHeadAttention` is."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, cache: Any = None
    ) -> Tensor:
        """Self-attention: key and value are the query."""
        return super().forward(query, mask, cache)


def attention_of(method: str, d_model: int, num_heads: int) -> nn.Module:
    """The attention of a method; "window 8" has a window of 8."""
    if method == "latent":
        return LatentAttending(d_model, num_heads, d_model // 4)
    parts: dict[str, Any] = {}
    if method == "one head of keys":
        parts["num_kv_heads"] = 1
    if method.startswith("window"):
        parts["window"] = int(method.split()[1])
    if method == "linear":
        parts["attention"] = LinearAttending()
    if method == "delta rule":
        parts["attention"] = DeltaAttending(d_model // num_heads)
    return mt.MultiHeadAttention(d_model, num_heads, **parts)


def numbers_kept(method: str, length: int, d_model: int, num_heads: int) -> int:
    """How many numbers one layer remembers of so many positions."""
    d_k = d_model // num_heads
    if method.startswith("window"):
        return 2 * d_model * min(length, int(method.split()[1]))
    return {
        "full": 2 * d_model * length,
        "one head of keys": 2 * d_k * length,
        "latent": d_model // 4 * length,
        "linear": num_heads * (d_k * d_k + d_k),
        "delta rule": num_heads * d_k * d_k,
    }[method]


# --- recall ----------------------------------------------------------------------------------

NUM_KEYS, NUM_LETTERS = 64, 8
PAIR_COUNTS = [4, 16, 32]
RECALL = ("full", "one head of keys", "latent", "window 8", "linear", "delta rule")
RECALL_SHAPE = {"d_model": 32, "num_heads": 2, "d_ff": 64}
RECALL_TRAINING = {"steps": 500, "batch_size": 64}


def pairs_batch(
    size: int, num_pairs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and letters, (b, pairs + 1) each, the last of them a question; answers (b,)."""
    keys = torch.rand(size, NUM_KEYS, generator=generator).argsort(dim=1)[:, :num_pairs]
    letters = torch.randint(NUM_LETTERS, (size, num_pairs), generator=generator)
    asked = torch.randint(num_pairs, (size, 1), generator=generator)
    asking = torch.full((size, 1), NUM_LETTERS)
    answers = letters.gather(1, asked)[:, 0]
    keys = torch.cat([keys, keys.gather(1, asked)], dim=1)
    return keys, torch.cat([letters, asking], dim=1), answers


class Reader(nn.Module):
    """Pairs, one layer, and a score for each letter from the last position."""

    def __init__(self, method: str) -> None:
        super().__init__()
        d_model = RECALL_SHAPE["d_model"]
        self.keys = nn.Embedding(NUM_KEYS, d_model)
        self.letters = nn.Embedding(NUM_LETTERS + 1, d_model)
        self.norm_1, self.norm_2 = mt.LayerNorm(d_model), mt.LayerNorm(d_model)
        self.attention = attention_of(method, d_model, RECALL_SHAPE["num_heads"])
        self.feed_forward = mt.FeedForward(d_model, RECALL_SHAPE["d_ff"])
        self.scores = nn.Linear(d_model, NUM_LETTERS)

    def forward(self, keys: Tensor, letters: Tensor) -> Tensor:
        """Keys and letters (b, n) to scores (b, letters)."""
        x = self.keys(keys) + self.letters(letters)
        normed = self.norm_1(x)
        x = (x + self.attention(normed, normed, normed, "causal"))[:, -1]
        return self.scores(x + self.feed_forward(self.norm_2(x)))


def recall(method: str, num_pairs: int, rate: float, seed: int) -> dict[str, float]:
    """Train a reader on fresh pairs; the share of right answers to 1,000 others, and its loss."""
    torch.manual_seed(seed)
    model = Reader(method)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(RECALL_TRAINING["steps"]):
        keys, letters, answers = pairs_batch(RECALL_TRAINING["batch_size"], num_pairs, generator)
        loss = F.cross_entropy(model(keys, letters), answers)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        keys, letters, answers = pairs_batch(1000, num_pairs, torch.Generator().manual_seed(1234))
        scores = model(keys, letters)
    right = (scores.argmax(dim=-1) == answers).float().mean().item()
    return {"right": right, "loss": F.cross_entropy(scores, answers).item()}


# --- text ------------------------------------------------------------------------------------

TEXT = ("full", "one head of keys", "window 16", "linear", "delta rule")
TEXT_SHAPE: Row = {"num_layers": 2, "d_model": 48, "num_heads": 2, "d_ff": 192, "dropout": 0.0}
TEXT_TRAINING: Row = {"steps": 400, "batch_size": 8, "context_length": 64, "warmup_steps": 40}
HELD_OUT_CHARACTERS = 20_000


def split() -> tuple[list[str], list[str]]:
    """Python's help topics: what to train on, and documents held out."""
    texts = random.Random(15).sample(sorted(topics.values()), len(topics))
    held_out: list[str] = []
    while sum(map(len, held_out)) < HELD_OUT_CHARACTERS:
        held_out.append(texts.pop())
    return texts, held_out


def language_model(method: str, vocab_size: int, seed: int) -> mt.DecoderOnlyTransformer:
    """A decoder with that attention in every layer."""
    config = mt.TransformerConfig.decoder_only(
        vocab_size, **TEXT_SHAPE, norm_first=True, max_len=128
    )
    generator = torch.Generator().manual_seed(seed)
    model = mt.DecoderOnlyTransformer(config, generator)
    layers: Any = model.decoder.layers
    for layer in layers:
        layer.self_attention = attention_of(method, config.d_model, config.num_heads)
    model.initialise(generator)
    return model


class Text:
    """The texts, their tokenizer, and a run on them."""

    def __init__(self) -> None:
        self.train, self.held_out = split()
        self.tokenizer = mt.CharacterTokenizer.train([*self.train, *self.held_out])
        self.fingerprint = fingerprint([*self.train, *self.held_out], 16)

    def run(self, method: str, rate: float, seed: int) -> dict[str, float]:
        """Held-out bits per character of one training."""
        model = language_model(method, self.tokenizer.vocab_size, seed)
        options = {"peak_learning_rate": rate, "seed": seed, "label_smoothing": 0.0}
        config = mt.TrainingConfig(**TEXT_TRAINING, **options)
        trainer = mt.LanguageModelTrainer(model, self.train, self.tokenizer, config)
        trainer.fit(progress=False)
        context = TEXT_TRAINING["context_length"]
        bits = mt.TextGenerator(model, self.tokenizer).bits_per_character(
            self.held_out, context_length=context
        )
        return {"bits": bits, "loss": bits}


# --- all together ----------------------------------------------------------------------------


def recall_results(runs: Runs, seeds: Sequence[int]) -> dict[str, Row]:
    """Shares of right answers by method and number of pairs."""

    def run(*what: Any) -> dict[str, float]:
        method, num_pairs, rate, seed = what
        name = f"recall, {method}, {num_pairs} pairs, {rate:g}, {seed}"
        return runs.run(name, partial(recall, *what))

    found = {}
    for method in RECALL:
        losses = [run(method, 16, rate, SELECTION_SEED)["loss"] for rate in RATES]
        rate = min(zip(losses, RATES, strict=True))[1]
        right = [
            [run(method, count, rate, seed)["right"] for seed in seeds] for count in PAIR_COUNTS
        ]
        sizes = RECALL_SHAPE["d_model"], RECALL_SHAPE["num_heads"]
        found[method] = {
            "rate": rate,
            "numbers": numbers_kept(method, PAIR_COUNTS[-1], *sizes),
            "parameters": size(Reader(method)),
            "right": right,
            **gathered([interval(shares) for shares in right]),
        }
    return found


def text_results(runs: Runs, text: Text, seeds: Sequence[int]) -> dict[str, Row]:
    """Bits per character by method."""

    def run(*what: Any) -> dict[str, float]:
        method, rate, seed = what
        return runs.run(f"text, {method}, {rate:g}, {seed}", partial(text.run, *what))

    found: dict[str, Row] = {}
    for method in TEXT:
        losses = [run(method, rate, SELECTION_SEED)["loss"] for rate in RATES]
        rate = min(zip(losses, RATES, strict=True))[1]
        bits = [run(method, rate, seed)["bits"] for seed in seeds]
        full = found["full"]["bits"] if found else bits
        against = [own - other for own, other in zip(bits, full, strict=True)]
        sizes = TEXT_SHAPE["d_model"], TEXT_SHAPE["num_heads"]
        one_layer = numbers_kept(method, TEXT_TRAINING["context_length"], *sizes)
        found[method] = {
            "rate": rate,
            "numbers": TEXT_SHAPE["num_layers"] * one_layer,
            "parameters": size(language_model(method, text.tokenizer.vocab_size, 0)),
            "bits": bits,
            **interval(bits),
            "against": interval(against),
        }
    return found


def main() -> None:
    parser = options(__doc__, "efficient_attention.json", range(3))
    parser.add_argument("--rounds", type=int, default=3, help="of the map, at least 2")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = Text()
    plan = [LENGTHS, WIDTH, BLOCK_SIZE, WINDOW, NUM_GLOBAL, NUM_RANDOM, RECALL_SHAPE]
    plan += [RECALL_TRAINING, PAIR_COUNTS, TEXT_SHAPE, TEXT_TRAINING, text.fingerprint]
    runs = Runs(args.out, *plan, torch.__version__)
    results = {
        "map": {
            "width": WIDTH,
            "block_size": BLOCK_SIZE,
            "window": WINDOW,
            "rounds": args.rounds,
            "budget_seconds": BUDGET_SECONDS,
            "budget_bytes": BUDGET_BYTES,
            "methods": draw_map(runs, args.rounds),
        },
        "recall": {
            "shape": RECALL_SHAPE,
            "training": RECALL_TRAINING,
            "pair_counts": PAIR_COUNTS,
            "methods": recall_results(runs, args.seeds),
        },
        "text": {
            "shape": TEXT_SHAPE,
            "training": TEXT_TRAINING,
            "characters": sum(map(len, text.train)),
            "fingerprint": text.fingerprint,
            "methods": text_results(runs, text, args.seeds),
        },
        "rates": list(RATES),
        "selection_seed": SELECTION_SEED,
        "seeds": args.seeds,
    }
    runs.finish(results)
    print("method                   longest   time ~ n^            memory ~ n^")
    for name, row in results["map"]["methods"].items():
        fitted = "{exponent:.2f} ({low:.2f} to {high:.2f})".format(**row["time"])
        print(f"{name:<24} {row['lengths'][-1]:>7}   {fitted:<20} {row['memory']['exponent']:.2f}")
    for name, row in results["recall"]["methods"].items():
        print(f"recall, {name:<18}", " ".join(f"{share:5.0%}" for share in row["mean"]))
    for name, row in results["text"]["methods"].items():
        print(f"text, {name:<20} {row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})")


if __name__ == "__main__":
    main()
