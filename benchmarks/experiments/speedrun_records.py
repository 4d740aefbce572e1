"""What `speedrun.py` trains: a baseline for each task, and the records, each a small diff.

Who has a faster recipe adds a `Record` to the list of its task: what it changes, and why that
helps. A change is any field of `Recipe`. Until `speedrun.jsonl` has rows of five seeds of it, and
their mean reaches the target, it is a candidate.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from minitransformer import TrainingConfig


@dataclass(frozen=True)
class Recipe:
    """All that is decided before a run; as it stands, the paper's recipe with PyTorch's layers."""

    library: Literal["torch", "ours"] = "torch"
    """Whose layers: `torch.nn.Transformer` as it comes, or the package's with packed training."""
    target_tokens: int | None = None
    """Size of the target's vocabulary of subwords; None for words."""
    dropout: float = 0.1
    """From here on to `zero_start` all is of the model."""
    d_model: int = 128
    num_heads: int = 4
    d_ff: int = 512
    positional_encoding: str = "sinusoidal"
    """As `TransformerConfig` names it."""
    zero_start: bool = False
    """Whether each sub-layer's last projection starts at zero, so that layers start as identity."""
    steps: int = 600
    """Length of the schedule; what the model can do at its end counts."""
    warmup_steps: int = 100
    """From here on all is of the training, as `TrainingConfig` names it."""
    peak_learning_rate: float = 3e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    optimizer: Literal["adam", "muon"] = "adam"
    batch_size: int = 128
    label_smoothing: float = 0.1
    ema_decay: float = 0.0

    def training(self, seed: int) -> TrainingConfig:
        """The part that is about training."""
        names = {field.name for field in fields(TrainingConfig)} & asdict(self).keys()
        return TrainingConfig(seed=seed, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Record:
    """A small diff of the recipe before it."""

    name: str
    why: str
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What is to be learned, how well, and who has been fastest."""

    name: str
    target: float
    """What the mean of seeds must reach: the share of held-out pairs that are written without a
    mistake; above 1, a loss to fall to, in nats a character."""
    records: tuple[Record, ...]
    """The first is the baseline: it changes what the task asks for."""

    def reached(self, score: float) -> bool:
        """Whether that is good enough."""
        return score <= self.target if self.target > 1 else score >= self.target

    def shown(self, score: float) -> str:
        """A score as a text."""
        return f"{score:.3f}" if self.target > 1 else f"{score:.2%}"

    def recipe(self, number: int) -> Recipe:
        """The recipe of a record: all changes up to its own."""
        recipe = Recipe()
        for record in self.records[: number + 1]:
            recipe = replace(recipe, **record.changes)
        return recipe

    def alone(self, number: int) -> Recipe:
        """The first record with the changes of one other, and the length of the last."""
        return replace(self.recipe(1), **self.records[number].changes | self.length())

    def without(self, number: int) -> Recipe:
        """The last record without the changes of one other, in as many steps."""
        recipe = Recipe()
        for other, record in enumerate(self.records):
            recipe = replace(recipe, **record.changes if other != number else {})
        return replace(recipe, **self.length())

    def length(self) -> dict[str, int]:
        """The last record's steps."""
        last = self.recipe(len(self.records) - 1)
        return {"steps": last.steps, "warmup_steps": last.warmup_steps}


BASELINE = "torch.nn.Transformer"
NUMBER_WORDS = Task(
    "number-words",
    0.995,
    (
        Record(
            BASELINE,
            "As it comes, with chapter 9's recipe; 600 steps give it 99.43 % (five seeds).",
            {"target_tokens": 305, "steps": 700},
        ),
        Record(
            "the package",
            "Nothing is computed on padding, and dropout stands where the paper has it.",
            {"library": "ours", "steps": 600},
        ),
        Record(
            "better tokens",
            "95 merges more, and a German number is half as many tokens: fewer steps to write "
            "it, fewer places for a mistake.",
            {"target_tokens": 400},
        ),
        Record(
            "no dropout",
            "A run this short sees each pair a few times at most: nothing is learned by heart.",
            {"dropout": 0.0},
        ),
        Record(
            "Muon, and a linear end",
            "All directions of a matrix are learned at one pace; the rate falls to zero early.",
            {"optimizer": "muon", "schedule": "linear", "peak_learning_rate": 5e-3}
            | {"steps": 350, "warmup_steps": 30},
        ),
        Record(
            "half batches",
            "A gradient of half the pairs points nearly the same way, and a step costs about half: "
            "it pays if it takes less than twice the steps.",
            {"batch_size": 64, "steps": 400},
        ),
        Record(
            "a start at zero",
            "Layers start as identity, so that what stands below the top is learned from the first "
            "step on.",
            {"zero_start": True, "steps": 350},
        ),
    ),
)
GRAMMAR = Task(
    "grammar",
    0.98,
    (
        Record(
            BASELINE,
            "As it comes, with the settings of grammar.py; 2,000 steps are too few for it.",
            {"steps": 2_400, "batch_size": 96, "label_smoothing": 0.0, "dropout": 0.0},
        ),
        Record(
            "the package",
            "Nothing is computed on padding.",
            {"library": "ours"},
        ),
        Record(
            "rotary positions",
            "What a word depends on stands so many words before it, wherever the sentence is.",
            {"positional_encoding": "rotary", "steps": 1_900},
        ),
        Record(
            "Muon, and a linear end",
            "All directions of a matrix are learned at one pace; the rate falls to zero early.",
            {"optimizer": "muon", "schedule": "linear", "peak_learning_rate": 5e-3}
            | {"steps": 1_300, "warmup_steps": 50},
        ),
        Record(
            "half batches, a start at zero",
            "More and cheaper steps, of fewer sentences in all; layers that start as identity.",
            {"batch_size": 48, "zero_start": True, "steps": 1_700},
        ),
        Record(
            "a narrow feed-forward network",
            "Half of a layer's arithmetic was there, and there is little to remember about "
            "some 700 forms of words; what is saved buys more steps.",
            {"d_ff": 128, "steps": 1_800},
        ),
        Record(
            "a smaller model",
            "Three quarters of the width: what is saved buys more steps once more.",
            {"d_model": 96, "d_ff": 192, "steps": 2_000},
        ),
    ),
)
SHAKESPEARE = Task(
    "shakespeare",
    1.88,
    (
        Record(
            BASELINE,
            "`TransformerEncoder` with a causal mask, which reads rows of 64 characters.",
            {"steps": 1_100, "batch_size": 12, "label_smoothing": 0.0, "dropout": 0.0},
        ),
        Record("the package", "Here there is no padding to save.", {"library": "ours"}),
        Record(
            "rotary positions",
            "What a letter depends on stands so many letters before it, wherever the row begins.",
            {"positional_encoding": "rotary", "steps": 650},
        ),
        Record(
            "Muon, and a linear end",
            "All directions of a matrix are learned at one pace; the rate falls to zero early.",
            {"optimizer": "muon", "schedule": "linear", "peak_learning_rate": 1e-2}
            | {"steps": 320, "warmup_steps": 30},
        ),
        Record(
            "a narrow feed-forward network",
            "A third of the arithmetic less; what is saved buys more steps.",
            {"d_ff": 256, "steps": 340},
        ),
    ),
)
TASKS = {task.name: task for task in (NUMBER_WORDS, GRAMMAR, SHAKESPEARE)}
