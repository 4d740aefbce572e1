"""A translator of dates, of our own parts: a solution of the project."""

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD, BOS, EOS = 0, 1, 2
FIRST = 3 - ord(" ")


def encode(text: str) -> list[int]:
    """One id for each character, without special ids."""
    return [ord(letter) + FIRST for letter in text]


def decode(ids: list[int]) -> str:
    """The text of ids up to the first EOS, without special ids."""
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    return "".join(chr(i - FIRST) for i in ids if i > EOS)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scaled dot-product attention, (b, h, q, v)."""
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (b, h, q, k)
    if mask is None:
        return scores.softmax(dim=-1) @ value
    weights = scores.masked_fill(~mask, -1e9).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0) @ value


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer normalisation over the last axis."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred * (variance + 1e-5).rsqrt() * weight + bias


class Norm(nn.Module):
    """Its weight and bias."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias)


class MultiHead(nn.Module):
    """Heads that read `memory`."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            w(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for w, h in ((self.w_q, x), (self.w_k, memory), (self.w_v, memory))
        )  # (b, h, n, e)
        return self.w_o(attention(query, key, value, mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """One of the encoder, or with `cross` of the decoder."""

    def __init__(self, d_model: int, num_heads: int, cross: bool, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHead(d_model, num_heads)
        self.cross = MultiHead(d_model, num_heads) if cross else None
        self.norms = nn.ModuleList(Norm(d_model) for _ in range(2 + cross))
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        h = self.norms[0](x)
        x = x + self.drop(self.attention(h, h, mask))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[1](x), memory, memory_mask))
        return x + self.drop(self.down(F.relu(self.up(self.norms[-1](x)))))


class Translator(nn.Module):
    """Encoder and decoder, with one embedding for both and for the output."""

    def __init__(self, d_model: int = 64, num_heads: int = 4, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(130, d_model)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        kinds = [[Layer(d_model, num_heads, cross, 0.0) for _ in range(num_layers)]
                 for cross in (False, True)]  # fmt: skip
        self.encoder, self.decoder = map(nn.ModuleList, kinds)
        self.norms = nn.ModuleList(Norm(d_model) for _ in range(2))

    def embed(self, ids: Tensor) -> Tensor:
        d = self.embedding.embedding_dim
        rates = 10_000 ** (-torch.arange(0, d, 2) / d)
        angles = torch.arange(ids.size(1))[:, None] * rates  # (n, d / 2)
        positions = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (n, d)
        return self.embedding(ids) * math.sqrt(d) + positions

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        mask = (src != PAD)[:, None, None]  # (b, 1, 1, s)
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.norms[0](x), mask

    def decode(self, tgt: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).tril()
        x = self.embed(tgt)
        for layer in self.decoder:
            x = layer(x, causal, memory, mask)
        return self.norms[1](x) @ self.embedding.weight.T  # (b, t, v)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(tgt, *self.encode(src))


def padded(rows: list[list[int]]) -> Tensor:
    """Rows as one tensor."""
    length = max(map(len, rows))
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def loss(model: Translator, src: Tensor, tgt: Tensor) -> Tensor:
    """Mean cross-entropy of the real tokens."""
    logits = model(src, tgt[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD)


def train(pairs: list[tuple[str, str]], steps: int = 1500, seed: int = 0) -> Translator:
    """A model trained on the pairs."""
    torch.manual_seed(seed)
    rng, model = random.Random(seed), Translator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    for _ in range(steps):
        chosen = rng.sample(pairs, 64)
        src = padded([encode(text) for text, _ in chosen])
        tgt = padded([[BOS, *encode(text), EOS] for _, text in chosen])
        optimizer.zero_grad()
        loss(model, src, tgt).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def translate(model: Translator, texts: list[str]) -> list[str]:
    """Greedy translations."""
    was_training = model.training
    memory, mask = model.eval().encode(padded([encode(text) for text in texts]))
    ids = torch.full((len(texts), 1), BOS)
    for _ in range(10):
        ids = torch.cat((ids, model.decode(ids, memory, mask)[:, -1:].argmax(dim=-1)), dim=1)
    model.train(was_training)
    return [decode(row) for row in ids.tolist()]
