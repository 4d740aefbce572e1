"""What each trick for speed brings: the same work with and without it, in turn.

pip install -r benchmarks/requirements.txt
python -m benchmarks.speed.tricks                     about a quarter of an hour on two cores
python -m benchmarks.speed.tricks --rounds 9
python -m benchmarks.speed.tricks generation output   only these rows; also "lookup", "profiles"

1.2 means that the work takes 1.2 times as long without the trick, or with the idea that the
package does not use. The rows of Multi30k read the data as multi30k.py does. At the end stands
what share of a step is matrix products, in a profile.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import minitransformer as mt
from benchmarks.speed import peers
from benchmarks.speed.libraries import (
    decoder_only_models,
    for_each,
    language_loss,
    multi30k_batches,
    ragged_batch,
    training_step,
)
from benchmarks.speed.rows import OURS, VOCAB_SIZE, Row, translator
from minitransformer.layers.packing import PACKABLE, PackedMask, Packing

WITHOUT = "without"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


def everything_is_real(packing: Packing, real: Tensor | None, *, always: bool) -> None:
    """A `Packing` that packs nothing."""
    packing.index = None


def loss_of_all_logits(hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """`linear_cross_entropy` with all logits in memory."""
    return mt.label_smoothing_loss(hidden @ weight.T, targets, **options)


def one_projection(
    attention: mt.MultiHeadAttention, x: Tensor, key: Tensor, value: Tensor, mask: Any
) -> Tensor:
    """`MultiHeadAttention.forward` with one product for self-attention's queries, keys, values."""
    if key is not x or attention.rotary is not None:
        return FORWARD(attention, x, key, value, mask)
    maps = (attention.w_q, attention.w_k, attention.w_v)
    weight, bias = torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])
    packed = (
        mask if isinstance(mask, PackedMask) else PackedMask(mask, Packing(None), Packing(None))
    )
    heads = attention.split_heads(packed.queries.unpack(F.linear(x, weight, bias)))
    heads = attention.attend(*heads.chunk(3, dim=-3), packed.mask).transpose(-3, -2).flatten(-2)
    return attention.w_o(packed.queries.pack(heads))


FORWARD = mt.MultiHeadAttention.forward


@contextmanager
def one_projection_everywhere() -> Iterator[None]:
    """Inside the block self-attention has one product."""

    def forward(
        self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, cache: Any = None
    ) -> Tensor:
        return one_projection(self, query, key, value, mask)

    with (
        patch.object(mt.MultiHeadAttention, "forward", forward),
        patch.dict(PACKABLE, {forward: PACKABLE[FORWARD]}),
    ):
        yield


def switched(
    name: str, call: Callable[[], object], without: Callable[[], AbstractContextManager[object]]
) -> Row:
    """A row of one call, as it is and in a context in which something is different."""

    def call_without() -> None:
        with without():
            call()

    return Row(name, {OURS: call, WITHOUT: call_without})


def steps() -> Iterator[tuple[str, mt.Transformer, list[tuple[Tensor, ...]]]]:
    """Kinds of training step: name, model and batches."""
    yield "step, d 256, 32 x 32", translator(256, 3, norm_first=True), [ragged_batch(32, 32)]
    yield "step, d 512, 16 x 64", translator(512, 6, norm_first=True), [ragged_batch(16, 64)]
    batches, vocab_size = multi30k_batches()
    yield "Multi30k, d 256, 128 pairs", translator(256, 3, vocab_size, norm_first=True), batches


def repeated_step(model: mt.Transformer, batches: list[tuple[Tensor, ...]]) -> Callable[[], None]:
    """A training step in single precision on each of the batches."""
    return partial(
        for_each, training_step(model, partial(mt.next_token_loss, model), "fp32"), batches
    )


def training_rows() -> Iterator[Row]:
    """What is done to training steps."""
    module = "minitransformer.training.loss"
    for where, model, batches in steps():
        step = repeated_step(model, batches)
        yield switched(
            f"{where}: padding left in",
            step,
            lambda: patch.object(Packing, "__init__", everything_is_real),
        )
        yield switched(
            f"{where}: all logits at once",
            step,
            lambda: patch(f"{module}.linear_cross_entropy", loss_of_all_logits),
        )
        yield switched(
            f"{where}: PyTorch's dropout",
            step,
            lambda: patch.object(mt.Dropout, "forward", nn.Dropout.forward),
        )
        yield switched(
            f"{where}: one projection for q, k, v",
            step,
            one_projection_everywhere,
        )
        if len(batches) == 1:  # each shape would be compiled by itself
            compiled = deepcopy(model)
            compiled.encoder.compile()
            compiled.decoder.compile()
            other = repeated_step(compiled, batches)
            yield Row(f"{where}: torch.compile", {OURS: step, WITHOUT: other})


def attention_rows() -> Iterator[Row]:
    """Forward and backward on short sequences, by the formula and by the fused kernel."""
    ours, formula = (mt.MultiHeadAttention(256, 4, backend=way) for way in ("sdpa", "reference"))
    ways = {"the formula": formula.attend, "the kernel": ours.attend}
    for dtype, way in ((torch.float32, "the formula"), (torch.bfloat16, "the kernel")):
        for rows, length in ((128, 10), (32, 16), (32, 32), (32, 64)):
            tensors = [
                torch.randn(rows, 4, length, 64).to(dtype).requires_grad_() for _ in range(3)
            ]

            def run(heads: Callable[..., Tensor], tensors: list[Tensor] = tensors) -> None:
                for _ in range(20):
                    heads(*tensors, "causal").sum().backward()

            name = f"attention, {rows} x {length}, {str(dtype)[6:]}: {way}"
            yield Row(name, {OURS: partial(run, ours.attend), WITHOUT: partial(run, ways[way])})


def generation_rows() -> Iterator[Row]:
    """What is done to writing."""
    model = translator(256, 3).eval()

    def write(model: Any, rows: int, num_beams: int) -> Callable[[], Tensor]:
        src = torch.randint(5, VOCAB_SIZE, (rows, 24))
        options = {"max_new_tokens": 64, "min_new_tokens": 64, "num_beams": num_beams}
        return partial(mt.generate, model, src, **options)

    for name, rows, num_beams in (("1 text", 1, 1), ("beam 4", 1, 4), ("16 texts", 16, 1)):
        calls = {OURS: write(mt.fast.prepare(model), rows, num_beams)}
        yield Row(f"{name}: the modules", calls | {WITHOUT: write(model, rows, num_beams)})
    for name, rows, num_beams in (("1 text", 1, 1), ("16 texts", 16, 1), ("32 texts", 32, 4)):
        yield switched(
            f"{name}, beam {num_beams}: torch.cat",
            write(model, rows, num_beams),
            lambda: patch("minitransformer.inference.decoding.KVCache", lambda _: mt.KVCache()),
        )


def output_rows() -> Iterator[Row]:
    """The product with the output's weight, the largest, alone: ours, and what is not used."""
    weight, x = torch.randn(VOCAB_SIZE, 256), torch.randn(1, 256)
    kept = weight.T.contiguous()
    scales = weight.abs().amax(dim=1) / 127
    small = (weight / scales[:, None]).round().to(torch.int8)
    half = weight.to(torch.bfloat16)
    ways = {
        "as it lies": lambda: F.linear(x, weight),
        "bfloat16": lambda: F.linear(x.to(torch.bfloat16), half),
        "int8": lambda: torch._weight_int8pack_mm(
            x.to(torch.bfloat16), small, scales.to(torch.bfloat16)
        ),
    }
    for name, way in ways.items():
        calls = {OURS: lambda: x @ kept, WITHOUT: way}
        calls = {who: partial(repeated, call) for who, call in calls.items()}
        yield Row(f"output of 1 row: {name}", calls)


def repeated(call: Callable[[], object]) -> None:
    """A call so often that a clock sees it."""
    for _ in range(200):
        call()


def steps_of_lookup(ids: list[int], ahead: int = 3) -> int:
    """Steps in which a model would write this text, if guesses of `ahead` ids were verified too.

    A guess is what followed the same two ids before. The model is taken to write just this text.
    """
    seen: dict[tuple[int, int], int] = {}
    done = steps = 1
    while done < len(ids):
        guess = seen.get((ids[done - 2], ids[done - 1]), done) if done > 1 else done
        longest, new = min(ahead, done - guess), 1  # what lies beyond is not written yet
        while new <= longest and ids[done + new - 1 : done + new] == [ids[guess + new - 1]]:
            new += 1
        for end in range(max(2, done), min(done + new, len(ids))):
            seen[ids[end - 2], ids[end - 1]] = end
        done, steps = done + new, steps + 1
    return steps - 1


def print_lookup() -> None:
    """How many tokens of real text a step would write with guesses from the text so far."""
    texts = peers.corpus(2e6)
    tokenizer = mt.BPETokenizer.train(texts, VOCAB_SIZE)
    encoded = [ids for text in texts if len(ids := tokenizer.encode(text)) >= 256]
    for length in (64, 256):
        parts = [ids[i : i + length] for ids in encoded for i in range(0, len(ids), length)]
        parts = [ids for ids in parts if len(ids) == length]
        tokens = (length - 1) * len(parts) / sum(map(steps_of_lookup, parts))
        print(f"texts of {length}: {tokens:.2f} tokens a step, guessed from the text so far")
    weight = torch.randn(256, VOCAB_SIZE)
    calls = {
        f"{n} rows": partial(repeated, partial(torch.mm, torch.randn(n, 256), weight))
        for n in (1, 4)
    }
    row = Row("a product of 4 rows, not 1", {OURS: calls["1 rows"], WITHOUT: calls["4 rows"]})
    print(row.measure(7))


def share_of_products(call: Callable[[], object]) -> float:
    """How much of the time of a call its matrix products take, without those inside attention."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    events = profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return sum(e.self_cpu_time_total for e in events if e.key in PRODUCTS) / total


def print_profiles() -> None:
    """The shares of padding in each batch, and of matrix products in each step."""
    calls: dict[str, Callable[[], object]] = {}
    for name, model, batches in steps():
        calls[name] = repeated_step(model, batches)
        for side, ids in zip(("source", "target"), zip(*batches, strict=True), strict=False):
            padding = 1 - sum(int(x.count_nonzero()) for x in ids) / sum(x.numel() for x in ids)
            print(f"{name:<50} padding {padding:4.0%} of the {side}")
    models, ids = decoder_only_models(), torch.randint(5, VOCAB_SIZE, (8, 257))
    for precision in ("fp32", "bf16"):
        for name in (OURS, "GPT2 sdpa"):
            loss = partial(language_loss, models[name], ids)
            calls[f"step, decoder only, {precision}, {name}"] = training_step(
                models[name], loss, precision
            )
    small, src = translator(256, 3).eval(), torch.randint(5, VOCAB_SIZE, (1, 24))
    calls["1 text, d 256"] = partial(mt.generate, small, src, max_new_tokens=64, min_new_tokens=64)
    for name, call in calls.items():
        print(f"{name:<50} products {share_of_products(call):4.0%}", flush=True)


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "training": training_rows,
    "attention": attention_rows,
    "generation": generation_rows,
    "output": output_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The same work with and without each trick.")
    others = {"lookup": print_lookup, "profiles": print_profiles}
    names = [*GROUPS, *others]
    parser.add_argument("groups", nargs="*", choices=[[], *names], help="all when left out")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    for name in args.groups or names:
        if name in others:
            others[name]()
            continue
        torch.manual_seed(0)
        for row in GROUPS[name]():
            print(row.measure(args.rounds), flush=True)


if __name__ == "__main__":
    main()
