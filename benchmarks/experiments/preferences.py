"""What chapter 12's page on answers says of more than one training, on number words.

    python -m benchmarks.experiments.preferences      about 9 minutes of one core

A decoder-only model reads "forty-two = " and writes German. answers, whole rows: the loss on
answers only, and on questions too. Then a training that was stopped early goes on in three ways,
with as many updates of as many rows: supervised, with the right answers; by DPO, on pairs of its
own answers, one right and one wrong; by GRPO, with 1 for a right answer. What is asked are other
numbers than those it was taught, with thousands. hacked: GRPO with a point for each token that the
right answer has.

Each setting has its best rate of several, by another seed. `--seeds`, `--out` as elsewhere.
"""

import copy
import random
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import minitransformer as mt
from benchmarks.runs import Row, Runs, gathered, options
from minitransformer.training import (
    AnswerTrainer,
    collate_answers,
    dpo_loss,
    encode_answer,
    grpo_step,
    sample_answers,
    sequence_log_probs,
)

SHAPE: dict[str, Any] = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
SHAPE |= {"dropout": 0.0, "norm_first": True, "positional_encoding": "rotary", "max_len": 64}
TOKENS, TAUGHT, ASKED, MEASURED = 360, 4_000, 4_000, 300
TRAINING: dict[str, Any] = {"steps": 180, "batch_size": 32, "warmup_steps": 20}
TRAINING |= {"optimizer": "muon", "schedule": "linear"}
RATES = {"answers": (1e-2, 2e-2, 4e-2), "whole rows": (1e-2, 2e-2, 4e-2, 8e-2)}
RATES |= {"supervised": (1e-3, 3e-3, 1e-2), "GRPO": (3e-4, 1e-3, 3e-3)}
RATES |= {"DPO": (3e-5, 1e-4, 3e-4), "DPO + chosen": (1e-4, 3e-4, 1e-3)}
START_RATE, SELECTION_SEED = 5e-3, 100
UPDATES, PROMPTS, SAMPLES, LONGEST, BETA = 100, 16, 8, 24, 0.04
PAIRED, HACK_UPDATES, BETAS = 800, 40, (0.04, 1.0)

Ids = list[int]


class Numbers:
    """The numbers of a seed as questions and answers, of one tokenizer: what is taught, asked."""

    def __init__(self, seed: int) -> None:
        splits = mt.number_words(seed, num_train=TAUGHT + ASKED, num_held_out=500, millions=0.0)
        self.seed = seed
        self.tokenizer = mt.BPETokenizer.train(
            (text for pair in splits["train"] for text in pair), TOKENS
        )
        pairs = [(f"{pair.src} = ", pair.tgt) for pair in splits["train"]]
        self.taught = pairs[:TAUGHT]
        self.asked = [self.ids(pair) for pair in pairs[TAUGHT:] if "thousand" in pair[0]]
        self.held_out = [
            self.ids((f"{pair.src} = ", pair.tgt)) for pair in splits["held_out"][:MEASURED]
        ]
        self.right = {(*prompt,): answer for prompt, answer in self.asked}

    def ids(self, pair: tuple[str, str]) -> tuple[Ids, Ids]:
        """A question's ids and its answer's."""
        return self.tokenizer.begin(pair[0]), self.tokenizer.sequence_ids(pair[1])

    def draw(self) -> dict[str, Any]:
        """How answers are drawn."""
        generator = torch.Generator().manual_seed(self.seed)
        return {"max_new_tokens": LONGEST, "generator": generator}

    def is_right(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The rule: 1 for the right answer with its end, else 0."""
        return float(answer == self.right[(*prompt,)])

    def points(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """A rule that looks as good: a point for each token that the right answer has."""
        return float(sum(token in self.right[(*prompt,)] for token in answer))


class WholeRows(AnswerTrainer):
    """The loss on questions, too: the whole row is an answer to its first token."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        rows = ([*example.src, example.tgt[-1]] for example in self.examples)
        self.examples = [encode_answer(row[:1], row[1:]) for row in rows]


def taught(numbers: Numbers, rate: float, kind: type[AnswerTrainer] = AnswerTrainer) -> Any:
    """A model after the supervised training that is stopped early."""
    config = mt.TransformerConfig.decoder_only(numbers.tokenizer.vocab_size, **SHAPE)
    model = mt.DecoderOnlyTransformer(config, torch.Generator().manual_seed(numbers.seed))
    settings = mt.TrainingConfig(seed=numbers.seed, peak_learning_rate=rate, **TRAINING)
    kind(model, numbers.taught, numbers.tokenizer, settings).fit(progress=False)
    return model.eval()


@cache
def begun(seed: int) -> tuple[Numbers, Any]:
    """The numbers of a seed, and the model that was stopped early."""
    numbers = Numbers(seed)
    return numbers, taught(numbers, START_RATE)


def measured(model: Any, numbers: Numbers) -> Row:
    """On held-out numbers: right greedily, right when drawn, and one right of eight drawn."""
    prompts, answers = zip(*numbers.held_out, strict=True)
    greedy = mt.generate(model, mt.pad_rows(prompts), max_new_tokens=LONGEST).tolist()
    right = [[i for i in row if i] == answer for row, answer in zip(greedy, answers, strict=True)]
    drawn = sample_answers(model, prompts, SAMPLES, **numbers.draw())
    hits = torch.tensor([row == answers[i // SAMPLES] for i, row in enumerate(drawn)]).double()
    hits = hits.view(-1, SAMPLES)
    return {
        "greedy": statistics.mean(right),
        "drawn": hits.mean().item(),
        "one of eight": hits.amax(1).mean().item(),
        "length": statistics.mean(map(len, drawn)),
    }


def batches(rows: Sequence[Any], size: int, seed: int) -> Any:
    """Random rows, for ever."""
    draw = random.Random(f"preferences {seed}")
    while True:
        yield draw.choices(rows, k=size)


def step(model: Any, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One update, with the gradient clipped as `grpo_step` does."""
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def supervised(model: Any, numbers: Numbers, rate: float) -> Row:
    """Go on with the right answers."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rows = batches(numbers.asked, PROMPTS * SAMPLES, numbers.seed)
    for _ in range(UPDATES):
        examples = [encode_answer(*pair) for pair in next(rows)]
        step(model, optimizer, mt.next_token_loss(model, *collate_answers(examples)))
    return {}


def own_pairs(model: Any, numbers: Numbers) -> list[tuple[Ids, Ids, Ids]]:
    """Prompts with a right and a wrong answer of the model's, where it gave both."""
    prompts = [prompt for prompt, _ in numbers.asked[:PAIRED]]
    drawn, pairs = sample_answers(model, prompts, SAMPLES, **numbers.draw()), []
    for i, prompt in enumerate(prompts):
        group = drawn[i * SAMPLES : (i + 1) * SAMPLES]
        right = [answer for answer in group if numbers.is_right(prompt, answer)]
        wrong = [answer for answer in group if not numbers.is_right(prompt, answer)]
        pairs += [(prompt, *both) for both in zip(right, wrong, strict=False)]
    return pairs


def dpo(model: Any, numbers: Numbers, rate: float, *, chosen: float = 0.0) -> Row:
    """Go on with pairs of own answers; and how far both answers' log-probabilities moved.

    `chosen` times the plain loss of the chosen answers is added.
    """
    reference, pairs = copy.deepcopy(model), own_pairs(model, numbers)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def moved(rows: list[tuple[Ids, Ids, Ids]]) -> tuple[list[Tensor], list[Tensor]]:
        sides = [
            collate_answers([encode_answer(row[0], row[side]) for row in rows]) for side in (1, 2)
        ]
        with torch.no_grad():
            before = [sequence_log_probs(reference, *side) for side in sides]
        return [sequence_log_probs(model, *side) for side in sides], before

    rows = batches(pairs, PROMPTS * SAMPLES // 2, numbers.seed)
    for _ in range(UPDATES):
        batch = next(rows)
        after, before = moved(batch)
        plain = -after[0].sum() / sum(len(row[1]) for row in batch)
        step(model, optimizer, dpo_loss(*after, *before, beta=0.1) + chosen * plain)
    with torch.no_grad():
        after, before = moved(pairs[:500])
    changes = [(a - b).mean().item() for a, b in zip(after, before, strict=True)]
    return {"pairs": len(pairs), "chosen": changes[0], "rejected": changes[1]}


def grpo(
    model: Any,
    numbers: Numbers,
    rate: float,
    *,
    reward: str = "is_right",
    beta: float = BETA,
    updates: int = UPDATES,
) -> Row:
    """Go on with a reward; the rewards, lengths and divergences, by update."""
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rows = batches([prompt for prompt, _ in numbers.asked], PROMPTS, numbers.seed)
    rule, options = getattr(numbers, reward), numbers.draw()
    return gathered([
        grpo_step(
            model, reference, optimizer, next(rows), rule, num_samples=SAMPLES, beta=beta, **options
        )
        for _ in range(updates)
    ])  # fmt: skip


WAYS: dict[str, Callable[..., Row]] = {"supervised": supervised, "DPO": dpo, "GRPO": grpo}
WAYS["DPO + chosen"] = partial(dpo, chosen=1.0)


def hacked(start: Any, numbers: Numbers, rate: float, beta: float) -> Row:
    """What points for tokens do to a model, with three of its greedy answers."""
    model = copy.deepcopy(start)
    found = grpo(model, numbers, rate, reward="points", beta=beta, updates=HACK_UPDATES)
    prompts = [prompt for prompt, _ in numbers.held_out[:3]]
    rows = mt.generate(model, mt.pad_rows(prompts), max_new_tokens=LONGEST).tolist()
    texts = [numbers.tokenizer.decode(row) for row in [*prompts, *rows]]
    return {**measured(model, numbers), "updates": found, "texts": texts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Find the best rates by one seed, train with the others, and write what was found."""
    chosen = options(__doc__ or "", "preferences.json", range(5)).parse_args(arguments)
    torch.set_num_threads(1)
    plan = [SHAPE, TOKENS, TAUGHT, ASKED, TRAINING, RATES, START_RATE, UPDATES, PROMPTS, SAMPLES]
    runs = Runs(chosen.out, chosen.seeds, *plan, BETA, PAIRED, HACK_UPDATES, BETAS)
    kinds = {"answers": AnswerTrainer, "whole rows": WholeRows}

    def learned(kind: str, rate: float, seed: int) -> Row:
        numbers = Numbers(seed)
        return measured(taught(numbers, rate, kinds[kind]), numbers)

    def went_on(way: str, rate: float, seed: int) -> Row:
        numbers, start = begun(seed)
        model = copy.deepcopy(start)
        return {"found": WAYS[way](model, numbers, rate), **measured(model, numbers)}

    def points(beta: float, seed: int) -> Row:
        numbers, start = begun(seed)
        return hacked(start, numbers, best["GRPO"], beta)

    best: dict[str, float] = {}
    selection: dict[str, dict[float, float]] = {}
    for makers, make in ((kinds, learned), (WAYS, went_on)):
        for name in makers:
            tried = {
                rate: runs.run(f"{name} at {rate}", partial(make, name, rate, SELECTION_SEED))
                for rate in RATES[name]
            }
            selection[name] = {rate: row["drawn"] for rate, row in tried.items()}
            best[name] = max(selection[name], key=selection[name].__getitem__)
    seeds = chosen.seeds

    def stopped(seed: int) -> Row:
        numbers, start = begun(seed)
        return measured(start, numbers)

    results = {"start": [runs.run(f"start, {seed}", partial(stopped, seed)) for seed in seeds]}
    results |= {
        name: [runs.run(f"{name}, {seed}", partial(make, name, best[name], seed)) for seed in seeds]
        for makers, make in ((kinds, learned), (WAYS, went_on))
        for name in makers
    }
    hacks = {
        str(beta): [
            runs.run(f"points, {beta}, {seed}", partial(points, beta, seed)) for seed in seeds
        ]
        for beta in BETAS
    }
    runs.finish({
        "seeds": seeds, "rates": best, "selection": selection, "results": results, "hacked": hacks,
    })  # fmt: skip


if __name__ == "__main__":
    main()
