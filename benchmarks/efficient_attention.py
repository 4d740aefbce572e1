"""What attention costs, and what cheaper ones are worth: the measured map of chapter 15.

Three parts. The *map* is time and memory against the length n, of one causal head of width 64, for
the forward and the backward pass together. *Recall* is chapter 0's second contest: pairs of a key
and a letter, then a key, whose letter is to be named. *Text* is the next character of a long text.

python benchmarks/efficient_attention.py                     about half an hour of one core
python benchmarks/efficient_attention.py --quick --out FILE  seconds, for tests: means nothing

Time is that of the processor, on one thread, so that other programs disturb little. Rounds are
interleaved: each goes once through all methods and lengths. A method grows until its next length
would take more than a budget of time or of memory, or finding its blocks ten times as much time.
Memory is counted by `PeakMemory`, not measured.

In recall and text each method is trained at every rate on a seed of its own, and the best rate
trains the seeds that count. What was stopped goes on: what is done stands in FILE.partial.json.

The results file is one JSON object:

- made: date, python, torch, minitransformer, threads, cpu_minutes, quick (True: means nothing).
- map: width, block_size, window, rounds, budget_seconds, budget_bytes; methods: by name:
    lengths; seconds: for each length its times, one for each round; bytes: the peak, counted.
    time, memory: the fitted exponents, `exponent`, `low`, `high`: of the line through the upper
    half of the lengths, on logarithmic axes. For time there is one line for each round, and
    Student's 95 % interval; memory does not vary.
    mask_seconds: what finding the visible blocks took, once, where there is a `BlockMask`.
- recall: shape, training, pair_counts; methods: by name: rate, numbers (remembered at the most
    pairs), parameters; right: for each count of pairs the shares of right answers, one for each
    seed; mean, low, high for each count.
- text: shape, training, characters, fingerprint; methods: by name: rate, numbers (remembered after
    a context), parameters; bits: held-out bits per character for each seed; mean, low, high;
    against: difference to "full" paired by seeds, mean, low and high.
- rates, selection_seed, seeds.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitransformer import (
    CharacterTokenizer,
    DecoderOnlyTransformer,
    FeedForward,
    LanguageModelTrainer,
    LayerNorm,
    MultiHeadAttention,
    TextGenerator,
    TrainingConfig,
    TransformerConfig,
    scaled_dot_product_attention,
)
from minitransformer.efficient_attention import (
    BlockMask,
    LatentAttention,
    PeakMemory,
    all_of,
    any_of,
    causal_rule,
    delta_rule,
    flash_attention,
    global_rule,
    linear_attention,
    random_rule,
    window_rule,
)

LENGTHS = [2**power for power in range(7, 17)]  # 128 to 65,536
WIDTH, BLOCK_SIZE, WINDOW, NUM_GLOBAL, NUM_RANDOM = 64, 128, 256, 64, 2
BUDGET_SECONDS, BUDGET_BYTES = 40.0, 1_500_000_000
RATES = (3e-3, 1e-2)
SELECTION_SEED = 100
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % of Student's distribution lies below, with 1 to 9 degrees of freedom."""

# --- the map ---------------------------------------------------------------------------------


def mask_of(name: str, length: int) -> BlockMask:
    """The mask of a method that has one: a window; or with global and random blocks besides."""
    rule = window_rule(WINDOW)
    if name != "window":
        generator = torch.Generator().manual_seed(0)
        drawn = random_rule(length, min(NUM_RANDOM, length // BLOCK_SIZE), BLOCK_SIZE, generator)
        rule = any_of(rule, global_rule(NUM_GLOBAL), drawn)
    reach = WINDOW if name == "window" else None
    return BlockMask(all_of(causal_rule, rule), length, block_size=BLOCK_SIZE, reach=reach)


def strength_of(key: Tensor) -> Tensor:
    """A half for each position."""
    return key.new_full(key.shape[:-1], 0.5)


METHODS: dict[str, Callable[..., Tensor]] = {
    "formula": lambda q, k, v: scaled_dot_product_attention(q, k, v, "causal", backend="reference"),
    "fused": lambda q, k, v: scaled_dot_product_attention(q, k, v, "causal"),
    "blocks": lambda q, k, v: flash_attention(q, k, v, "causal", block_size=BLOCK_SIZE),
    "window": flash_attention,
    "window, global, random": flash_attention,
    "linear": lambda q, k, v: linear_attention(q, k, v, "causal"),
    "delta rule": lambda q, k, v: delta_rule(q, k, v, strength_of(k)),
}


def tensors_of(length: int) -> list[Tensor]:
    """Queries, keys and values of one head, (1, 1, n, e)."""
    generator = torch.Generator().manual_seed(length)
    drawn = (torch.randn(1, 1, length, WIDTH, generator=generator) for _ in range(3))
    return [x.requires_grad_() for x in drawn]


class Map:
    """Time and memory of each method at each length, as far as the budgets go."""

    def __init__(self, done: dict[str, Any], keep: Callable[[], None], lengths: list[int]) -> None:
        self.done, self.keep, self.lengths = done, keep, lengths
        self.masks: dict[tuple[str, int], BlockMask] = {}

    def call(self, name: str, length: int) -> Callable[[], None]:
        """A forward and a backward pass, to be timed."""
        tensors, extra = tensors_of(length), []
        if name.startswith("window"):
            if (name, length) not in self.masks:
                start = time.process_time()
                self.masks[name, length] = mask_of(name, length)
                seconds = self.done[name]["mask_seconds"]
                seconds.setdefault(str(length), time.process_time() - start)
            extra = [self.masks[name, length]]

        def run() -> None:
            METHODS[name](*tensors, *extra).sum().backward()

        return run

    def measure(self, rounds: int) -> None:
        """Go through all methods and lengths, `rounds` times."""
        for number in range(rounds):
            for length in self.lengths:
                for name in METHODS:
                    self.measure_one(name, length, number)

    def measure_one(self, name: str, length: int, number: int) -> None:
        """One time, if it is not there yet and the budgets allow it."""
        row = self.done.setdefault(name, {"seconds": {}, "bytes": {}, "mask_seconds": {}})
        times, key = row["seconds"].setdefault(str(length), []), str(length)
        if len(times) > number or (number and not times):
            return
        if not number and not self.fits(row, length):
            return
        run = self.call(name, length)
        if key not in row["bytes"]:
            with PeakMemory() as memory:  # this call warms up, too
                run()
            row["bytes"][key] = memory.peak
        start, calls = time.process_time(), 0
        while calls == 0 or (time.process_time() - start < 0.02 and calls < 20):
            run()
            calls += 1
        times.append((time.process_time() - start) / calls)
        self.keep()
        if number == 0:
            print(f"{name:<24} {length:>6} {times[0]:9.4f} s {row['bytes'][key] / 1e6:9.1f} MB")

    def fits(self, row: dict[str, Any], length: int) -> bool:
        """Whether the length before lets one expect that this one stays below the budgets."""
        if length == self.lengths[0]:
            return True
        before = [str(length // 4), str(length // 2)]
        if not row["seconds"].get(before[1]):
            return False
        if 4 * row["mask_seconds"].get(before[1], 0.0) > 10 * BUDGET_SECONDS:
            return False
        for found, budget in ((row["seconds"], BUDGET_SECONDS), (row["bytes"], BUDGET_BYTES)):
            last = found[before[1]][0] if found is row["seconds"] else found[before[1]]
            growth = 4.0
            if before[0] in found:
                earlier = found[before[0]][0] if found is row["seconds"] else found[before[0]]
                growth = min(4.0, max(2.0, last / earlier))
            if growth * last > budget:
                return False
        return True

    def results(self) -> dict[str, Any]:
        """Each method's rows, with its exponents."""
        found = {}
        for name, row in self.done.items():
            lengths = [n for n in self.lengths if row["seconds"].get(str(n))]
            upper = lengths[len(lengths) // 2 - (len(lengths) < 4) :]
            seconds = [row["seconds"][str(n)] for n in lengths]
            numbers = [row["bytes"][str(n)] for n in lengths]
            tail = seconds[-len(upper) :]
            slopes = [slope(upper, [times[i] for times in tail]) for i in range(len(tail[0]))]
            memory = slope(upper, numbers[-len(upper) :])
            found[name] = {
                "lengths": lengths,
                "seconds": seconds,
                "bytes": numbers,
                "time": interval(slopes, "exponent"),
                "memory": {"exponent": memory, "low": memory, "high": memory},
                "mask_seconds": [row["mask_seconds"].get(str(n)) for n in lengths],
            }
        return found


def slope(lengths: Sequence[int], numbers: Sequence[float]) -> float:
    """The exponent of the power of n that comes closest: a line on logarithmic axes."""
    x, y = [math.log(n) for n in lengths], [math.log(number) for number in numbers]
    return statistics.linear_regression(x, y).slope


def interval(numbers: Sequence[float], name: str = "mean") -> dict[str, float]:
    """The mean, and Student's 95 % interval of it."""
    mean = statistics.mean(numbers)
    half = 0.0
    if len(numbers) > 1:
        half = STUDENT[len(numbers) - 2] * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return {name: mean, "low": mean - half, "high": mean + half}


# --- attentions that take another's place ----------------------------------------------------


class LinearAttending(nn.Module):
    """Linear attention in the place of the softmax, inside a `MultiHeadAttention`."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: object, bias: object = None
    ) -> Tensor:
        """Queries, keys and values (b, h, n, e); the mask is "causal"."""
        return linear_attention(query, key, value, "causal")


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
        return delta_rule(F.normalize(query, dim=-1), key, value, strength)


class LatentAttending(LatentAttention):
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
    return MultiHeadAttention(d_model, num_heads, **parts)


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
        self.norm_1, self.norm_2 = LayerNorm(d_model), LayerNorm(d_model)
        self.attention = attention_of(method, d_model, RECALL_SHAPE["num_heads"])
        self.feed_forward = FeedForward(d_model, RECALL_SHAPE["d_ff"])
        self.scores = nn.Linear(d_model, NUM_LETTERS)

    def forward(self, keys: Tensor, letters: Tensor) -> Tensor:
        """Keys and letters (b, n) to scores (b, letters)."""
        x = self.keys(keys) + self.letters(letters)
        normed = self.norm_1(x)
        x = (x + self.attention(normed, normed, normed, "causal"))[:, -1]
        return self.scores(x + self.feed_forward(self.norm_2(x)))


def recall(method: str, num_pairs: int, rate: float, seed: int, steps: int) -> dict[str, float]:
    """Train a reader on fresh pairs; the share of right answers to 1,000 others, and its loss."""
    torch.manual_seed(seed)
    model = Reader(method)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
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
TEXT_SHAPE = {"num_layers": 2, "d_model": 48, "num_heads": 2, "d_ff": 192, "dropout": 0.0}
TEXT_TRAINING = {"steps": 400, "batch_size": 8, "context_length": 64, "warmup_steps": 40}
HELD_OUT_CHARACTERS = 20_000


def split() -> tuple[list[str], list[str]]:
    """Python's help topics: what to train on, and documents held out."""
    texts = random.Random(15).sample(sorted(topics.values()), len(topics))
    held_out: list[str] = []
    while sum(map(len, held_out)) < HELD_OUT_CHARACTERS:
        held_out.append(texts.pop())
    return texts, held_out


def language_model(method: str, vocab_size: int, shape: dict[str, Any], seed: int) -> Any:
    """A decoder with that attention in every layer."""
    config = TransformerConfig.decoder_only(vocab_size, **shape, norm_first=True, max_len=128)
    generator = torch.Generator().manual_seed(seed)
    model = DecoderOnlyTransformer(config, generator)
    layers: Any = model.decoder.layers
    for layer in layers:
        layer.self_attention = attention_of(method, config.d_model, config.num_heads)
    model.initialise(generator)
    return model


class Text:
    """The texts, their tokenizer, and a run on them."""

    def __init__(self, quick: bool) -> None:
        self.shape = TEXT_SHAPE | ({"num_layers": 1, "d_model": 8, "d_ff": 12} if quick else {})
        small = {"steps": 2, "batch_size": 2, "context_length": 16, "warmup_steps": 1}
        self.training = TEXT_TRAINING | (small if quick else {})
        self.train, self.held_out = split()
        if quick:
            self.train, self.held_out = [t[:99] for t in self.train[:9]], [self.held_out[0][:99]]
        self.tokenizer = CharacterTokenizer.train([*self.train, *self.held_out])
        joined = "\0".join([*self.train, *self.held_out])
        self.fingerprint = hashlib.sha256(joined.encode()).hexdigest()[:16]

    def run(self, method: str, rate: float, seed: int) -> dict[str, float]:
        """Held-out bits per character of one training."""
        model = language_model(method, self.tokenizer.vocab_size, self.shape, seed)
        options = self.training | {"peak_learning_rate": rate, "seed": seed, "label_smoothing": 0.0}
        config = TrainingConfig(**options)
        trainer = LanguageModelTrainer(model, self.train, self.tokenizer, config)
        trainer.fit(progress=False)
        context = self.training["context_length"]
        bits = TextGenerator(model, self.tokenizer).bits_per_character(
            self.held_out, context_length=context
        )
        return {"bits": bits, "loss": bits}


# --- all together ----------------------------------------------------------------------------


class Measurement:
    """What is measured is not lost: it is written down when it is done."""

    def __init__(self, out: Path, quick: bool, seeds: list[int], rounds: int) -> None:
        self.quick, self.seeds, self.rounds = quick, seeds, rounds
        self.partial = out.with_suffix(".partial.json")
        self.text = Text(quick)
        self.steps = 2 if quick else RECALL_TRAINING["steps"]
        self.lengths = LENGTHS[:2] if quick else LENGTHS
        self.plan = [
            [WIDTH, BLOCK_SIZE, WINDOW, NUM_GLOBAL, NUM_RANDOM, self.lengths],
            [RECALL_SHAPE, RECALL_TRAINING, PAIR_COUNTS, self.steps],
            [self.text.shape, self.text.training, self.text.fingerprint],
            torch.__version__,
        ]
        self.kept: dict[str, Any] = {"plan": self.plan, "map": {}, "runs": {}, "seconds": 0.0}
        if self.partial.exists():
            found = json.loads(self.partial.read_text(encoding="utf-8"))
            self.kept = found if found["plan"] == json.loads(json.dumps(self.plan)) else self.kept
        self.before = self.kept["seconds"]

    def keep(self) -> None:
        """Write down what is done."""
        self.kept["seconds"] = self.before + time.process_time()
        write(self.partial, self.kept)

    def once(self, key: str, run: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What a run gives, which is not repeated."""
        if key not in self.kept["runs"]:
            self.kept["runs"][key] = run()
            self.keep()
            print(key, {name: round(x, 4) for name, x in self.kept["runs"][key].items()})
        return self.kept["runs"][key]

    def recalled(self, method: str, num_pairs: int, rate: float, seed: int) -> dict[str, float]:
        """One run of recall."""
        key = f"recall, {method}, {num_pairs} pairs, {rate:g}, {seed}"
        return self.once(key, lambda: recall(method, num_pairs, rate, seed, self.steps))

    def written(self, method: str, rate: float, seed: int) -> dict[str, float]:
        """One run of text."""
        key = f"text, {method}, {rate:g}, {seed}"
        return self.once(key, lambda: self.text.run(method, rate, seed))

    def recall_results(self) -> dict[str, Any]:
        """Shares of right answers by method and number of pairs."""
        found = {}
        for method in RECALL:
            losses = [self.recalled(method, 16, rate, SELECTION_SEED)["loss"] for rate in RATES]
            rate = min(zip(losses, RATES, strict=True))[1]
            right = [
                [self.recalled(method, count, rate, seed)["right"] for seed in self.seeds]
                for count in PAIR_COUNTS
            ]
            d_model, num_heads = RECALL_SHAPE["d_model"], RECALL_SHAPE["num_heads"]
            found[method] = {
                "rate": rate,
                "numbers": numbers_kept(method, PAIR_COUNTS[-1], d_model, num_heads),
                "parameters": size(Reader(method)),
                "right": right,
                **columns([interval(shares) for shares in right]),
            }
        return found

    def text_results(self) -> dict[str, Any]:
        """Bits per character by method."""
        found: dict[str, Any] = {}
        context = self.text.training["context_length"]
        for method in TEXT:
            losses = [self.written(method, rate, SELECTION_SEED)["loss"] for rate in RATES]
            rate = min(zip(losses, RATES, strict=True))[1]
            bits = [self.written(method, rate, seed)["bits"] for seed in self.seeds]
            shape = self.text.shape
            one_layer = numbers_kept(method, context, shape["d_model"], shape["num_heads"])
            full = found["full"]["bits"] if found else bits
            differences = [b - f for b, f in zip(bits, full, strict=True)]
            model = language_model(method, self.text.tokenizer.vocab_size, shape, 0)
            found[method] = {
                "rate": rate,
                "numbers": shape["num_layers"] * one_layer,
                "parameters": size(model),
                "bits": bits,
                **interval(bits),
                "against": interval(differences),
            }
        return found

    def results(self) -> dict[str, Any]:
        """All that the results file holds; what is not measured yet is measured now."""
        the_map = Map(self.kept["map"], self.keep, self.lengths)
        the_map.measure(self.rounds)
        recall_methods, text_methods = self.recall_results(), self.text_results()
        return {
            "made": {
                "date": date.today().isoformat(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "minitransformer": version("minitransformer"),
                "threads": torch.get_num_threads(),
                "cpu_minutes": round(self.kept["seconds"] / 60, 1),
                "quick": self.quick,
            },
            "map": {
                "width": WIDTH,
                "block_size": BLOCK_SIZE,
                "window": WINDOW,
                "rounds": self.rounds,
                "budget_seconds": BUDGET_SECONDS,
                "budget_bytes": BUDGET_BYTES,
                "methods": the_map.results(),
            },
            "recall": {
                "shape": RECALL_SHAPE,
                "training": RECALL_TRAINING,
                "pair_counts": PAIR_COUNTS,
                "methods": recall_methods,
            },
            "text": {
                "shape": self.text.shape,
                "training": self.text.training,
                "characters": sum(map(len, self.text.train)),
                "fingerprint": self.text.fingerprint,
                "methods": text_methods,
            },
            "rates": list(RATES),
            "selection_seed": SELECTION_SEED,
            "seeds": self.seeds,
        }


def size(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


def columns(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """A list for each name, of several rows with the same names."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, so that the file is whole whenever it is read."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, path)


def main() -> None:
    """Measure what is missing, write the results, and print them."""
    parser = argparse.ArgumentParser(description="What attention costs, and what cheaper is worth.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="2 to 10")
    parser.add_argument("--rounds", type=int, default=3, help="of the map, 2 to 10")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    for name, number in (("--seeds", len(args.seeds)), ("--rounds", args.rounds)):
        if not 2 <= number <= len(STUDENT) + 1:
            parser.error(f"{name} must be 2 to {len(STUDENT) + 1}, got {number}")
    torch.set_num_threads(1)
    measurement = Measurement(args.out, args.quick, args.seeds, args.rounds)
    results = measurement.results()
    write(args.out, results)
    measurement.partial.unlink()
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
