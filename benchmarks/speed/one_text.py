"""How fast one text could be written: ours, a step by hand, the same compiled, its products alone.

python -m benchmarks.speed.one_text   two minutes, one of them for the compiler (C++)

The step by hand is written for one model: no modules, no choice, tensors that keep their shapes.
It writes the same text. 0.8 means that the work takes 0.8 times as long as ours.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.rows import OURS, Row, translator
from minitransformer import DecoderLayer, LayerNorm, Transformer, fast, generate

Step = Callable[[Tensor, Tensor, Tensor, list[Tensor]], Tensor]
LENGTH = 64
BOS = 1
FIRST_WORD = 3
"""The ids below are padding, the beginning and the end: until its end no text contains them."""


def transposed(*maps: torch.nn.Linear) -> tuple[Tensor, Tensor]:
    """Bias (out) and weight (in, out) of linear maps of the same vectors, as `addmm` wants them."""
    weight = torch.cat([part.weight.detach() for part in maps]).T.contiguous()
    return torch.cat([part.bias.detach() for part in maps]), weight


class ByHand:
    """A translator's decoder as plain operations, its weights turned, for one source."""

    def __init__(self, model: Transformer, src: Tensor) -> None:
        self.model, self.config = model, model.config
        self.vectors = model.tgt_embedding.weight.detach()
        self.score = self.vectors[FIRST_WORD:].T.contiguous()
        self.positions = model.positions.table
        memory, _ = model.encode(src)
        self.layers = [self.weights_of(layer, memory) for layer in model.decoder.layers]

    def weights_of(self, layer: DecoderLayer, memory: Tensor) -> tuple[object, ...]:
        """Products, norms, and the keys and values of the source."""
        own, cross, network = layer.self_attention, layer.cross_attention, layer.feed_forward
        products = [(own.w_q, own.w_k, own.w_v), (own.w_o,), (cross.w_q,), (cross.w_o,)]
        products += [(network.w_1,), (network.w_2,)]
        residuals = (layer.residual_1, layer.residual_2, layer.residual_3)
        source = [cross.split_heads(part(memory)).contiguous() for part in (cross.w_k, cross.w_v)]
        norms = [norm_of(residual.norm) for residual in residuals]
        return [transposed(*maps) for maps in products], norms, source

    def caches(self) -> list[Tensor]:
        """Room for keys and values of the whole text, (2, 1, h, length, e) for each layer."""
        h, e = self.config.num_heads, self.config.d_model // self.config.num_heads
        return [torch.zeros(2, 1, h, LENGTH, e) for _ in self.layers]

    def step(self, token: Tensor, position: Tensor, seen: Tensor, caches: list[Tensor]) -> Tensor:
        """The next token, (1,), after this one at this position, both (1,) int64."""
        heads, d = self.config.num_heads, self.config.d_model
        x = F.embedding(token, self.vectors) * d**0.5 + self.positions.index_select(0, position)
        for (products, norms, source), cache in zip(self.layers, caches, strict=True):
            project, mix, ask, mix_source, widen, narrow = products
            new = torch.addmm(project[0], x, project[1]).view(1, 3, heads, 1, d // heads)
            cache.index_copy_(3, position, new[:, 1:].transpose(0, 1))
            read = F.scaled_dot_product_attention(new[:, 0], *cache, attn_mask=seen)
            x = torch.layer_norm(x + torch.addmm(mix[0], read.view(1, d), mix[1]), *norms[0])
            query = torch.addmm(ask[0], x, ask[1]).view(1, heads, 1, d // heads)
            read = F.scaled_dot_product_attention(query, *source).view(1, d)
            x = torch.layer_norm(x + torch.addmm(mix_source[0], read, mix_source[1]), *norms[1])
            inner = torch.addmm(widen[0], x, widen[1]).relu()
            x = torch.layer_norm(x + torch.addmm(narrow[0], inner, narrow[1]), *norms[2])
        return (x @ self.score).argmax(dim=-1) + FIRST_WORD

    def products(self) -> None:
        """Nothing but the products of one step."""
        x, wide = torch.ones(1, self.config.d_model), torch.ones(1, self.config.d_ff)
        for products, _, _ in self.layers:
            for bias, weight in products:
                torch.addmm(bias, x if weight.size(0) == x.size(1) else wide, weight)
        x @ self.score

    def write(self, step: Step) -> Tensor:
        """A text of `LENGTH` tokens."""
        token, caches, ids = torch.tensor([BOS]), self.caches(), []
        for position in torch.arange(LENGTH)[:, None]:
            token = step(token, position, torch.arange(LENGTH)[None] <= position, caches)
            ids.append(token)
        return torch.cat(ids)


def norm_of(norm: LayerNorm) -> tuple[object, ...]:
    """What `torch.layer_norm` wants after the vectors."""
    return norm.weight.shape, norm.weight.detach(), norm.bias.detach(), norm.eps


def main() -> None:
    parser = argparse.ArgumentParser(description="The limits of writing one text.")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = translator(256, 3).eval()
    src = torch.randint(5, 8192, (1, 24), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        by_hand = ByHand(model, src)
        compiled = torch.compile(by_hand.step, fullgraph=True, dynamic=False)
        options = {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH}
        ours = generate(model, src, **options)[0]
        for step in (by_hand.step, compiled):
            same = torch.equal(by_hand.write(step), ours[-LENGTH:])
            print(f"the same text: {same}")
        calls: dict[str, Callable[[], object]] = {
            OURS: partial(generate, fast.prepare(model), src, **options),
            "the modules": partial(generate, model, src, **options),
            "a step by hand": partial(by_hand.write, by_hand.step),
            "the same, compiled": partial(by_hand.write, compiled),
            "its products alone": lambda: [by_hand.products() for _ in range(LENGTH)],
        }
        row = Row("one text", calls).measure(args.rounds)
    print(f"torch {torch.__version__}, one thread, {args.rounds} rounds")
    for name, ratio in row.medians().items():
        print(f"{name:<20} {ratio:.2f}")


if __name__ == "__main__":
    main()
