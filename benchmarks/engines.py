"""How fast other engines write what an exported model would write: greedy translation, one thread.

pip install 'minitransformer[export]'
python benchmarks/engines.py              every row, some minutes on a core; prints the table
python benchmarks/engines.py --rounds 3   fewer rounds
python benchmarks/engines.py --table      prints the table of the last run again

Each engine translates the same sources of random ids with a model of random weights, for speed
does not depend on them, and writes the same number of tokens. They take turns; a first round does
not count. The table gives ratios, the median of the rounds: 2.0 means that ours takes twice as
long. The results go to `engines.json`, which the page "Use it" shows.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read by all of them when they are imported

import ctranslate2
import numpy as np
import onnxruntime
import torch
from torch import Tensor

import minitransformer as mt

RESULTS = Path(__file__).with_suffix(".json")
VOCAB_SIZE, SOURCE, WRITTEN = 8_192, 24, 64
MODELS = ((256, 3), (512, 6))
BATCHES = (1, 8)
ENGINES = ("CTranslate2", "CTranslate2 int8", "ONNX Runtime")


def translator(d_model: int, num_layers: int) -> mt.Transformer:
    """A model of these sizes with random weights."""
    config = mt.TransformerConfig(
        VOCAB_SIZE,
        VOCAB_SIZE,
        d_model,
        d_model // 64,
        num_layers,
        num_layers,
        4 * d_model,
        share_embeddings=True,
        max_len=128,
    )
    return mt.Transformer(config, torch.Generator().manual_seed(0)).eval()


def by_ctranslate2(folder: Path, sources: Tensor) -> Callable[[], object]:
    """Translate with the engine; it stops at no token."""
    engine = ctranslate2.Translator(
        str(folder), compute_type="default", inter_threads=1, intra_threads=1
    )
    special = mt.Tokenizer.special_tokens
    named = [[special[i] if i < 5 else f"#{i}" for i in row] for row in sources.tolist()]
    options: dict[str, Any] = {"beam_size": 1, "max_decoding_length": WRITTEN}
    options |= {"min_decoding_length": WRITTEN, "max_batch_size": len(named)}
    return lambda: engine.translate_batch(named, **options)


def by_onnxruntime(folder: Path, sources: Tensor) -> Callable[[], object]:
    """Translate with the graphs, as the page does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, decoder = (
        onnxruntime.InferenceSession(
            folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        for name in ("encoder", "decoder")
    )

    def write() -> None:
        memory, mask = encoder.run(None, {"ids": sources.numpy()})
        ids, past = np.ones((len(sources), 1), np.int64), memory[..., :0, :]
        for _ in range(WRITTEN):
            given = {"ids": ids, "past": past, "memory": memory, "memory_mask": mask}
            logits, past = decoder.run(None, given)
            ids = logits[:, -1:].argmax(-1)

    return write


def measured(d_model: int, num_layers: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each size of batch: the seconds of ours, and how much longer ours takes."""
    model, rows = translator(d_model, num_layers), []
    with TemporaryDirectory() as name:
        folder = Path(name)
        mt.export.to_ctranslate2(model, folder / "float32")
        mt.export.to_ctranslate2(model, folder / "int8", quantization="int8")
        mt.export.to_onnx(model, folder / "onnx")
        for batch in BATCHES:
            generator = torch.Generator().manual_seed(batch)
            sources = torch.randint(5, VOCAB_SIZE, (batch, SOURCE), generator=generator)
            calls = {
                "ours": lambda sources=sources: mt.generate(
                    model, sources, max_new_tokens=WRITTEN, min_new_tokens=WRITTEN
                ),
                "CTranslate2": by_ctranslate2(folder / "float32", sources),
                "CTranslate2 int8": by_ctranslate2(folder / "int8", sources),
                "ONNX Runtime": by_onnxruntime(folder / "onnx", sources),
            }
            times = in_turn(calls, rounds)
            row: dict[str, Any] = {"d_model": d_model, "num_layers": num_layers, "batch": batch}
            row["seconds"] = round(statistics.median(times["ours"]), 4)
            for engine in ENGINES:
                pairs = zip(times["ours"], times[engine], strict=True)
                ratios = sorted(ours / other for ours, other in pairs)
                row[engine] = [
                    round(statistics.median(ratios), 2),
                    *map(two, ratios[:: rounds - 1]),
                ]
            rows.append(row)
            print(line(row), flush=True)
    return rows


def two(ratio: float) -> float:
    """A ratio to two digits."""
    return round(ratio, 2)


def in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor for each call in each round; a first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn > 0:
                times[name].append(time.process_time() - start)
    return times


def line(row: dict[str, Any]) -> str:
    """A row of the table: the median of each ratio, and the least and the greatest."""
    name = f"d {row['d_model']}, {row['num_layers']}+{row['num_layers']}, {row['batch']} at once"
    cells = [f"{middle} ({low} to {high})" for middle, low, high in (row[e] for e in ENGINES)]
    return f"| {name} | {' | '.join(cells)} |"


def table(rows: list[dict[str, Any]]) -> str:
    """The table of the page."""
    head = f"| greedy, {WRITTEN} tokens after {SOURCE} | {' | '.join(ENGINES)} |"
    return "\n".join([head, "|---|" + "---:|" * len(ENGINES), *map(line, rows)])


def results() -> dict[str, Any]:
    """What the last run wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        torch.set_num_threads(1)
        rows = [row for sizes in MODELS for row in measured(*sizes, max(args.rounds, 2))]
        versions = {
            "ctranslate2": ctranslate2.__version__,
            "onnxruntime": onnxruntime.__version__,
            "torch": torch.__version__.split("+")[0],
        }
        content = {"rounds": max(args.rounds, 2), "versions": versions, "rows": rows}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(results()["rows"]))


if __name__ == "__main__":
    main()
