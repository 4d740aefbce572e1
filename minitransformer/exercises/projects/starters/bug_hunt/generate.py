"""Read strings backwards with a trained model, greedily."""

import torch

from .data import BOS, EOS, PAD, decode, encode, pad
from .model import Cache, Transformer


@torch.no_grad()
def generate_texts(
    model: Transformer, texts: list[str], max_new_tokens: int = 12, cached: bool = True
) -> list[str]:
    """The most likely next token again and again, until all rows have ended."""
    was_training = model.training
    model.eval()
    src = pad([encode(text) for text in texts])  # (b, s)
    memory, _ = model.encode(src)
    ids = torch.full((len(texts), 1), BOS)  # (b, t)
    cache: Cache | None = {} if cached else None
    ended = torch.zeros(len(texts), dtype=torch.bool)
    for _ in range(max_new_tokens):
        new = ids[:, -1:] if cached else ids  # the cache has the others
        logits = model.decode(new, memory, cache=cache)  # (b, 1 or t, v)
        chosen = logits[:, -1].argmax(dim=-1).masked_fill(ended, PAD)  # (b)
        ids = torch.cat((ids, chosen[:, None]), dim=1)
        ended |= chosen == EOS
        if ended.all():
            break
    model.train(was_training)
    return [decode(row) for row in ids[:, 1:].tolist()]
