"""Eight silent bugs in a small repository: which are repaired, and what still works."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from minitransformer.exercises.projects.laws import (
    Verdict,
    alike,
    loaded,
    stirred,
    verdict,
    want,
)

RAGGED = ["abc", "hgfedcba", "cab", "bbdfa"]
SIZES = {"d_model": 24, "num_heads": 3, "num_layers": 2, "d_ff": 40}


def new_model(code: Any, seed: int = 0, dropout: float = 0.0, amount: float = 0.2) -> Any:
    """A small model with random weights, large enough that its choices depend on all it reads."""
    torch.manual_seed(seed)
    config = code.model.Config(**SIZES, dropout=dropout)
    return stirred(code.model.Transformer(config), seed, amount)


# --- the eight -------------------------------------------------------------------------------


def scale_of_attention(code: Any) -> None:
    """Attention equals PyTorch's, of the same queries, keys and values."""
    attention = stirred(code.model.Attention(code.model.Config(**SIZES)), amount=0.5)
    x = torch.randn(2, 5, 24)
    key, value = attention.keys_and_values(x)
    by_torch = F.scaled_dot_product_attention(attention.split(attention.w_q(x)), key, value)
    expected = attention.w_o(by_torch.transpose(1, 2).flatten(2))
    want(alike(attention(x, key, value, None), expected), "It differs from PyTorch's.")


def dropout_in_evaluation(code: Any) -> None:
    """In evaluation nothing is random; in training something is."""
    model = new_model(code, dropout=0.5)
    src, tgt, _ = code.data.collate([("abc", "cba")])
    with torch.no_grad():
        want(alike(model(src, tgt), model(src, tgt)), "Evaluation is random.")
        model.train()
        want(not alike(model(src, tgt), model(src, tgt)), "Training has no dropout any more.")


def tied_weights(code: Any) -> None:
    """A token that is only predicted moves the embedding's row: there is one matrix."""
    model = new_model(code)
    matrices = [p for p in model.parameters() if p.shape == model.embedding.weight.shape]
    src, tgt, _ = code.data.collate([("abc", "cba")])
    model(src, tgt).logsumexp(dim=-1).sum().backward()
    gradient = model.embedding.weight.grad
    unseen = code.data.encode("h")
    want(
        len(matrices) == 1 and gradient is not None and gradient[unseen].abs().max() > 0,
        "There are two matrices.",
    )


def padding_in_the_loss(code: Any) -> None:
    """The loss is the mean over real tokens."""
    logits = torch.randn(2, 5, code.data.VOCAB_SIZE)
    targets = torch.tensor([[5, 4, 3, 6, 2], [7, 2, 0, 0, 0]])
    rows = logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    expected = -rows[targets != 0].mean()
    want(alike(code.train.loss_of(logits, targets), expected), "Padding changes the loss.")


def held_out_pairs(code: Any) -> None:
    """No pair to validate on occurs in training."""
    for seed in range(3):
        train, valid = code.data.make_splits(2000, 300, seed)
        want(len(train) == 2000 and len(valid) == 300, "The splits have other sizes.")
        want(not {*train} & {*valid}, "Pairs occur in both splits.")


def best_weights(code: Any) -> None:
    """After training the model has the weights of the lowest validation loss."""
    model, scores = new_model(code), [2.0, 1.0, 3.0]
    seen: list[dict[str, torch.Tensor]] = []
    kept, code.train.evaluate = code.train.evaluate, scripted(scores, seen)
    try:
        pairs = [(text, text[::-1]) for text in RAGGED]
        code.train.train(model, pairs, pairs, steps=6, evaluate_every=2, peak=1e-2)
    finally:
        code.train.evaluate = kept
    want(len(seen) == 3, f"train() called evaluate(model, pairs) {len(seen)} times, not 3.")
    found = model.state_dict()
    want(all(alike(found[key], seen[1][key]) for key in found), "These are other weights.")


def scripted(scores: list[float], seen: list[dict[str, torch.Tensor]]) -> Callable[..., float]:
    """An `evaluate` that gives these scores and remembers the weights it is asked about."""

    def evaluate(model: Any, pairs: Any) -> float:
        seen.append({key: value.clone() for key, value in model.state_dict().items()})
        return scores[(len(seen) - 1) % len(scores)]

    return evaluate


def generated(
    code: Any, model: Any, texts: list[str], cached: bool
) -> tuple[list[str], list[torch.Tensor]]:
    """What is generated, and the logits of each new token, (b, v)."""
    logits: list[torch.Tensor] = []
    decode = model.decode

    def listened(*args: Any, **named: Any) -> torch.Tensor:
        found: torch.Tensor = decode(*args, **named)  # (b, 1 or t, v)
        logits.append(found[:, -1])
        return found

    model.decode = listened
    try:
        return code.generate.generate_texts(model, texts, 12, cached), logits
    finally:
        del model.decode


def cached_positions(code: Any) -> None:
    """With a cache, generation gives what it gives without."""
    for seed in range(3):
        model = new_model(code, seed)
        for text in RAGGED:
            (full, logits), (cached, others) = (
                generated(code, model, [text], used) for used in (False, True)
            )
            same = full == cached and len(logits) == len(others)
            same = same and all(map(alike, logits, others))
            want(same, "The cache changes what is generated.")


def padding_in_generation(code: Any) -> None:
    """A source in a batch of longer ones gives what it gives alone."""
    for seed in range(3):
        model = new_model(code, seed)
        for cached in (False, True):
            texts, (first, *_) = generated(code, model, RAGGED, cached)
            for row, text in enumerate(RAGGED):
                alone, (expected, *_) = generated(code, model, [text], cached)
                same = alone == [texts[row]] and alike(first[row], expected[0])
                want(same, "Batches differ.")


BUGS: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "attention was scaled by the width of the model": (
        scale_of_attention, "model.py", "reference = fused"),
    "dropout worked in evaluation too": (
        dropout_in_evaluation, "model.py", "twice the same in evaluation"),
    "the tied weights were a copy": (
        tied_weights, "model.py", "one matrix: count parameters, or follow a gradient"),
    "cached positions began again at 0": (cached_positions, "model.py", "cached = full"),
    "generation in batches attended to padding": (
        padding_in_generation, "generate.py", "padding is invisible, in generation too"),
    "the loss was averaged over padding": (
        padding_in_the_loss, "train.py", "padding is invisible, in the loss too"),
    "the best weights were a reference to the last": (
        best_weights, "train.py", "what is returned has the best score"),
    "pairs to validate on occurred in training": (
        held_out_pairs, "data.py", "held out means held out"),
}  # fmt: skip
"""Each bug: the law that catches it, the file it is in, and the law in words."""


# --- what worked before ----------------------------------------------------------------------


def round_trip(code: Any) -> None:
    """Tokens give the text back, and the decoder's targets are its inputs one to the left."""
    for text in RAGGED:
        found = code.data.decode(code.data.encode(text))
        want(found == text, f"decode(encode({text!r})) gives {found!r}.")
    _, tgt, targets = code.data.collate([(text, text[::-1]) for text in RAGGED])
    real = tgt[:, 1:] != code.data.PAD
    want(alike(tgt[:, 1:][real], targets[:, :-1][real]), "Targets are not the inputs shifted.")
    (pair,) = code.data.make_splits(1, 0)[0]
    want(pair[1] == pair[0][::-1], f"The pair {pair} is not a text and its reverse.")


def no_peeking(code: Any) -> None:
    """Later targets do not change earlier logits, and the source and its order do."""
    model = new_model(code)
    src, tgt, _ = code.data.collate([("abcd", "dcba")])
    other = tgt.clone()
    other[:, 3:] += 1
    with torch.no_grad():
        logits = model(src, tgt)
        changed = model(src, other)
        want(alike(changed[:, :3], logits[:, :3]), "Later targets change earlier logits.")
        want(not alike(changed[:, 3:], logits[:, 3:]), "Targets change nothing.")
        want(not alike(model(src.flip(1), tgt), logits), "The source's order changes nothing.")
        padded = torch.nn.functional.pad(src, (0, 3), value=code.data.PAD)
        want(alike(model(padded, tgt), logits), "Padding of the source changes the logits.")


def greedy_by_hand(code: Any) -> None:
    """Without a cache, generation is the most likely token again and again."""
    generate = code.generate.generate_texts
    data = code.data
    for seed in range(2):
        model = new_model(code, seed)
        for text in RAGGED:
            src, ids = data.pad([data.encode(text)]), [data.BOS]
            with torch.no_grad():
                while len(ids) <= 12 and ids[-1] != data.EOS:
                    ids.append(model(src, torch.tensor([ids]))[0, -1].argmax().item())
            found = generate(model, [text], 12, False)
            want(found == [data.decode(ids[1:])], "Generation is not greedy any more.")


def learning(code: Any) -> None:
    """All parameters get a finite gradient, and 30 steps lower the loss."""
    model, (pairs, _) = new_model(code, amount=0.0), code.data.make_splits(128, 0)
    src, tgt, targets = code.data.collate(pairs[:32])
    loss = code.train.loss_of(model(src, tgt), targets)
    loss.backward()
    for name, parameter in model.named_parameters():
        want(parameter.grad is not None, f"{name} gets no gradient.")
        want(parameter.grad.isfinite().all(), f"The gradient of {name} is not finite.")
    model.zero_grad()
    code.train.train(model, pairs, pairs[:32], steps=30, evaluate_every=15, peak=5e-3)
    after = code.train.evaluate(model, pairs[:32])
    want(after < 0.95 * loss.item(), f"30 steps bring the loss from {loss:.2f} to {after:.2f}.")
    rates = [code.train.learning_rate(step, 100, 1.0) for step in (1, 20, 60, 100)]
    want(rates == [0.05, 1.0, 0.5, 0.0], f"The learning rate is another one: {rates}.")


GUARDS: dict[str, Callable[[Any], None]] = {
    "tokens and targets": round_trip,
    "no peeking": no_peeking,
    "greedy = by hand": greedy_by_hand,
    "it learns": learning,
}


def verdicts(folder: Path) -> Iterator[Verdict]:
    """Those on the eight bugs, then on what worked before."""
    with loaded(folder, "data", "model", "train", "generate") as modules:
        code = namespace(modules)
        for name, (law, _, words) in BUGS.items():
            found = verdict(name, law, code, secret=True)
            yield found if found.fault else Verdict(f"{name} (law: {words})")
        for name, law in GUARDS.items():
            yield verdict(name, law, code, counts=False)


def namespace(modules: list[ModuleType]) -> SimpleNamespace:
    """The modules by their names."""
    random.seed(0)
    return SimpleNamespace(**{module.__name__.split(".")[-1]: module for module in modules})


def hints(left: list[str], number: int) -> Iterator[str]:
    """Where the bugs that are left are, then which laws they break."""
    if left and not number:
        yield "With --hint you get the files of those left, with --hint --hint their laws."
    if number:
        files = [BUGS[name][1] for name in left]
        for file in sorted({*files}):
            yield f"Hint: {files.count(file)} left in {file}"
    if number > 1:
        yield from (f"Hint: a broken law: {BUGS[name][2]}" for name in left)
