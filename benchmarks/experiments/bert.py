"""What filling in blanks is worth for another task, at the size of chapter 11.

    python -m benchmarks.experiments.bert

A small BERT is trained to fill in blanks in Python's help topics and the docstrings of its standard
library. Then it is trained for two tasks, with 12 or 48 labelled docstrings of each of eight
packages: `order`, whether the first 16 words stand as they did or are shuffled; `package`, from
which of the eight a docstring comes. Beside it the same model without that training, the trained
one kept as it is (frozen) with a linear classifier on the mean of its vectors, and a linear
classifier on counts of words (tf-idf); and for `order` one on a single number, how usual a text's
pairs of tokens are in what was read (counted pairs). All read the same 30 tokens. The held-out
docstrings are the same in all runs, and no training sees them.

A seed draws the weights, the blanks, the order, and which docstrings are labelled; it is the same
for all that are compared. Rates of fine-tuning are chosen with a seed of its own on labelled
docstrings that are neither trained on nor held out. One core takes about 20 minutes. `--sst2`
trains the same models on 4,000 sentences of film reviews (SST-2, which it fetches) instead, and
writes `bert_sst2.json`.
"""

import ast
import math
import random
import re
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from benchmarks.runs import Row, Runs, downloaded, fingerprint, options, paired, write_json
from minitransformer import WordPieceTokenizer, models, pad_rows

TASKS = ("order", "package")
FAMILIES = (
    *("asyncio", "email", "importlib", "logging"),
    *("multiprocessing", "unittest", "xml", "_pydecimal"),
)
NOT_READ = {"test", "tests", "idlelib", "lib2to3", "site-packages", "tkinter", "turtledemo"}
HELD_OUT, MOST_LABELLED, WORDS = 80, 48, 16
SHAPE: dict[str, Any] = {"d_model": 64, "num_heads": 2, "num_layers": 2, "d_ff": 256, "max_len": 32}
SHAPE |= {"dropout": 0.0, "num_labels": len(FAMILIES)}
PRE_TRAINING: dict[str, Any] = {
    "steps": 1200,
    "batch_size": 32,
    "rate": 4e-3,
    "vocab_size": 2000,
    "start": 0.06,
}
FINE_TUNING: dict[str, Any] = {"steps": 150, "batch_size": 16}
RATES = (3e-4, 1e-3, 3e-3)
LABELLED = (12, 48)
SELECTION_SEED = 100
SETTINGS: dict[str, dict[str, Any]] = {
    "15 %": {"share": 0.15},
    "30 %": {"share": 0.3},
    "60 %": {"share": 0.6},
    "15 %, always [MASK]": {"share": 0.15, "masked": 1.0, "replaced": 0.0},
}
Batch = tuple[list[str], Tensor, Tensor]
"""Texts, their ids as rows, and their classes."""
Shares = dict[str, dict[str, float]]
PAD, BEGIN, END, MASK, SPECIAL = 0, 1, 2, 4, range(5)
SST2 = (
    "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/"
    "457ffd83de90a9d6d472d8ffc31bbffe40a8b236/data/SST2/"
)
SST2_HASHES = {
    "train.tsv": "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
    "dev.tsv": "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
}


def plain(text: str) -> str:
    """The paragraphs of prose in a text: small letters, no accents, no code, no marks of markup."""
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = " ".join(re.sub(r"[`*\"]+", "", paragraph).split())
        letters = sum(c.isalpha() or c == " " for c in paragraph)
        if ">>>" not in paragraph and letters > 0.85 * len(paragraph):
            kept.append(paragraph)
    return " ".join(kept)


def docstrings() -> dict[str, str]:
    """Docstrings of the standard library in the order of its files, with their package."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, str] = {}
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if NOT_READ & set(parts):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                text = plain(ast.get_docstring(node) or "")
                if len(text.split()) >= 6:
                    found.setdefault(text, parts[0].removesuffix(".py"))
    return found


class Texts:
    """What is read, what is labelled and what is held out, as ids."""

    def __init__(self) -> None:
        found = docstrings()
        shuffle = random.Random(11).sample
        by_family = [[text for text in found if found[text] == name] for name in FAMILIES]
        by_family = [shuffle(texts, len(texts)) for texts in by_family]
        held_out = {text for texts in by_family for text in texts[:HELD_OUT]}
        read = [plain(text) for text in topics.values()]
        read += [text for text in found if text not in held_out]
        self.words = sum(len(text.split()) for text in read)
        self.tokenizer = WordPieceTokenizer.train(read, PRE_TRAINING["vocab_size"])
        self.vocab_size = self.tokenizer.vocab_size
        self.by_family, encode = by_family, self.tokenizer.encode
        self.stream = torch.tensor([i for text in read for i in [*encode(text), END]])
        unseen = [texts[:HELD_OUT] for texts in by_family]
        self.held_out = {task: self.labelled(unseen, task) for task in TASKS}
        blanks = [i for texts in unseen for text in texts for i in [*encode(text), END]]
        self.held_out_rows = rows(torch.tensor(blanks))
        counts = torch.bincount(self.stream, minlength=self.vocab_size).float()
        counts[list(SPECIAL)] = 0
        self.shares = (counts + 0.1) / (counts + 0.1).sum()
        self.after = self.next_tokens()
        seen = counts[counts > 0] / counts.sum()
        self.unigram = -(seen * seen.log()).sum().item()
        self.fingerprint = fingerprint([*read, *sorted(held_out)], 16)

    def next_tokens(self) -> Tensor:
        """Probabilities of a token after another, (v, v), by counting; mixed with frequencies."""
        size, ones = self.vocab_size, torch.ones(len(self.stream) - 1)
        counts = torch.zeros(size, size)
        counts.index_put_((self.stream[:-1], self.stream[1:]), ones, accumulate=True)
        kinds = (counts > 0).sum(dim=1, keepdim=True) + 1
        return (counts + kinds * self.shares) / (counts.sum(dim=1, keepdim=True) + kinds)

    def labelled(self, by_family: list[list[str]], task: str) -> Batch:
        """Texts, their ids as rows, and their classes."""
        texts = [text for some in by_family for text in some]
        labels = torch.tensor([label for label, some in enumerate(by_family) for _ in some])
        if task == "order":
            shuffle, labels = random.Random(0).sample, torch.arange(len(texts)) % 2
            words = [re.findall(r"\w+|[^\w\s]", text)[:WORDS] for text in texts]
            pairs = zip(words, labels.tolist(), strict=True)
            texts = [" ".join(shuffle(some, len(some)) if label else some) for some, label in pairs]
        cut = [self.tokenizer.encode(text)[: SHAPE["max_len"] - 2] for text in texts]
        as_read = [self.tokenizer.decode(ids) for ids in cut]  # so that all read the same
        return as_read, pad_rows([[BEGIN, *ids, END] for ids in cut], PAD), labels

    def usual(self, ids: Tensor) -> Tensor:
        """The mean log probability of each token after the one before it, (b, 1), by counting."""
        pairs = (ids > MASK).float()
        both = pairs[:, 1:] * pairs[:, :-1]
        found = self.after[ids[:, :-1], ids[:, 1:]].log() * both
        return found.sum(dim=1, keepdim=True) / both.sum(dim=1, keepdim=True).clamp(min=1)

    def draw(self, seed: int, count: int) -> tuple[list[list[str]], list[list[str]]]:
        """Labelled docstrings of each family, `count` to train on, and some to choose rates by."""
        shuffle = random.Random(seed).sample
        rest = [shuffle(texts[HELD_OUT:], len(texts) - HELD_OUT) for texts in self.by_family]
        most = MOST_LABELLED
        return [texts[:count] for texts in rest], [texts[most : most + 24] for texts in rest]


def rows(stream: Tensor, start: int = 0) -> Tensor:
    """The stream from `start` on, cut into rows that begin and end as a text does."""
    width = SHAPE["max_len"] - 2
    count = (len(stream) - start) // width
    cut = F.pad(stream[start : start + count * width].view(count, width), (1, 1))
    cut[:, 0], cut[:, -1] = BEGIN, END
    return cut


def started(model: Any, generator: torch.Generator, shares: Tensor | None = None) -> Any:
    """The model as chapter 11 starts it: two heads look at neighbours, frequencies are known."""
    width, length = SHAPE["d_model"], SHAPE["max_len"]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=PRE_TRAINING["start"], generator=generator)
        speed = math.pi * torch.rand(width // 2, generator=generator)
        angles = torch.arange(length)[:, None] * speed
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        model.positions.weight.copy_(0.12 * table)
        # A shift is a rotation (chapter 3), so keys are turned by one place to either side.
        turn = speed * torch.tensor([-1.0, 1.0]).repeat_interleave(width // 4)
        pairs = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).view(-1, 2, 2)
        attention = model.encoder.layers[0].self_attention
        attention.w_q.weight.copy_(2 * torch.eye(width))
        attention.w_k.weight.copy_(2 * torch.block_diag(*pairs))
        for matrix in (attention.w_v, attention.w_o):
            nn.init.normal_(matrix.weight, std=0.15, generator=generator)
        if shares is not None:
            model.output_projection.bias.copy_(shares.log())
    return model


def optimiser(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW for whatever is trained here."""
    return torch.optim.AdamW(
        model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )


def update(optimizer: Any, loss: Tensor, rate: float, step: int, steps: int) -> None:
    """One step; the rate rises for a tenth of the steps, and then falls to 0."""
    optimizer.param_groups[0]["lr"] = rate * min(
        10 * step / steps, (steps - step + 1) / (0.9 * steps)
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def pre_train(texts: Texts, how: dict[str, Any], seed: int) -> models.BERTForMaskedLM:
    """A model that has filled in blanks; each pass through the text has new rows and blanks."""
    generator = torch.Generator().manual_seed(seed)
    config = models.BERTConfig(vocab_size=texts.vocab_size, **SHAPE)
    model = started(models.BERTForMaskedLM(config), generator, texts.shares).train()
    rate, steps, size = (PRE_TRAINING[name] for name in ("rate", "steps", "batch_size"))
    optimizer = optimiser(model, rate)
    left = torch.empty(0, dtype=torch.int64)
    for step in range(1, steps + 1):
        if len(left) < size:
            start = torch.randint(SHAPE["max_len"] - 2, (), generator=generator).item()
            text = rows(texts.stream, int(start))
            left = torch.randperm(len(text), generator=generator)
        chosen, left = left[:size], left[size:]
        blanks = models.mask_tokens(
            text[chosen], texts.vocab_size, MASK, SPECIAL, generator=generator, **how
        )
        update(optimizer, model.loss(*blanks), rate, step, steps)
    return model.eval()


@torch.no_grad()
def filling_in(model: models.BERTForMaskedLM, texts: Texts) -> tuple[float, float]:
    """Loss and share right of hidden tokens of held-out text, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    how: dict[str, Any] = {"masked": 1.0, "replaced": 0.0, "generator": generator}
    seen, targets = models.mask_tokens(texts.held_out_rows, texts.vocab_size, MASK, SPECIAL, **how)
    asked = targets != PAD
    right = model.score(model.encode(seen)[asked]).argmax(dim=-1) == targets[asked]
    return model.loss(seen, targets).item(), right.float().mean().item()


def fine_tune(
    texts: Texts,
    batch: Batch,
    encoder: models.BERTForMaskedLM | None,
    rate: float,
    seed: int,
    steps: int = FINE_TUNING["steps"],
) -> models.BERTForSequenceClassification:
    """A classifier trained on labelled docstrings, all weights of it."""
    generator = torch.Generator().manual_seed(seed)
    config = models.BERTConfig(vocab_size=texts.vocab_size, **SHAPE)
    model = started(models.BERTForSequenceClassification(config), generator).train()
    if encoder is not None:
        known = model.state_dict().keys()
        state = {name: value for name, value in encoder.state_dict().items() if name in known}
        model.load_state_dict(state, strict=False)  # pooler and classifier are new
    _, ids, labels = batch
    optimizer = optimiser(model, rate)
    size = FINE_TUNING["batch_size"]
    left = torch.empty(0, dtype=torch.int64)
    for step in range(1, steps + 1):
        while len(left) < size:
            left = torch.cat([left, torch.randperm(len(ids), generator=generator)])
        chosen, left = left[:size], left[size:]
        longest = int((ids[chosen] != PAD).sum(dim=1).max())
        update(optimizer, model.loss(ids[chosen, :longest], labels[chosen]), rate, step, steps)
    return model.eval()


@torch.no_grad()
def share_right(model: models.BERTForSequenceClassification, batch: Batch) -> float:
    """The share of docstrings whose class is right."""
    _, ids, labels = batch
    return (model(ids).argmax(dim=-1) == labels).float().mean().item()


@torch.no_grad()
def mean_vectors(model: models.BERTForMaskedLM, ids: Tensor) -> Any:
    """The mean of the vectors of the real tokens, for each row."""
    real = (ids != PAD).unsqueeze(-1)
    return ((model.encode(ids) * real).sum(dim=1) / real.sum(dim=1)).numpy()


def linear_share(
    first: Any, c: float, read: Callable[[Batch], Any], batch: Batch, held_out: Batch
) -> float:
    """The share that a linear classifier has right after `first`, of what `read` makes of texts."""
    model = make_pipeline(first, LogisticRegression(C=c, max_iter=1000))
    model.fit(read(batch), batch[2].numpy())
    return float(model.score(read(held_out), held_out[2].numpy()))


class Measurement:
    """The texts, and what is made of them."""

    def __init__(self) -> None:
        self.texts = Texts()

    def shares(
        self, seed: int, share: Callable[[Batch, Batch], float], tasks: Sequence[str] = TASKS
    ) -> Shares:
        """What one way comes to, by task and by how many docstrings are labelled."""
        found: Shares = {task: {} for task in tasks}
        for task, by_count in found.items():
            for count in LABELLED:
                batch = self.texts.labelled(self.texts.draw(seed, count)[0], task)
                by_count[str(count)] = share(batch, self.texts.held_out[task])
        return found

    def tuned(self, encoder: models.BERTForMaskedLM | None, rates: Any, seed: int) -> Shares:
        """Fine-tuning, after pre-training or from scratch."""
        found: Shares = {}
        for task in TASKS:

            def share(batch: Batch, held_out: Batch, rate: float = rates[task]) -> float:
                return share_right(fine_tune(self.texts, batch, encoder, rate, seed), held_out)

            found |= self.shares(seed, share, [task])
        return found

    def frozen(self, encoder: models.BERTForMaskedLM, seed: int) -> Shares:
        """A linear classifier of the encoder's vectors."""

        def vectors(batch: Batch) -> Any:
            return mean_vectors(encoder, batch[1])

        return self.shares(seed, partial(linear_share, StandardScaler(), 0.1, vectors))

    def counted(self, seed: int) -> Shares:
        """A linear classifier of counts of words."""
        words = TfidfVectorizer(sublinear_tf=True)
        return self.shares(seed, partial(linear_share, words, 10.0, itemgetter(0)))

    def usual_pairs(self, seed: int) -> Shares:
        """A linear classifier of one number: how usual a text's pairs of tokens are."""

        def usual(batch: Batch) -> Tensor:
            return self.texts.usual(batch[1])

        return self.shares(seed, partial(linear_share, StandardScaler(), 1.0, usual), ["order"])

    def tried(self) -> dict[str, Any]:
        """Shares right by task, with pre-training and without, and rate of fine-tuning."""
        encoder = pre_train(self.texts, SETTINGS["15 %"], SELECTION_SEED)
        drawn, others = self.texts.draw(SELECTION_SEED, MOST_LABELLED)
        found: dict[str, Any] = {}
        for task in TASKS:
            batches = [self.texts.labelled(some, task) for some in (drawn, others)]
            found[task] = {
                name: {
                    f"{rate:g}": share_right(
                        fine_tune(self.texts, batches[0], known, rate, SELECTION_SEED), batches[1]
                    )
                    for rate in RATES
                }
                for name, known in (("pre-trained", encoder), ("from scratch", None))
            }
        return found

    def setting(self, name: str, rates: Any, seed: int) -> dict[str, Any]:
        """One pre-training and all that is made of it."""
        encoder = pre_train(self.texts, SETTINGS[name], seed)
        loss, right = filling_in(encoder, self.texts)
        found = {
            "frozen": self.frozen(encoder, seed),
            "fine_tuned": self.tuned(encoder, rates, seed),
        }
        return {"loss": loss, "right": right, **found}

    def results(self, runs: Runs, seeds: Sequence[int]) -> Row:
        """All that the results file holds; what is not measured yet is measured now."""
        tried = runs.run("rates", self.tried)
        rates = {
            task: {name: float(max(found, key=found.get)) for name, found in by_name.items()}
            for task, by_name in tried.items()
        }
        by_name = {name: {task: rates[task][name] for task in TASKS} for name in rates[TASKS[0]]}
        settings: dict[str, Row] = {}
        for name, how in SETTINGS.items():
            chosen = list(seeds if name == "15 %" else seeds[:3])
            make = partial(self.setting, name, by_name["pre-trained"])
            settings[name] = {**how, "seeds": chosen, **runs.of_seeds(name, make, chosen)}
        ways = {
            "from scratch": partial(self.tuned, None, by_name["from scratch"]),
            "tf-idf": self.counted,
            "counted pairs": self.usual_pairs,
        }
        rivals = {name: runs.of_seeds(name, way, seeds) for name, way in ways.items()}
        return {
            "text": {
                "words": self.texts.words,
                "tokens": len(self.texts.stream),
                "vocab_size": self.texts.vocab_size,
                "unigram": self.texts.unigram,
                "families": list(FAMILIES),
                "held_out": HELD_OUT * len(FAMILIES),
                "fingerprint": self.texts.fingerprint,
            },
            "model": SHAPE,
            "pre_training": PRE_TRAINING,
            "fine_tuning": FINE_TUNING,
            "rates": rates,
            "labelled": list(LABELLED),
            "seeds": list(seeds),
            "settings": settings,
            "rivals": rivals,
            "comparisons": list(comparisons(settings["15 %"], rivals)),
        }


def sst2_table(name: str) -> list[list[str]]:
    """Rows of sentence and label."""
    path = downloaded("sst2", name, SST2 + name, SST2_HASHES[name])
    return [row.rsplit("\t", 1) for row in path.read_text(encoding="utf-8").splitlines()]


def sst2(texts: Texts, seeds: Sequence[int]) -> dict[str, list[float]]:
    """The share of SST-2's 872 dev sentences that is right; needs the network once."""

    def batch(table: list[list[str]]) -> Batch:
        sentences = [sentence.strip() for sentence, _ in table]
        length = SHAPE["max_len"] - 2
        ids = [[BEGIN, *texts.tokenizer.encode(text)[:length], END] for text in sentences]
        return sentences, pad_rows(ids, PAD), torch.tensor([int(label) for _, label in table])

    dev, table = batch(sst2_table("dev.tsv")), sst2_table("train.tsv")
    found: dict[str, list[float]] = {"pre-trained": [], "from scratch": [], "tf-idf": []}
    for seed in seeds:
        train = batch(random.Random(seed).sample(table, 4000))
        encoder = pre_train(texts, SETTINGS["15 %"], seed)
        for name, known in (("pre-trained", encoder), ("from scratch", None)):
            model = fine_tune(texts, train, known, 1e-3, seed, 4 * FINE_TUNING["steps"])
            found[name].append(share_right(model, dev))
        words = TfidfVectorizer(sublinear_tf=True)
        found["tf-idf"].append(linear_share(words, 1.0, itemgetter(0), train, dev))
        print(seed, {name: round(shares[-1], 3) for name, shares in found.items()}, flush=True)
    return found


def comparisons(row: Row, rivals: dict[str, Row]) -> Iterator[Row]:
    """Fine-tuning after pre-training minus each rival, paired by seeds, with its interval."""
    for task in TASKS:
        for minus, found in (rivals | {"frozen": row["frozen"]}).items():
            for count, shares in found.get(task, {}).items():
                named = {"task": task, "minus": minus, "labelled": int(count)}
                yield named | paired(row["fine_tuned"][task][count], shares)


def main() -> None:
    parser = options(__doc__, "bert.json", range(5))
    parser.add_argument("--sst2", action="store_true", help="that instead; fetches it")
    args = parser.parse_args()
    measurement = Measurement()
    if args.sst2:
        found = sst2(measurement.texts, args.seeds)
        write_json(args.out.with_name(f"{args.out.stem}_sst2.json"), {"seeds": args.seeds, **found})
        return
    plan = [SHAPE, PRE_TRAINING, FINE_TUNING, RATES, LABELLED]
    runs = Runs(args.out, *plan, measurement.texts.fingerprint, torch.__version__)
    results = runs.finish(measurement.results(runs, args.seeds))
    print("share right of 640 docstrings: fine-tuned after pre-training - the rival, 95 % interval")
    for row in results["comparisons"]:
        cells = "  ".join(f"{row[key]:+.3f}" for key in ("difference", "low", "high"))
        print(f"{row['task']:<9}{row['minus']:<14}{8 * row['labelled']:>4} labelled   {cells}")


if __name__ == "__main__":
    main()
