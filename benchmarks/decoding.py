"""What a token costs: with and without a cache, greedily and by beam search, alone and in a batch.

python benchmarks/decoding.py              lengths up to 512, a few minutes on two cores
python benchmarks/decoding.py 16 64        other lengths

Times are medians of runs that take turns, so that the ratios hold on a machine that others use.
"""

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitransformer import (
    DecoderOnlyTransformer,
    KVCache,
    Transformer,
    TransformerConfig,
    generate,
)

VOCAB_SIZE = 1000
SIZES = {"d_model": 128, "num_heads": 4, "d_ff": 512, "norm_first": True}
LENGTHS = (16, 64, 256, 512)
BATCH_SIZES = (1, 32)
RUNS = 5


def seconds(calls: Sequence[Callable[[], object]], device: str, runs: int = RUNS) -> list[float]:
    """Median seconds of each call, the calls taking turns; a first round does not count."""
    times: list[list[float]] = [[] for _ in calls]
    for run in range(runs + 1):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if run > 0:
                times[index].append(time.perf_counter() - start)
    return [statistics.median(row) for row in times]


def random_ids(*shape: int, device: str) -> Tensor:
    """Ids of no special token, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, VOCAB_SIZE, shape, generator=generator).to(device)


@torch.inference_mode()
def cost_of_a_token(
    model: DecoderOnlyTransformer, length: int, batch_size: int, device: str, runs: int = RUNS
) -> list[float]:
    """Seconds for the last of `length` tokens: all computed again, and with a cache."""
    ids = random_ids(batch_size, length, device=device)
    caches = [KVCache() for _ in model.decoder.layers]
    if length > 1:
        model.decode(ids[:, :-1], caches)

    def with_cache() -> Tensor:
        # Each round appends to what the caches held before it.
        return model.decode(ids[:, -1:], [copy.copy(cache) for cache in caches])

    return seconds([lambda: model(ids), with_cache], device, runs)


def cost_of_a_text(
    model: Transformer, num_tokens: int, batch_size: int, device: str, runs: int = RUNS
) -> list[float]:
    """Seconds to write texts of exactly `num_tokens`: greedily, and with a beam of four."""
    src = random_ids(batch_size, 20, device=device)

    def write(num_beams: int) -> Callable[[], Tensor]:
        options = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        return lambda: generate(model, src, num_beams=num_beams, **options)

    return seconds([write(1), write(4)], device, runs)


def main() -> None:
    """Print two tables: the cost of a token, and of a text."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = [int(argument) for argument in sys.argv[1:]] or list(LENGTHS)
    print(f"device {device}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")

    config = TransformerConfig.decoder_only(
        VOCAB_SIZE, num_layers=4, max_len=max(lengths), dropout=0.0, **SIZES
    )
    model = DecoderOnlyTransformer(config, torch.Generator().manual_seed(0)).to(device).eval()
    print("decoder-only, 4 layers of width 128: one more token")
    print("batch  length  without (ms)  with cache (ms)  ratio")
    for batch_size in BATCH_SIZES:
        for length in lengths:
            without, cached = cost_of_a_token(model, length, batch_size, device)
            row = f"{batch_size:>5}  {length:>6}  {1e3 * without:>12.2f}  {1e3 * cached:>15.2f}"
            print(f"{row}  {without / cached:>5.1f}", flush=True)

    config = TransformerConfig(
        src_vocab_size=VOCAB_SIZE,
        tgt_vocab_size=VOCAB_SIZE,
        num_encoder_layers=2,
        num_decoder_layers=2,
        max_len=128,
        dropout=0.0,
        **SIZES,
    )
    translator = Transformer(config, torch.Generator().manual_seed(0)).to(device)
    num_tokens = min(32, max(lengths))
    print(f"\nencoder-decoder, 2 + 2 layers of width 128: {num_tokens} tokens for each source")
    print("batch  greedy (ms a text)  beam of 4 (ms a text)  ratio")
    for batch_size in BATCH_SIZES:
        greedy, beam = cost_of_a_text(translator, num_tokens, batch_size, device)
        row = f"{batch_size:>5}  {1e3 * greedy / batch_size:>18.1f}"
        print(f"{row}  {1e3 * beam / batch_size:>21.1f}  {beam / greedy:>5.1f}", flush=True)


if __name__ == "__main__":
    main()
