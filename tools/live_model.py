"""Write what the page "The model, live" runs: two translators and a writer, each in a folder.

    python -m minitransformer train
    python tools/live_model.py number_words number-words.safetensors
    python -m benchmarks.experiments.variants grammar 0 --save grammar
    python tools/live_model.py grammar grammar
    head -c 1003855 input.txt > train.txt
    python -m minitransformer tokens train.txt --to tokens --vocab-size 1024
    python -m minitransformer train --tokens tokens --steps 1600
    python tools/live_model.py shakespeare language-model.safetensors

`input.txt` are the plays that `benchmarks/experiments/speedrun.py` downloads; nine tenths are
learned. The last argument of this tool is whatever `TextModel.load` reads. The folders in
`_static/live/` are those of `TextModel.save`, with weights in float16: half as many bytes, and
the page and the package both compute with the rounded weights, in float32.
"""

import sys
from pathlib import Path
from typing import Any

from minitransformer.models.pretrained import CARD
from minitransformer.training.translator import TextModel

FOLDER = Path(__file__).resolve().parent.parent / "_static" / "live"
TRANSLATORS, WRITER = ("number_words", "grammar"), "shakespeare"
MODELS = (*TRANSLATORS, WRITER)


def read_model(folder: Path) -> Any:
    """What the package has for a model of the page: the page's weights, in float32."""
    model = TextModel.load(folder)
    model.model.float()
    return model


def write(model: TextModel, folder: Path) -> list[Path]:
    """Write the files of a model, rounded to float16; return their paths."""
    model.model.half()
    model.save(folder)
    (folder / CARD).unlink()  # the page says what its models are
    return sorted(folder.iterdir())


def main(arguments: list[str]) -> int:
    """Load, write, and print what was written; return the exit status."""
    if len(arguments) != 2 or arguments[0] not in MODELS:
        print(__doc__)
        return 2
    name, path = arguments
    for file in write(TextModel.load(path), FOLDER / name):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
