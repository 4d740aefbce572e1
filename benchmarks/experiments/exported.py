"""Whether the engines answer as the model does that was exported to them, on held-out numbers.

    python -m minitransformer train
    python -m minitransformer export number-words.safetensors --to onnx numbers-onnx
    python -m benchmarks.experiments.exported number-words.safetensors numbers-onnx

Any number of folders; each is one that `--to ctranslate2`, `--to onnx` or `--to torch` wrote. The
table says how many answers, greedy, are those of the checkpoint.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import minitransformer as mt

BOS, EOS = 1, 2
LONGEST = 64

Run = Callable[..., Sequence[Tensor]]
"""Runs the graph of a name with tensors."""


def by_ctranslate2(folder: Path, texts: list[str]) -> list[str]:
    """What CTranslate2 answers; it takes and gives names of tokens."""
    import ctranslate2

    engine = ctranslate2.Translator(str(folder))
    src, tgt = tokenizers(folder)
    sources = [[*src.labels(src.encode(text)), "<eos>"] for text in texts]
    options: dict[str, Any] = {"beam_size": 1, "max_batch_size": 100}
    written = engine.translate_batch(sources, max_decoding_length=LONGEST, **options)
    return [tgt.decode([tgt.ids[token] for token in row.hypotheses[0]]) for row in written]


def by_graphs(run: Run, folder: Path, texts: list[str]) -> list[str]:
    """What two graphs answer, in the loop of the page "Use it", for all texts at once."""
    src, tgt = tokenizers(folder)
    memory, mask = run("encoder", mt.pad_rows([src.sequence_ids(text) for text in texts]))
    ids, past, written = torch.full((len(texts), 1), BOS), memory[..., :0, :], []
    for _ in range(LONGEST):
        logits, past = run("decoder", ids, past, memory, mask)
        ids = logits[:, -1:].argmax(-1)
        written.append(ids)
    rows = torch.cat(written, dim=1).tolist()
    return [tgt.decode(row[: row.index(EOS)] if EOS in row else row) for row in rows]


def by_onnxruntime(folder: Path, texts: list[str]) -> list[str]:
    """The same by ONNX Runtime."""
    import onnxruntime

    sessions = {
        name: onnxruntime.InferenceSession(
            folder / f"{name}.onnx", providers=["CPUExecutionProvider"]
        )
        for name in ("encoder", "decoder")
    }

    def run(name: str, *inputs: Tensor) -> list[Tensor]:
        names = [place.name for place in sessions[name].get_inputs()]
        arrays = [tensor.numpy() for tensor in inputs]
        found = sessions[name].run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return by_graphs(run, folder, texts)


def by_torch(folder: Path, texts: list[str]) -> list[str]:
    """The same by PyTorch, without our modules."""
    graphs = {
        name: torch.export.load(folder / f"{name}.pt2").module() for name in ("encoder", "decoder")
    }
    return by_graphs(lambda name, *inputs: graphs[name](*inputs), folder, texts)


ENGINES = {
    "model.bin": ("CTranslate2", by_ctranslate2),
    "encoder.onnx": ("ONNX Runtime", by_onnxruntime),
    "encoder.pt2": ("torch.export", by_torch),
}
"""By the file that tells which engine a folder is for."""


def tokenizers(folder: Path) -> list[mt.Tokenizer]:
    """Those of both sides, as the export wrote them."""
    return [mt.Tokenizer.load(folder / f"{side}_tokenizer.json") for side in ("src", "tgt")]


def same_answers(checkpoint: Path, folders: Sequence[Path], count: int) -> list[tuple[str, int]]:
    """For each folder its engine, and how many answers are those of the checkpoint.

    Raises:
        ValueError: if a folder is for none of the engines.
    """
    translator = mt.Translator.load(checkpoint)
    texts = [pair.src for pair in mt.number_words()["held_out"][:count]]
    expected = translator.translate(texts, max_new_tokens=LONGEST)
    found = []
    for folder in folders:
        engines = [engine for name, engine in ENGINES.items() if (folder / name).exists()]
        if not engines:
            raise ValueError(f"{folder} has none of the files {', '.join(ENGINES)}")
        ((name, answers),) = engines
        found.append((name, sum(map(str.__eq__, answers(folder, texts), expected))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folders", type=Path, nargs="+", metavar="folder")
    parser.add_argument("--count", type=int, default=300, help="how many numbers, 300 if left out")
    args = parser.parse_args()
    rows = same_answers(args.checkpoint, args.folders, args.count)
    for folder, (name, same) in zip(args.folders, rows, strict=True):
        print(f"{folder}, {name}: {same} of {args.count} the same")


if __name__ == "__main__":
    main()
