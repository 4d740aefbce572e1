"""Write what the page "The model, live" runs: two translators, each in a folder.

    python -m minitransformer train
    python tools/live_model.py number_words number-words.safetensors
    python -m benchmarks.experiments.variants grammar 0 --save grammar
    python tools/live_model.py grammar grammar

The last argument is whatever `minitransformer.Translator.load` reads. The folders in
`_static/live/` are those of `Translator.save`, with weights in float16: half as many bytes, and
the page and the package both compute with the rounded weights, in float32.
"""

import sys
from pathlib import Path

import minitransformer as mt
from minitransformer.models.pretrained import CARD

FOLDER = Path(__file__).resolve().parent.parent / "_static" / "live"
MODELS = ("number_words", "grammar")


def read_translator(folder: Path) -> mt.Translator:
    """What the package has for a model of the page: the page's weights, in float32."""
    translator = mt.Translator.load(folder)
    translator.model.float()
    return translator


def write(translator: mt.Translator, folder: Path) -> list[Path]:
    """Write the files of a model, rounded to float16; return their paths."""
    translator.model.half()
    translator.save(folder)
    (folder / CARD).unlink()  # the page says what its models are
    return sorted(folder.iterdir())


def main(arguments: list[str]) -> int:
    """Load, write, and print what was written; return the exit status."""
    if len(arguments) != 2 or arguments[0] not in MODELS:
        print(__doc__)
        return 2
    name, path = arguments
    for file in write(mt.Translator.load(path), FOLDER / name):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
