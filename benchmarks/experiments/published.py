"""Published models beside `transformers`: the same weights, the same outputs, in one table.

The settings are those of 33 files `config.json` as they were published, with small sizes. The first
table says how many settings of each are honoured, which ones are passed over because they leave
outputs as they are, and why other files are refused. For the second `transformers` makes each
model, moves every parameter by noise, and saves it as it publishes. Ours reads the folder, and both
compute:

- logits of ragged rows, in float64 and in float32;
- the gradient of a sum of them by each weight, in float64;
- texts, greedily and by a beam of 4 that compares log-probabilities, where a model writes any.

A difference is the largest one, as a share of the largest value where that is above 1. In float64
it is exact up to 1e-10, up to 1e-6 where `transformers` computes rotary angles in float32, and the
weights of experts. (Where
it takes norms in float32, whatever comes in, it is made to take them in float64 here.) In float32
it is exact up to 1e-5, or to twice the distance of `transformers` from itself in float64. Exits
with 1 if any row is not exact.

python -m benchmarks.experiments.published                       every file, random weights thrice
python -m benchmarks.experiments.published --only gpt2 t5-small --seeds 10
python -m benchmarks.experiments.published --device cuda
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.runs import size
from minitransformer import generate, pad_rows
from minitransformer.models import BART, GPT2, T5, Llama, Marian, Mixtral, Qwen3Moe, ViT
from tests.alike import EXACT, ids_of, published, transformers
from tests.models.real_files import REAL_FILES, REFUSED, RealFile, smaller

SINGLE = 1e-5  # in float32
ROUNDED = 1e-6  # where transformers itself computes angles, and routers' weights, in float32
EOS_ID = 3
LONGEST = 9  # tokens that are written
READS = {GPT2: "text", Llama: "text", T5: "source", Marian: "source", BART: "source"}
READS |= {ViT: "pictures", Mixtral: "text", Qwen3Moe: "text"}
"""What a class reads: a text, a source and a target, or pictures; the others a text both ways."""


def theirs_of(file: RealFile, seed: int) -> Any:
    """A small model of `transformers` in float64 with the settings of a file and random weights."""
    torch.manual_seed(seed)
    kind = getattr(transformers, file.theirs)
    theirs = kind(kind.config_class.from_dict(smaller(file.content)))
    if isinstance(getattr(theirs, "final_logits_bias", None), Tensor):  # a buffer of zeros there
        theirs.final_logits_bias = nn.Parameter(theirs.final_logits_bias)
    if theirs.config.model_type == "t5" and not theirs.config.tie_word_embeddings:
        theirs.lm_head.weight = nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    formulas = [m for m in theirs.modules() if hasattr(m, "create_weight")]
    theirs = published(theirs, seed, scale=0.1)
    with torch.no_grad():
        for module in formulas:  # Marian's positions, which are neither learned nor stored
            module.weight.copy_(module.create_weight())
    # What a file says of generation is not compared.
    start = getattr(theirs.config, "decoder_start_token_id", None)
    theirs.generation_config = transformers.GenerationConfig(decoder_start_token_id=start)
    return theirs


# --- both models of one configuration


def unrounded_norm(x: Tensor, own: Any) -> Tensor:
    """What an RMSNorm of `transformers` computes, in the dtype of its input."""
    return own.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + own.variance_epsilon)


class Trial:
    """A pair of models, and inputs for both.

    Args:
        file: what they are.
        seed: of weights and inputs.
        folder: where theirs is saved, and ours read.
        device: where both compute.
    """

    def __init__(self, file: RealFile, seed: int, folder: Path, device: str) -> None:
        self.reads = READS.get(file.ours, "both ways")
        self.folder = folder
        self.theirs = theirs_of(file, seed)
        self.theirs.save_pretrained(folder / "theirs")
        self.ours = file.ours.from_pretrained(folder / "theirs", device)
        self.theirs = self.theirs.to(device)
        for module in self.theirs.modules():
            if hasattr(module, "variance_epsilon"):
                module.forward = partial(unrounded_norm, own=module)
        config = self.theirs.config
        if self.reads == "pictures":
            generator = torch.Generator().manual_seed(seed)
            shape = 4, config.num_channels, config.image_size, config.image_size
            self.pictures = torch.randn(shape, generator=generator).to(device)
            return
        # A decoder of ours that reads plain text has no padding id.
        self.pad_id = -1 if self.reads == "text" else self.ours.config.pad_id
        rows = [ids_of(30, 7 - i, seed=seed + i, low=7).tolist() for i in (0, 3, 1)]
        self.ids = pad_rows(rows, self.pad_id).to(device)
        self.real = self.ids != self.pad_id
        self.targets = ids_of(30, 3, 5, seed=seed + 9, low=7).to(device)
        if self.reads == "source":
            self.targets[:, 0] = config.decoder_start_token_id

    def logits(self, model: Any) -> Tensor:
        """What either model says of the inputs, at real tokens."""
        if self.reads == "pictures":
            outputs = model(self.pictures.to(next(model.parameters()).dtype))
            return outputs if model is self.ours else outputs.logits
        if model is self.ours:
            inputs: dict[str, Tensor] = {}
            outputs = model(self.ids, self.targets) if self.reads == "source" else model(self.ids)
        else:
            inputs = {"input_ids": self.ids.clamp(min=0), "attention_mask": self.real.long()}
            if self.reads == "source":
                inputs["decoder_input_ids"] = self.targets
            found = model(**inputs, return_dict=True)
            outputs = found.logits if hasattr(found, "logits") else found.last_hidden_state
        return outputs if self.reads == "source" else outputs[self.real]

    def gradients(self, model: Any) -> dict[str, Tensor]:
        """By each weight as it is published: gradients take the weights' places in a file."""
        outputs = self.logits(model)
        factors = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
        (outputs.flatten() * factors).sum().backward()
        weights = {parameter: parameter.data for parameter in model.parameters()}
        for parameter, weight in weights.items():
            found = parameter.grad
            parameter.data = torch.zeros_like(weight) if found is None else found
        model.save_pretrained(self.folder / "gradients")
        for parameter, weight in weights.items():
            parameter.data, parameter.grad = weight, None
        return load_file(self.folder / "gradients" / "model.safetensors")

    def same_texts(self, num_beams: int) -> bool | None:
        """Whether both write the same; None where nothing is written."""
        if self.reads not in ("text", "source"):
            return None
        ids, real, start = self.ids.clamp(min=0), self.real.long(), 1
        options = {"num_beams": num_beams, "length_penalty": 0.0, "stop_ids": [EOS_ID]}
        theirs: dict[str, Any] = {"pad_token_id": 0}
        if self.reads == "source":  # ours never writes padding
            options["bos_id"] = self.theirs.config.decoder_start_token_id
            theirs = {"pad_token_id": self.pad_id, "bad_words_ids": [[self.pad_id]]}
        else:  # theirs takes padding on the left
            start, length = ids.size(1), real.sum(dim=1).tolist()
            ids, real = (
                torch.stack([row.roll(start - n) for row, n in zip(rows, length, strict=True)])
                for rows in (ids, real)
            )
        expected = self.theirs.generate(
            ids,
            attention_mask=real,
            max_new_tokens=LONGEST,
            do_sample=False,
            num_beams=num_beams,
            length_penalty=0.0,
            eos_token_id=EOS_ID,
            **theirs,
        )
        found = generate(self.ours, self.ids, max_new_tokens=LONGEST, **options)
        return up_to_end(found) == up_to_end(expected[:, start:])


def up_to_end(texts: Tensor) -> list[list[int]]:
    """Texts without what a row is filled with after its end."""
    rows = texts.tolist()
    return [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in rows]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest one, as a share of the largest value where that is above 1."""
    if ours.shape != theirs.shape:
        return math.inf
    ours, theirs = ours.detach().double(), theirs.detach().double()
    largest = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))
    return math.inf if math.isnan(largest) else largest


def compare(file: RealFile, seed: int, device: str) -> tuple[list[float], list[bool | None]]:
    """Differences of logits, gradients and logits in float32, their own rounding; and texts."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(file, seed, Path(folder), device)
        expected = trial.logits(trial.theirs)
        logits = difference(trial.logits(trial.ours), expected)
        found, gradients = trial.gradients(trial.ours), trial.gradients(trial.theirs)
        for name, values in gradients.items():  # what they store and never use has no gradient
            found.setdefault(name, torch.zeros_like(values))
        gradient = math.inf
        if found.keys() == gradients.keys():
            gradient = max(difference(found[name], gradients[name]) for name in gradients)
        texts = [trial.same_texts(num_beams) for num_beams in (1, 4)]
        single = trial.logits(trial.theirs.float())
        singles = difference(trial.logits(trial.ours.float()), single)
        rounding = difference(single, expected)
    return [logits, gradient, singles, rounding], texts


def different() -> list[str]:
    """Of files whose small models have the same settings the first."""
    found: dict[tuple[str, str], str] = {}
    for name, file in REAL_FILES.items():
        config = file.ours.config_class.from_published(smaller(file.content))
        found.setdefault((file.theirs, repr(config)), name)
    return list(found.values())


def row(name: str, file: RealFile, seeds: Sequence[int], device: str) -> bool:
    """Print a file's row of the table; return whether it is exact."""
    differences, texts = zip(*(compare(file, seed, device) for seed in seeds), strict=True)
    logits, gradient, single, _ = map(max, zip(*differences, strict=True))
    exact = max(logits, gradient) <= (ROUNDED if issubclass(file.ours, Llama) else EXACT)
    exact &= all(single <= max(SINGLE, 2 * rounding) for *_, single, rounding in differences)
    words = []
    for same in zip(*texts, strict=True):  # greedily, by a beam
        exact &= False not in same
        words.append("-" if None in same else "other" if False in same else "same")
    print(
        f"{name:<27}{file.theirs:<28}"
        f"{logits:9.1e}  {gradient:9.1e}  {single:8.1e}  {words[0]:>6}  {words[1]:>6}  "
        f"{'exact' if exact else 'NOT exact'}",
        flush=True,
    )
    return exact


def files() -> None:
    """Print what is done with the settings of real files."""
    print(f"{'published file':<27}{'class':<17}{'layers':>6} {'width':>6} {'size':>11}  settings")
    passed: set[str] = set()
    for name, file in REAL_FILES.items():
        kind, content = file.ours, file.content
        config = kind.config_class.from_published(content)
        with torch.device("meta"):
            count = size(kind(config))
        said = content.keys() - {"architectures", "model_type"}
        honoured = {key for key in said if key in config.keys or key in config.fixed}
        honoured |= said & {"rope_scaling", "rope_theta", "use_sliding_window", "id2label"}
        passed |= said - honoured
        layers = getattr(config, "num_layers", getattr(config, "num_encoder_layers", 0))
        print(
            f"{name:<27}{kind.__name__:<17}{layers:>6} {config.d_model:>6} {count / 1e6:>9.1f} M  "
            f"{len(honoured)} honoured, {len(said - honoured)} passed over"
        )
    print("\n" + fill(f"passed over: {', '.join(sorted(passed))}", 100) + "\n")
    for name, (kind, content, _) in REFUSED.items():
        try:
            kind.config_class.from_published(content)
        except ValueError as error:
            print(f"{name:<21}refused: {str(error).split('; families')[0]}")
        else:
            raise AssertionError(f"{name} was read")
    print(f"\n{len(REAL_FILES)} files read, {len(REFUSED)} refused\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=REAL_FILES, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3, help="how often weights are drawn")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if not args.only:
        files()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {args.device}; small sizes, random weights of {args.seeds} seeds")
    print("largest differences of logits, gradients (float64) and logits (float32); texts\n")
    numbers = "   logits  gradients   float32  greedy  beam 4"
    print(f"{'published file':<27}{'theirs':<28}{numbers}")
    rows = [
        row(name, REAL_FILES[name], range(args.seeds), args.device)
        for name in args.only or different()
    ]
    print(f"\n{sum(rows)} of {len(rows)} exact")
    return int(not all(rows))


if __name__ == "__main__":
    sys.exit(main())
