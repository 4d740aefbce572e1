"""Published models beside `transformers`: the same weights, the same outputs, in one table.

For each architecture `transformers` makes models from random configurations of odd sizes, moves
every parameter by noise, and saves them as it publishes. Ours reads the folders, and both compute:

- logits of ragged rows, in float64 and in float32;
- the gradient of a sum of them by each weight, in float64;
- texts, greedily and by a beam of 4 that compares log-probabilities, where a model writes any.

A difference is the largest one, as a share of the largest value where that is above 1. In float64
it is exact up to 1e-10, up to 1e-6 where `transformers` computes rotary angles in float32. (Where
it takes norms in float32, whatever comes in, it is made to take them in float64 here.) In float32
it is exact up to 1e-5, or to twice the distance of `transformers` from itself in float64. Exits
with 1 if any row is not exact.

Before it, another table reads the `config.json` of models as they were published: how many settings
are honoured, which ones are passed over because they leave outputs as they are, or why a file is
refused.

python -m benchmarks.experiments.published               three configurations of each architecture
python -m benchmarks.experiments.published --only GPT-2 T5 --configurations 10
python -m benchmarks.experiments.published --device cuda
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from textwrap import fill
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.runs import size
from minitransformer import generate, pad_rows
from minitransformer.models import BART, GPT2, T5, BERTForMaskedLM, Llama, Marian, ViT
from tests.alike import EXACT, ROUNDED, ids_of, published, transformers
from tests.models.real_files import REAL_FILES, REFUSED

SINGLE = 1e-5  # in float32
EOS_ID = 3
LONGEST = 9  # tokens that are written
VOCAB_SIZE = 37
Settings = dict[str, Any]


@dataclass
class Architecture:
    """An architecture: its two classes, and settings of it that are drawn at random.

    Attributes:
        ours: our class.
        theirs: the name of theirs.
        settings: what their configuration is made from.
        reads: what it reads: "text", a "source" and a target, a text "both ways", or "pictures".
        tolerance: what is exact in float64.
    """

    ours: Any
    theirs: str
    settings: Callable[[Random], Settings]
    reads: str = "text"
    tolerance: float = EXACT


def gpt2(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "n_embd": heads * draw.choice([3, 4, 7]),
        "n_head": heads,
        "n_layer": draw.choice([1, 2, 3]),
        "n_inner": draw.choice([None, 22, 35]),
        "n_positions": 20,
        "activation_function": draw.choice(["gelu_new", "gelu", "relu", "silu"]),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "tie_word_embeddings": draw.choice([True, True, False]),
    }


def llama(draw: Random) -> Settings:
    heads, shared = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    width = draw.choice([4, 6, 8])
    scaled = {"factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 300.0}
    rope = [
        {"rope_type": "default", "rope_theta": draw.choice([77.0, 10_000.0, 1e6])},
        {"rope_type": "linear", "factor": 2.5, "rope_theta": 10_000.0},
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **scaled},
        {"rope_type": "yarn", **scaled},
    ]
    return {
        "hidden_size": heads * shared * width,
        "num_attention_heads": heads * shared,
        "num_key_value_heads": heads,
        "head_dim": draw.choice([width, width + 2]),
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "max_position_embeddings": 40,
        "rope_parameters": draw.choice(rope),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.choice([True, False]),
        "attention_bias": draw.choice([True, False]),
        "mlp_bias": draw.choice([True, False]),
    }


def mistral(draw: Random) -> Settings:
    settings = without(llama(draw), "attention_bias", "mlp_bias")
    return settings | {"sliding_window": draw.choice([None, 2, 3, 5])}


def qwen2(draw: Random) -> Settings:
    settings = without(llama(draw), "attention_bias", "mlp_bias", "head_dim")
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    return settings | draw.choice([{}, windows])


def qwen3(draw: Random) -> Settings:
    settings = without(llama(draw), "mlp_bias")
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return settings | draw.choice([{}, windows])


def smollm2(draw: Random) -> Settings:
    width = draw.choice([2, 4, 6])
    return {
        "hidden_size": 9 * width,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": draw.choice([2, 4]),
        "intermediate_size": 24 * width,
        "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
    }


def bert(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "hidden_size": heads * draw.choice([3, 4, 7]),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "max_position_embeddings": 16,
        "type_vocab_size": draw.choice([1, 2]),
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu"]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-3]),
        "pad_token_id": draw.choice([0, 1, 4]),
        "tie_word_embeddings": draw.choice([True, True, False]),
    }


def distilbert(draw: Random) -> Settings:
    heads = draw.choice([1, 2, 3, 5])
    return {
        "dim": heads * draw.choice([4, 6]),
        "n_heads": heads,
        "n_layers": draw.choice([1, 2, 3]),
        "hidden_dim": draw.choice([22, 35]),
        "max_position_embeddings": 16,
        "activation": draw.choice(["gelu", "relu"]),
        "pad_token_id": draw.choice([0, 4]),
    }


def t5(draw: Random) -> Settings:
    num_buckets, max_distance = draw.choice([(8, 11), (9, 20), (32, 128)])
    layers = draw.choice([1, 2, 3])
    return {
        "d_model": draw.choice([9, 12, 20]),
        "d_kv": draw.choice([3, 4, 5]),
        "num_heads": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([22, 35]),
        "num_layers": layers,
        "num_decoder_layers": draw.choice(range(1, layers + 1)),  # with more theirs cannot cache
        "relative_attention_num_buckets": num_buckets,
        "relative_attention_max_distance": max_distance,
        "layer_norm_epsilon": draw.choice([1e-6, 1e-3]),
        "feed_forward_proj": draw.choice(["relu", "gelu"]),
        "decoder_start_token_id": 0,
    }


def t5_1_1(draw: Random) -> Settings:
    gates = ["gated-gelu", "gated-gelu", "gated-silu"]
    return t5(draw) | {"feed_forward_proj": draw.choice(gates), "tie_word_embeddings": False}


def marian(draw: Random) -> Settings:
    pad_id = draw.choice([36, 5])
    return bart(draw) | {"pad_token_id": pad_id, "decoder_start_token_id": pad_id}


def bart(draw: Random) -> Settings:
    return {
        "d_model": draw.choice([12, 18, 30]),
        **{f"{side}_layers": draw.choice([1, 2, 3]) for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": draw.choice([1, 2, 3]) for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": draw.choice([22, 35]) for side in ("encoder", "decoder")},
        "max_position_embeddings": 18,
        "activation_function": draw.choice(["swish", "gelu", "relu"]),
        "scale_embedding": draw.choice([True, False]),
        "forced_eos_token_id": None,  # else the longest texts end in it, however improbable
    }


def vit(draw: Random) -> Settings:
    heads, (rows, columns) = draw.choice([1, 2, 3, 5]), draw.choice([(2, 2), (3, 2), (1, 4)])
    return {
        "hidden_size": heads * draw.choice([3, 4, 7]),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "intermediate_size": draw.choice([22, 35]),
        "patch_size": (rows, columns),
        "image_size": (rows * draw.choice([2, 3]), columns * draw.choice([1, 4])),
        "num_channels": draw.choice([1, 2, 3]),
        "num_labels": 5,
        "hidden_act": draw.choice(["gelu", "relu"]),
        "qkv_bias": draw.choice([True, False]),
        "layer_norm_eps": draw.choice([1e-12, 1e-3]),
    }


def without(settings: Settings, *keys: str) -> Settings:
    """The settings that an architecture knows."""
    return {key: value for key, value in settings.items() if key not in keys}


ARCHITECTURES = {
    "GPT-2": Architecture(GPT2, "GPT2LMHeadModel", gpt2),
    "Llama": Architecture(Llama, "LlamaForCausalLM", llama, tolerance=ROUNDED),
    "SmolLM2": Architecture(Llama, "LlamaForCausalLM", smollm2, tolerance=ROUNDED),
    "Mistral": Architecture(Llama, "MistralForCausalLM", mistral, tolerance=ROUNDED),
    "Qwen2": Architecture(Llama, "Qwen2ForCausalLM", qwen2, tolerance=ROUNDED),
    "Qwen3": Architecture(Llama, "Qwen3ForCausalLM", qwen3, tolerance=ROUNDED),
    "BERT": Architecture(BERTForMaskedLM, "BertForMaskedLM", bert, "both ways"),
    "RoBERTa": Architecture(BERTForMaskedLM, "RobertaForMaskedLM", bert, "both ways"),
    "DistilBERT": Architecture(BERTForMaskedLM, "DistilBertForMaskedLM", distilbert, "both ways"),
    "T5": Architecture(T5, "T5ForConditionalGeneration", t5, "source"),
    "T5-1.1": Architecture(T5, "T5ForConditionalGeneration", t5_1_1, "source"),
    "Marian": Architecture(Marian, "MarianMTModel", marian, "source"),
    "BART": Architecture(BART, "BartForConditionalGeneration", bart, "source"),
    "ViT": Architecture(ViT, "ViTForImageClassification", vit, "pictures"),
}


def theirs_of(architecture: Architecture, seed: int) -> Any:
    """A model of `transformers` in float64, from a random configuration, with random weights."""
    draw = Random(f"{architecture.theirs} {seed}")
    torch.manual_seed(seed)
    kind = getattr(transformers, architecture.theirs)
    special = {} if architecture.reads == "pictures" else {"vocab_size": VOCAB_SIZE}
    theirs = kind(kind.config_class(**special, **architecture.settings(draw)))
    if isinstance(getattr(theirs, "final_logits_bias", None), Tensor):  # a buffer of zeros there
        theirs.final_logits_bias = nn.Parameter(theirs.final_logits_bias)
    if theirs.config.model_type == "t5" and not theirs.config.tie_word_embeddings:
        theirs.lm_head.weight = nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    formulas = [m for m in theirs.modules() if hasattr(m, "create_weight")]
    theirs = published(theirs, seed, scale=0.1)
    with torch.no_grad():
        for module in formulas:  # Marian's positions, which are neither learned nor stored
            module.weight.copy_(module.create_weight())
    return theirs


# --- both models of one configuration


def unrounded_norm(x: Tensor, own: Any) -> Tensor:
    """What an RMSNorm of `transformers` computes, in the dtype of its input."""
    return own.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + own.variance_epsilon)


class Trial:
    """A pair of models, and inputs for both.

    Args:
        architecture: what they are.
        seed: of configuration, weights and inputs.
        folder: where theirs is saved, and ours read.
        device: where both compute.
    """

    def __init__(self, architecture: Architecture, seed: int, folder: Path, device: str) -> None:
        self.reads, self.folder = architecture.reads, folder
        self.theirs = theirs_of(architecture, seed)
        self.theirs.save_pretrained(folder / "theirs")
        self.ours = architecture.ours.from_pretrained(folder / "theirs", device)
        self.theirs = self.theirs.to(device)
        for module in self.theirs.modules():
            if hasattr(module, "variance_epsilon"):
                module.forward = partial(unrounded_norm, own=module)
        config = self.theirs.config
        if self.reads == "pictures":
            generator = torch.Generator().manual_seed(seed)
            shape = 4, config.num_channels, *config.image_size
            self.pictures = torch.randn(shape, generator=generator).to(device)
            return
        # A decoder of ours that reads plain text has no padding id.
        self.pad_id = -1 if self.reads == "text" else config.pad_token_id
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
            outputs = model(**inputs).logits
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


def compare(
    architecture: Architecture, seed: int, device: str
) -> tuple[list[float], list[bool | None]]:
    """Differences of logits, gradients and logits in float32, their own rounding; and texts."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(architecture, seed, Path(folder), device)
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


def row(name: str, architecture: Architecture, seeds: Sequence[int], device: str) -> bool:
    """Print an architecture's row of the table; return whether it is exact."""
    differences, texts = zip(*(compare(architecture, seed, device) for seed in seeds), strict=True)
    logits, gradient, single, _ = map(max, zip(*differences, strict=True))
    exact = max(logits, gradient) <= architecture.tolerance
    exact &= all(single <= max(SINGLE, 2 * rounding) for *_, single, rounding in differences)
    words = []
    for same in zip(*texts, strict=True):  # greedily, by a beam
        exact &= False not in same
        words.append("-" if None in same else "other" if False in same else "same")
    print(
        f"{name:<12}{architecture.ours.__name__:<17}{architecture.theirs:<28}"
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
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES)
    parser.add_argument("--configurations", type=int, default=3, help="of each architecture")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if not args.only:
        files()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}, {args.device}; {args.configurations} random configurations each")
    print("largest differences of logits, gradients (float64) and logits (float32); texts\n")
    numbers = "   logits  gradients   float32  greedy  beam 4"
    print(f"{'':<12}{'ours':<17}{'theirs':<28}{numbers}")
    rows = [
        row(name, ARCHITECTURES[name], range(args.configurations), args.device)
        for name in args.only or ARCHITECTURES
    ]
    print(f"\n{sum(rows)} of {len(rows)} exact")
    return int(not all(rows))


if __name__ == "__main__":
    sys.exit(main())
