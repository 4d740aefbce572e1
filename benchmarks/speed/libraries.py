"""How fast the package is beside the libraries that a reader would otherwise import.

pip install -r benchmarks/requirements.txt
python -m benchmarks.speed.libraries                         every row, half an hour on two cores
python -m benchmarks.speed.libraries training generation     only these groups of rows
python -m benchmarks.speed.libraries --threads 1 --rounds 3
python -m benchmarks.speed.libraries --device cuda           on a GPU, and a larger model
python -m benchmarks.speed.libraries --save generation       into speed.json and onto the page

In each row all do the same work: the same sizes, the same batch, tied embeddings, the same
dropout, fused AdamW. They take turns. The table gives ratios, the median of the rounds: 1.4 means
that the other takes 1.4 times as long as ours. "limit" is our share of what the machine can do,
measured in the same rounds: for training the matrix products of our step at the speed of a large
one, for generation reading every weight once a token. The row of Multi30k reads the data as
multi30k.py does.
"""

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # of `tokenizers`; read when it starts its threads
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import minitransformer as mt
from benchmarks.runs import read_json
from benchmarks.speed import page, peers
from benchmarks.speed.rows import OURS, VOCAB_SIZE, Row, conditions, on_gpu, timed, translator
from benchmarks.speed.torch_transformer import TorchTransformer
from minitransformer.tasks.multi30k import multi30k

OTHERS = ("torch", "transformers", "x-transformers", "tokenizers")


def matrix_peak(dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product."""
    size = 8192 if on_gpu() else 1024
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / statistics.median(timed(lambda: a @ b) for _ in range(10))


def bandwidth() -> float:
    """Bytes per second of reading memory that no cache holds."""
    numbers = torch.ones(2**26)
    return 4 * numbers.numel() / statistics.median(timed(numbers.sum) for _ in range(5))


def ragged(rows: int, length: int) -> Tensor:
    """Ids whose rows are between half and all of `length`, (rows, length), padded with 0."""
    lengths = torch.randint(length // 2, length + 1, (rows, 1))
    return torch.randint(5, VOCAB_SIZE, (rows, length)) * (torch.arange(length) < lengths)


def ragged_batch(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target input and target output, as `next_token_loss` takes them."""
    src, tgt = ragged(rows, length), ragged(rows, length + 1)
    return src, tgt[:, :-1] * (tgt[:, 1:] != 0), tgt[:, 1:]


def training_step(
    model: nn.Module, loss: Callable[..., Tensor], precision: str
) -> Callable[..., object]:
    """Forward, backward and a step of fused AdamW."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)
    device = torch.get_default_device().type

    def step(*batch: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            value = loss(*batch)
        value.backward()
        optimizer.step()

    return step


def training_limit(step: Callable[[], object], precision: str) -> Callable[[], float]:
    """The floating-point operations of a step at the speed of a large matrix product."""
    with FlopCounterMode(display=False) as counter:
        step()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return lambda: counter.get_total_flops() / matrix_peak(dtype)


def translation_row(
    name: str, batches: list[tuple[Tensor, ...]], precision: str, ours: mt.Transformer
) -> Row:
    """A training step of an encoder-decoder on each of the batches."""
    vocab_size, d_model = ours.config.tgt_vocab_size, ours.config.d_model
    sizes = (vocab_size, d_model, ours.config.num_decoder_layers, 0.1)
    torchs, xs = TorchTransformer(ours), peers.XTranslator(*sizes)
    losses: dict[str, tuple[nn.Module, Callable[..., Tensor]]] = {
        OURS: (ours, partial(mt.next_token_loss, ours)),
        "torch.nn": (torchs, partial(torchs.loss, smoothing=0.0)),
        "x-transformers": (xs, xs.loss),
    }
    for attention in ("eager", "sdpa"):
        marian = peers.marian(*sizes, attention)
        losses[f"Marian {attention}"] = marian, partial(peers.marian_loss, marian)
    calls = {
        name: partial(for_each, training_step(*parts, precision), batches)
        for name, parts in losses.items()
    }
    return Row(name, calls, training_limit(calls[OURS], precision))


def for_each(step: Callable[..., object], batches: list[tuple[Tensor, ...]]) -> None:
    """Call a step with each batch."""
    for batch in batches:
        step(*batch)


def training_rows() -> Iterator[Row]:
    """Training steps of an encoder-decoder and of a decoder-only model."""
    for d_model, num_layers, rows, length in ((256, 3, 32, 32), (512, 6, 16, 64)):
        batch = ragged_batch(rows, length)
        for precision in ("fp32", "bf16"):
            ours = translator(d_model, num_layers, norm_first=True)
            name = f"step, d {d_model}, {num_layers}+{num_layers}, {rows} x {length}, {precision}"
            yield translation_row(name, [batch], precision, ours)
    ids = torch.randint(5, VOCAB_SIZE, (8, 257))
    for precision in ("fp32", "bf16"):
        calls = {
            name: training_step(model, partial(language_loss, model, ids), precision)
            for name, model in decoder_only_models().items()
        }
        name = f"step, decoder only, d 384, 6 layers, 8 x 256, {precision}"
        yield Row(name, calls, training_limit(calls[OURS], precision))


def decoder_only_models(
    vocab_size: int = VOCAB_SIZE,
    d_model: int = 384,
    num_layers: int = 6,
    num_heads: int = 6,
    context: int = 256,
) -> dict[str, nn.Module]:
    """A model with the layers of GPT-2, as each library has it, without dropout."""
    config = mt.TransformerConfig.decoder_only(
        vocab_size,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
        dropout=0.0,
        norm_first=True,
        activation="gelu_tanh",
        positional_encoding="learned",
        max_len=context,
    )
    sizes = vocab_size, d_model, num_layers, num_heads, context
    return {
        OURS: mt.DecoderOnlyTransformer(config),
        "GPT2 sdpa": peers.gpt2(*sizes),
        "x-transformers": peers.x_decoder(*sizes),
    }


def language_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross-entropy of each next token, the way the model's library computes it."""
    if isinstance(model, mt.DecoderOnlyTransformer):
        return mt.next_token_loss(model, ids[:, :-1], ids[:, 1:])
    output = model(ids[:, :-1])
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def generation_rows() -> Iterator[Row]:
    """Writing 64 tokens after a source of 24, greedily and by beam search; 255 after one token."""
    for d_model, num_layers, batch_sizes in ((256, 3, (1, 32)), (512, 6, (1,))):
        ours = translator(d_model, num_layers).eval()
        prepared = mt.fast.prepare(ours)
        marian = peers.marian(VOCAB_SIZE, d_model, num_layers, 0.1, "sdpa").eval()
        for num_beams in (1, 4):
            for rows in batch_sizes:
                src = torch.randint(5, VOCAB_SIZE, (rows, 24))
                calls = {
                    OURS: lambda m=prepared, s=src, n=num_beams: mt.generate(
                        m, s, max_new_tokens=64, min_new_tokens=64, num_beams=n
                    ),
                    "Marian sdpa": lambda m=marian, s=src, n=num_beams: peers.write(m, s, 64, n),
                }
                how = "greedy" if num_beams == 1 else f"beam {num_beams}"
                name = f"{how}, d {d_model}, {num_layers}+{num_layers}, batch {rows}"
                # The source's keys and values are computed once, not for each token.
                weights = sum(
                    parameter.numel()
                    for name, parameter in ours.decoder.named_parameters()
                    if not name.endswith(
                        ("cross_attention.w_k.weight", "cross_attention.w_v.weight")
                    )
                )
                read = 4 * (weights + ours.output_projection.weight.numel()) * 64
                yield Row(name, calls, lambda read=read: read / bandwidth())
    models = {name: model.eval() for name, model in decoder_only_models().items()}
    ours, gpt2 = models[OURS], models["GPT2 sdpa"]
    prompt = torch.tensor([[1]])
    prepared = mt.fast.prepare(ours)
    calls = {
        OURS: lambda: mt.generate(prepared, prompt, max_new_tokens=255, min_new_tokens=255),
        "GPT2 sdpa": lambda: peers.write(gpt2, prompt, 255, 1),
    }
    read = 4 * 255 * sum(p.numel() for p in ours.parameters())
    yield Row("decoder only, d 384, 6 layers, batch 1", calls, lambda: read / bandwidth())


def causal_attention(backend: str, length: int = 8192) -> Callable[[], Tensor]:
    """Causal attention over many positions."""
    query, key, value = (torch.randn(1, 1, length, 64) for _ in range(3))
    return lambda: mt.scaled_dot_product_attention(query, key, value, "causal", backend=backend)


def highest_memory() -> int:
    """Kilobytes that the process has had at most (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmHWM")))


def peak_memory(backend: str) -> int:
    """Kilobytes that a call of `causal_attention` adds to what the process had."""
    call = causal_attention(backend)
    causal_attention(backend, 64)()  # what the first call takes, whatever its size
    before = highest_memory()
    call()
    return highest_memory() - before


def attention_rows() -> Iterator[Row]:
    """Causal attention over 8,192 positions against the formula as it stands."""
    memory = {}
    if Path("/proc/self/status").exists() and not on_gpu():
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            kilobytes = pool.map(peak_memory, ("sdpa", "reference"), chunksize=1)
        memory = dict(zip((OURS, "formula"), (size / 1024 for size in kilobytes), strict=True))
    calls = {OURS: causal_attention("sdpa"), "formula": causal_attention("reference")}
    yield Row("attention, causal, length 8,192", calls, memory=memory)


def multi30k_batches() -> tuple[list[tuple[Tensor, ...]], int]:
    """Eight batches of 128 pairs of similar lengths, and the size of the vocabulary."""
    pairs = multi30k("de", "en")["train"]
    tokenizer = mt.BPETokenizer.train((text for pair in pairs for text in pair), 4_261)
    examples = mt.encode_pairs(pairs, tokenizer, tokenizer)
    batches = [
        tuple(ids.to(torch.get_default_device()) for ids in mt.collate(batch))
        for batch in mt.epoch_batches(examples, 128, seed=0, epoch=0)[:8]
    ]
    return batches, tokenizer.vocab_size


def multi30k_rows() -> Iterator[Row]:
    """Eight steps on Multi30k as it is."""
    batches, vocab_size = multi30k_batches()
    ours = translator(256, 3, vocab_size, norm_first=True)
    yield translation_row("Multi30k, d 256, 3+3, 128 pairs, fp32", batches, "fp32", ours)


def tokenization_rows() -> Iterator[Row]:
    """Byte-pair encoding of 12.6 MB of Python sources, on one thread; every cache is cold."""
    texts = peers.corpus(12.6e6)
    calls = {
        OURS: lambda: mt.BPETokenizer.train(texts, VOCAB_SIZE),
        "tokenizers": lambda: peers.train_tokenizers(texts, VOCAB_SIZE),
        "sentencepiece": lambda: peers.train_sentencepiece(texts, VOCAB_SIZE),
    }
    yield Row("BPE training, 12.6 MB, 8,192 tokens", calls)
    trained = mt.BPETokenizer.train(texts, VOCAB_SIZE)
    state = trained.to_dict()

    def encode_ours() -> list[list[int]]:
        tokenizer = mt.BPETokenizer.from_dict(state)
        return [tokenizer.encode(text) for text in texts]

    theirs = peers.tokenizers_from(state)
    tiktokens = peers.tiktoken_from(trained)
    assert encode_ours() == theirs(texts) == tiktokens(texts), "the ids differ"
    yield Row(
        "BPE encoding, 12.6 MB",
        {
            OURS: encode_ours,
            "tokenizers": lambda: theirs(texts),
            "tiktoken": lambda: tiktokens(texts),
        },
    )


def gpu_rows() -> Iterator[Row]:
    """A step of a decoder-only model of 124 M parameters; "limit" is its FLOPs utilisation."""
    ids = torch.randint(5, 50_304, (8, 1025))
    for how in ("eager", "compiled"):
        models = decoder_only_models(50_304, 768, num_layers=12, num_heads=12, context=1024)
        if how == "compiled":
            models[OURS].decoder.compile()
            models["GPT2 sdpa"].compile()
        calls = {
            name: training_step(models[name], partial(language_loss, models[name], ids), "bf16")
            for name in (OURS, "GPT2 sdpa")
        }
        yield Row(f"step, 124 M, 8 x 1024, bf16, {how}", calls, training_limit(calls[OURS], "bf16"))


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "training": training_rows,
    "multi30k": multi30k_rows,
    "generation": generation_rows,
    "attention": attention_rows,
    "tokenization": tokenization_rows,
    "gpu": gpu_rows,
}


def save(group: str, row: Row, how: str) -> None:
    """Put a row into speed.json and on the page, in its own place or at the end."""
    results = read_json(page.RESULTS) if page.RESULTS.exists() else {"rows": {}}
    results["rows"][row.name] = {"group": group, **row.results(), "conditions": how}
    if row.memory:
        results["memory"] = {name: round(size, 1) for name, size in row.memory.items()}
    page.save(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="all when left out")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", action="store_true", help="into speed.json and the page")
    args = parser.parse_args()
    if args.save and args.device != "cpu":
        parser.error(f"--save is for the page's rows, which are of a CPU, got {args.device!r}")
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    how = conditions(OTHERS, args.rounds)
    print(f"{args.device}, {how}")
    for group in args.groups or [name for name in GROUPS if name != "gpu" or on_gpu()]:
        torch.manual_seed(0)
        for row in GROUPS[group]():
            print(row.measure(args.rounds), flush=True)
            if args.save:
                save(group, row, how)


if __name__ == "__main__":
    main()
