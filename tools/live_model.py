"""Write what the page "The translator, live" runs: two translators, each as an ONNX graph.

    python -m minitransformer train
    python tools/live_model.py number_words number-words.safetensors
    python -m benchmarks.experiments.variants grammar 0 --save grammar
    python tools/live_model.py grammar grammar

The last argument is whatever `minitransformer.Translator.load` reads. The files go to
`_static/live/` and the model's name: the graph with its weights, the model's configuration, both
tokenizers, and a picture of one translation for readers without JavaScript.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import matplotlib.pyplot as plt
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.export import Dim

import minitransformer as mt
from minitransformer.export.onnx import onnx_graph
from minitransformer.files import write_json

FOLDER = Path(__file__).resolve().parent.parent / "_static" / "live"
EXAMPLES = {
    "number_words": "nine hundred seventy-six thousand forty-two",
    "grammar": "He says that she has brought the child a cake.",
}


class NextToken(nn.Module):
    """What the plain loop of chapter 10 needs: scores of the next token, and attention weights."""

    def __init__(self, model: mt.Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Score the token that follows, and return the attention weights of every head.

        Args:
            source: ids, (1, s), int32.
            target: ids, (1, t), int32, from "begin" on.

        Returns:
            Scores, (v,), and the weights of cross-attention, (layers, h, t, s).
        """
        with mt.record_attention(self.model) as maps:
            logits = self.model(source, target)
        cross = [weights for name, weights in maps.items() if name.endswith("cross_attention")]
        return logits[0, -1], torch.cat(cross)


def to_graph(model: mt.Transformer) -> onnx.ModelProto:
    """The model as `NextToken`, for any lengths up to its `max_len`."""
    for part in model.modules():
        if isinstance(part, mt.ScaledDotProductAttention):
            part.backend = "reference"  # the weights are computed anyway
    longest = model.config.max_len
    ids = (torch.ones(1, 5, dtype=torch.int32), torch.ones(1, 7, dtype=torch.int32))
    with torch.inference_mode():
        return onnx_graph(
            NextToken(model).eval(),
            ids,
            input_names=["source", "target"],
            output_names=["scores", "attention"],
            dynamic_shapes=({1: Dim("s", max=longest)}, {1: Dim("t", max=longest)}),
            optimize=False,  # so that every weight keeps its name and its shape
        )


def load_weights(model: mt.Transformer, graph: onnx.ModelProto) -> None:
    """Give a model the weights that a graph holds.

    Raises:
        ValueError: if one is missing or has another shape.
    """
    stored = {
        tensor.name.removeprefix("model."): torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in graph.graph.initializer
    }
    if model.config.tie_output:
        stored["tgt_embedding.weight"] = stored["output_projection.weight"]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    found = {name: tuple(stored[name].shape) for name in shapes if name in stored}
    if wrong := [name for name in shapes if found.get(name) != shapes[name]]:
        raise ValueError(
            f"the graph must hold {wrong[0]} of shape {shapes[wrong[0]]}, "
            f"found {found.get(wrong[0])}"
        )
    model.load_state_dict({name: stored[name] for name in shapes})


def read_translator(folder: Path) -> mt.Translator:
    """What the package has for a model of the page: the same weights, from the page's graph."""
    config = mt.TransformerConfig(**json.loads((folder / "config.json").read_text("utf-8")))
    model = mt.Transformer(config).eval()
    load_weights(model, onnx.load(folder / "translator.onnx"))
    src_tokenizer, tgt_tokenizer = (
        mt.Tokenizer.load(folder / f"{side}_tokenizer.json") for side in ("src", "tgt")
    )
    return mt.Translator(model, src_tokenizer, tgt_tokenizer)


def draw_example(translator: mt.Translator, text: str, path: Path) -> None:
    """Draw where the heads of the last decoder layer look while the model translates a text."""
    mt.use_book_style()
    model, (src_tokenizer, tgt_tokenizer) = translator.model, translator.tokenizers.values()
    german = translator.translate([text])[0]
    source = src_tokenizer.sequence_ids(text)
    target = tgt_tokenizer.begin(german)
    with torch.inference_mode():
        _, weights = NextToken(model)(torch.tensor([source]), torch.tensor([target]))
    figure = mt.plotting.plot_attention_grid(
        weights[-1],
        tgt_tokenizer.labels(tgt_tokenizer.sequence_ids(german)),
        src_tokenizer.labels(source),
    )
    figure.savefig(path, dpi=100)
    plt.close(figure)


def write(translator: mt.Translator, example: str, folder: Path) -> list[Path]:
    """Write the files of a model; return their paths."""
    draw_example(translator, example, folder / "example.png")
    write_json(asdict(translator.model.config), folder / "config.json")
    for side, tokenizer in translator.tokenizers.items():
        tokenizer.save(folder / f"{side}_tokenizer.json")
    onnx.save_model(to_graph(translator.model), folder / "translator.onnx")
    return sorted(folder.iterdir())


def main(arguments: list[str]) -> int:
    """Load, write, and print what was written; return the exit status."""
    if len(arguments) != 2 or arguments[0] not in EXAMPLES:
        print(__doc__)
        return 2
    name, path = arguments
    for file in write(mt.Translator.load(path), EXAMPLES[name], FOLDER / name):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
