"""How fast the package is beside the libraries that a reader would otherwise import.

pip install -r benchmarks/requirements.txt
python benchmarks/speed.py                          every row, about half an hour on two cores
python benchmarks/speed.py training generation      only these groups of rows
python benchmarks/speed.py --threads 1 --rounds 3

In each row all do the same work: the same sizes, the same batch, tied embeddings, the same
dropout, fused AdamW. They take turns, and the table gives medians as ratios: 1.4 means that the
other takes 1.4 times as long as ours. "limit" is our share of what the machine can do, measured
in the same run: its large matrix product for training, reading every weight once a token for
generation.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import peers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from minitransformer import (
    DecoderOnlyTransformer,
    Transformer,
    TransformerConfig,
    generate,
    scaled_dot_product_attention,
)

VOCAB_SIZE = 8_192
OURS = "ours"


@dataclass
class Row:
    """One kind of work, and how each library does it."""

    name: str
    calls: dict[str, Callable[[], object]]
    limit: Callable[[], float] | None = None
    """Seconds that the work would take if nothing but its limit mattered."""
    times: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, rounds: int) -> None:
        """Let all take turns; the first round does not count."""
        for turn in range(rounds + 1):
            for name, call in self.calls.items():
                start = time.perf_counter()
                call()
                if turn > 0:
                    self.times.setdefault(name, []).append(time.perf_counter() - start)

    def __str__(self) -> str:
        medians = {name: statistics.median(times) for name, times in self.times.items()}
        ours = medians.pop(OURS)
        share = f"{self.limit() / ours:5.0%}" if self.limit else "    –"
        others = ", ".join(f"{name} {seconds / ours:.2f}" for name, seconds in medians.items())
        return f"{self.name:<44} limit {share}   {others}"


def matrix_peak(dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product."""
    a, b = torch.randn(1024, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * 1024**3 / statistics.median(seconds)


def bandwidth() -> float:
    """Bytes per second of reading memory that no cache holds."""
    numbers = torch.ones(64 * 2**20)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - start)
    return 4 * numbers.numel() / statistics.median(seconds)


def ragged(rows: int, length: int) -> Tensor:
    """Ids whose rows are between half and all of `length`, (rows, length), padded with 0."""
    lengths = torch.randint(length // 2, length + 1, (rows, 1))
    return torch.randint(5, VOCAB_SIZE, (rows, length)) * (torch.arange(length) < lengths)


def training_step(
    model: nn.Module, loss: Callable[[], Tensor], precision: str
) -> Callable[[], object]:
    """Forward, backward and a step of fused AdamW."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
        optimizer.step()

    return step


def training_limit(step: Callable[[], object], precision: str) -> Callable[[], float]:
    """The floating-point operations of a step at the speed of a large matrix product."""
    with FlopCounterMode(display=False) as counter:
        step()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return lambda: counter.get_total_flops() / matrix_peak(dtype)


def translator(d_model: int, num_layers: int, **changes: object) -> Transformer:
    """Our model of the sizes that all share."""
    options = {"norm_first": True, "share_embeddings": True} | changes
    config = TransformerConfig(
        VOCAB_SIZE,
        VOCAB_SIZE,
        d_model,
        d_model // 64,
        num_layers,
        num_layers,
        4 * d_model,
        **options,
    )
    return Transformer(config)


def training_rows() -> Iterator[Row]:
    """Training steps of an encoder-decoder and of a decoder-only model."""
    for d_model, num_layers, rows, length in ((256, 3, 32, 32), (512, 6, 16, 64)):
        src, tgt = ragged(rows, length), ragged(rows, length + 1)
        tgt_output = tgt[:, 1:]
        batch = (src, tgt[:, :-1] * (tgt_output != 0), tgt_output)
        for precision in ("fp32", "bf16"):
            ours = translator(d_model, num_layers)
            torchs = peers.TorchTransformer(VOCAB_SIZE, d_model, num_layers, 0.1)
            xs = peers.XTranslator(VOCAB_SIZE, d_model, num_layers, 0.1)
            losses: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
                OURS: (ours, lambda m=ours, b=batch: m.loss(*b, smoothing=0.0)),
                "torch.nn": (torchs, lambda m=torchs, b=batch: m.loss(*b)),
                "x-transformers": (xs, lambda m=xs, b=batch: m.loss(*b)),
            }
            for attention in ("eager", "sdpa"):
                marian = peers.marian(VOCAB_SIZE, d_model, num_layers, 0.1, attention)
                losses[f"Marian {attention}"] = (
                    marian,
                    lambda m=marian, b=batch: peers.marian_loss(m, *b),
                )
            steps = {name: training_step(*parts, precision) for name, parts in losses.items()}
            name = f"step, d {d_model}, {num_layers}+{num_layers}, {rows} x {length}, {precision}"
            yield Row(name, steps, training_limit(steps[OURS], precision))
    sizes = {"d_model": 384, "num_layers": 6, "num_heads": 6}
    ids = torch.randint(5, VOCAB_SIZE, (8, 257))
    for precision in ("fp32", "bf16"):
        config = TransformerConfig.decoder_only(
            VOCAB_SIZE,
            **sizes,
            d_ff=4 * 384,
            dropout=0.0,
            norm_first=True,
            activation="gelu_tanh",
            positional_encoding="learned",
        )
        ours = DecoderOnlyTransformer(config)
        gpt2 = peers.gpt2(VOCAB_SIZE, **sizes, context=256)
        xs = peers.x_decoder(VOCAB_SIZE, **sizes, context=256)
        losses = {
            OURS: (ours, lambda m=ours: m.loss(ids[:, :-1], ids[:, 1:], smoothing=0.0)),
            "GPT2 sdpa": (gpt2, lambda m=gpt2: language_loss(m(ids[:, :-1]).logits, ids)),
            "x-transformers": (xs, lambda m=xs: language_loss(m(ids[:, :-1]), ids)),
        }
        steps = {name: training_step(*parts, precision) for name, parts in losses.items()}
        name = f"step, decoder only, d 384, 6 layers, 8 x 256, {precision}"
        yield Row(name, steps, training_limit(steps[OURS], precision))


def language_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy of each next token."""
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def generation_rows() -> Iterator[Row]:
    """Writing 64 tokens after a source of 24, greedily and by beam search; 255 after one token."""
    for d_model, num_layers, batch_sizes in ((256, 3, (1, 32)), (512, 6, (1,))):
        ours = translator(d_model, num_layers, norm_first=False).eval()
        marian = peers.marian(VOCAB_SIZE, d_model, num_layers, 0.1, "sdpa").eval()
        for num_beams in (1, 4):
            for rows in batch_sizes:
                src = torch.randint(5, VOCAB_SIZE, (rows, 24))
                calls = {
                    OURS: lambda m=ours, s=src, n=num_beams: generate(
                        m, s, max_new_tokens=64, min_new_tokens=64, num_beams=n
                    ),
                    "Marian sdpa": lambda m=marian, s=src, n=num_beams: peers.write(m, s, 64, n),
                }
                how = "greedy" if num_beams == 1 else f"beam {num_beams}"
                name = f"{how}, d {d_model}, {num_layers}+{num_layers}, batch {rows}"
                weights = sum(p.numel() for p in ours.decoder.parameters())
                read = 4 * (weights + ours.output_projection.weight.numel()) * 64
                yield Row(name, calls, lambda read=read: read / bandwidth())
    sizes = {"d_model": 384, "num_layers": 6, "num_heads": 6}
    config = TransformerConfig.decoder_only(
        VOCAB_SIZE,
        **sizes,
        d_ff=4 * 384,
        norm_first=True,
        activation="gelu_tanh",
        positional_encoding="learned",
    )
    ours = DecoderOnlyTransformer(config).eval()
    gpt2 = peers.gpt2(VOCAB_SIZE, **sizes, context=256).eval()
    prompt = torch.tensor([[1]])
    calls = {
        OURS: lambda: generate(ours, prompt, max_new_tokens=255, min_new_tokens=255),
        "GPT2 sdpa": lambda: peers.write(gpt2, prompt, 255, 1),
    }
    read = 4 * 255 * sum(p.numel() for p in ours.parameters())
    yield Row("decoder only, d 384, 6 layers, batch 1", calls, lambda: read / bandwidth())


def attention_rows() -> Iterator[Row]:
    """Causal attention over 8,192 positions against the formula as it stands."""
    query, key, value = (torch.randn(1, 1, 8192, 64) for _ in range(3))
    mask = torch.ones(8192, 8192, dtype=torch.bool).tril()
    calls = {
        backend: lambda backend=backend: scaled_dot_product_attention(
            query, key, value, mask, backend=backend
        )
        for backend in ("sdpa", "reference")
    }
    yield Row(
        "attention, causal, length 8,192", {OURS: calls["sdpa"], "formula": calls["reference"]}
    )


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "training": training_rows,
    "generation": generation_rows,
    "attention": attention_rows,
}


def main() -> None:
    """Measure the rows and print each as it comes."""
    parser = argparse.ArgumentParser(description="The package beside other libraries, as ratios.")
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="all when left out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, medians of {args.rounds} rounds")
    for group in args.groups or GROUPS:
        torch.manual_seed(0)
        for row in GROUPS[group]():
            row.measure(args.rounds)
            print(row, flush=True)


if __name__ == "__main__":
    main()
