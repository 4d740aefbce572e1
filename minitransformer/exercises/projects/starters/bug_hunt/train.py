"""Train the model: `python -m bug_hunt.train`, from the folder that holds bug_hunt."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from .data import PAD, Pair, batches, collate, make_splits
from .generate import generate_texts
from .model import Config, Transformer


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the targets that are not padding."""
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="none"
    )  # (b * t)
    return losses.mean()


def learning_rate(step: int, steps: int, peak: float, warmup: int = 20) -> float:
    """Grows for `warmup` steps, then falls to zero; the first step is 1."""
    return peak * min(step / warmup, (steps - step) / max(1, steps - warmup))


@torch.no_grad()
def evaluate(model: Transformer, pairs: list[Pair]) -> float:
    """The loss on pairs."""
    model.eval()
    src, tgt, targets = collate(pairs)
    loss = loss_of(model(src, tgt), targets).item()
    model.train()
    return loss


def train(
    model: Transformer,
    train_pairs: list[Pair],
    valid_pairs: list[Pair],
    steps: int = 400,
    batch_size: int = 32,
    peak: float = 2e-3,
    evaluate_every: int = 50,
    seed: int = 0,
) -> list[float]:
    """Train, and keep the weights with the lowest validation loss; return all those losses."""
    data = batches(train_pairs, batch_size, random.Random(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
    history: list[float] = []
    best = model.state_dict()
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        src, tgt, targets = next(data)
        optimizer.zero_grad()
        loss_of(model(src, tgt), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % evaluate_every == 0:
            history.append(evaluate(model, valid_pairs))
            if history[-1] == min(history):
                best = model.state_dict()
    model.load_state_dict(best)
    model.eval()
    return history


def main() -> None:
    """Train once, print the validation losses, and reverse a few strings."""
    torch.manual_seed(0)
    train_pairs, valid_pairs = make_splits(5000, 200)
    model = Transformer(Config())
    print("validation loss", *(f"{x:.3f}" for x in train(model, train_pairs, valid_pairs)))
    for text in ("abc", "hgfedcba"):
        print(text, "->", *generate_texts(model, [text]))


if __name__ == "__main__":
    main()
