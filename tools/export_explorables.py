"""Compute what nine explorables of the website show, and write it beside them.

    python -m tools.export_explorables    when the package computes something else; a test says so

The other explorables compute in the browser what they show. These need more: the merges of a text
(chapter 1), gradients of deep stacks (7), losses of stored runs (9), probabilities of two trained
models (10), a BERT (11), a ViT (14), the parts of larger models (18), and means of the live page's
model (19). A test checks them. Training takes five minutes, and gives other digits on each kind of
processor.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import minitransformer as mt
from benchmarks.experiments import bert, vit
from benchmarks.runs import RESULTS, read_json
from minitransformer.inference.beam_search import beam_search
from minitransformer.inference.decoding import CachedDecoding
from minitransformer.inspection import record_activations
from minitransformer.models import GPT2Config, LlamaConfig
from minitransformer.planning import HARDWARE, parts_of
from minitransformer.tokenization.byte_pair_encoding import learn_merges
from minitransformer.training.config import TrainingConfig
from minitransformer.training.trainer import Trainer

FOLDER = Path(__file__).resolve().parent.parent / "_static" / "explorables"

FIVE_WORDS = ["zwei", "zweig", "zwanzig", "vierzig", "fünfzig"]
LEADERS = 5  # pairs that are shown of each state

STACKS = ("post-norm", "pre-norm", "pre-norm, no final norm")
DEPTHS = (2, 4, 8, 16, 32, 64)

NUMBER = 81_234
WIDEST, LONGEST = 5, 16
ALPHAS = [tenth / 10 for tenth in range(21)]

MODELS: dict[str, GPT2Config | LlamaConfig] = {
    "GPT-2": GPT2Config(),
    "GPT-2 XL": GPT2Config(d_model=1600, num_heads=25, num_layers=48),
    "LLaMA 7B": LlamaConfig(),
    "LLaMA 65B": LlamaConfig(d_model=8192, num_heads=64, num_layers=80, d_ff=22_016),
}

PROMPTS = ['raises an "Attribute', 'The "while" statement', "If the"]  # sure, less, not at all
SHOWN = 10  # tokens that have a bar each

MEAN_OVER = 300  # numbers


# --- chapter 1 -------------------------------------------------------------------------------


def bpe_stepper() -> list[dict[str, Any]]:
    """What BPE learns from the five words, and from the numbers that chapter 1 trains on."""
    draw = random.Random(1)
    numbers = [mt.number_in_words(draw.randrange(10**6), "de") for _ in range(3000)]
    return [
        {"name": "five words", "words": FIVE_WORDS, **merging(FIVE_WORDS, 20)},
        {"name": "3,000 German numbers", "words": numbers[:4], **merging(numbers, 60)},
    ]


def merging(text: Sequence[str], num_merges: int) -> dict[str, Any]:
    """The letters of a text, and what holds after 0, 1, 2, ... merges.

    A state says how many tokens the text has, and the most frequent pairs, each as left, right,
    count. The first of them is merged next.
    """
    letters = sorted({letter for word in text for letter in word})
    ids = {letter: chr(index) for index, letter in enumerate(letters)}
    words = Counter("".join(ids[letter] for letter in word) for word in text)
    tokens, merges = learn_merges(words, letters, len(letters) + num_merges)
    states = []
    for new in range(len(letters), len(tokens) + 1):
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for left, right in pairwise(word):
                counts[left + right] += count
        leaders = sorted(counts, key=lambda pair: (-counts[pair], pair))[:LEADERS]
        pairs = [[*(tokens[ord(each)] for each in pair), counts[pair]] for pair in leaders]
        length = sum(len(word) * count for word, count in words.items())
        states.append({"tokens": length, "pairs": pairs})
        if new < len(tokens):
            left, right = merges[new - len(letters)]
            pair = chr(tokens.index(left)) + chr(tokens.index(right))
            words = Counter({word.replace(pair, chr(new)): count for word, count in words.items()})
    return {"letters": letters, "states": states}


# --- chapter 7 -------------------------------------------------------------------------------


def norm_depth() -> dict[str, dict[int, dict[str, list[float]]]]:
    """By kind of stack and depth: the size of rows, and a gradient's length, of each layer.

    The stacks, inputs and seeds are chapter 7's; a number is the geometric mean over the seeds.
    """
    content: dict[str, dict[int, dict[str, list[float]]]] = {}
    for kind, depth in product(STACKS, DEPTHS):
        logs = torch.stack([fresh_stack(kind, depth, seed) for seed in range(4)]).log()
        rounded = [
            [float(f"{number:.3g}") for number in row.tolist()] for row in logs.mean(dim=0).exp()
        ]
        content.setdefault(kind, {})[depth] = dict(zip(("size", "gradient"), rounded, strict=True))
    return content


def fresh_stack(kind: str, depth: int, seed: int) -> Tensor:
    """Sizes of the layers' rows and gradients of their feed-forward matrices, (2, depth)."""
    torch.manual_seed(seed)
    first = kind != "post-norm"
    layers = [mt.EncoderLayer(32, 4, 64, dropout=0.0, norm_first=first) for _ in range(depth)]
    stack = mt.Encoder(layers, mt.LayerNorm(32) if kind == STACKS[1] else None)
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    sizes: list[float] = []
    for layer in layers:
        layer.register_forward_hook(
            lambda module, args, output: sizes.append(output.square().mean().sqrt().item())
        )
    generator = torch.Generator().manual_seed(seed)
    x, weights = (torch.randn(2, 9, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    matrices = [stack.get_parameter(f"layers.{i}.feed_forward.w_2.weight") for i in range(depth)]
    loss = (stack.double()(x) * weights).mean()
    gradients = [gradient.norm().item() for gradient in torch.autograd.grad(loss, matrices)]
    return torch.tensor([sizes, gradients], dtype=torch.float64)


# --- chapter 9 -------------------------------------------------------------------------------


def warm_up() -> dict[str, Any]:
    """The losses that `benchmarks/experiments/warm_up.py` found, with two decimals."""
    found = read_json(RESULTS / "warm_up.json")
    for run in found["runs"]:
        run["losses"] = [[round(loss, 2) for loss in each] for each in run["losses"]]
    return {"steps": found["steps"], "unigram": round(found["unigram"], 2), "runs": found["runs"]}


# --- chapter 10 ------------------------------------------------------------------------------


def beginner(steps: int = 175) -> tuple[mt.Transformer, mt.WordTokenizer, mt.BPETokenizer]:
    """The translator of chapter 10 that is not done learning, after so many steps."""
    train = mt.number_words(seed=0)["train"]
    src_tokenizer = mt.WordTokenizer.train(pair.src for pair in train)
    tgt_tokenizer = mt.BPETokenizer.train((pair.tgt for pair in train), vocab_size=305)
    config = mt.TransformerConfig(
        src_vocab_size=src_tokenizer.vocab_size,
        tgt_vocab_size=tgt_tokenizer.vocab_size,
        d_model=64,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=256,
        norm_first=True,
        max_len=128,
    )
    model = mt.Transformer(config, torch.Generator().manual_seed(10))
    settings = TrainingConfig(steps=400, warmup_steps=50, peak_learning_rate=6e-3, seed=10)
    Trainer(model, train, src_tokenizer, tgt_tokenizer, settings).fit(until=steps, progress=False)
    return model.eval(), src_tokenizer, tgt_tokenizer


class Recorder:
    """The model's side of a beam search, which notes what may follow each beginning."""

    def __init__(self, step: CachedDecoding, following: dict[tuple[int, ...], Tensor]) -> None:
        self.step, self.prompts = step, step.prompts
        self.following = following
        self.texts: list[tuple[int, ...]] = [()]

    def __call__(self, ids: Tensor) -> Tensor:
        if ids is not self.prompts:
            new = ids[:, 0].tolist()
            self.texts = [(*text, token) for text, token in zip(self.texts, new, strict=True)]
        logits = self.step(ids)
        self.following.update(zip(self.texts, logits.log_softmax(dim=-1), strict=True))
        return logits

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.texts = [self.texts[row] for row in rows.tolist()]
        self.step.select(rows, sources)


@torch.inference_mode()
def beam_tree(
    model: mt.Transformer, src_tokenizer: mt.WordTokenizer, tgt_tokenizer: mt.BPETokenizer
) -> dict[str, Any]:
    """A sentence, and all next tokens that beams of 1 to 5 look at while they translate it.

    Of what may follow a beginning, one token more than the widest beam is needed: the end may be
    among the best, and ends a text without taking a place.
    """
    source = mt.number_in_words(NUMBER, "en")
    src = torch.tensor([src_tokenizer.sequence_ids(source)])
    is_stop = torch.arange(tgt_tokenizer.vocab_size) == tgt_tokenizer.eos_id
    never = torch.tensor([tgt_tokenizer.pad_id])
    following: dict[tuple[int, ...], Tensor] = {}
    for width in range(1, WIDEST + 1):
        for alpha in ALPHAS:
            beam_search(
                Recorder(CachedDecoding(model, src, tgt_tokenizer.bos_id, LONGEST), following),
                num_beams=width,
                length_penalty=alpha,
                max_new_tokens=LONGEST,
                is_stop=is_stop,
                restrict=lambda _, logits: logits.index_fill(-1, never, -torch.inf),
            )
    rows = {}
    for text, log_probs in following.items():
        highest, ids = log_probs.index_fill(-1, never, -torch.inf).topk(WIDEST + 1)
        rounded = [round(log_prob, 4) for log_prob in highest.tolist()]
        row = map(list, zip(tgt_tokenizer.labels(ids.tolist()), rounded, strict=True))
        rows[" ".join(tgt_tokenizer.labels(text))] = [*row]
    return {
        "source": source,
        "reference": mt.number_in_words(NUMBER, "de"),
        "longest": LONGEST,
        "end": tgt_tokenizer.special_tokens[tgt_tokenizer.eos_id],
        "next": rows,
    }


def writer() -> tuple[mt.DecoderOnlyTransformer, mt.BPETokenizer]:
    """A language model like the one of chapter 10, trained on all of Python's help pages."""
    texts = list(topics.values())
    tokenizer = mt.BPETokenizer.train(texts, vocab_size=5 + 256 + 1000)
    sizes = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 512, "max_len": 512}
    config = mt.TransformerConfig.decoder_only(
        tokenizer.vocab_size, norm_first=True, positional_encoding="rotary", **sizes
    )
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(0))
    settings = TrainingConfig(
        steps=400,
        batch_size=6,
        context_length=128,
        warmup_steps=50,
        peak_learning_rate=3e-3,
        label_smoothing=0.0,
    )
    mt.LanguageModelTrainer(model, texts, tokenizer, settings).fit(progress=False)
    return model.eval(), tokenizer


@torch.inference_mode()
def next_token(
    model: mt.DecoderOnlyTransformer, tokenizer: mt.BPETokenizer
) -> list[dict[str, Any]]:
    """What may follow some texts: all log-probabilities, the highest first; the first tokens."""
    content = []
    for prompt in PROMPTS:
        log_probs = model(torch.tensor([tokenizer.encode(prompt)]))[0, -1].log_softmax(dim=-1)
        highest, ids = log_probs.sort(descending=True, stable=True)
        tokens = tokenizer.labels(ids[:SHOWN].tolist())
        rounded = [round(log_prob, 2) for log_prob in highest.tolist()]
        content.append({"prompt": prompt, "tokens": tokens, "log_probs": rounded})
    return content


# --- chapter 11 ------------------------------------------------------------------------------


def filler() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of chapter 11's BERT in float16, and its tokenizer."""
    texts = bert.Texts()
    state = bert.pre_train(texts, bert.SETTINGS["15 %"], 0).state_dict()
    del state["output_projection.weight"]  # the embedding's
    sizes = {name: bert.SHAPE[name] for name in ("d_model", "num_heads", "max_len")}
    kind = {"num_encoder_layers": 2, "norm_first": False, "activation": "gelu", "eps": 1e-12}
    content = {"config": sizes | kind, "tokenizer": texts.tokenizer.to_dict()}
    return {name: tensor.half() for name, tensor in state.items()}, content


# --- chapter 14 ------------------------------------------------------------------------------


def reader() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of chapter 14's ViT in float16, and the first ten digits that it did not see."""
    x, y = vit.read_pictures("digits")
    held_out, rest = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).split(
        [vit.HELD_OUT["digits"], len(x) - vit.HELD_OUT["digits"]]
    )
    model = vit.new_model("vit", "digits", 0, {})
    vit.train(model, x[rest], y[rest], 8e-3, 0, moved=False)
    weights = {name: tensor.half() for name, tensor in model.state_dict().items()}
    matrix = "embedding.projection.weight"  # a matrix for the browser: (d, 1, 2, 2) to (d, 4)
    weights[matrix] = weights[matrix].flatten(1)
    sizes = {name: vit.SHAPE[name] for name in ("d_model", "num_heads", "eps")}
    kind = {"num_encoder_layers": 2, "norm_first": True, "activation": "gelu"}
    shown = held_out[:SHOWN]
    return weights, {
        "config": sizes | kind,
        "mean": [round(grey, 4) for grey in x[rest].mean(dim=0).flatten().tolist()],
        "pictures": [
            {"label": label, "pixels": pixels}
            for label, pixels in zip(
                y[shown].tolist(), (16 * x[shown]).int().flatten(1).tolist(), strict=True
            )
        ],
    }


# --- chapter 18 ------------------------------------------------------------------------------


def planner() -> dict[str, dict[str, Any]]:
    """What `mt.plan` counts of a few models, and its devices."""
    models = {}
    for name, config in MODELS.items():
        layers, outside = parts_of(config)
        models[name] = {
            "width": config.d_model,
            "vocabulary": config.vocab_size,
            "length": config.max_len,
            "layers": len(layers),
            "layer": asdict(layers[0]),
            "outside": asdict(outside),
        }
    return {"models": models, "hardware": {name: asdict(it) for name, it in HARDWARE.items()}}


# --- chapter 19 ------------------------------------------------------------------------------


@torch.inference_mode()
def head_means() -> dict[str, list[float]]:
    """Mean outputs of the heads of the live page's numbers model, over numbers and positions."""
    translator = mt.Translator.load(FOLDER.parent / "live" / "number_words")
    translator.model.float()  # from float16, as the page
    english, german = translator.tokenizers.values()
    given: dict[str, list[Tensor]] = {}
    for number in random.Random(19).sample(range(1_000_000), MEAN_OVER):
        src = torch.tensor([english.sequence_ids(mt.number_in_words(number, "en"))])
        tgt = torch.tensor([german.begin(mt.number_in_words(number, "de"))])
        with record_activations(translator.model) as found:
            translator.model(src, tgt)
        for site in filter(lambda site: site.endswith(".heads"), found):
            given.setdefault(site, []).append(found[site][0])  # (h, q, e)
    return {
        f"{site}.{head}": [round(x, 4) for x in one.mean(0).tolist()]
        for site, outputs in given.items()
        for head, one in enumerate(torch.cat(outputs, 1))  # (q, e)
    }


if __name__ == "__main__":
    models = {"masked_words": filler(), "patch_attention": reader()}
    for name, (weights, _) in models.items():
        save_file(weights, FOLDER / f"{name}.safetensors")
    contents = {name: content for name, (_, content) in models.items()} | {
        "head_means": head_means(),
        "bpe_stepper": bpe_stepper(),
        "norm_depth": norm_depth(),
        "warm_up": warm_up(),
        "beam_tree": beam_tree(*beginner()),
        "next_token": next_token(*writer()),
        "planner": planner(),
    }
    for name, content in contents.items():
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
