"""How fast the engines write that a model can be exported to: greedy translation, one thread.

    pip install 'minitransformer[export]' transformers
    python -m benchmarks.speed.engines              measures, and writes engines.json
    python -m benchmarks.speed.engines --rounds 3   fewer rounds
    python -m benchmarks.speed.engines --table      prints the table of the last run again

Each engine runs what `minitransformer.export` wrote of one model of random weights, for speed does
not depend on them. It translates the same sources of random ids, and writes as many tokens. They
take turns; a first round does not count. The table says how many times as long the engine takes as
ours: the median of the rounds, and their quartiles. Time is the processor's.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read by all of them when they are imported

import ctranslate2
import numpy as np
import onnxruntime
import torch
import transformers
from torch import Tensor

import minitransformer as mt
from benchmarks.runs import RESULTS, markdown, read_json, write_json
from benchmarks.speed.rows import OURS, VOCAB_SIZE, Row, conditions, translator

FILE = RESULTS / "engines.json"
SOURCE, WRITTEN = 24, 64
MODELS = ((256, 3), (512, 6))
BATCHES = {"one text": 1, "8 texts": 8}
LIBRARIES = ("torch", "ctranslate2", "onnxruntime", "transformers")

Call = Callable[[], Any]
"""Writes all texts and returns them, rows of what each engine calls tokens."""


def ours(model: mt.Transformer, sources: Tensor) -> Call:
    """Translate with `generate`."""
    return lambda: mt.generate(model, sources, max_new_tokens=WRITTEN, min_new_tokens=WRITTEN)


def by_ctranslate2(folder: Path, sources: Tensor) -> Call:
    """Translate with CTranslate2, matrices as the folder has them."""
    engine = ctranslate2.Translator(
        str(folder), compute_type="default", inter_threads=1, intra_threads=1
    )
    named = [[f"#{index}" for index in row] for row in sources.tolist()]
    options: dict[str, Any] = {"beam_size": 1, "max_batch_size": len(named)}
    options |= {"min_decoding_length": WRITTEN, "max_decoding_length": WRITTEN}
    return lambda: [row.hypotheses[0] for row in engine.translate_batch(named, **options)]


def by_onnxruntime(folder: Path, sources: Tensor) -> Call:
    """Translate with the graphs, as the page "Use it" does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    encoder, decoder = (
        onnxruntime.InferenceSession(
            folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        for name in ("encoder", "decoder")
    )

    def write() -> np.ndarray:
        memory, mask = encoder.run(None, {"ids": sources.numpy()})
        ids, past, written = np.ones((len(sources), 1), np.int64), memory[..., :0, :], []
        for _ in range(WRITTEN):
            given = {"ids": ids, "past": past, "memory": memory, "memory_mask": mask}
            logits, past = decoder.run(None, given)
            ids = logits[:, -1:].argmax(-1)
            written.append(ids)
        return np.concatenate(written, axis=1)

    return write


def by_transformers(folder: Path, sources: Tensor) -> Call:
    """Translate with the Marian that the folder holds."""
    marian = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    options: dict[str, Any] = {"min_new_tokens": WRITTEN, "max_new_tokens": WRITTEN}
    options |= {"attention_mask": torch.ones_like(sources), "num_beams": 1, "do_sample": False}
    return lambda: marian.generate(sources, **options)[:, 1:]


def rows() -> Iterator[Row]:
    """Each kind of work, and how each engine does it."""
    for d_model, num_layers in MODELS:
        model = translator(d_model, num_layers, max_len=128).eval()  # a Marian can be it too
        with TemporaryDirectory() as name:
            folder = Path(name)
            mt.export.to_ctranslate2(model, folder / "float32")
            mt.export.to_ctranslate2(model, folder / "int8", quantization="int8")
            mt.export.to_onnx(model, folder / "onnx")
            mt.export.to_transformers(model, folder / "transformers")
            for texts, batch in BATCHES.items():
                generator = torch.Generator().manual_seed(batch)
                sources = torch.randint(5, VOCAB_SIZE, (batch, SOURCE), generator=generator)
                calls = {
                    OURS: ours(model, sources),
                    "CTranslate2": by_ctranslate2(folder / "float32", sources),
                    "CTranslate2 int8": by_ctranslate2(folder / "int8", sources),
                    "ONNX Runtime": by_onnxruntime(folder / "onnx", sources),
                    "transformers": by_transformers(folder / "transformers", sources),
                }
                for how, call in calls.items():
                    lengths = {len(text) for text in call()}
                    if lengths != {WRITTEN}:
                        found = sorted(lengths)
                        raise RuntimeError(f"{how} must write {WRITTEN} tokens, got {found}")
                work = f"d {d_model}, {num_layers}+{num_layers}, {texts}"
                yield Row(work, calls, clock=time.process_time)


def results_of(row: Row) -> dict[str, Any]:
    """A row as speed.json has them, with quartiles of the ratios and ours in milliseconds."""
    ratios, quartiles = {}, {}
    for name, times in row.times.items():
        if name != OURS:
            low, middle, high = statistics.quantiles(row.ratios(times), n=4, method="inclusive")
            ratios[name] = round(middle, 2)
            quartiles[name] = [round(low, 2), round(high, 2)]
    milliseconds = round(1000 * statistics.median(row.times[OURS]))
    return {"group": "engines", "ratios": ratios, "quartiles": quartiles, "ours": milliseconds}


def table(results: dict[str, Any]) -> str:
    """The results as a table: how many times as long the others take, and the quartiles."""
    found = results["rows"]
    names = list(next(iter(found.values()))["ratios"])
    lines = []
    for work, row in found.items():
        pairs = ((row["ratios"][name], row["quartiles"][name]) for name in names)
        lines.append(
            [work, *(f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, (low, high) in pairs)]
        )
    return markdown(["text", *names], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        how, found = conditions(LIBRARIES, args.rounds), {}
        for row in rows():
            found[row.name] = results_of(row.measure(args.rounds))
            found[row.name] |= {"limit": None, "conditions": how}
            print(row, flush=True)
            write_json(FILE, {"rows": found})
    print(table(read_json(FILE)))


if __name__ == "__main__":
    main()
