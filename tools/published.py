"""Compare published models with `transformers`: the real weights, for readers with internet.

    python tools/published.py                                     every model in the list, 5 GB
    python tools/published.py openai-community/gpt2               these models
    python tools/published.py Helsinki-NLP/opus-mt-de-en=folder   its files, from a folder
    python tools/published.py --list                              names, sizes, licences

For each model it prints, ours beside theirs, in float32: the tokens of a text, the logits' largest
difference and their checksum (the sum of their sizes), and what is written or answered, greedily.

A pickle is never opened here. Of what is published as one only, `--convert` has `transformers` read
the weights, without running what else is in it, and write them to a folder, for ours to read.

Exits with 1 unless every model was read and is the same. It takes transformers, huggingface_hub,
and for some tokenizers sentencepiece.
"""

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from minitransformer import generate, models
from minitransformer.models.pretrained import WEIGHTS

NEW_TOKENS = 20
SAME = 1e-4  # of the largest logit


@dataclass(frozen=True)
class Model:
    """A published model, and what is asked of it."""

    name: str  # on the Hugging Face Hub
    kind: str  # our class
    parameters: float  # in millions, as configured
    download: int  # megabytes of its weights, about
    licence: str  # as the Hub says
    text: str | None  # what it reads; None for a picture


APACHE = "Apache 2.0"
SNOW = "Snow is [MASK] and cold."
TO_GERMAN = "translate English to German: The house is small, but it has a garden."
MODELS = (
    Model("openai-community/gpt2", "GPT2", 124.4, 548, "MIT", "The town lies between"),
    Model("HuggingFaceTB/SmolLM2-135M", "Llama", 134.5, 269, APACHE, "Water boils at"),
    Model("Qwen/Qwen2.5-0.5B", "Llama", 494.0, 988, APACHE, "The moon goes round"),
    Model("Qwen/Qwen3-0.6B", "Llama", 596.0, 1503, APACHE, "Bees make honey because"),
    Model("google-bert/bert-base-uncased", "BERTForMaskedLM", 109.5, 440, APACHE, SNOW),
    Model("distilbert/distilbert-base-uncased", "BERTForMaskedLM", 67.0, 268, APACHE, SNOW),
    Model("FacebookAI/roberta-base", "BERTForMaskedLM", 124.7, 499, "MIT", "Snow is <mask>."),
    Model("google-t5/t5-small", "T5", 60.5, 242, APACHE, TO_GERMAN),
    Model("google/flan-t5-small", "T5", 77.0, 308, APACHE, "Answer: which animal barks?"),
    Model("Helsinki-NLP/opus-mt-de-en", "Marian", 73.9, 298, "CC BY 4.0", "Das Haus ist klein."),
    Model("facebook/bart-base", "BART", 139.5, 558, APACHE, "The house is <mask>, but old."),
    Model("google/vit-base-patch16-224", "ViT", 86.6, 346, APACHE, None),
)
TASKS = {
    **dict.fromkeys(("GPT2", "Llama"), "CausalLM"),
    **dict.fromkeys(("T5", "Marian", "BART"), "Seq2SeqLM"),
    "BERTForMaskedLM": "MaskedLM",
    "ViT": "ImageClassification",
}
"""What each class of ours is for, as `transformers` calls it: AutoModelForCausalLM reads GPT2."""


def automatic(model: Model) -> Any:
    """The class of `transformers` that finds the right one."""
    return getattr(import_module("transformers"), f"AutoModelFor{TASKS[model.kind]}")


class Pair:
    """A model of ours and the same one of `transformers`, with their tokenizers.

    `source` is its name on the Hub, or a folder.
    """

    def __init__(self, model: Model, source: str) -> None:
        self.task = TASKS[model.kind]
        self.ours = getattr(models, model.kind).from_pretrained(source, dtype=torch.float32)
        self.theirs = automatic(model).from_pretrained(source, dtype=torch.float32).eval()
        self.start_id = getattr(self.theirs.config, "decoder_start_token_id", None)
        if model.text is not None:
            tokenizers: Any = import_module("transformers").AutoTokenizer
            self.our_tokenizer = models.PublishedTokenizer.from_pretrained(source)
            self.their_tokenizer = tokenizers.from_pretrained(source)

    def token_ids(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens of a text, ours and theirs."""
        ours = self.our_tokenizer.encode(text, parse_special=True, add_special_tokens=True)
        return list(ours), list(self.their_tokenizer(text).input_ids)

    @torch.inference_mode()
    def logits(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Of the same inputs, ours and theirs."""
        if self.task == "ImageClassification":
            return self.ours(inputs), self.theirs(pixel_values=inputs).logits
        if self.task != "Seq2SeqLM":
            return self.ours(inputs), self.theirs(input_ids=inputs).logits
        target = torch.tensor([[self.start_id, *inputs[0, :4].tolist()]])
        theirs = self.theirs(input_ids=inputs, decoder_input_ids=target)
        return self.ours(inputs, target), theirs.logits

    def answers(self, inputs: Tensor, logits: tuple[Tensor, Tensor]) -> list[str]:
        """What each makes of the inputs, in words: ours and theirs."""
        if self.task == "ImageClassification":
            names = self.theirs.config.id2label
            return [names[int(found.argmax())] for found in logits]
        decode = self.our_tokenizer.decode
        if self.task == "MaskedLM":
            at = inputs[0] == self.our_tokenizer.mask_id
            best = (found[0, at][0].topk(5).indices.tolist() for found in logits)
            return [", ".join(decode([index]).strip() for index in ids) for ids in best]
        return [decode(ids.tolist(), skip_special_tokens=False) for ids in self.texts(inputs)]

    def texts(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What both write greedily, without the rules that a file adds to that."""
        eos_id, pad_id = self.theirs.generation_config.eos_token_id, self.ours.config.pad_id
        stop_ids = [eos_id] if isinstance(eos_id, int) else list(eos_id or [])
        options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS}
        rules: dict[str, Any] = options | {"eos_token_id": stop_ids or None, "pad_token_id": 0}
        start = inputs.size(1)
        if self.task == "Seq2SeqLM":  # ours never writes padding
            rules |= {"pad_token_id": pad_id, "bad_words_ids": [[pad_id]]}
            rules["decoder_start_token_id"] = options["bos_id"] = self.start_id
            start = 1
        ours = generate(self.ours, inputs, stop_ids=stop_ids, **options)
        self.theirs.generation_config = type(self.theirs.generation_config)(**rules)
        theirs = self.theirs.generate(inputs, attention_mask=torch.ones_like(inputs))
        return ours[0], theirs[0, start:]


def compare(model: Model, source: str) -> bool:
    """Print what both make of a model; return whether it is the same."""
    pair, same = Pair(model, source), True
    if model.text is None:
        print("  reads   a picture of random colours")
        inputs = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    else:
        ours, theirs = pair.token_ids(model.text)
        same = ours == theirs
        print(f"  reads   {model.text!r}")
        print(f"  tokens  {len(ours)}, {'the same' if same else f'NOT the same: {ours}, {theirs}'}")
        inputs = torch.tensor([ours])
    logits = pair.logits(inputs)
    largest = float((logits[0] - logits[1]).abs().max() / logits[1].abs().max())
    same &= largest <= SAME
    checksums = " and ".join(f"{float(found.double().abs().sum()):.6g}" for found in logits)
    print(f"  logits  {largest:.1e} of the largest apart; checksums {checksums}")
    first, second = pair.answers(inputs, logits)
    print(f"  ours    {first!r}\n  theirs  {second!r}")
    return same and first == second


def attempt(model: Model, folder: str, convert: bool) -> bool:
    """Print as `compare`, or why nothing was read; return whether it is the same."""
    try:
        try:
            return compare(model, folder or model.name)
        except FileNotFoundError as error:
            if folder or not convert:
                raise
            print(f"  {error}\n  transformers reads it and writes it again")
        with TemporaryDirectory() as new:
            return compare(model, converted(model, Path(new)))
    except (ImportError, OSError, ValueError) as error:
        print(f"  not read: {str(error).splitlines()[0]}")
        if f"no {WEIGHTS}" in str(error):
            print("  Only a pickle may be there, which is not opened here. With --convert,")
            print("  transformers reads its weights and writes them as safetensors.")
        return False


def converted(model: Model, folder: Path) -> str:
    """A folder with the weights as `transformers` reads and writes them, and the tokenizer."""
    fetch = import_module("huggingface_hub").snapshot_download
    source = fetch(model.name, ignore_patterns=["*.msgpack", "*.h5", "*.ot", "*.onnx", "onnx/*"])
    for path in Path(source).iterdir():
        if path.suffix in (".json", ".spm", ".model", ".txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    automatic(model).from_pretrained(source).save_pretrained(folder)
    return str(folder)


def table() -> str:
    """The list, as the page on published weights has it."""
    lines = ["| name | class | parameters | download | licence |"]
    lines.append("| --- | --- | ---: | ---: | --- |")
    for model in MODELS:
        size = f"{model.parameters:.1f} M | {model.download:,} MB"
        lines.append(f"| `{model.name}` | `{model.kind}` | {size} | {model.licence} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Compare the models that were named; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="NAME[=FOLDER]")
    parser.add_argument("--list", action="store_true", help="print the list and stop")
    parser.add_argument("--convert", action="store_true", help="what is only a pickle")
    args = parser.parse_args(arguments)
    if args.list:
        print(table())
        return 0
    known = {model.name: model for model in MODELS}
    named = [argument.partition("=") for argument in args.models or known]
    if unknown := [name for name, _, _ in named if name not in known]:
        parser.error(f"{unknown[0]} is not in the list: {', '.join(known)}")
    num_same = 0
    for name, _, folder in named:
        model = known[name]
        print(f"{name}: {model.kind}, {model.parameters:.1f} M parameters, {model.licence}")
        same = attempt(model, folder, args.convert)
        print(f"  {'the same' if same else 'NOT the same'}", flush=True)
        num_same += same
    print(f"{num_same} of {len(named)} the same")
    return int(num_same < len(named))


if __name__ == "__main__":
    sys.exit(main())
