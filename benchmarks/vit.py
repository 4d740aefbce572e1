"""A small ViT on small pictures, against a convolution of as many parameters and an SVM.

Digits are scikit-learn's 1,797 pictures of 8 × 8 pixels, MNIST's are its 10,000 test pictures of
28 × 28 (500 and 2,000 of them held out, others for each seed). Both networks have about 38,000
parameters, and take the same number of steps, whatever else differs.

python benchmarks/vit.py                     about 25 minutes of one core
python benchmarks/vit.py --only digits       half of it, and no download
python benchmarks/vit.py --quick --out FILE  seconds, for tests: its numbers mean nothing

MNIST is read from the folder `mnist` in the one that MINITRANSFORMER_DATA names, or downloaded.

Every setting of a network is trained once at each rate, on a split of its own where a part of what
is trained on is held back, and the best rate trains all seeds. The SVM has an RBF kernel; C and γ
are those of the best five-fold cross-validation on (1,000 of) what it is trained on. All settings
of a seed share its split, so that differences are paired. What was stopped goes on: runs that are
done stand in FILE.partial.json until all are.

The results file is one JSON object:

- made: date, python, torch, sklearn, minitransformer, threads, cpu_minutes, quick.
- training: what all networks have in common.
- seeds; rates that were tried; shape: the ViT's, as `ViTConfig` names it.
- settings: a list; each row has
    pictures: "digits" or "mnist"; name; examples: how many it was trained on.
    parameters, rate: null for the SVM.
    accuracy: on held-out pictures, one number for each of `seeds`; mean, half: of these, and half
    of Student's 95 % interval.
    shifted: for pictures moved by so many pixels (the key, as text), mean of four directions: one
    number for each seed.
    minus_vit, minus_vit_half: accuracy minus the ViT's with as many examples; null for itself.
"""

import argparse
import gzip
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sklearn
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import SVC
from torch import Tensor, nn

from minitransformer.models.vit import ViT, ViTConfig

SHAPE = {"d_model": 48, "num_heads": 4, "num_layers": 2, "d_ff": 96, "eps": 1e-6}
TRAINING = {"batch_size": 64, "weight_decay": 0.05, "steps": 300}
HELD_OUT = {"digits": 500, "mnist": 2_000}
PATCH = {"digits": 2, "mnist": 7}
CURVE = {"digits": (100, 300, 1_297), "mnist": (100, 1_000, 8_000)}
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
SELECTION_SEED = 100
POSITIONS = 0.2
"""σ of the positions' start; the paper's 0.02 is a setting too."""
SHIFTS = {"digits": (1, 2), "mnist": ()}
GRID = {
    "digits": {"C": [1, 3, 10, 30], "gamma": [0.03, 0.06, 0.1, 0.2, 0.3]},
    "mnist": {"C": [3, 10], "gamma": [0.01, 0.02, 0.04]},
}
SEEN_IN_SEARCH, SEEN_SHIFTED = 1_000, 500
"""Examples that choose C and γ, or a rate (for the whole curve); pictures that are moved."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % of Student's distribution lies below, with 1 to 9 degrees of freedom."""

ADDRESS = "https://raw.githubusercontent.com/fgnt/mnist/ae608a02b796c9ee908c082585a5f006fe05258e/"
SHA256 = {
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}

DIGITS: dict[str, dict[str, Any]] = {
    "svm": {},
    "convolution": {},
    "vit": {},
    "vit, mean of patches": {"read": "mean"},
    "vit, no positions": {"positions": 0.0},
    "vit, positions from 0.02": {"positions": 0.02},
    "vit, patches permuted": {"permuted": "patches"},
    "vit, pixels permuted": {"permuted": "pixels"},
    "convolution, patches permuted": {"permuted": "patches"},
    "convolution, moved": {"moved": True},
    "vit, moved": {"moved": True},
}
"""Settings on digits: "permuted" by one permutation for all, "moved" by -1 to 1 pixels."""
MNIST: dict[str, dict[str, Any]] = {
    "svm": {},
    "convolution": {},
    "vit": {},
}


class MeanViT(ViT):
    """A ViT without class token: the mean of the patches is read."""

    def forward(self, pictures: Tensor, *, interpolate: bool = False) -> Tensor:
        """Score pictures."""
        patches = self.embedding(pictures, interpolate=interpolate)[:, 1:]
        return self.head(self.encoder(patches).mean(dim=1))


def new_model(name: str, pictures: str, seed: int, options: dict[str, Any]) -> nn.Module:
    """A fresh network; `options` are those of a setting."""
    side = {"digits": 8, "mnist": 28}[pictures]
    if name.startswith("convolution"):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(1 if side == 8 else 2)),
            *(nn.Conv2d(24, 52, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(52, 52, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2 if side == 8 else 3)),
            nn.Flatten(),
            nn.Linear(52 * 4, 10),
        )
    config = ViTConfig(
        image_size=side, patch_size=PATCH[pictures], num_channels=1, num_classes=10, **SHAPE
    )
    kind = MeanViT if options.get("read") == "mean" else ViT
    model = kind(config, torch.Generator().manual_seed(seed))
    positions = model.embedding.positions
    sigma = options.get("positions", POSITIONS)
    with torch.no_grad():
        positions *= sigma / 0.02
    positions.requires_grad_(sigma > 0)
    return model


def train(
    model: nn.Module, x: Tensor, y: Tensor, rate: float, steps: int, seed: int, moved: bool
) -> nn.Module:
    """Train in place: AdamW, a tenth of the steps up to the rate, then down to 0."""
    generator = torch.Generator().manual_seed(seed)
    options = {"weight_decay": TRAINING["weight_decay"], "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), rate, **options)
    warmup, order = steps // 10 + 1, torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        while len(order) < TRAINING["batch_size"]:
            order = torch.cat([order, torch.randperm(len(x), generator=generator)])
        chosen, order = order.split([TRAINING["batch_size"], len(order) - TRAINING["batch_size"]])
        batch = x[chosen]
        if moved:
            by = torch.randint(-1, 2, (2,), generator=generator).tolist()
            batch = shifted(batch, *by)
        optimizer.param_groups[0]["lr"] = rate * min(
            (step + 1) / warmup, (steps - step) / (steps - warmup)
        )
        loss = F.cross_entropy(model(batch), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def shifted(x: Tensor, down: int, right: int) -> Tensor:
    """Pictures moved by so many pixels; what comes in is black."""
    height, width = x.shape[-2:]
    padded = F.pad(x, [abs(right)] * 2 + [abs(down)] * 2)
    top, left = abs(down) - down, abs(right) - right
    return padded[..., top : top + height, left : left + width]


def permuted(x: Tensor, what: str, side: int) -> Tensor:
    """Pictures with pixels, or patches of side × side, in another order, the same for all."""
    side = 1 if what == "pixels" else side
    rows = x.size(-1) // side
    order = torch.randperm(rows * rows, generator=torch.Generator().manual_seed(7))
    cells = F.unfold(x, side, stride=side)[:, :, order]
    return F.fold(cells, x.shape[-2:], side, stride=side)


def accuracy(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """The share of pictures whose class is right."""
    with torch.no_grad():
        right = [predict(part) == of for part, of in zip(x.split(500), y.split(500), strict=True)]
    return torch.cat(right).double().mean().item()


def read_pictures(name: str) -> tuple[Tensor, Tensor]:
    """All pictures, (n, 1, height, width) from 0 to 1, and their classes."""
    if name == "digits":
        digits = load_digits()
        x, y = torch.tensor(digits.images / 16), torch.tensor(digits.target)
        return x.float()[:, None], y
    contents = []
    for file, checksum in SHA256.items():
        path = Path(os.environ.get("MINITRANSFORMER_DATA", "")) / "mnist" / file
        if not path.is_file():
            import pooch

            path = Path(pooch.retrieve(ADDRESS + file, checksum, fname=file))
        contents.append(
            torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())), dtype=torch.uint8)
        )
    return contents[0][16:].view(-1, 1, 28, 28) / 255, contents[1][8:].long()


class Measurement:
    """Runs that are not lost: each is done once, and written down when it is done.

    Args:
        out: where the results will be.
        quick: whether only the file's shape matters.
    """

    def __init__(self, out: Path, quick: bool) -> None:
        self.quick = quick
        self.steps = 2 if quick else TRAINING["steps"]
        one = {"C": [10], "gamma": [0.03]}
        self.grid = {name: one if quick else grid for name, grid in GRID.items()}
        self.most = 60 if quick else 10_000
        self.data: dict[str, tuple[Tensor, Tensor]] = {}
        self.partial = out.with_suffix(".partial.json")
        self.plan = [SHAPE, TRAINING, self.steps, self.grid, DIGITS, torch.__version__]
        self.plan = json.loads(json.dumps(self.plan))
        self.runs: dict[str, dict[str, Any]] = {}
        if self.partial.exists():
            found = json.loads(self.partial.read_text(encoding="utf-8"))
            self.runs = found["runs"] if found["plan"] == self.plan else {}

    def run(
        self, pictures: str, name: str, examples: int, rate: float | None, seed: int
    ) -> dict[str, Any]:
        """One run: its accuracy, also on pictures that are moved."""
        key = f"{pictures}, {name}, {examples}, {rate}, {seed}"
        if key not in self.runs:
            start = time.process_time()
            row = self.measure(pictures, name, examples, rate, seed)
            self.runs[key] = row | {"seconds": time.process_time() - start}
            write(self.partial, {"plan": self.plan, "runs": self.runs})
            seconds = self.runs[key]["seconds"]
            print(f"{key:<60} {row['accuracy']:.4f}  {seconds:6.1f} s", flush=True)
        return self.runs[key]

    def measure(
        self, pictures: str, name: str, examples: int, rate: float | None, seed: int
    ) -> dict[str, Any]:
        """Train one and measure it; on the seed for selection, on what is trained on otherwise."""
        if pictures not in self.data:
            self.data[pictures] = read_pictures(pictures)
        x, y = self.data[pictures]
        options: dict[str, Any] = DIGITS.get(name, {}) if pictures == "digits" else MNIST[name]
        if what := options.get("permuted"):
            x = permuted(x, what, PATCH[pictures])
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        held_out, rest = order[: HELD_OUT[pictures]], order[HELD_OUT[pictures] :]
        if seed == SELECTION_SEED:
            held_out, rest = rest[: HELD_OUT[pictures] // 2], rest[HELD_OUT[pictures] // 2 :]
        held_out, rest = held_out[: self.most], rest[: self.most]
        chosen, moved = rest[:examples], "moved" in options
        if rate is None:
            predict = support_vectors(x[chosen], y[chosen], self.grid[pictures])
        else:
            model = new_model(name, pictures, seed, options)
            train(model, x[chosen], y[chosen], rate, self.steps, seed, moved)

            def predict(pictures: Tensor) -> Tensor:
                return model(pictures).argmax(dim=-1)

        test, classes = x[held_out], y[held_out]
        some, theirs = test[:SEEN_SHIFTED], classes[:SEEN_SHIFTED]
        directions = ((1, 0), (-1, 0), (0, 1), (0, -1))
        return {
            "accuracy": accuracy(predict, test, classes),
            "shifted": {
                str(by): statistics.mean(
                    accuracy(predict, shifted(some, by * down, by * right), theirs)
                    for down, right in directions
                )
                for by in SHIFTS[pictures]
                if "permuted" not in options and seed != SELECTION_SEED
            },
        }

    def results(
        self, only: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
    ) -> dict[str, Any]:
        """All that the results file holds; what is not measured yet is measured now."""
        plan = [
            (pictures, name, examples)
            for pictures, names in (("digits", DIGITS), ("mnist", MNIST))
            for name in names
            for examples in CURVE[pictures]
            if name in ("svm", "convolution", "vit") or examples == CURVE[pictures][-1]
        ]
        settings = []
        for pictures, name, examples in plan:
            if pictures not in only:
                continue
            rate = parameters = None
            if not name.startswith("svm"):
                scores = {
                    rate: self.run(pictures, name, SEEN_IN_SEARCH, rate, SELECTION_SEED)["accuracy"]
                    for rate in rates
                }
                rate = max(scores, key=lambda rate: scores[rate])
                options = DIGITS if pictures == "digits" else MNIST
                model = new_model(name, pictures, 0, options[name])
                parameters = sum(parameter.numel() for parameter in model.parameters())
            found = [self.run(pictures, name, examples, rate, seed) for seed in seeds]
            row = {"pictures": pictures, "name": name, "examples": examples, "rate": rate}
            row |= {"parameters": parameters, "accuracy": [run["accuracy"] for run in found]}
            moved = found[0]["shifted"]
            row["shifted"] = {by: [run["shifted"][by] for run in found] for by in moved}
            settings.append(
                row | dict(zip(("mean", "half"), interval(row["accuracy"]), strict=True))
            )
        for row in settings:
            vit = next(
                other
                for other in settings
                if (other["pictures"], other["examples"], other["name"])
                == (row["pictures"], row["examples"], "vit")
            )
            pairs = zip(row["accuracy"], vit["accuracy"], strict=True)
            paired = interval([ours - theirs for ours, theirs in pairs])
            names = ("minus_vit", "minus_vit_half")
            row |= dict(zip(names, (None, None) if row is vit else paired, strict=True))
        seconds = sum(run["seconds"] for run in self.runs.values())
        return {
            "made": {
                "date": date.today().isoformat(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "sklearn": sklearn.__version__,
                "minitransformer": version("minitransformer"),
                "threads": torch.get_num_threads(),
                "cpu_minutes": round(seconds / 60, 1),
                "quick": self.quick,
            },
            "training": TRAINING | {"steps": self.steps},
            "shape": SHAPE,
            "rates": list(rates),
            "seeds": list(seeds),
            "settings": settings,
        }


def support_vectors(
    x: Tensor, y: Tensor, grid: dict[str, list[float]]
) -> Callable[[Tensor], Tensor]:
    """An SVM of these examples, with C and γ of the best cross-validation."""
    search = GridSearchCV(SVC(), grid, cv=KFold(5))
    search.fit(x[:SEEN_IN_SEARCH].flatten(1).numpy(), y[:SEEN_IN_SEARCH].numpy())
    machine = SVC(**search.best_params_).fit(x.flatten(1).numpy(), y.numpy())
    return lambda pictures: torch.from_numpy(machine.predict(pictures.flatten(1).numpy()))


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """The mean of 2 to 10 numbers, and half of Student's 95 % interval."""
    half = STUDENT[len(numbers) - 2] * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return statistics.mean(numbers), half


def write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, so that the file is whole whenever it is read."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, path)


def main() -> None:
    """Do what is missing, write the results, and print them."""
    parser = argparse.ArgumentParser(description="A small ViT on small pictures.")
    parser.add_argument("--only", nargs="+", choices=list(HELD_OUT), default=list(HELD_OUT))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="2 to 10")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    if not 2 <= len(args.seeds) <= len(STUDENT) + 1:
        parser.error(f"--seeds must be 2 to {len(STUDENT) + 1}, got {len(args.seeds)}")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    measurement = Measurement(args.out, args.quick)
    results = measurement.results(args.only, args.rates, args.seeds)
    write(args.out, results)
    measurement.partial.unlink()
    print("accuracy in per cent, with its 95 % interval, moved by a pixel, and minus the ViT's")
    for row in results["settings"]:
        moved = statistics.mean(row["shifted"]["1"]) if row["shifted"] else math.nan
        line = f"{row['pictures']:<7} {row['name']:<30} {row['examples']:>5}  {row['mean']:6.1%}"
        line += f" ± {row['half']:5.1%}  {moved:6.1%}"
        if row["minus_vit"] is not None:
            line += f"  {row['minus_vit']:+6.1%} ± {row['minus_vit_half']:5.1%}"
        print(line)


if __name__ == "__main__":
    main()
