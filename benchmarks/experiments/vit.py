"""A small ViT on small pictures, against a convolution of as many parameters and an SVM.

Digits are scikit-learn's 1,797 pictures of 8 × 8 pixels, MNIST's are its 10,000 test pictures of
28 × 28 (500 and 2,000 of them held out, others for each seed). Both networks have about 38,000
parameters, and take the same number of steps, whatever else differs.

python -m benchmarks.experiments.vit                 about 25 minutes of one core
python -m benchmarks.experiments.vit --only digits   half of it, and no download

MNIST is read from the folder `mnist` in the one that MINITRANSFORMER_DATA names, or downloaded.

Every setting of a network is trained once at each rate, on a split of its own where a part of what
is trained on is held back, and the best rate trains all seeds. The SVM has an RBF kernel; C and γ
are those of the best five-fold cross-validation on (1,000 of) what it is trained on. All settings
of a seed share its split, so that differences are paired.
"""

import gzip
import math
import os
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import SVC
from torch import Tensor, nn

from benchmarks.runs import Row, Runs, downloaded, gathered, half_width, options, size
from minitransformer.models import ViT, ViTConfig

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

ADDRESS = "https://raw.githubusercontent.com/fgnt/mnist/ae608a02b796c9ee908c082585a5f006fe05258e/"
SHA256 = {
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}

COMPARED = ("svm", "convolution", "vit")
"""Settings that are trained on MNIST too, and on fewer pictures."""
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
SETTINGS = {"digits": DIGITS, "mnist": {name: DIGITS[name] for name in COMPARED}}


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


def train(model: nn.Module, x: Tensor, y: Tensor, rate: float, seed: int, moved: bool) -> nn.Module:
    """Train in place: AdamW, a tenth of the steps up to the rate, then down to 0."""
    generator = torch.Generator().manual_seed(seed)
    options = {"weight_decay": TRAINING["weight_decay"], "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), rate, **options)
    steps = TRAINING["steps"]
    warmup = steps // 10 + 1
    order = torch.empty(0, dtype=torch.int64)
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


@lru_cache
def read_pictures(name: str) -> tuple[Tensor, Tensor]:
    """All pictures, (n, 1, height, width) from 0 to 1, and their classes."""
    if name == "digits":
        digits = load_digits()
        x, y = torch.tensor(digits.images / 16), torch.tensor(digits.target)
        return x.float()[:, None], y
    contents = []
    for file, checksum in SHA256.items():
        content = gzip.decompress(downloaded("mnist", file, ADDRESS + file, checksum).read_bytes())
        contents.append(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return contents[0][16:].view(-1, 1, 28, 28) / 255, contents[1][8:].long()


def measure(pictures: str, name: str, examples: int, rate: float | None, seed: int) -> Row:
    """Train one and measure it, also on pictures that are moved; rate None is the SVM.

    On the seed for selection it is measured on a part of what is trained on otherwise.
    """
    x, y = read_pictures(pictures)
    how = SETTINGS[pictures][name]
    if what := how.get("permuted"):
        x = permuted(x, what, PATCH[pictures])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    count = HELD_OUT[pictures]
    held_out, rest = order[:count], order[count:]
    if seed == SELECTION_SEED:
        held_out, rest = rest[: count // 2], rest[count // 2 :]
    chosen = rest[:examples]
    if rate is None:
        predict = support_vectors(x[chosen], y[chosen], GRID[pictures])
    else:
        model = new_model(name, pictures, seed, how)
        train(model, x[chosen], y[chosen], rate, seed, "moved" in how)

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
            if "permuted" not in how and seed != SELECTION_SEED
        },
    }


def measured(
    runs: Runs, only: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
) -> list[Row]:
    """The rows of all settings; what is not measured yet is measured now."""

    def run(*what: Any) -> Row:
        return runs.run(", ".join(map(str, what)), partial(measure, *what))

    rows = []
    for pictures in only:
        for name, how in SETTINGS[pictures].items():
            rate = parameters = None
            if name != "svm":
                scores = {
                    rate: run(pictures, name, SEEN_IN_SEARCH, rate, SELECTION_SEED)["accuracy"]
                    for rate in rates
                }
                rate = max(scores, key=lambda rate: scores[rate])
                parameters = size(new_model(name, pictures, 0, how))
            curve = CURVE[pictures]
            for examples in curve if name in COMPARED else curve[-1:]:
                found = [run(pictures, name, examples, rate, seed) for seed in seeds]
                row = {"pictures": pictures, "name": name, "examples": examples, "rate": rate}
                row |= {"parameters": parameters, **gathered(found)}
                row["mean"], row["half"] = mean_and_half(row["accuracy"])
                rows.append(row)
    vits = {(row["pictures"], row["examples"]): row for row in rows if row["name"] == "vit"}
    for row in rows:
        vit = vits[row["pictures"], row["examples"]]
        pairs = zip(row["accuracy"], vit["accuracy"], strict=True)
        differences = [ours - theirs for ours, theirs in pairs]
        mean, half = (None, None) if row is vit else mean_and_half(differences)
        row |= {"minus_vit": mean, "minus_vit_half": half}
    return rows


def support_vectors(
    x: Tensor, y: Tensor, grid: dict[str, list[float]]
) -> Callable[[Tensor], Tensor]:
    """An SVM of these examples, with C and γ of the best cross-validation."""
    search = GridSearchCV(SVC(), grid, cv=KFold(5))
    search.fit(x[:SEEN_IN_SEARCH].flatten(1).numpy(), y[:SEEN_IN_SEARCH].numpy())
    machine = SVC(**search.best_params_).fit(x.flatten(1).numpy(), y.numpy())
    return lambda pictures: torch.from_numpy(machine.predict(pictures.flatten(1).numpy()))


def mean_and_half(numbers: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    return statistics.mean(numbers), half_width(numbers)


def main() -> None:
    parser = options(__doc__, "vit.json", range(5))
    parser.add_argument("--only", nargs="+", choices=list(HELD_OUT), default=list(HELD_OUT))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    runs = Runs(args.out, SHAPE, TRAINING, GRID, DIGITS, torch.__version__)
    rows = measured(runs, args.only, args.rates, args.seeds)
    results = {"training": TRAINING, "shape": SHAPE, "rates": list(args.rates)}
    runs.finish(results | {"seeds": args.seeds, "settings": rows})
    print("accuracy in per cent, with its 95 % interval, moved by a pixel, and minus the ViT's")
    for row in rows:
        moved = statistics.mean(row["shifted"]["1"]) if row["shifted"] else math.nan
        line = f"{row['pictures']:<7} {row['name']:<30} {row['examples']:>5}  {row['mean']:6.1%}"
        line += f" ± {row['half']:5.1%}  {moved:6.1%}"
        if row["minus_vit"] is not None:
            line += f"  {row['minus_vit']:+6.1%} ± {row['minus_vit_half']:5.1%}"
        print(line)


if __name__ == "__main__":
    main()
