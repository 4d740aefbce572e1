"""A language model of bytes, a solution of the project: `python solution_language_model.py`.

What makes it quick to train: hashed embeddings of the last two and three bytes, Muon for the
matrices of the layers, layers that begin as the identity, and a rate that follows the time left.
"""

import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SECONDS = 60
HERE = Path(__file__).parent
START, BUCKETS = 256, 10_007
LOADED: list[nn.Module] = []


def rotate(x: Tensor) -> Tensor:
    """Rotary positions, (b, h, n, e)."""
    n, e = x.shape[-2:]
    angles = torch.arange(n)[:, None] * 10_000 ** (-torch.arange(0, e, 2) / e)  # (n, e / 2)
    one, two = x.chunk(2, dim=-1)
    return torch.cat(
        (one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()), dim=-1
    )


class Layer(nn.Module):
    """Attention and a feed-forward network, with norms before; it begins as the identity."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.RMSNorm(d_model) for _ in range(2))
        self.w_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)
        nn.init.zeros_(self.w_o.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.w_qkv(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (b, h, n, e)
        query, key = (rotate(F.rms_norm(part, part.shape[-1:])) for part in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.w_o(mixed.transpose(1, 2).flatten(2))  # (b, n, d)
        return x + self.down(F.relu(self.up(self.norms[1](x))).square())


class Model(nn.Module):
    """A decoder that also reads hashes of the last two and three bytes."""

    def __init__(self, d_model: int = 128, num_heads: int = 4, num_layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, d_model)
        self.hashed = nn.Embedding(2 * BUCKETS, d_model)
        nn.init.normal_(self.hashed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(d_model)
        self.output = nn.Linear(d_model, 256, bias=False)
        nn.init.zeros_(self.output.weight)

    def forward(self, text: Tensor) -> Tensor:
        last, second, third = (
            F.pad(text, (back, 0), value=START)[:, : text.size(1)] for back in (1, 2, 3)
        )  # (b, n)
        two = last * 257 + second
        x = self.embedding(last) + self.hashed(two % BUCKETS)
        x = x + self.hashed((two * 257 + third) % BUCKETS + BUCKETS)  # (b, n, d)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x)).log_softmax(dim=-1)  # (b, n, 256)


def orthogonal(matrix: Tensor) -> Tensor:
    """Near the closest matrix with orthogonal rows or columns: five steps of Newton and Schulz."""
    wide = matrix.size(0) <= matrix.size(1)
    x = (matrix if wide else matrix.T) / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T


def train(path: Path, seconds: float, seed: int = 0, batch_size: int = 12) -> Model:
    """A model trained for some seconds of processor time on the bytes of a file."""
    torch.manual_seed(seed)
    data = torch.tensor([*path.read_bytes()])
    model = Model()
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizer = torch.optim.AdamW(others, betas=(0.9, 0.99), weight_decay=0.05)
    averages = [torch.zeros_like(p) for p in matrices]
    start, step = time.process_time(), 0
    while (done := (time.process_time() - start) / seconds) < 1:
        rate = min(1, step / 40 + 0.02) * min(1, (1 - done) / 0.6)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * rate
        rows = torch.randint(len(data) - 256, (batch_size, 1)) + torch.arange(256)  # (b, n)
        loss = -model(data[rows]).gather(-1, data[rows][..., None]).mean()
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for matrix, average in zip(matrices, averages, strict=True):
                average.mul_(0.95).add_(matrix.grad)
                update = orthogonal(matrix.grad + 0.95 * average)
                taller = max(1, matrix.size(0) / matrix.size(1)) ** 0.5
                matrix.mul_(1 - 0.002 * rate).sub_(0.02 * rate * taller * update)
        step += 1
    return model.eval()


def log_probabilities(text: Tensor) -> Tensor:
    """Log-probabilities of each byte, given those before it in its row."""
    if not LOADED:
        model = Model().eval()
        model.load_state_dict(torch.load(HERE / "model.pt"))
        LOADED.append(model)
    return LOADED[0](text)


if __name__ == "__main__":
    trained = train(HERE / "train.txt", 2 * SECONDS)
    torch.save(trained.state_dict(), HERE / "model.pt")
